# shellcheck shell=bash disable=SC2154,SC2034
# Checks of `mcr node`. tests/cluster/run reads this file, and sets bed, work, home, job, user and settings. The
# numbers of the checks refer to README.md in this directory.

# --- tools ----------------------------------------------------------------------------------------------------------

job_script() { # COMMAND: writes job.sh into the directory of the check
    printf '#!/bin/sh\n%s\n' "$1" >"$work$home/job.sh"
}
# shellcheck disable=SC2016 # the job's shell
restarting_script() { # STEPS: writes the job script of deploy/README.md
    job_script 'mcr restart; case $? in 0 | 2) args=--restart ;; 3) args= ;; *) exit 1 ;; esac
srun /shared/bin/writer . '"$1"' $args'
}
# Runs `mcr job` like SLURM's Prolog or Epilog, without a job of SLURM.
hook() { # NODE begin|end JOB UID [VARIABLE=VALUE...]
    root_on "$1" env SLURM_JOB_ID="$3" SLURM_JOB_UID="$4" SLURM_JOB_WORK_DIR="$home" SLURMD_NODENAME="$1" \
        SLURM_JOB_NTASKS=1 "${@:5}" /shared/bin/mcr job "$2" 2>&1
}
node_log() { echo "$work/log/mcr-node.$1"; }              # NODE
log_has() { grep -qE "$2" "$(node_log "$1")"; }           # NODE PATTERN
workers() { root_on "$1" pgrep -f '^[^ ]*mcr worker'; }   # NODE: prints their process numbers
no_worker() { ! workers "$1" >/dev/null; }                # NODE
one_worker() { [ "$(workers "$1" | wc -l)" = 1 ]; }       # NODE
daemon_of() { root_on "$1" pgrep -f '^[^ ]*mcr node( --cgroups)?$'; } # NODE: prints its process number
has_begun() { files_of_step 1 "$1" "$work$home/${2:-.}"; } # RANKS [DIR]: whether all ranks have written step 1
milliseconds() { date +%s%3N; }
expect_within() { # MILLISECONDS SINCE WHAT
    local took=$(($(milliseconds) - $2))
    echo "$3 took $took ms"
    [ $took -le "$1" ] || fail "$3 took more than $1 ms"
}

submit_for_both() { # NAME STEPS: submits a job of alice and a job of bob on two nodes, and adds both to `jobs`
    for user in alice bob; do
        begin "$1" $user
        user_file
        job_script "srun /shared/bin/writer . $2"
        settings=()
        submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
        jobs+=("$job")
        wait_for 60 has_begun 4
    done
}

# Submits a job on n1 and n2 that SLURM can start again on n3, and waits until step 3 is committed.
submit_that_restarts() { # NAME STEPS
    begin "$1"
    user_file
    restarting_script "$2"
    start_daemons n1 n2 n3
    settings=(WRITER_HOLD=3)
    submit --nodes=2 --exclude=n4,n5 --ntasks-per-node=2 job.sh
    wait_for 60 is_committed 3
}

# Runs a job of two nodes twice. Within the job, the commands find the settings and the aggregator without options.
# shellcheck disable=SC2016 # the job's shell
commands_need_no_options_in_a_job() { # CHECK ADDRESS: the address of the aggregator, as a pattern
    local steps said
    begin "$1"
    user_file
    for steps in 3 5; do
        restarting_script $steps
        printf '%s\n' 'mcr flush >&2; echo "= flush $?"' 'mcr status; echo "= status $?"' \
            'mcr list; echo "= list $?"' >>"$work$home/job.sh"
        settings=()
        submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
        await_end COMPLETED
        for said in "= flush 0" "= status 0" "= list 0" "$2 +answers .*" \
            " *wave +step_00000$steps +0 +committed .*" "wave +step_00000$steps +complete .*"; do
            grep -qxE "$said" "$(output)" || fail "the job did not print '$said'"
        done
        expect_newest $steps
    done
    expect_continued 3 4 "$(output)"
    no_drain
}

# --- checks ---------------------------------------------------------------------------------------------------------

# Checks 6 and 7. The aggregators use the first free ports, so the agents of each user also connect to the other
# user's aggregator.
two_users_on_the_same_nodes_save_and_neither_reaches_the_others_aggregator() {
    local name=${FUNCNAME[0]} jobs=() what refused
    start_daemons n1 n2
    submit_for_both "$name" 6
    for what in "status --aggregators n1:7117" \
        "restart --aggregators n1:7117 --store /shared/home/bob/none --job wave --to /tmp/to"; do
        # shellcheck disable=SC2086 # words of a command
        refused=$(as_user mcr $what 2>&1) && fail "bob's mcr $what succeeded: $refused"
        echo "bob: mcr $what: $refused"
        ! grep -E "step_|/home/alice|wave" <<<"${refused//$what/}" || fail "bob's mcr $what shows data of alice"
    done
    if command -v openssl >/dev/null; then
        refused=$(timeout 10 "$bed" as "$work" bob ctl timeout 5 openssl s_client -connect n1:7117 -alpn h2 \
            </dev/null 2>&1) || true
        ! grep -E "step_|/home/alice|wave" <<<"$refused" || fail "openssl shows data of alice: $refused"
    fi
    log_has n1 "a connection is refused" || fail "the aggregator does not log that it refused bob"
    both_users_have_their_own_files "$name" "${jobs[@]}"
    no_drain
    stop_daemons n1 n2
}

