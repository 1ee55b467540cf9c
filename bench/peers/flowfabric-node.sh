#!/bin/sh
# Our own TypeScript SDK on Valkey: one worker in the process that submits. PEER_FF is our ff.
system="FlowFabric Node"
. "$(dirname "$0")/start.sh"
[ -x "${PEER_FF:-}" ] || skip "PEER_FF does not name our ff"
need node npm
# Unlike the others it changes with this repository.
sdk="$here/../../sdks/typescript"
{ [ -d "$sdk/node_modules" ] || (cd "$sdk" && npm ci --no-audit --no-fund); } >"$place/install.log" 2>&1 \
    || skip "npm could not install the tools of our own package"
(cd "$sdk" && npm run build && npm pack --pack-destination "$place") >>"$place/install.log" 2>&1 || skip "our own package does not build"
(cd "$place" && npm install --prefix "$place" --no-package-lock --no-audit --no-fund --loglevel=error ./flowfabric-sdk-*.tgz) \
    >>"$place/install.log" 2>&1 || skip "npm could not install our own package"
start_valkey
start_flowfabric
run node flowfabric-node.mjs
