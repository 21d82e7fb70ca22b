#!/usr/bin/env bash
# Checks the tools that the build needs: a C and a C++ compiler, make, CMake (for the built-in HDF5), and Rust. Prints
# nothing if all tools are installed. Otherwise, if root runs the script, it installs the missing tools from the
# distribution's packages (Rust with rustup). For other users, the script prints what to install, and fails.
#     deploy/prerequisites.sh [mpi]
# With "mpi", the script also checks the tools for benches/mpib: Open MPI with its headers, and libclang, with which
# rsmpi generates its bindings.
set -euo pipefail

mpi=${1:-}
case $mpi in '' | mpi) ;; *) echo "usage: $0 [mpi]" >&2; exit 2 ;; esac

cmake_needed=3.18 rust_needed=1.89

have() { command -v "$1" >/dev/null 2>&1; }
# at_least FOUND NEEDED: compares version numbers.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
version_of() { "$@" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1 || true; }

# rustup installs cargo into a directory that a new shell may not have in its PATH yet.
if ! have cargo && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH; fi

any() { local pattern; for pattern; do compgen -G "$pattern" >/dev/null && return; done; return 1; }

missing_tools() {
    local tool found
    for tool in cc c++ make; do have $tool || echo "$tool"; done
    found=$(version_of cmake)
    if [ -z "$found" ]; then echo cmake; elif ! at_least "$found" $cmake_needed; then
        echo "CMake $cmake_needed or newer (found $found)"
    fi
    [ -n "$mpi" ] || return 0
    # if Red Hat's module is installed but not loaded, both commands are not in the PATH
    have mpicc || [ -x /usr/lib64/openmpi/bin/mpicc ] || echo "an MPI with mpicc"
    have mpirun || [ -x /usr/lib64/openmpi/bin/mpirun ] || echo mpirun
    # rsmpi's bindgen needs the library and the headers of the same version
    any '/usr/lib*/libclang.so*' '/usr/lib/*/libclang-[0-9]*.so*' || echo libclang
    any '/usr/lib*/clang/*/include/stddef.h' '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' || echo "libclang's headers"
}
missing_rust() {
    local found
    if ! have cargo || ! have rustc; then echo "Rust $rust_needed or newer" && return; fi
    found=$(version_of rustc)
    if [ -z "$found" ] || ! at_least "$found" $rust_needed; then echo "Rust $rust_needed or newer (found ${found:-none})"; fi
}

packages() { # prints the command that installs the C tools, or nothing if the distribution is unknown
    if have apt-get; then
        # the library and the headers must have one version: the version of the distribution's libclang-dev
        local clang=''
        if [ -n "$mpi" ]; then
            clang=$(apt-cache depends libclang-dev 2>/dev/null | grep -oE 'libclang-[0-9]+-dev' | grep -oE '[0-9]+' | head -n 1 || true)
            clang=" libopenmpi-dev openmpi-bin libclang1-${clang:-14} libclang-common-${clang:-14}-dev iproute2"
        fi
        echo "apt-get install -y --no-install-recommends build-essential cmake ca-certificates curl$clang"
    elif have dnf; then echo "dnf install -y gcc gcc-c++ make cmake curl${mpi:+ openmpi-devel clang-devel iproute-tc}"; fi
}
rustup='curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal'

tools=$(missing_tools | paste -sd ,) rust=$(missing_rust)
[ -n "$tools$rust" ] || exit 0
install=$(packages)

if [ "$(id -u)" -ne 0 ] || { [ -n "$tools" ] && [ -z "$install" ]; }; then
    {
        echo "missing: $tools${tools:+${rust:+,}}$rust"
        [ -z "$tools" ] || echo "install: ${install:-a C and C++ compiler, make, and CMake $cmake_needed or newer}"
        [ -z "$rust" ] || echo "install: $rustup"
    } >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { # prints the output of a command only if it failed
    echo "prerequisites: $*"
    "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}
if [ -n "$tools" ] || ! have curl; then
    if have apt-get; then quietly env DEBIAN_FRONTEND=noninteractive apt-get update; install=$(packages); fi
    # shellcheck disable=SC2086 # the words of a command
    [ -z "$install" ] || quietly env DEBIAN_FRONTEND=noninteractive $install
fi
if [ -n "$rust" ]; then
    quietly bash -c "$rustup"
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi

tools=$(missing_tools | paste -sd ,) rust=$(missing_rust)
if [ -n "$tools$rust" ]; then
    echo "still missing after installing: $tools${tools:+${rust:+,}}$rust" >&2
    exit 1
fi