# Reads all packets of the bed's network for SECONDS, and prints the number of packets and of packets with PATTERN.
sniff() { # SECONDS PATTERN
    # shellcheck disable=SC2016 # variables of Perl
    root_on ctl perl -e '
        socket(my $all, 17, 3, unpack("n", pack("S", 3))) or die "socket: $!"; # AF_PACKET, SOCK_RAW, ETH_P_ALL
        my ($packets, $found, $end) = (0, 0, time + $ARGV[0]);
        while ((my $left = $end - time) > 0) {
            vec(my $ready = "", fileno($all), 1) = 1;
            next unless select($ready, undef, undef, $left);
            recv($all, my $packet, 65536, 0);
            $packets++;
            $found++ if $packet =~ /$ARGV[1]/;
        }
        print "$packets $found\n"' "$@"
}

# Check 9. The agents announce the names of the files to aggregators on other nodes, and send the bytes of the files.
nothing_of_a_job_can_be_read_on_the_network_except_with_tls_off() {
    local name=${FUNCNAME[0]} tls packets found sniffer
    for tls in on off; do
        cluster_top="tls = \"$tls\"\n" start_daemons n1 n2
        begin "$name-$tls"
        user_file
        job_script "srun /shared/bin/writer . 3"
        settings=()
        sniff 20 'step_00000[123]\.rank' >"$work/packets" & sniffer=$!
        submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
        await_end COMPLETED
        expect_newest 3
        wait $sniffer
        read -r packets found <"$work/packets"
        echo "tls = $tls: $packets packets, and $found of them show names of files"
        [ "$packets" -gt 100 ] || fail "too few packets were read"
        if [ $tls = on ]; then
            [ "$found" = 0 ] || fail "names of files can be read"
        else
            [ "$found" -gt 0 ] || fail "without TLS, the names of files were not found, so this check shows nothing"
        fi
        stop_daemons n1 n2
    done
}

# Check 5. Bob's aggregator finds no free port while alice's job runs. Bob's worker is started again later.
of_two_users_with_one_port_one_saves_and_the_job_of_the_other_is_not_touched() {
    local name=${FUNCNAME[0]} jobs=()
    cluster_file='[node]\nports = "7117-7117"\n' start_daemons n1 n2
    submit_for_both "$name" 5
    job=${jobs[1]}
    await_end COMPLETED
    log_has n1 "another process uses 0.0.0.0:7117" || fail "the log does not name the port"
    [ -z "$(find "$work/shared/home/alice/$name" -user 6002)" ] || fail "alice has files of bob"
    user=alice home=/shared/home/alice/$name job=${jobs[0]}
    await_end COMPLETED
    expect_newest 5
    no_drain
    stop_daemons n1 n2
}

