#!/bin/sh
# Our own Python SDK on Valkey: one worker process, beside the one that submits. PEER_FF is our ff.
system="FlowFabric Python"
. "$(dirname "$0")/start.sh"
[ -x "${PEER_FF:-}" ] || skip "PEER_FF does not name our ff"
install_pypi httpx pydantic
# Unlike the others it changes with this repository.
"$place/python/bin/pip" install --quiet --force-reinstall --no-deps "$here/../../sdks/python" >"$place/install.log" 2>&1 \
    || skip "pip could not install our own package"
start_valkey
start_flowfabric
run python/bin/python flowfabric-python_peer.py
