# shellcheck shell=bash disable=SC2154,SC2034
# Checks of `mcr metrics`. tests/cluster/run reads this file after node.sh. The numbers of the checks refer to
# README.md in this directory.

# --- tools ----------------------------------------------------------------------------------------------------------

page() { root_on n1 curl -sf http://127.0.0.1:7118/metrics; }
page_has() { grep -qxE "$1" <<<"$(page)"; } # PATTERN

# --- checks ---------------------------------------------------------------------------------------------------------

# Check 40. `mcr metrics` on n1 runs as an account of the system, without privileges. Node n1 has the aggregator.
the_metrics_of_a_node_agree_with_the_list_of_checkpoints() {
    local page count stored said
    begin "${FUNCNAME[0]}"
    user_file
    start_daemons n1 n2
    "$bed" exec "$work" n1 sh -c "setsid setpriv --reuid=daemon --regid=daemon --clear-groups --inh-caps=-all \
        /shared/bin/mcr metrics </dev/null >/bed/log/mcr-metrics.n1 2>&1 &"
    job_script "srun /shared/bin/writer . 6"
    settings=()
    submit --nodes=2 --nodelist=n[1-2] --ntasks-per-node=2 job.sh
    wait_for 60 page_has 'mcr_job_last_commit_timestamp_seconds\{job="wave",user="alice"\} [0-9]+'
    page_has 'mcr_jobs 1' || fail "$(page)"
    said=$("$bed" as "$work" bob n1 mcr job list)
    ! grep -q wave <<<"$said" || fail "bob sees the job of alice: $said"
    await_end COMPLETED
    expect_newest 6
    count=$(complete_checkpoints | wc -l)
    stored=$(as_user mcr list --store "$home/store" --job wave --json | grep -oE '"stored_bytes": *[0-9]+' |
        awk '{ n += $2 } END { print n }')
    page=$(page)
    for said in "mcr_checkpoints_committed_total $count" "mcr_bytes_stored_total $stored" \
        "mcr_ranks_committed_total $((2 * count))" 'mcr_store_errors_total 0' 'mcr_jobs 0' 'mcr_jobs_ended_total 1'; do
        grep -qx "$said" <<<"$page" || fail "the page has no line '$said': $page"
    done
    ! grep -q '{job=' <<<"$page" || fail "the page names a job that is over: $page"
    if command -v promtool >/dev/null; then
        said=$(promtool check metrics <<<"$page" 2>&1) || fail "promtool check metrics: $said"
        [ -z "$said" ] || fail "promtool check metrics: $said"
    else
        echo "promtool is not installed, so the format was not checked"
    fi
    ! root_on n1 ss -Hlntp | grep -E "pid=$(daemon_of n1)," || fail "mcr node listens on a port"
    root_on n1 pkill -f 'mcr metrics'
    stop_daemons n1 n2
}
