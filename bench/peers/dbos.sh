#!/bin/sh
# DBOS on PostgreSQL.
system=DBOS
. "$(dirname "$0")/start.sh"
install_pypi dbos
start_postgres
run python/bin/python dbos_peer.py
