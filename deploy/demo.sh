#!/usr/bin/env bash
# Shows on this machine, in half a minute, what mcrEngine does: `make demo`, or deploy/demo.sh [--daemons].
#
#   --daemons   use an aggregator and two agents (each with the ranks of one node), not `mcr run`
#
# The demo needs no root, no MPI and no fixed port, and removes its files. MCR and HEAT may name a built `mcr` and a
# built example `heat`; otherwise the script builds both.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=8 group_size=4 steps=240 every=40 step_ms=50
daemons=no
case ${1-} in
    '') ;;
    --daemons) daemons=yes ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

# ---- small tools -----------------------------------------------------------------------------------------------------

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
step() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
say() { printf '   %s\n' "$@"; }
run() { printf '   %s$ %s%s\n' "$bold" "${*//$work/\$WORK}" "$plain"; "$@" | sed 's/^/   /'; }
fail() { # prints the last log lines of the daemons and of the command, then the reason
    for log in "$work"/{mcr,anc,cnc,save,restart}*.log; do
        [ -s "$log" ] && { printf -- '---- the end of %s\n' "${log##*/}"; tail -n 15 "$log"; } >&2
    done
    printf '\ndemo: %s\n' "$*" >&2
    exit 1
}
files_of() { find "$@" -type f | wc -l; }
bytes_of() { find "$@" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%d", sum }'; }
human() { numfmt --to=iec-i --suffix=B --format='%.1f' "$1"; }
gzipped() { tar -C "$1" -cf - . | gzip -c | wc -c; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

started=() # process ids of the background processes
background() { # LOG COMMAND...: starts COMMAND and writes its output to LOG
    local log=$1
    shift
    "$@" >>"$log" 2>&1 </dev/null &
    started+=($!)
}
kill_now() { # sends SIGKILL to all processes at the same time
    kill -9 "$@" 2>/dev/null || true
    wait "$@" 2>/dev/null || true
}
work=$(mktemp -d "${TMPDIR:-/tmp}/mcr-demo.XXXXXX")
cleanup() {
    trap - EXIT INT TERM
    [ ${#started[@]} -eq 0 ] || kill_now "${started[@]}"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# A checkpoint exists if and only if the manifests of all its groups exist. (`mcr list` also checks their contents.)
groups=$(((ranks + group_size - 1) / group_size))
committed() { # prints the names of the committed checkpoints, oldest first
    local dir
    for dir in "$work"/store/heat/*/; do
        if [ "$(find "$dir" -name 'group-*.manifest' 2>/dev/null | wc -l)" -ge $groups ]; then basename "$dir"; fi
    done | sort -V
}
wait_for() { # SECONDS WHAT TEST...: waits until TEST succeeds
    local until=$((SECONDS + $1)) what=$2 pid
    shift 2
    until "$@"; do
        [ $SECONDS -lt $until ] || fail "no $what in time"
        for pid in "${daemon_pids[@]}"; do
            kill -0 "$pid" 2>/dev/null || fail "a daemon ended while waiting for the $what"
        done
        sleep 0.1
    done
}
has_committed() { committed | grep -qx -- "$1"; }
any_committed() { [ -n "$(committed)" ]; }

# ---- the application, the daemons, the comparison --------------------------------------------------------------------

# Each node has its own directory; with --daemons there are two nodes, otherwise one.
nodes=1
[ $daemons = no ] || nodes=2
per_node=$((ranks / nodes))
layout='heat.{checkpoint}.rank_{rank}.h5'
node_dir() { if [ $nodes -eq 1 ]; then echo "$work/run"; else echo "$work/run/node-$1"; fi; }

mcr() { "$MCR" "$@"; }

# The aggregator listens on a port that the system picks. The log of the aggregator shows the port.
address_in() { sed -n 's/.*aggregator listens.* address=\([0-9.:]*\).*/\1/p' "$1" 2>/dev/null | tail -n 1; }
has_address() { [ -n "$(address_in "$1")" ]; }

start_daemons() { # sets $daemon_pids
    local node first=${#started[@]}
    for node in $(seq 0 $((nodes - 1))); do mkdir -p "$(node_dir "$node")"; done
    mkdir -p "$work/state"
    if [ $daemons = no ]; then
        background "$work/mcr-run.log" "$MCR" run --watch "$work/run" --store "$work/store" --job heat \
            --ranks $ranks --group-size $group_size --layout "$layout" --state "$work/state/heat"
        daemon_pids=("${started[@]:first}")
        return
    fi
    cat >"$work/anc.toml" <<END
[anc]
store = "$work/store"
listen = "127.0.0.1:0"
group-size = $group_size
END
    rm -f "$work/anc.log"
    background "$work/anc.log" "$MCR" anc --config "$work/anc.toml"
    daemon_pids=("${started[@]:first}")
    wait_for 30 "aggregator's address" has_address "$work/anc.log"
    for node in $(seq 0 $((nodes - 1))); do
        cat >"$work/cnc-$node.toml" <<END
[cnc]
job = "heat"
node = "node-$node"
watch = "$(node_dir "$node")"
layout = "$layout"
ranks = $ranks
group-size = $group_size
aggregators = ["$(address_in "$work/anc.log")"]
state-file = "$work/state/heat-$node"
END
        background "$work/cnc-$node.log" "$MCR" cnc --config "$work/cnc-$node.toml"
    done
    daemon_pids=("${started[@]:first}")
}

same_state() { # prints the line with the digest of the final state
    grep '^final state' "$1"
}

# ---- the demo --------------------------------------------------------------------------------------------------------

step "0. Building"
if [ -z "${MCR-}" ] || [ -z "${HEAT-}" ]; then
    # `make test` uses these files too, because the profile and the packages are the same.
    cargo build --locked --workspace --bin mcr --example heat
    target=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    MCR=$target/debug/mcr HEAT=$target/debug/examples/heat
fi
MCR=$(realpath "$MCR") HEAT=$(realpath "$HEAT")
mkdir -m 700 "$work/sockets" "$work/store" "$work/run"
say "mcr:  $MCR ($(human "$(stat -c %s "$MCR")"))" "heat: $HEAT"
begin=$SECONDS
# The application contains no code for mcrEngine.
heat=("$HEAT" --launch "$ranks" --rendezvous "$work/sockets" --steps "$steps" --checkpoint-every "$every")
heat_on_nodes=("${heat[@]}" --dir "$work/run")
[ $nodes -eq 1 ] || heat_on_nodes+=(--ranks-per-node "$per_node")

step "1. The application runs without failures and without mcrEngine"
say "$ranks processes solve a heat equation in $steps steps." \
    "Every $every steps, each process writes an HDF5 checkpoint." \
    "The application is not linked against mcrEngine."
"${heat[@]}" --dir "$work/reference" >"$work/reference.log" 2>&1 || fail "the simulation failed"
sed 's/^/   /' "$work/reference.log"
say "Remember this digest: it covers every bit of the final state."

step "2. The same simulation, now with mcrEngine"
if [ $daemons = no ]; then
    say "mcr run watches the directory of the application. This process is agent and aggregator:" \
        "\$ mcr run --watch run --store store --job heat --ranks $ranks --group-size $group_size --layout '$layout'"
else
    say "One aggregator (mcr anc) runs. On each of $nodes nodes an agent (mcr cnc) watches the directory of the node."
fi
say "Groups of $group_size ranks: each group's $group_size files become one container in the store. (Slowed down to watch.)"
start_daemons
background "$work/simulation.log" "${heat_on_nodes[@]}" --step-ms $step_ms
simulation=${started[-1]}
wait_for 30 "committed checkpoint" any_committed
sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.2f", 4 * r / 32767 }')"
kill -0 "$simulation" 2>/dev/null || fail "the simulation ended before it could be killed"

step "3. A power failure: kill -9 ends all processes, and the node's disk is lost"
kill_now "$simulation" "${daemon_pids[@]}"
started=()
say "The simulation had reached: $(tail -n 1 "$work/simulation.log")" \
    "Files it left, some perhaps half written: $(files_of "$work/run")"
rm -rf "$work/run" "$work/state"
say "All files of the checkpoints are lost now. In the store:"
run mcr list --store "$work/store" --job heat

step "4. One command restores the newest complete checkpoint"
newest=$(committed | tail -n 1)
for node in $(seq 0 $((nodes - 1))); do
    to=$(node_dir "$node")
    mkdir -p "$to"
    if [ $nodes -eq 1 ]; then
        run mcr restart --store "$work/store" --job heat --to "$to" || fail "the restart failed"
    else
        first=$((node * per_node))
        run mcr restart --store "$work/store" --job heat --to "$to" --ranks "$first-$((first + per_node - 1))" \
            || fail "the restart failed"
    fi
done
compared=0
while read -r file; do
    cmp "$file" "$work/reference/${file##*/}" || fail "$file is not what the application wrote"
    compared=$((compared + 1))
done < <(find "$work/run" -name 'heat.*.h5')
[ $compared -eq $ranks ] || fail "the restart restored $compared files, but the checkpoint has $ranks files"
say "All $compared files are equal, byte for byte, to the files that the first run wrote for ${newest}."

step "5. The simulation and the daemons continue from this checkpoint to the end"
start_daemons
"${heat_on_nodes[@]}" --restart >"$work/resumed.log" 2>&1 || fail "the resumed simulation failed"
sed 's/^/   /' "$work/resumed.log"
same_state "$work/reference.log" >"$work/expected"
same_state "$work/resumed.log" | cmp -s - "$work/expected" || fail "the final state differs from the first run"
say "${bold}The final state equals the final state of the first run, bit for bit.${plain}"

step "6. Space and files used"
wait_for 60 "commit of the last checkpoint" has_committed "$(printf 'it_%06d' $steps)"
kill -TERM "${daemon_pids[@]}"
wait "${daemon_pids[@]}" || fail "a daemon did not end well"
started=()
written=0 raw=0 zipped=0 count=0
for id in $(committed); do
    mapfile -t files < <(find "$work/reference" -name "heat.${id%%~*}.rank_*.h5")
    count=$((count + 1)) written=$((written + ${#files[@]})) raw=$((raw + $(bytes_of "${files[@]}")))
    zipped=$((zipped + $(tar -C "$work/reference" -cf - "${files[@]##*/}" | gzip -c | wc -c)))
done
stored=$(bytes_of "$work/store")
containers=$(find "$work/store" -name '*.mcr' | wc -l)
row='   %-44s %7s %10s %7s\n'
# shellcheck disable=SC2059 # the format is a constant
{
    printf "$row" "$count checkpoints" files bytes ratio
    printf "$row" 'as the application wrote them' $written "$(human $raw)" 1.00
    printf "$row" 'tar | gzip of each checkpoint' $count "$(human $zipped)" "$(ratio $raw $zipped)"
    printf "$row" 'in the store (containers; bytes are of all)' "$containers" "$(human "$stored")" "$(ratio $raw "$stored")"
}

say "" "The last checkpoint: mcrEngine merges the same variable of all ranks of a group into a class," \
    "and compresses the class." \
    "The conductivity never changes, so only the first checkpoint stores it, and later checkpoints refer to it." \
    "(raw: bytes without the application's deflate filter. The agent removes this filter. A restart applies it again.)"
run mcr show --store "$work/store" --job heat

step "7. Checkpoints that real codes wrote"
say "mcr save DIR --store STORE saves each checkpoint without daemons. mcr restart restores it. All files are compared."
row='   %-38s %6s %10s %10s %10s %6s  %s\n'
# shellcheck disable=SC2059
printf "$row" 'set and dump' files bytes 'tar|gzip' stored ratio restored
for set in tests/data/checkpoints/*/; do
    job=$(basename "$set")
    for dump in "$set"*/; do
        before=$(bytes_of "$work/store")
        "$MCR" save "$dump" --store "$work/store" --job "$job" >"$work/save.log" 2>&1 || fail "saving $dump failed"
        stored=$(($(bytes_of "$work/store") - before)) raw=$(bytes_of "$dump")
        "$MCR" restart --copy --store "$work/store" --job "$job" --to "$work/back/$dump" >"$work/restart.log" 2>&1 \
            || fail "restoring $dump failed"
        diff -r -x '.mcr-*' "$dump" "$work/back/$dump" || fail "the restored files of $dump differ from the saved files"
        # shellcheck disable=SC2059
        printf "$row" "$job/$(basename "$dump")" "$(files_of "$dump")" "$(human "$raw")" \
            "$(human "$(gzipped "$dump")")" "$(human $stored)" "$(ratio "$raw" $stored)" identical
    done
done

step "Done in $((SECONDS - begin)) s after the build."