# Check 23. One line of the log names the file, the line and the remedy.
settings_that_cannot_be_used_do_not_touch_the_job() {
    declare -A says=(
        [key]='key/mcr.toml:1: unknown key'
        [huge]='huge/mcr.toml'
        [link]='mcr.toml'
        [fifo]='fifo/mcr.toml.*not a regular file'
        [closed]='Permission denied'
        [syntax]='syntax/mcr.toml:1:'
    )
    local name
    start_daemons n1
    begin "${FUNCNAME[0]}"
    for name in "${!says[@]}"; do user_file "$name"; done
    echo 'jop = "wave"' >"$work$home/key/mcr.toml"
    echo 'job = "wave' >"$work$home/syntax/mcr.toml"
    truncate -s 1G "$work$home/huge/mcr.toml"
    rm "$work$home/fifo/mcr.toml"
    mkfifo "$work$home/fifo/mcr.toml"
    "$bed" as "$work" bob ctl sh -c 'umask 077; echo "job = \"bobs-secret\"" >secret.toml'
    ln -sf /shared/home/bob/secret.toml "$work$home/link/mcr.toml"
    chmod 000 "$work$home/closed"
    expect_refusals "0|78" # 0: a file that the user cannot see counts as a missing file
    ! log_has n1 bobs-secret || fail "the log has the content of bob's file"
    stop_daemons n1
}
# Runs a job on n1 in each directory that is a key of `says`. The log must contain the text of the key, and the job
# must end normally.
expect_refusals() { # EXIT_STATUS
    local name jobs=()
    # shellcheck disable=SC2016 # the job's shell
    job_script 'mkdir -p "$OUT" && srun --ntasks=1 /shared/bin/writer "$OUT" 2'
    for name in "${!says[@]}"; do
        settings=(OUT="/tmp/$name")
        submit --nodelist=n1 --ntasks=1 --output="$home/slurm-%j.out" --chdir="$home/$name" job.sh
        jobs+=("$name:$job")
    done
    for name in "${jobs[@]}"; do
        job=${name#*:} name=${name%:*}
        await_end COMPLETED
        grep -q "has written step 2" "$work$home/slurm-$job.out" || fail "the job $name was touched"
        grep -E "job_id=\"?$job\"?( |\$)" "$(node_log n1)" >"$work/log/job"
        [ "$(grep -cE "the job is not saved.*${says[$name]}" "$work/log/job")" = 1 ] ||
            fail "$name: the log does not say ${says[$name]}: $(cat "$work/log/job")"
        grep -qE "exit status: ($1)\"" "$work/log/job" || fail "$name: $(cat "$work/log/job")"
    done
    wait_for 10 no_worker n1
    no_drain
}

# Check 23. The store belongs to bob, is reached through a link of bob, or can be written by others.
stores_of_others_are_not_used_and_do_not_touch_the_job() {
    declare -A says=(
        [bobs]='store .*/bob/theirs is not used: .*bob'
        [link]='store /tmp/of-bob is not used: it is a symbolic link of bob'
        [open]='store .*/for-all is not used: .*0777'
        [none]='Permission denied|no such directory'
    )
    start_daemons n1
    begin "${FUNCNAME[0]}"
    "$bed" as "$work" bob n1 sh -c "chmod 711 . && mkdir -m 777 theirs && ln -s $home/store /tmp/of-bob"
    as_user mkdir -m 777 "$home/for-all"
    user_file bobs 'store = "/shared/home/bob/theirs"'
    user_file link 'store = "/tmp/of-bob"'
    user_file open "store = \"$home/for-all\""
    user_file none 'store = "/root/mcr"'
    expect_refusals "77|78"
    find "$work/shared/home/bob/theirs" "$work$home/for-all" "$work$home/store" -mindepth 1 >"$work/log/found"
    [ ! -s "$work/log/found" ] || fail "a store has files: $(cat "$work/log/found")"
    "$bed" as "$work" bob n1 chmod 700 .
    stop_daemons n1
}

# Check 24. The user chooses the name of the directory in which a job runs. Only the last of these names is refused.
hostile_names_of_work_directories_are_only_names() {
    # shellcheck disable=SC2016 # it must not be executed
    local names=("a 'quoted' \"name\"" $'two\nlines' '$(touch /tmp/executed)`touch /tmp/executed`' $'not-\xff-utf-8')
    local name k=0 jobs=()
    start_daemons n1
    begin "${FUNCNAME[0]}"
    settings=()
    job_script "srun --ntasks=1 /shared/bin/writer . 2"
    for name in "${names[@]}"; do
        user_file "$name" "job = \"wave-$((++k))\""
        job=$(as_user env -C "$home/$name" sbatch --parsable --nodelist=n1 --ntasks=1 --output="$home/slurm-%j.out" \
            "$home/job.sh")
        jobs+=("$job")
    done
    k=0
    for job in "${jobs[@]}"; do
        k=$((k + 1))
        await_end COMPLETED
        [ $k = 4 ] || expect_newest 2 "wave-$k"
    done
    log_has n1 "the job is not saved job_id=\"$job\".* not UTF-8; rename it" || fail "the fourth job is not named"
    [ "$(find "$work$home/store" -mindepth 1 -maxdepth 1 | wc -l)" = 3 ] || fail "$(find "$work$home/store")"
    root_on n1 test ! -e /tmp/executed || fail "a name was executed"
    no_drain
    stop_daemons n1
}

# Check 24. Words of `--comment` that begin with mcr: name the job, also for the commands of its script.
hostile_comments_name_the_job_or_are_refused_and_change_nothing_else() {
    # shellcheck disable=SC2016 # it must not be executed
    local -A saved=(
        [plain]='mcr:job=plain'
        [among]='project=7 "quoted" $(touch /tmp/executed)`touch /tmp/executed` mcr:job=among'
        ['x"y']='mcr:job=x"y'
        [two]=$'mcr:job=two\nstore = "/tmp/x"\nmcr:watch=.'
    ) refused=(
        [key]='mcr:store=/tmp/x' [bytes]=$'mcr:job=not-\xff' [off]='mcr:job=other,off'
        [long]="mcr:job=$(printf 'x%.0s' {1..1000})" # SLURM permits 1024 bytes
    ) says=(
        [long]='--comment: job is' [key]='--comment: unknown key .*store' [bytes]='not UTF-8' [off]='has mcr:off'
    )
    local -A numbers=()
    local name said
    start_daemons n1
    begin "${FUNCNAME[0]}"
    settings=()
    job_script 'mcr job show | grep "^job" && srun --ntasks=1 /shared/bin/writer . 2'
    for name in "${!saved[@]}" "${!refused[@]}"; do
        user_file "$name"
        submit --nodelist=n1 --ntasks=1 --output="$home/$name.out" --chdir="$home/$name" \
            --comment="${saved[$name]-}${refused[$name]-}" job.sh
        numbers[$name]=$job
    done
    for name in "${!numbers[@]}"; do
        job=${numbers[$name]}
        wait_for 120 is_over
        grep -H . "$work$home/$name.out"
        if [ -n "${saved[$name]-}" ]; then
            state_is COMPLETED || fail "$name: the job was touched"
            grep -qE "^job .* --comment *\$" "$work$home/$name.out" || fail "$name: the script has another name"
            expect_newest 2 "$name"
        else
            grep -qE "the job is not saved.*${says[$name]}" <(grep "job_id=\"$job\"" "$(node_log n1)") ||
                fail "$name: $(grep "job_id=\"$job\"" "$(node_log n1)")"
        fi
    done
    said=$(hook n1 begin 4004 6001 SLURM_JOB_COMMENT="mcr:job=$(printf 'x%.0s' {1..4096})") || fail "exit status $?"
    [[ $said = *"not saved: SLURM_JOB_COMMENT is "*"at most 4096 bytes"* && $said != *$'\n'* ]] || fail "$said"
    [ "$(as_user ls "$home/store" | sort)" = $'among\nplain\ntwo\nx"y' ] ||
        fail "the store has $(ls "$work$home/store")"
    root_on n1 test ! -e /tmp/executed -a ! -e /tmp/x || fail "a comment was executed"
    [ -z "$(root_on n1 ls /run/mcr/comments)" ] || fail "comments are left: $(root_on n1 ls /run/mcr/comments)"
    no_drain
    stop_daemons n1
}

# Check 25.
jobs_of_root_and_of_the_system_are_not_saved() {
    local said uid
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1
    for uid in 0 999; do
        said=$(hook n1 begin 4001 $uid) || fail "exit status $?"
        [[ $said = *"jobs of user $uid are not saved"* && $said != *$'\n'* ]] || fail "mcr job begin says: $said"
    done
    no_worker n1 || fail "a worker runs"
    stop_daemons n1
}

