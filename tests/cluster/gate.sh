# shellcheck shell=bash disable=SC2154,SC2034
# Checks of `mcr gate`. tests/cluster/run reads this file after node.sh. The numbers of the checks refer to README.md
# in this directory.

# --- tools ----------------------------------------------------------------------------------------------------------

# Starts the daemons of n1 and n2, which use the gate of n5. The gate runs as the user `daemon`.
start_gate() {
    local node
    rm -f "$work/log/mcr-gate.n5" # the log of another check
    cluster_file='[node]\ngates = ["n5:7117"]\n' start_daemons n1 n2
    root_on n5 install -d -o daemon -m 755 /etc/mcr/gate
    root_on n5 setpriv --reuid=daemon --regid=daemon --clear-groups /shared/bin/mcr cert init --dir /etc/mcr/gate
    root_on n5 cp /etc/mcr/gate/cluster.pem /shared/gate.pem
    for node in n1 n2; do root_on $node install -D -m 644 /shared/gate.pem /etc/mcr/gate/cluster.pem; done
    "$bed" exec "$work" n5 sh -c "export MCR_LOG=debug MCR_CLUSTER=/shared/cluster.toml MCR_GATE_USER=daemon
        setsid /shared/bin/mcr node </dev/null >/bed/log/mcr-node.n5 2>&1 &"
    wait_for 20 "$bed" exec "$work" n5 test -S /run/mcr/socket
    root_on n5 install -d -o daemon -m 700 /var/lib/mcr-gate
    "$bed" exec "$work" n5 sh -c "export MCR_CLUSTER=/shared/cluster.toml; setsid setpriv --reuid=daemon --regid=daemon \
        --clear-groups --inh-caps=-all /shared/bin/mcr gate </dev/null >/bed/log/mcr-gate.n5 2>&1 &"
    wait_for 20 grep -q "gate listens" "$work/log/mcr-gate.n5"
}
stop_gate() {
    root_on n5 pkill -f 'mcr gate'
    stop_daemons n1 n2 n5
}

# --- checks ---------------------------------------------------------------------------------------------------------

# Check 44. Node n5 is an aggregator node.
two_users_use_aggregators_behind_a_gate_on_another_node() {
    local name=${FUNCNAME[0]} jobs=() node pid uids=()
    start_gate
    submit_for_both "$name" 6
    wait_for 60 two_workers_on n5
    for pid in $(workers n5); do uids+=("$(root_on n5 stat -c %u "/proc/$pid")"); done
    [ "$(printf '%s\n' "${uids[@]}" | sort | xargs)" = "6001 6002" ] || fail "the aggregators belong to ${uids[*]}"
    pid=$(root_on n5 pgrep -f '^[^ ]*mcr gate$')
    root_on n5 grep -qE 'CapEff:\s0+$' "/proc/$pid/status" || fail "the gate has capabilities"
    for node in n1 n2; do
        ! root_on $node ss -Hlntup | grep '"mcr"' || fail "mcr listens on $node"
        [ "$(root_on $node mcr job list | grep -c ' gates: n5:7117$')" = 2 ] || fail "$(root_on $node mcr job list)"
    done
    both_users_have_their_own_files "$name" "${jobs[@]}"
    wait_for 20 no_worker n5
    [ "$(grep -c "the agents of all nodes of the job have left" "$(node_log n5)")" = 2 ] || fail "see the log of n5"
    # The daemon refuses a request of the gate if alice sends the request.
    # shellcheck disable=SC2016 # perl's variables
    pid=$("$bed" as "$work" alice n5 sh -c 'echo "{\"certificates\":{\"uid\":6002}}" |
        perl -MIO::Socket::UNIX -e '"'"'$s = IO::Socket::UNIX->new(Peer => "/run/mcr/socket") or die; print $s <STDIN>;
        print scalar <$s>'"'"'')
    [[ $pid = *"may not start aggregators"* ]] || fail "mcr node answers alice: $pid"
    no_drain
    stop_gate
}
two_workers_on() { [ "$(workers "$1" | wc -l)" = 2 ]; } # NODE

# Check 45. The job and its aggregator run on one node.
a_gate_under_systemd_starts_an_aggregator_as_the_user_of_the_job() {
    local work=$work/gate unit
    "$bed" check --systemd || skip "no systemd"
    mkdir -p "$work/shared/bin" "$work/units"
    cp "$MCR" "$work/shared/bin/mcr"
    for unit in "$root"/deploy/systemd/*; do
        sed 's|/usr/bin/mcr|/shared/bin/mcr|' "$unit" >"$work/units/${unit##*/}"
    done
    mkdir "$work/units/mcr-node.service.d"
    printf '[Service]\nEnvironment=MCR_GATE_USER=mcr\n' >"$work/units/mcr-node.service.d/gate.conf"
    # shellcheck disable=SC2064 # this directory
    trap "'$bed' down '$work'" EXIT
    "$bed" up "$work" 1 --systemd --units "$work/units" || skip "systemd does not start"
    begin "${FUNCNAME[0]}"
    user_file
    as_user mcr cert init
    root_on n1 useradd --system --home-dir / --shell /usr/sbin/nologin mcr
    root_on n1 install -d -o mcr -g mcr -m 755 /etc/mcr/gate
    root_on n1 setpriv --reuid=mcr --regid=mcr --clear-groups /shared/bin/mcr cert init --dir /etc/mcr/gate
    root_on n1 sh -c 'printf "[node]\ngates = [\"n1:7117\"]\n" >/etc/mcr/mcr.toml'
    root_on n1 systemctl start mcr-node.socket mcr-gate.service ||
        fail "$(root_on n1 journalctl -u mcr-gate --no-pager)"
    "$bed" as "$work" alice n1 env -C "$home" SLURM_JOB_ID=7101 SLURM_NTASKS=1 \
        sh -c 'echo data >step_000001.rank_0.bin; exec timeout 50 sleep 40' &
    hook n1 begin 7101 6001
    wait_for 30 two_workers_on n1
    wait_for 30 is_committed 1
    root_on n1 systemctl restart mcr-gate
    [ -z "$(hook n1 end 7101 6001)" ] || fail "$(root_on n1 journalctl --no-pager)"
    wait_for 30 no_worker n1
    expect_newest 1
}

# Check 47.
commands_need_no_options_in_a_job_whose_aggregator_is_behind_a_gate() {
    start_gate
    commands_need_no_options_in_a_job "${FUNCNAME[0]}" 'n5:[0-9]+'
    grep -q "an aggregator was started" "$work/log/mcr-gate.n5" || fail "the job did not use the gate"
    wait_for 20 no_worker n5
    stop_gate
}
