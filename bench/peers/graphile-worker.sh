#!/bin/sh
# graphile-worker on PostgreSQL.
system=graphile-worker
. "$(dirname "$0")/start.sh"
install_npm graphile-worker
start_postgres
run node graphile-worker.mjs