# Check 26. Alice holds 1000 connections, and opens new connections when the daemon closes them.
hostile_clients_of_the_daemons_socket_change_nothing_and_keep_nobody_out() {
    local said daemon since
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1
    daemon=$(daemon_of n1)
    for what in begin end; do
        said=$("$bed" as "$work" alice n1 env SLURM_JOB_ID=4002 SLURM_JOB_UID=6002 SLURM_JOB_WORK_DIR=/tmp \
            SLURMD_NODENAME=n1 mcr job $what 2>&1) || fail "exit status $?"
        [[ $said = *"may not begin or end jobs"* ]] || fail "as alice, mcr job $what says: $said"
    done
    cat >"$work/shared/bin/hostile" <<'PERL'
#!/usr/bin/perl
# Keeps up to 1000 connections open. Some connections send nothing, and other connections send invalid messages.
use IO::Socket::UNIX;
$SIG{PIPE} = 'IGNORE';
my @held;
for (my $k = 0; ; $k++) {
    my $socket = IO::Socket::UNIX->new(Peer => '/run/mcr/socket', Timeout => 1) or next;
    $socket->blocking(0);
    syswrite $socket, $k % 4 == 1 ? '{"begin":{' : $k % 4 == 2 ? "\xff\0\n" : 'x' x (1 << 20) if $k % 4;
    push @held, $socket;
    shift @held if @held > 1000;
}
PERL
    chmod 755 "$work/shared/bin/hostile"
    "$bed" as "$work" alice n1 prlimit --nofile=1100 timeout 6 hostile &
    sleep 1
    for k in 1 2 3; do
        since=$(milliseconds)
        said=$(hook n1 begin 400$k 6001)
        [ -z "$said" ] || fail "among hostile clients, mcr job begin says: $said"
        expect_within 2000 "$since" "mcr job begin among hostile clients"
    done
    wait
    [ "$(daemon_of n1)" = "$daemon" ] || fail "the daemon has ended"
    [ "$(grep -c "a request is refused" "$(node_log n1)")" -le 20 ] || fail "alice fills the log"
    [ "$(workers n1 | wc -l)" = 3 ] || fail "not every job has a worker"
    for k in 1 2 3; do hook n1 end 400$k 6001; done
    wait_for 10 no_worker n1
    stop_daemons n1
}

# Checks 27 and 28. Only node n1 has an aggregator.
a_worker_has_the_rights_of_its_user_and_the_daemon_listens_nowhere() {
    local pid status expected listeners socket
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1 n2
    job_script "srun /shared/bin/writer . 4"
    settings=()
    submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=1 job.sh
    wait_for 60 is_committed 1
    { one_worker n1 && one_worker n2; } || fail "a node has not one worker"
    pid=$(workers n1)
    status=$(root_on n1 cat "/proc/$pid/status")
    echo "$status" | grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs)'
    for expected in 'Uid:(\s6001){4}' 'Gid:(\s6001){4}' 'Groups:\s6001 6003\s*' 'NoNewPrivs:\s1'; do
        grep -qxE "$expected" <<<"$status" || fail "the worker's status has no line $expected"
    done
    [ "$(grep -cxE 'Cap(Prm|Eff|Inh|Amb):\s0+' <<<"$status")" = 4 ] || fail "the worker has capabilities"
    socket=$(root_on n1 ss -Hlxp src /run/mcr/socket)
    [ "$(grep -oE 'pid=[0-9]+' <<<"$socket")" = "pid=$(daemon_of n1)" ] || fail "processes with the socket: $socket"
    listeners=$(root_on n1 ss -Hlntup | grep '"mcr"')
    [[ $listeners != *$'\n'* && $listeners = *":7117 "*"pid=$pid,"* ]] || fail "the listeners on n1: $listeners"
    ! root_on n2 ss -Hlntup | grep '"mcr"' || fail "mcr listens on n2"
    await_end COMPLETED
    expect_newest 4
    stop_daemons n1 n2
}

# Checks 18 and 19. Node n1 has no daemon. The daemon of n2 is stopped by SIGSTOP, so Epilog waits for its maximum
# time (22 s).
without_an_answer_of_the_daemon_jobs_run_and_nodes_stay_idle() {
    local since daemon node
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n2
    daemon=$(daemon_of n2)
    root_on n2 kill -STOP "$daemon"
    for node in n1 n2; do
        since=$(milliseconds)
        root_on $node env SLURM_JOB_ID=4003 SLURM_JOB_UID=6001 SLURM_JOB_WORK_DIR="$home" SLURMD_NODENAME=$node \
            /shared/prolog.d/10-mcr || fail "Prolog on $node: exit status $?"
        expect_within 2500 "$since" "Prolog on $node"
    done
    job_script "srun /shared/bin/writer . 1"
    settings=()
    submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=1 job.sh
    await_end COMPLETED
    wait_for 10 nodes_are_idle
    root_on n2 kill -KILL "$daemon"
}
nodes_are_idle() { [ "$(as_user sinfo --noheader --format=%T | sort -u)" = idle ]; }

