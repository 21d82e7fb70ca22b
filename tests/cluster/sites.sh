#!/usr/bin/env bash
# Emulates two sites with several hosts on one machine, connected by a line, to test programs that span clusters.
#
#     NEAR=4 FAR=4 LAN=1000 WAN=100 TRUNK=400 DELAY_MS=5 tests/cluster/sites.sh COMMAND [ARGUMENT...]
#
# builds the sites, runs COMMAND in the root namespace, and removes the sites when COMMAND ends. The exit status is
# the status of COMMAND, or 77 with a message if this machine cannot emulate sites (no root, or a missing kernel
# feature). COMMAND gets these environment variables:
#   SITES_MPIRUN   the command that starts Open MPI on all hosts, one rank per host, site 0 first
#   SITES_TRUNK    a command that prints the bytes sent over the trunk so far, in each direction
#   SITES_TRUNK_COUNTER   a file like /proc/net/dev, a colon, and the card of site 0's router that is the trunk
#
#      h0 h1 ..  each host is a network namespace with two cards:        .. h1 h0
#       |lan|    lan (LAN Mbit/s, the switch of its site) and             |lan|
#      [switch]  wan (WAN Mbit/s, the router of its site)               [switch]
#       |wan|                                                             |wan|
#      [router]======= the trunk: TRUNK Mbit/s, DELAY_MS one way =======[router]
#
# Each card is a token bucket. A program sees only one address of each host, and routing chooses the card.
# The root namespace is not changed. Several emulations can run at the same time: names contain process numbers.
set -euo pipefail

: "${NEAR:=4}" "${FAR:=4}" "${LAN:=1000}" "${WAN:=100}" "${TRUNK:=400}" "${DELAY_MS:=0}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tag=ms$$ line=

