#!/bin/sh
# pg-boss on PostgreSQL.
system=pg-boss
. "$(dirname "$0")/start.sh"
install_npm pg-boss
start_postgres
run node pg-boss.mjs