# Check 20. One store is read-only when its job begins. Another store becomes read-only while its job runs.
a_store_that_is_read_only_touches_no_job_and_no_node() {
    local since first
    begin "${FUNCNAME[0]}"
    start_daemons n1
    # The read-only mount hides the first mount, which a worker may still use for writing.
    # shellcheck disable=SC2016 # the shell on the node expands $0
    make_read_only() { root_on n1 sh -c 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"' "$1"; }
    as_user mkdir -m 700 "$home/closed"
    user_file before 'job = "before"' "store = \"$home/closed\""
    user_file
    make_read_only "$home/closed"
    job_script "srun /shared/bin/writer . 4"
    settings=()
    submit --nodelist=n1 --ntasks=2 --chdir="$home/before" --output="$home/slurm-%j.out" job.sh
    first=$job
    submit --nodelist=n1 --ntasks=2 job.sh
    wait_for 60 is_committed 1
    make_read_only "$home/store"
    since=$(milliseconds)
    await_end COMPLETED
    job=$first
    await_end COMPLETED
    wait_for 40 nodes_are_idle
    expect_within 35000 "$since" "the jobs and their Epilogs"
    [ -z "$(ls "$work$home/closed")" ] || fail "the store has $(ls "$work$home/closed")"
    log_has n1 "Read-only file system" || fail "the log does not say why"
    no_drain
    root_on n1 umount "$home/store" "$home/closed"
    wait_for 30 no_worker n1
    as_user mcr verify --store "$home/store" --job wave || fail "mcr verify: exit code $?"
    stop_daemons n1
}

# Check 20. Every write to the store waits, as on a file system whose server does not answer. A frozen file system
# behaves like such a file system.
a_store_that_hangs_touches_no_job_and_no_node_and_the_daemon_answers() {
    local since
    for tool in mkfs.ext4 fsfreeze; do command -v $tool >/dev/null || skip "no $tool"; done
    begin "${FUNCNAME[0]}"
    start_daemons n1
    truncate -s 64M "$work/shared/store.image"
    mkfs.ext4 -q "$work/shared/store.image"
    # shellcheck disable=SC2016 # the inner shell's words
    root_on n1 sh -c 'mknod /dev/loop-control c 10 237; for k in 0 1 2 3 4 5 6 7; do mknod /dev/loop$k b 7 $k; done
        mkdir /mnt/store && mount -o loop /shared/store.image /mnt/store && chown alice /mnt/store &&
        chmod 700 /mnt/store' || skip "no loop devices"
    trap 'root_on n1 fsfreeze -u /mnt/store' EXIT # nothing can end a process that writes to a frozen file system
    user_file . 'store = "/mnt/store"'
    job_script "srun /shared/bin/writer . 4"
    settings=()
    submit --nodelist=n1 --ntasks=2 job.sh
    wait_for 60 hung_store_has 1
    root_on n1 fsfreeze -f /mnt/store
    since=$(milliseconds)
    await_end COMPLETED
    wait_for 40 nodes_are_idle
    expect_within 35000 "$since" "the job and Epilog"
    sleep 6 # until the worker stops waiting for the store; a thread of the worker still waits in the kernel
    since=$(milliseconds)
    [ -z "$(hook n1 begin 4005 6001 SLURM_JOB_WORK_DIR=/tmp)" ] || fail "the daemon does not answer"
    expect_within 2000 "$since" "mcr job begin with a store that hangs"
    no_drain
    root_on n1 fsfreeze -u /mnt/store
    trap - EXIT
    hook n1 end 4005 6001
    wait_for 30 no_worker n1
    job_script "srun /shared/bin/writer . 5"
    submit --nodelist=n1 --ntasks=2 job.sh
    await_end COMPLETED
    hung_store_has 5 || fail "the next job is not saved"
    root_on n1 umount /mnt/store
    stop_daemons n1
}
hung_store_has() { # STEP
    root_on n1 setpriv --reuid alice --clear-groups mcr list --store /mnt/store --job wave |
        grep -q "$(printf 'step_%06d *complete' "$1")"
}

# Check 21. SLURM runs the scripts of epilog.d in reverse order, so the script that kills processes runs after 90-mcr.
a_script_of_epilog_that_kills_the_users_processes_loses_nothing() {
    begin "${FUNCNAME[0]}"
    user_file
    # shellcheck disable=SC2016 # the variable of Epilog
    printf '%s\n' '#!/bin/sh' 'pkill -KILL -u "$SLURM_JOB_UID"' 'touch /tmp/cleaned' >"$work/shared/epilog.d/10-clean"
    chmod 755 "$work/shared/epilog.d/10-clean"
    start_daemons n1
    job_script "srun /shared/bin/writer . 3"
    settings=()
    submit --nodelist=n1 --ntasks=2 job.sh
    await_end COMPLETED
    rm "$work/shared/epilog.d/10-clean"
    root_on n1 test -e /tmp/cleaned || fail "the script did not run"
    expect_newest 3
    no_drain
    stop_daemons n1
}

# Check 29.
each_task_of_an_array_is_a_job_of_its_own_in_the_store() {
    local k
    begin "${FUNCNAME[0]}"
    # shellcheck disable=SC2016 # mcr replaces the variable
    user_file . 'job = "wave-%a"' 'watch = "run_${SLURM_ARRAY_TASK_ID}"'
    start_daemons n1
    # shellcheck disable=SC2016 # the job's shell
    job_script 'mkdir run_$SLURM_ARRAY_TASK_ID && srun /shared/bin/writer run_$SLURM_ARRAY_TASK_ID 3'
    settings=()
    submit --array=0-3 --nodelist=n1 --ntasks=1 job.sh
    await_end COMPLETED
    for k in 0 1 2 3; do expect_newest 3 wave-$k; done
    no_drain
    stop_daemons n1
}

# Check 30. The ranks of all components are one job for mcr, and the Prolog of a component knows only its own nodes.
a_heterogeneous_job_is_not_touched_and_a_sentence_says_that_it_is_not_saved() {
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1 n2
    job_script "srun --het-group=0,1 /shared/bin/writer . 2"
    settings=()
    submit --ntasks=1 --nodelist=n1 : --ntasks=1 --nodelist=n2 job.sh
    await_end COMPLETED
    for node in n1 n2; do
        no_worker $node || fail "a worker runs on $node"
        ! log_has $node "a job begins" || fail "the job has a worker on $node"
        [ "$(grep -c "a request is refused .*part of the heterogeneous job $job;" "$(node_log $node)")" = 1 ] ||
            fail "the log of $node does not say why: $(cat "$(node_log $node)")"
    done
    no_drain
    stop_daemons n1 n2
}

# Check 31.
jobs_are_saved_however_they_are_started() {
    local name pids=()
    begin "${FUNCNAME[0]}"
    start_daemons n1
    settings=()
    for name in srun salloc no-requeue without-n; do user_file $name "job = \"$name\""; done
    as_user env -C "$home/srun" srun --nodelist=n1 --ntasks=1 /shared/bin/writer . 3 & pids+=($!)
    as_user env -C "$home/salloc" salloc --nodelist=n1 --ntasks=1 srun /shared/bin/writer . 3 & pids+=($!)
    job_script "srun /shared/bin/writer . 3"
    submit --no-requeue --nodelist=n1 --ntasks=1 --chdir="$home/no-requeue" --output="$home/slurm-%j.out" job.sh
    await_end COMPLETED
    submit --nodelist=n1 --chdir="$home/without-n" --output="$home/slurm-%j.out" job.sh
    await_end COMPLETED
    for name in "${pids[@]}"; do wait "$name" || fail "exit status $?"; done
    wait_for 20 no_worker n1
    for name in srun salloc no-requeue without-n; do expect_newest 3 $name; done
    no_drain
    stop_daemons n1
}

# Check 32. The directory is made after the worker has looked for it, then removed with its content, and made again.
a_watched_directory_may_appear_later_and_may_be_removed_and_made_again() {
    begin "${FUNCNAME[0]}"
    user_file . 'watch = "out"'
    start_daemons n1
    # shellcheck disable=SC2016 # the job's shell
    job_script 'sleep 4; mkdir out; srun /shared/bin/writer out 2
while [ ! -e saved ]; do sleep 0.2; done
mv out gone; rm -r gone; sleep 3; mkdir out; WRITER_RUN=again srun /shared/bin/writer out 4'
    settings=()
    submit --nodelist=n1 --ntasks=2 job.sh
    wait_for 60 is_committed 2
    as_user touch "$home/saved"
    await_end COMPLETED
    expect_newest 4
    no_drain
    stop_daemons n1
}

# Check 3. A worker reads a file twice: for its digest, and for the aggregator. The worker reads no file of another
# node.
each_file_is_read_on_one_node_only() {
    local node bytes of_node=$((2 * 4 * 2000000)) # two ranks, four steps
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1 n2 n3 n4
    job_script "srun --distribution=cyclic /shared/bin/writer . 5"
    settings=(WRITER_HOLD=4 WRITER_BYTES=2000000)
    submit --nodes=4 --nodelist=n[1-4] --ntasks-per-node=2 job.sh
    wait_for 60 is_committed 4
    for node in n1 n2 n3 n4; do
        bytes=$(root_on $node cat "/proc/$(workers $node)/io" | awk '$1 == "rchar:" { print $2 }')
        echo "the worker on $node has read $bytes bytes"
        [ "$bytes" -le $((of_node * 22 / 10)) ] || fail "the ranks on $node have written $of_node bytes"
    done
    as_user scancel "$job"
    await_end CANCELLED
    stop_daemons n1 n2 n3 n4
}

# Check 14. The first node of the job has the aggregator. SLURM starts the job again on other nodes.
a_job_continues_after_the_node_with_its_aggregator_lost_power() {
    submit_that_restarts "${FUNCNAME[0]}" 6
    "$bed" node-kill "$work" n1
    wait_for 90 continues
    await_end COMPLETED
    expect_continued 3 4 "$(output)"
    expect_newest 6
    ! as_user sinfo --noheader --format=%T --nodes=n2,n3 | grep -q drain || fail "$(as_user sinfo -R)"
    "$bed" node-start "$work" n1
    wait_for 60 nodes_are_idle
    wait_for 30 no_worker n2
    stop_daemons n2 n3
}

# Check 37. The key is replaced while the job runs. Then the aggregator of n1 is killed, so all connections are new.
a_job_is_saved_while_its_users_key_is_replaced() {
    local worker
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1 n2
    job_script "srun /shared/bin/writer . 20"
    settings=()
    submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
    wait_for 60 is_committed 1
    as_user mcr cert rotate --wait 2
    worker=$(workers n1)
    root_on n1 kill -KILL "$worker"
    await_end COMPLETED
    expect_newest 20
    [ "$(complete_checkpoints | wc -l)" = 20 ] || fail "not every step is complete"
    ! grep -hE "another certificate authority|not committed" "$(node_log n1)" "$(node_log n2)" || fail "see the logs"
    no_drain
    stop_daemons n1 n2
}

# Checks 33 and 34.
sixty_four_jobs_at_once_cost_little_and_leave_nothing() {
    local k daemon before since kib
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1
    daemon=$(daemon_of n1)
    before=$(root_on n1 ls "/proc/$daemon/fd" | wc -l)
    # shellcheck disable=SC2016 # the inner shell's variables
    batch_of() { # begin|end: starts 64 commands together; prints their output and the longest time in milliseconds
        root_on n1 env SLURM_JOB_UID=6001 SLURM_JOB_WORK_DIR="$home" SLURMD_NODENAME=n1 SLURM_JOB_NTASKS=1 \
            bash -c 'for k in {5001..5064}; do { begin=$(date +%s%3N); SLURM_JOB_ID=$k mcr job "$0" 2>&1
                echo "$(($(date +%s%3N) - begin)) ms"; } & done; wait' "$1"
    }
    batch_of begin >"$work/log/begins"
    [ "$(grep -cvE '^[0-9]+ ms$' "$work/log/begins")" = 0 ] || fail "$(cat "$work/log/begins")"
    echo "the slowest begin: $(sort -n "$work/log/begins" | tail -n 1)"
    [ "$(sort -n "$work/log/begins" | tail -n 1 | cut -d' ' -f1)" -lt 2500 ] || fail "a begin is too slow"
    [ "$(workers n1 | wc -l)" = 64 ] || fail "$(workers n1 | wc -l) workers run"
    # shellcheck disable=SC2016 # awk's
    kib=$(root_on n1 awk '$1 == "VmRSS:" { print $2 }' "/proc/$daemon/status")
    echo "the daemon has $kib KiB with 64 jobs"
    [ "$kib" -lt 20480 ] || fail "the daemon has $kib KiB"
    sleep 1
    switches() { # of all threads
        root_on n1 sh -c "cat /proc/$daemon/task/*/status" | awk '/^voluntary_ctxt/ { n += $2 } END { print n }'
    }
    k=$(switches)
    sleep 5
    [ "$(switches)" = "$k" ] || fail "the daemon woke up $(($(switches) - k)) times within 5 s"
    batch_of end >"$work/log/ends"
    wait_for 20 no_worker n1
    since=$(milliseconds)
    # shellcheck disable=SC2016 # the inner shell's variables
    root_on n1 env SLURM_JOB_UID=6001 SLURM_JOB_WORK_DIR="$home" SLURMD_NODENAME=n1 SLURM_JOB_NTASKS=1 \
        SLURM_JOB_COMMENT=mcr:job=wave bash -c 'for k in {6001..6200}; do
            export SLURM_JOB_ID=$k; mcr job begin; mcr job end; done' >"$work/log/said" 2>&1
    expect_within 50000 "$since" "200 jobs one after the other"
    ! grep "is not saved" "$work/log/said" || fail "see above"
    wait_for 20 no_worker n1
    [ -z "$(root_on n1 find /run/mcr -name '*.json')" ] || fail "left: $(root_on n1 find /run/mcr -name '*.json')"
    [ "$(root_on n1 ls "/proc/$daemon/fd" | wc -l)" = "$before" ] || fail "descriptors are left"
    stop_daemons n1
}

