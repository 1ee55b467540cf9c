#!/bin/sh
# The limit of the store: how many function calls a second Valkey itself carries out, with nobody else at work.
system="Valkey alone"
. "$(dirname "$0")/start.sh"
start_valkey
need valkey-benchmark

case ",${PEER_SCENARIOS:-limit}," in *,limit,*) ;; *) exit 0 ;; esac

# The least a guarded commit can be: compare a version, change nothing. And one of 15 commands, about what a real one needs.
valkey-cli -p "$PEER_PORT" -x function load >&2 <<'LUA'
#!lua name=limit
server.register_function('limit_empty', function(keys, args)
    return server.call('HGET', keys[1], 'version') == args[1]
end)
server.register_function('limit_full', function(keys, args)
    if server.call('HGET', keys[1], 'version') ~= args[1] then return 0 end
    for write = 1, 5 do
        server.call('HSET', keys[1], 'body', args[2])
        server.call('ZADD', keys[2], write, args[2])
    end
    for write = 1, 4 do server.call('ZREM', keys[2], args[2]) end
    return 1
end)
LUA
valkey-cli -p "$PEER_PORT" hset '{limit}:document' version 1 >&2

calls=${PEER_CALLS:-200000}
# NAME PIPELINED NOTE COMMAND...
limit() {
    name=$1 pipelined=$2 note=$3
    shift 3
    rates=""
    for repetition in $(seq "${PEER_REPETITIONS:-1}"); do
        say "$name, $repetition of ${PEER_REPETITIONS:-1}"
        answer=$(valkey-benchmark -p "$PEER_PORT" -n "$calls" -c 50 -P "$pipelined" --csv "$@" | tail -n 1 | sed 's/.*",*"\([0-9.]*\)","[0-9.]*","[0-9.]*","[0-9.]*","[0-9.]*","[0-9.]*","[0-9.]*"$/\1/')
        rates="$rates $answer"
    done
    middle=$(printf '%s\n' $rates | sort -n | sed -n "$(((${PEER_REPETITIONS:-1} + 1) / 2))p")
    printf '{"system":"%s","version":"%s","scenario":"limit","variant":"%s","store":"%s","durability":"%s","repetitions":%s,"rate":%s,"rates":[%s],"unit":"calls/s","note":"%s"}\n' \
        "$system" "${PEER_STORE#Valkey }" "$name" "$PEER_STORE" "$PEER_DURABILITY" "${PEER_REPETITIONS:-1}" "$middle" "$(echo $rates | tr ' ' ',')" "$note"
}

limit "empty commit" 1 "$calls calls of a function that compares a version, 50 connections, one call at a time each" \
    fcall limit_empty 1 '{limit}:document' 1
limit "empty commit, pipelined" 16 "$calls calls of a function that compares a version, 50 connections, 16 calls in flight each" \
    fcall limit_empty 1 '{limit}:document' 1
limit "15 commands, pipelined" 16 "$calls calls of a function that compares a version and does 14 more commands, 50 connections, 16 calls in flight each" \
    fcall limit_full 2 '{limit}:document' '{limit}:index' 1 0123456789012345678901234567890123456789012345678901234567890123
