#!/usr/bin/env bash
# Builds the packages mcrengine (the command) and mcrengine-node (the daemon of a node):
# target/packages/mcrengine*.deb and mcrengine*.rpm. Needs python3 with venv, objdump, and a connection to crates.io
# and PyPI when it runs for the first time. The tools that it installs stay in target/packages.
#
# The command is linked by zig, because zig can link for an older glibc than the glibc of this machine. cli/Cargo.toml
# states the version of glibc.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$PWD/target/packages
files=$packages/files tools=$packages/tools
triple=x86_64-unknown-linux-gnu
target=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

fail() { echo "packages: $*" >&2; exit 1; }
have() { [ -f "$tools/.crates.toml" ] && grep -qF "\"$1 $2 " "$tools/.crates.toml"; }
stated() { grep -oE "$1" cli/Cargo.toml | grep -oE '[0-9]+\.[0-9]+' || fail "cli/Cargo.toml does not match $1"; }

glibc=$(stated 'libc6 \(>= [0-9.]+\)')
[ "$(stated 'glibc = ">= [0-9.]+"')" = "$glibc" ] || fail "cli/Cargo.toml states two versions of glibc"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
for dependency in "mcrengine (= $version-1)" "mcrengine = \"= $version-1\""; do
    grep -qF "$dependency" node/Cargo.toml || fail "node/Cargo.toml does not require $dependency"
done

for tool in cargo-deb=3.8.0 cargo-generate-rpm=0.21.1; do
    have "${tool%=*}" "${tool#*=}" ||
        cargo install --quiet --locked --root "$tools" --target-dir "$tools/target" "${tool%=*}" --version "${tool#*=}"
    rm -rf "$tools/target"
done
[ -x "$tools/zig/bin/python" ] || python3 -m venv "$tools/zig"
"$tools/zig/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.1
export PATH=$tools/bin:$tools/zig/bin:$PATH

# The user's Cargo configuration may have linker options that zig does not accept, so RUSTFLAGS is empty.
RUSTFLAGS='' cargo zigbuild --release --locked -p mcr-cli --bin mcr --target $triple."$glibc"

rm -rf "$files" "$packages"/*.deb "$packages"/*.rpm
mkdir -p "$files"
objcopy --only-keep-debug "$target/$triple/release/mcr" "$packages/mcr.debug"
objcopy --strip-unneeded --add-gnu-debuglink="$packages/mcr.debug" "$target/$triple/release/mcr" "$files/mcr"

# The packages require only glibc, so the command must need no newer version and no other library.
symbols=$(objdump -T "$files/mcr")
needed=$(grep -oE 'GLIBC_[0-9.]+' <<<"$symbols" | sort -uV | tail -n 1)
needed=${needed#GLIBC_}
echo "packages: the command needs glibc $needed, the packages state glibc $glibc"
[ "$(printf '%s\n' "$needed" "$glibc" | sort -V | tail -n 1)" = "$glibc" ] || fail "the command needs a newer glibc"
others=$(objdump -p "$files/mcr" | awk '$1 == "NEEDED" { print $2 }' |
    grep -vE '^(lib(c|m|dl|rt|util|pthread)|ld-linux-x86-64)\.so' || true)
[ -z "$others" ] || fail "the command needs libraries that the packages do not state: $others"

"$files/mcr" manual "$files"
cargo tree --locked -p mcr-cli --target $triple -e normal,build --prefix none --format '{p}' |
    python3 deploy/licences.py $triple >"$files/LICENSES-LIBRARIES"
gzip -9n "$files"/man/man1/*

# Write the names of all units into the scripts of mcrengine-node.
units=$(cd deploy/systemd && echo *)
mkdir -p "$files"/{node,deb,rpm}
cp deploy/config/cluster.toml "$files/node/mcr.toml"
for script in deploy/packages/*.*; do
    name=${script##*/}
    [ "$name" != common.sh ] || continue
    sed "s/@UNITS@/$units/" deploy/packages/common.sh | cat - "$script" >"$files/${name/.//}"
    sh -n "$files/${name/.//}"
done

for package in mcr-cli mcr-node; do
    cargo deb --quiet --no-build --no-strip -p $package --output "$packages"
    # older versions of rpm cannot read zstd
    cargo generate-rpm -p ${package#mcr-} --payload-compress gzip --output "$packages"
done
ls -sh1 "$packages"/*.deb "$packages"/*.rpm