# Check 48. `mcr job begin` in Prolog starts a worker, which waits for the first process of its job.
a_begin_takes_less_than_a_tenth_of_a_second_and_an_agent_at_rest_almost_no_time() {
    local k times=() worker before
    begin "${FUNCNAME[0]}"
    user_file . 'watch = "out"'
    as_user mkdir "$home/out"
    start_daemons n1
    for k in {1..11}; do
        # The time is taken on the node, because entering the node takes longer than the command.
        # shellcheck disable=SC2016 # the node's shell
        times+=("$(root_on n1 env SLURM_JOB_ID=$((8100 + k)) SLURM_JOB_UID=6001 SLURM_JOB_WORK_DIR="$home" \
            SLURMD_NODENAME=n1 SLURM_JOB_NTASKS=1 \
            bash -c 'begin=$(date +%s%3N); mcr job begin; echo $(($(date +%s%3N) - begin))')")
        hook n1 end $((8100 + k)) 6001
    done
    echo "mcr job begin took ${times[*]} ms"
    [ "$(printf '%s\n' "${times[@]}" | sort -n | sed -n 6p)" -lt 100 ] || fail "the median is not below 100 ms"
    hook n1 begin 8201 6001
    "$bed" as "$work" alice n1 env -C "$home" SLURM_JOB_ID=8201 SLURM_NTASKS=1 \
        sh -c 'sleep 4; echo data >out/step_000001.rank_0.bin; exec timeout 50 sleep 40' &
    wait_for 30 is_committed 1
    sleep 1
    worker=$(workers n1)
    ticks() { root_on n1 cat "/proc/$worker/stat" | awk '{ print $14 + $15 }'; }
    before=$(ticks)
    sleep 10
    before=$(($(ticks) - before))
    echo "the worker used $before ticks of 1/$(getconf CLK_TCK) s within 10 s"
    [ $((before * 100)) -le $((2 * 10 * $(getconf CLK_TCK))) ] || fail "the worker uses more than 2 % of a core"
    root_on n1 pkill -KILL sleep
    hook n1 end 8201 6001
    stop_daemons n1
}

