#!/bin/sh
# BullMQ on Valkey.
system=BullMQ
. "$(dirname "$0")/start.sh"
install_npm bullmq ioredis
start_valkey
valkey_with --appendonly yes --appendfsync everysec
export PEER_EVERYSEC_PORT="$port"
valkey_with --appendonly no
export PEER_REPLICATED_PORT="$port"
valkey_with --appendonly no --replicaof 127.0.0.1 "$port"
run node bullmq.mjs
