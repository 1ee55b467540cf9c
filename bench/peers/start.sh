# Sourced by the script of every peer: where the peer is installed, the servers it needs, and the end of them all.
# A script is called as `NAME.sh [FOLDER]`. It prints one JSON object a line; everything else goes to standard error.

set -eu

here=$(cd "$(dirname "$0")" && pwd)
peer=$(basename "$0" .sh)
mkdir -p "${1:-${PEERS_DIR:-$here/../../target/peers}}/$peer"
place=$(cd "${1:-${PEERS_DIR:-$here/../../target/peers}}/$peer" && pwd)
# Modules are looked up from the folder of their caller, so the work goes beside its packages.
cp "$here"/measure.* "$here/$peer"[._]* "$place/"
# What the servers write goes where temporary files go, as it does for our own scenarios, and is removed at the end.
data=$(mktemp -d "${TMPDIR:-/tmp}/peer-$peer-XXXXXX")
servers=""

# The work ends before its servers. A server that waits for something is asked again, and then killed.
stop() {
    trap - EXIT
    for pid in $servers; do
        kill -TERM "$pid" 2>/dev/null || continue
        for attempt in $(seq 25); do
            kill -0 "$pid" 2>/dev/null || continue 2
            [ "$attempt" != 15 ] || kill -INT "$pid" 2>/dev/null || true
            sleep 0.2
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$data"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { echo "$peer: $*" >&2; }

# A peer that cannot run here is a line that says so. The reason must be plain words: it is quoted as it is.
skip() {
    printf '{"system":"%s","skipped":"%s"}\n' "$system" "$*"
    exit 0
}

need() {
    for program in "$@"; do
        command -v "$program" >/dev/null 2>&1 || skip "there is no program $program"
    done
}

# The same for one that began and did not end well; what it printed before stays.
fail() {
    printf '{"system":"%s","failed":"%s"}\n' "$system" "$*"
    exit 1
}

# Packages are installed once; removing the folder makes the next run install the newest again.
install_npm() {
    need node npm
    [ -e "$place/installed" ] && return
    say "installing $*"
    (cd "$place" && npm install --prefix "$place" --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error "$@") \
        >"$place/install.log" 2>&1 || skip "npm could not install $*"
    touch "$place/installed"
}

install_pypi() {
    need python3
    [ -e "$place/installed" ] && return
    say "installing $*"
    { python3 -m venv "$place/python" && "$place/python/bin/pip" install --quiet "$@"; } \
        >"$place/install.log" 2>&1 || skip "pip could not install $*"
    touch "$place/installed"
}

free_port() {
    node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })' \
        2>/dev/null || python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Waits until a command succeeds.
await() {
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    skip "a server did not answer within 30 seconds: $1"
}

# A Valkey with these options more; its port is in $port.
valkey_with() {
    need valkey-server valkey-cli
    port=$(free_port)
    mkdir "$data/$port"
    valkey-server --bind 127.0.0.1 --port "$port" --save '' --dir "$data/$port" --logfile "$data/$port/valkey.log" "$@" >&2 &
    servers="$! $servers"
    await valkey-cli -p "$port" ping
}

# Valkey as our own scenarios start it: nothing is written to a disk.
start_valkey() {
    valkey_with --appendonly no
    PEER_STORE="Valkey $(valkey-server --version | sed 's/.*v=\([^ ]*\).*/\1/')"
    PEER_DURABILITY="none, persistence off"
    PEER_PORT=$port
    export PEER_STORE PEER_DURABILITY PEER_PORT
}

# Our own server on the Valkey that was started before.
start_flowfabric() {
    FF_SERVER="http://127.0.0.1:$(free_port)"
    "$PEER_FF" server --store "valkey://127.0.0.1:$PEER_PORT" --listen "${FF_SERVER#http://}" --log-level error >&2 &
    servers="$! $servers"
    export FF_SERVER
    await "$PEER_FF" ls
}

# PostgreSQL with its defaults, besides the number of connections. It refuses to run as root.
start_postgres() {
    programs=$(ls -d /usr/lib/postgresql/*/bin /usr/pgsql*/bin /opt/homebrew/opt/postgresql*/bin 2>/dev/null | sort -V | tail -n 1)
    [ -n "$programs" ] || programs=$(dirname "$(command -v postgres || echo /nowhere/postgres)")
    [ -x "$programs/initdb" ] || skip "there is no PostgreSQL server"
    as=""
    if [ "$(id -u)" = 0 ]; then
        need setpriv
        user=postgres
        id "$user" >/dev/null 2>&1 || user=nobody
        as="setpriv --reuid $user --regid $(id -g "$user") --clear-groups"
        chown "$user" "$data"
    fi
    port=$(free_port)
    # The server's own folder is the only one its user surely may enter.
    (cd "$data" && $as "$programs/initdb" --auth=trust --encoding=UTF8 --locale=C -U peer -D "$data/postgres") >/dev/null 2>&1 \
        || skip "initdb failed"
    (cd "$data" && exec $as "$programs/postgres" -D "$data/postgres" -p "$port" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories= -c max_connections=200 -c log_min_messages=fatal) >&2 &
    servers="$! $servers"
    await "$programs/pg_isready" -q -U peer -d postgres -h 127.0.0.1 -p "$port"
    PEER_STORE="PostgreSQL $("$programs/postgres" --version | sed 's/[^0-9]*\([0-9.]*\).*/\1/')"
    PEER_DURABILITY="fsync for every commit"
    PEER_URL="postgres://peer@127.0.0.1:$port/postgres"
    export PEER_STORE PEER_DURABILITY PEER_URL
}

# Runs the work, never for longer than it may take. Beside the shell, so that a signal to the shell is heeded at once.
run() {
    limit=${PEER_SECONDS_MAX:-900}
    cd "$place"
    PEER_SYSTEM=$system timeout --foreground -k 10 "$limit" "$@" &
    servers="$! $servers"
    wait $! && return
    code=$?
    [ "$code" != 124 ] || fail "it did not end within $limit seconds"
    fail "it ended with code $code"
}
