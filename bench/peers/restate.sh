#!/bin/sh
# Restate: its server from its npm package, and services on its Node SDK.
system=Restate
. "$(dirname "$0")/start.sh"
install_npm @restatedev/restate-server @restatedev/restate-sdk @restatedev/restate-sdk-clients
PEER_INGRESS=$(free_port)
PEER_ADMIN=$(free_port)
PEER_FABRIC=$(free_port)
export PEER_INGRESS PEER_ADMIN
PEER_STORE="its own log"
PEER_DURABILITY="fsync, its default"
export PEER_STORE PEER_DURABILITY
server=$(ls -d "$place"/node_modules/@restatedev/restate-server-*/bin/restate-server 2>/dev/null | head -n 1)
[ -n "$server" ] || skip "its npm package has no server for this machine"
RESTATE_DISABLE_TELEMETRY=true RESTATE_LOG_FILTER=error \
    RESTATE_INGRESS__BIND_ADDRESS="127.0.0.1:$PEER_INGRESS" RESTATE_ADMIN__BIND_ADDRESS="127.0.0.1:$PEER_ADMIN" \
    RESTATE_LISTEN_MODE=tcp RESTATE_BIND_ADDRESS="127.0.0.1:$PEER_FABRIC" \
    "$server" --no-logo --node-name peer --base-dir "$data/restate" >"$place/server.log" 2>&1 &
servers="$! $servers"
healthy() { node -e 'fetch(`http://127.0.0.1:${process.env.PEER_ADMIN}/health`).then((a) => process.exit(a.ok ? 0 : 1), () => process.exit(1))'; }
await healthy
run node restate.mjs
