#!/bin/sh
# Celery on Valkey, as its broker and for its results.
system=Celery
. "$(dirname "$0")/start.sh"
install_pypi 'celery[redis]'
start_valkey
cd "$place"
# Its pool of processes is its default; 16 of them, as many as the other systems have workers.
python/bin/celery --app celery_tasks worker --concurrency "${PEER_WORKERS:-16}" --loglevel ERROR --hostname peer@localhost \
    >"$place/server.log" 2>&1 &
servers="$! $servers"
await python/bin/celery --app celery_tasks inspect ping --timeout 5
run python/bin/python celery_peer.py
