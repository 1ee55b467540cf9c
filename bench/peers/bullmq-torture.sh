#!/bin/sh
# BullMQ on Valkey while its workers and its Valkey are killed and stopped: what was acknowledged, and what became of it.
system=BullMQ
. "$(dirname "$0")/start.sh"
need valkey-server valkey-cli
install_npm bullmq ioredis
PEER_DATA=$data
PEER_PORT=$(free_port)
export PEER_DATA PEER_PORT
run node bullmq-torture.mjs