skip() { echo "SKIPPED: emulated sites need $*" >&2; exit 77; }
[ $# -gt 0 ] || { sed -n '2,25p' "${BASH_SOURCE[0]}" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip root
for tool in ip tc mpirun; do command -v $tool >/dev/null || skip "the command $tool"; done
ip netns add "$tag-try" 2>/dev/null || skip "network namespaces"
ip netns del "$tag-try"
[ "$DELAY_MS" = 0 ] || [ -c /dev/net/tun ] || skip "/dev/net/tun, for a delay"

work=$(mktemp -d)
: >"$work/line"
remove() {
    local space process
    [ -z "$line" ] || kill "$line" 2>/dev/null || true
    for space in $(ip netns list | awk '{print $1}' | grep "^$tag-" || true); do
        for process in $(ip netns pids "$space"); do kill -9 "$process" 2>/dev/null || true; done
        ip netns del "$space"
    done
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 130' INT TERM

in_space() { local space=$1; shift; ip netns exec "$space" "$@"; }
space() { # NAME: a namespace with loopback, in which TCP saves no metrics and does not slow down after a pause
    ip netns add "$1"
    ip -n "$1" link set lo up
    # shellcheck disable=SC2016 # the inner shell expands these words
    in_space "$1" sh -c 'cd /proc/sys/net; echo 1 >ipv4/tcp_no_metrics_save; echo 0 >ipv4/tcp_slow_start_after_idle
        echo 1 >ipv4/ip_forward; for k in all default lo; do echo 1 >ipv6/conf/$k/disable_ipv6; done' 2>/dev/null || true
}
cable() { # SPACE DEVICE SPACE DEVICE
    ip -n "$1" link add "$2" type veth peer name "$4" netns "$3"
    ip -n "$1" link set "$2" up
    ip -n "$3" link set "$4" up
}
shape() { # SPACE DEVICE MBIT: a bucket of 4 ms, at least 16 KiB; a queue of 20 ms, at least 128 KiB
    local bucket=$(($3 * 500)) queue
    [ $bucket -ge 16384 ] || bucket=16384
    queue=$(($3 * 2500 + bucket))
    [ $queue -ge 131072 ] || queue=131072
    in_space "$1" tc qdisc replace dev "$2" root tbf rate "$3mbit" burst $bucket limit $queue
}

for site in 0 1; do space "$tag-s$site"; space "$tag-r$site"; done
for site in 0 1; do
    ip -n "$tag-s$site" link add name switch type bridge
    ip -n "$tag-s$site" link set switch up
    hosts=$NEAR other=1
    [ $site = 0 ] || { hosts=$FAR other=0; }
    for ((h = 0; h < hosts; h++)); do
        host=$tag-$site-$h address=10.77.$site.$((h + 1))
        up=10.78.$site.$((4 * h + 1)) down=10.78.$site.$((4 * h + 2))
        space "$host"
        cable "$host" lan "$tag-s$site" "p$h"
        ip -n "$tag-s$site" link set "p$h" master switch
        cable "$host" wan "$tag-r$site" "p$h"
        ip -n "$host" addr add "$address/24" dev lan
        ip -n "$host" addr add "$down/30" dev wan
        ip -n "$tag-r$site" addr add "$up/30" dev "p$h"
        ip -n "$host" route add 10.77.$other.0/24 via "$up" src "$address"
        ip -n "$tag-r$site" route add "$address/32" via "$down"
        shape "$host" lan "$LAN"; shape "$tag-s$site" "p$h" "$LAN"
        shape "$host" wan "$WAN"; shape "$tag-r$site" "p$h" "$WAN"
        echo "$address slots=1" >>"$work/hosts"
    done
done

if [ "$DELAY_MS" = 0 ]; then
    cable "$tag-r0" trunk "$tag-r1" trunk
    for site in 0 1; do
        ip -n "$tag-r$site" addr add 10.79.0.$((site + 1))/30 dev trunk
        ip -n "$tag-r$site" route add 10.77.$((1 - site)).0/24 via 10.79.0.$((2 - site))
    done
else # the token bucket comes before the delay, so that the bucket can slow down a sender
    cc -O2 -pthread -o "$work/delay" "$here/delay.c"
    for site in 0 1; do
        space "$tag-w$site"
        cable "$tag-r$site" trunk "$tag-w$site" near
        ip -n "$tag-r$site" addr add 10.79.$((site + 1)).1/30 dev trunk
        ip -n "$tag-w$site" addr add 10.79.$((site + 1)).2/30 dev near
    done
    "$work/delay" "$tag-w0" "$tag-w1" "$(awk "BEGIN{print int($DELAY_MS * 1000)}")" >"$work/line" &
    line=$!
    for ((i = 0; i < 500; i++)); do ! grep -q READY "$work/line" || break; sleep 0.02; done
    for site in 0 1; do
        ip -n "$tag-w$site" addr add 10.79.0.$((site + 1))/30 dev line
        ip -n "$tag-w$site" link set line up txqueuelen 1000
        ip -n "$tag-w$site" route add 10.77.$((1 - site)).0/24 via 10.79.0.$((2 - site))
        ip -n "$tag-w$site" route add 10.77.$site.0/24 via 10.79.$((site + 1)).1
        ip -n "$tag-r$site" route add 10.77.$((1 - site)).0/24 via 10.79.$((site + 1)).2
    done
fi
for site in 0 1; do shape "$tag-r$site" trunk "$TRUNK"; done
# Use every path once, so that no measurement includes an address lookup. Each host refuses the connection to port 9,
# because no program listens on this port.
for ((h = 0; h < FAR; h++)); do
    answer=$(in_space "$tag-0-0" timeout 5 bash -c "exec 3<>/dev/tcp/10.77.1.$((h + 1))/9" 2>&1 || true)
    [[ $answer == *refused* ]] || { echo "no path to host $h of site 1: $answer" >&2; exit 1; }
done

# Open MPI uses this script as ssh and calls it with an address and a command. Each host has a different host name.
cat >"$work/agent" <<END
#!/bin/bash
while [[ "\${1:-}" == -* ]]; do shift; done
IFS=. read -r _ _ site host <<<"\$1"
shift
exec ip netns exec "$tag-\$site-\$((host - 1))" unshare --uts sh -c 'hostname "\$0"; exec sh -c "\$*"' "site\$site-\$((host - 1))" "\$@"
END
cat >"$work/mpirun" <<END
#!/bin/bash
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
exec ip netns exec "$tag-0-0" unshare --uts sh -c 'hostname site0-0; exec "\$0" "\$@"' mpirun --hostfile "$work/hosts" \\
    --map-by node --bind-to none --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self \\
    --mca btl_tcp_if_include 10.77.0.0/16 --mca oob_tcp_if_include 10.77.0.0/16 --mca pml ob1 \\
    --mca btl_base_warn_component_unused 0 "\$@"
END
cat >"$work/trunk" <<END
#!/bin/bash
for site in 0 1; do ip netns exec "$tag-r\$site" cat /sys/class/net/trunk/statistics/tx_bytes; done | xargs
END
chmod +x "$work"/{agent,mpirun,trunk}
# The counters of a namespace are readable from each namespace by the process number of a process in it.
ip netns exec "$tag-r0" sleep infinity </dev/null >/dev/null 2>&1 &
counter=/proc/$!/net/dev:trunk
disown # no message when the process is killed
SITES_MPIRUN=$work/mpirun SITES_TRUNK=$work/trunk SITES_TRUNK_COUNTER=$counter "$@"
