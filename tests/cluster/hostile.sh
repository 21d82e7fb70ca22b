# shellcheck shell=bash disable=SC2154,SC2034
# Checks with hostile processes of another user. tests/cluster/run reads this file after node.sh. The numbers of the
# checks refer to README.md in this directory.

# --- tools ----------------------------------------------------------------------------------------------------------

# Writes two programs for bob. `squat FIRST LAST` listens on these ports: every second port never answers, and the
# other ports answer with bytes without end. `flood HOST PORT SECONDS` makes connections to a port. The first bytes are
# wrong. In every tenth connection, bytes follow until the other side closes the connection.
hostile_programs() {
    cat >"$work/shared/bin/squat" <<'PERL'
#!/usr/bin/perl
use IO::Socket::INET;
use IO::Select;
$SIG{PIPE} = 'IGNORE';
my @listeners = map { IO::Socket::INET->new(LocalPort => $_, Listen => 64, ReuseAddr => 1) or die "$_: $!" }
    $ARGV[0] .. $ARGV[1];
$| = 1;
print "ready\n";
my ($select, @held) = IO::Select->new(@listeners);
while (1) {
    for my $listener ($select->can_read(0.01)) {
        my $client = $listener->accept or next;
        $client->blocking(0);
        push @held, $client;
    }
    syswrite $_, "\x16\x03\x03\x40\x00" x 1000 for grep { $_->connected && $_->sockport % 2 } @held;
}
PERL
    cat >"$work/shared/bin/flood" <<'PERL'
#!/usr/bin/perl
use IO::Socket::INET;
$SIG{PIPE} = 'IGNORE';
my $end = time + $ARGV[2];
my $count = 0;
while (time < $end) {
    my $socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 1) or next;
    my $wrote = syswrite $socket, "GET / HTTP/1.1\r\n\r\n";
    if (++$count % 10 == 0) { while ($wrote && time < $end) { $wrote = syswrite $socket, 'x' x 65536 } }
}
print "$count connections\n";
PERL
    chmod 755 "$work/shared/bin/"{squat,flood}
}

# --- checks ---------------------------------------------------------------------------------------------------------

# Check 49. Bob holds the first ports of the range on the node with alice's aggregator, and floods the aggregator's
# port from another node.
squatted_ports_and_floods_delay_no_session_lose_nothing_and_fill_no_log() {
    local squatter lines said
    hostile_programs
    start_daemons n1 n2
    "$bed" as "$work" bob n1 timeout 100 squat 7117 7136 >"$work/log/squat" & squatter=$!
    wait_for 10 grep -q ready "$work/log/squat"
    begin "${FUNCNAME[0]}"
    user_file
    job_script "srun /shared/bin/writer . 12"
    settings=()
    submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
    wait_for 60 has_begun 4
    wait_for 8 is_committed 1
    log_has n1 "aggregator listens address=0.0.0.0:7137" || fail "the aggregator does not listen on the first free port"
    said=$("$bed" as "$work" bob n3 timeout 30 flood n1 7137 5)
    echo "bob made $said"
    [ "${said%% *}" -gt 50 ] || fail "too few connections"
    await_end COMPLETED
    expect_newest 12
    [ "$(complete_checkpoints | wc -l)" = 12 ] || fail "not every step is complete"
    lines=$(grep -c 'WARN a connection is refused' "$(node_log n1)")
    echo "$lines lines about refused connections"
    [ "$lines" -ge 1 ] && [ "$lines" -le 15 ] || fail "bob fills the log, or the log does not name the refusals"
    kill $squatter || true
    root_on n1 pkill -u bob || true
    no_drain
    stop_daemons n1 n2
}