# Check 17. This check starts a second cluster, in which process 1 of the node is systemd. The daemon is killed,
# stopped by SIGSTOP until the watchdog kills the daemon, and restarted. Packages stop both units with one command.
workers_outlive_the_daemon_under_systemd_and_both_units_stop_together() {
    local work=$work/systemd unit what before daemon
    "$bed" check --systemd || skip "no systemd"
    mkdir -p "$work/shared/bin" "$work/units"
    cp "$MCR" "$work/shared/bin/mcr"
    for unit in "$root"/deploy/systemd/*; do
        sed 's|/usr/bin/mcr|/shared/bin/mcr|; s|WatchdogSec=.*|WatchdogSec=3|' "$unit" >"$work/units/${unit##*/}"
    done
    # shellcheck disable=SC2064 # this directory
    trap "'$bed' down '$work'" EXIT
    "$bed" up "$work" 1 --systemd --units "$work/units" --start mcr-node.socket || skip "systemd does not start"
    begin "${FUNCNAME[0]}"
    user_file
    [ "$(root_on n1 systemctl is-active mcr-node.socket mcr-node.service | xargs)" = "active inactive" ] ||
        fail "$(root_on n1 systemctl status mcr-node.socket)"
    hook n1 begin 7001 6001
    hook n1 begin 7002 6001
    before=$(workers n1)
    [ "$(wc -w <<<"$before")" = 2 ] || fail "the workers: $before"
    for what in 'kill --kill-who=main --signal=KILL' 'kill --kill-who=main --signal=STOP' restart; do
        daemon=$(daemon_of n1)
        # shellcheck disable=SC2086 # words of a command
        root_on n1 systemctl $what mcr-node
        wait_for 20 daemon_is_new
        [ "$(workers n1)" = "$before" ] || fail "after $what, the workers are $(workers n1), not $before"
        [ "$(root_on n1 mcr job list | awk 'NR > 1 { print $3 }' | sort)" = "$(sort <<<"$before")" ] ||
            fail "after $what: $(root_on n1 mcr job list)"
    done
    [ "$(root_on n1 journalctl --quiet --unit=mcr-node --grep='no limits of memory' | wc -l)" -ge 1 ] ||
        root_on n1 ls "/sys/fs/cgroup$(group_of_unit)/daemon" || fail "the daemon does not say that there are no limits"
    root_on n1 systemctl daemon-reexec
    [ "$(workers n1)" = "$before" ] || fail "after daemon-reexec, the workers are $(workers n1), not $before"
    hook n1 end 7001 6001
    wait_for 10 one_worker n1
    # A client that connects repeatedly must not start the daemon again.
    root_on n1 sh -c 'while [ ! -e /tmp/over ]; do mcr job list; done >/dev/null 2>&1 &'
    root_on n1 systemctl stop mcr-node.service mcr-node.socket
    sleep 1
    root_on n1 touch /tmp/over
    ! daemon_of n1 || fail "the daemon runs again"
    [ "$(root_on n1 systemctl is-active mcr-node.socket mcr-node.service | xargs)" = "inactive inactive" ] ||
        fail "$(root_on n1 systemctl status mcr-node.socket)"
    one_worker n1 || fail "the worker has ended"
}
group_of_unit() { root_on n1 systemctl show --property=ControlGroup --value mcr-node.service; }
daemon_is_new() { # whether the daemon of n1 is not the process $daemon
    local now
    now=$(daemon_of n1) && [ "$now" != "$daemon" ]
}

