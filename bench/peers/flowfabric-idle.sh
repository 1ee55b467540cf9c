#!/bin/sh
# What our own idle workers cost a Valkey server, measured from outside as it is for the others. PEER_BENCH is our ff-bench.
system=FlowFabric
. "$(dirname "$0")/start.sh"
[ -x "${PEER_BENCH:-}" ] || skip "PEER_BENCH does not name our ff-bench"
start_valkey
seconds=${PEER_IDLE_SECONDS:-10}
case ",${PEER_SCENARIOS:-idle}," in *,idle,*) ;; *) exit 0 ;; esac

commands() {
    valkey-cli -p "$PEER_PORT" info commandstats | awk -F '[=,]' '/^cmdstat_/ && !/^cmdstat_info:/ { sum += $2 } END { print sum + 0 }'
}

rates=""
for repetition in $(seq "${PEER_REPETITIONS:-1}"); do
    say "idle, $repetition of ${PEER_REPETITIONS:-1}"
    valkey-cli -p "$PEER_PORT" flushall >&2
    # Its own two seconds of settling and ours, then the window, then some to spare.
    timeout "$((seconds + 60))" "$PEER_BENCH" idle --store "valkey://127.0.0.1:$PEER_PORT" --workers "${PEER_WORKERS:-16}" \
        --seconds "$((seconds + 4))" --json >/dev/null 2>&1 &
    idling=$!
    servers="$idling $servers"
    sleep 4
    before=$(commands)
    sleep "$seconds"
    after=$(commands)
    kill -0 "$idling" 2>/dev/null || fail "our workers ended before the window did"
    wait "$idling" || fail "our workers failed"
    rates="$rates $(awk "BEGIN { printf \"%.2f\", ($after - $before) / $seconds }")"
done
middle=$(printf '%s\n' $rates | sort -n | sed -n "$(((${PEER_REPETITIONS:-1} + 1) / 2))p")
printf '{"system":"%s","version":"%s","scenario":"idle","store":"Valkey","durability":"%s","repetitions":%s,"rate":%s,"rates":[%s],"unit":"commands/s","note":"%s idle workers for %s s, every command the server counts"}\n' \
    "$system" "${PEER_OUR_VERSION:-}" "$PEER_DURABILITY" "${PEER_REPETITIONS:-1}" "$middle" "$(echo $rates | tr ' ' ',')" "${PEER_WORKERS:-16}" "$seconds"
