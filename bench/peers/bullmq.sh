#!/bin/sh
# BullMQ on Valkey.
system=BullMQ
. "$(dirname "$0")/start.sh"
install_npm bullmq ioredis
start_valkey
run node bullmq.mjs