# Check 38. Checks the units with systemd-analyze, without a running systemd.
the_units_have_no_error_and_a_small_exposure() {
    local said
    command -v systemd-analyze >/dev/null || skip "no systemd-analyze"
    mkdir "$work/units"
    for unit in "$root"/deploy/systemd/*; do
        sed "s|/usr/bin/mcr|$work/shared/bin/mcr|" "$unit" >"$work/units/${unit##*/}"
    done
    said=$(systemd-analyze verify --man=no "$work"/units/* 2>&1) || fail "systemd-analyze verify: $said"
    [ -z "$said" ] || fail "systemd-analyze verify: $said"
    systemd-analyze security --offline=true --threshold=40 --no-pager "$work/units/mcr-node.service" |
        tail -n 1
    for unit in mcr-gate mcr-metrics; do
        systemd-analyze security --offline=true --threshold=20 --no-pager "$work/units/$unit.service" | tail -n 1
    done
}

# Check 13. The job script has one line for restarting, and no line for saving.
a_requeued_job_continues_and_has_no_worker_of_its_first_start() {
    local first
    begin "${FUNCNAME[0]}"
    user_file
    restarting_script 5
    start_daemons n1 n2
    settings=(WRITER_HOLD=3)
    submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
    wait_for 60 is_committed 3
    first=$(workers n1)
    as_user scontrol requeue "$job"
    await_end COMPLETED
    expect_continued 3 4 "$(output)"
    expect_newest 5
    root_on n1 test ! -e "/proc/$first" || fail "the worker of the first start lives"
    { no_worker n1 && no_worker n2; } || fail "a worker lives"
    no_drain
    stop_daemons n1 n2
}

# Check 47. The agent of n1 knows the port of the aggregator.
commands_need_no_options_in_a_job_with_several_nodes() {
    start_daemons n1 n2
    commands_need_no_options_in_a_job "${FUNCNAME[0]}" 'n1:[0-9]+'
    stop_daemons n1 n2
}

# Check 15. SLURM considers n2 dead, and the job begins again on n3. On n2, the first start still runs without a
# network.
a_node_that_was_cut_off_changes_nothing_for_the_next_start_of_its_job() {
    submit_that_restarts "${FUNCNAME[0]}" 12
    "$bed" net-cut "$work" n2
    wait_for 90 continues
    "$bed" net-heal "$work" n2
    await_end COMPLETED
    expect_continued 3 4 "$(output)"
    expect_newest 12
    # SLURM ends the tasks on n2 when slurmctld reaches n2 again, after up to 100 s. SLURM may never run Epilog on n2.
    # Then the worker looks for later starts of its job every 30 s, and tries to commit for 20 s.
    wait_for 180 no_worker n2
    wait_for 60 nodes_are_idle
    stop_daemons n1 n2 n3
}
continues() { grep -q "continues after step" "$(output)"; }

# Check 35.
a_node_that_lost_power_saves_jobs_after_it_booted() {
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1
    hook n1 begin 6001 6001
    wait_for 10 one_worker n1
    "$bed" node-kill "$work" n1
    "$bed" node-start "$work" n1
    wait_for 20 root_on n1 test -d /bed/log
    start_daemons n1
    no_worker n1 || fail "a worker from before the power loss runs"
    job_script "srun /shared/bin/writer . 2"
    settings=()
    wait_for 60 nodes_are_idle
    submit --nodelist=n1 --ntasks=2 job.sh
    await_end COMPLETED
    expect_newest 2
    stop_daemons n1
}
