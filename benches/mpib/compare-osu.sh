#!/usr/bin/env bash
# Compares mpib p2p with osu_latency and osu_bw of the OSU micro-benchmarks on this machine. The programs alternate.
#
#     ROUNDS=7 benches/mpib/compare-osu.sh [FILE]
#
# For each size, the script prints the medians of all rounds of both programs and their ratios. The script also writes
# these numbers to FILE. The exit status is 1 if a latency is more than 5 % above the latency of OSU, or a bandwidth
# is below 0.9 times the bandwidth of OSU. The script compares medians and not the best values, because the memory of
# a virtual machine is sometimes twice as fast for a moment. Such a moment changes the best value, but hardly the
# median. The result is meaningful only if two cores are free.
#
# OSU_LATENCY and OSU_BW name the built programs. Without these variables, the script uses the programs in PATH, or
# builds OSU_TARBALL, or downloads and builds OSU_URL. If all of this fails, the script prints a message and exits
# with 77. The latency is half of a round trip: OSU's mean, and mpib's median. FIGURES=FILE stores the raw values in
# FILE. Values that are already in FILE are included, so that several short runs can be combined.
set -euo pipefail

: "${ROUNDS:=7}" "${OSU_VERSION:=7.4}" "${MPIRUN:=mpirun}"
: "${OSU_URL:=https://mvapich.cse.ohio-state.edu/download/mvapich/osu-micro-benchmarks-$OSU_VERSION.tar.gz}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
mpib=${MPIB:-$target/release/mpib}

skip() { echo "SKIPPED: the comparison with OSU needs $*" >&2; exit 77; }
[ -x "$mpib" ] || skip "$mpib (cargo build --release in benches/mpib)"
work=$(mktemp -d)
figures=${FIGURES:-$work/figures}
trap 'rm -rf "$work"' EXIT

osu=$target/osu
latency=${OSU_LATENCY:-$(command -v osu_latency || echo "$osu/bin/osu_latency")}
bandwidth=${OSU_BW:-$(command -v osu_bw || echo "$osu/bin/osu_bw")}
if [ ! -x "$latency" ] || [ ! -x "$bandwidth" ]; then
    tarball=${OSU_TARBALL:-$work/osu.tar.gz}
    [ -n "${OSU_TARBALL:-}" ] || curl --silent --fail --location --max-time 120 -o "$tarball" "$OSU_URL" ||
        skip "osu_latency and osu_bw: $OSU_URL could not be downloaded (OSU_TARBALL=FILE, or OSU_LATENCY and OSU_BW)"
    tar -xzf "$tarball" -C "$work"
    (cd "$work"/osu-micro-benchmarks-*/ && ./configure CC=mpicc CXX=mpicxx && make -j2) >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; skip "a build of $tarball"; }
    mkdir -p "$osu/bin"
    for program in osu_latency osu_bw; do
        find "$work" -type f -name $program -perm -u+x -exec cp {} "$osu/bin/" \;
    done
    if [ ! -x "$latency" ] || [ ! -x "$bandwidth" ]; then skip "osu_latency and osu_bw in $tarball"; fi
fi

sizes=1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192,16384,32768,65536,131072,262144,524288,1048576,2097152,4194304
two() { timeout --kill-after=20 300 "$MPIRUN" -n 2 --bind-to core "$@"; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_base_warn_component_unused=0
theirs() { # arguments: KIND PROGRAM
    two "$2" | awk -v kind="$1" '/^[0-9]/ { print kind, $1, $2 }' >>"$figures"
}
ours() { # prints half of a round trip in microseconds, and MB/s
    two "$mpib" p2p --sizes $sizes --stream --min-reps 1000 --max-reps 1000 --format csv | awk -F, '
        $1 ~ /round-trip/ { print "latency", $2, $5 * 1e6 / 2 }
        $1 ~ /stream/ { print "bandwidth", $2, $2 / $5 / 1e6 }' | sed 's/^/our-/' >>"$figures"
}
for ((round = 0; round < ROUNDS; round++)); do
    # The order alternates, because the first program finds an idle machine.
    if ((round % 2)); then ours; fi
    theirs latency "$latency"
    theirs bandwidth "$bandwidth"
    if ((round % 2 == 0)); then ours; fi
done

sort -k1,1 -k2,2n -k3,3g "$figures" | awk '
    function flush() { if (n) { rounds = n; middle[key] = (value[int((n + 1) / 2)] + value[int((n + 2) / 2)]) / 2 } n = 0 }
    { if ($1 " " $2 != key) flush(); key = $1 " " $2; value[++n] = $3 }
    END {
        flush()
        printf "medians of %d rounds\n%9s %12s %12s %7s %14s %14s %7s\n", rounds, "bytes", "OSU us", "mpib us", "ratio", "OSU MB/s", "mpib MB/s", "ratio"
        for (bytes = 1; bytes <= 4194304; bytes *= 2) {
            if (!(("latency " bytes) in middle) || !(("bandwidth " bytes) in middle)) continue
            late = middle["our-latency " bytes] / middle["latency " bytes]
            wide = middle["our-bandwidth " bytes] / middle["bandwidth " bytes]
            printf "%9d %12.3f %12.3f %7.3f %14.1f %14.1f %7.3f\n", bytes, middle["latency " bytes], middle["our-latency " bytes], late, middle["bandwidth " bytes], middle["our-bandwidth " bytes], wide
            if (late > 1.05) { slow++; where = where " latency at " bytes }
            if (wide < 0.9) { slow++; where = where " bandwidth at " bytes }
        }
        print slow ? "worse than OSU by more than 5 % (latency) or 10 % (bandwidth):" where : "latency within 5 % of OSU or below, bandwidth at least 0.9 of it, at all sizes"
        exit slow > 0
    }' | tee ${1:+"$1"}
