# `make` alone says what there is. Everything goes through Cargo; CARGO_TARGET_DIR and CARGO_BUILD_JOBS work as always.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help prerequisites build install demo test test-mpi test-sites test-checkpoints lint scripts bench fuzz chaos

# A shell that has never seen rustup's directory finds cargo all the same.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

SCRIPTS := deploy/demo.sh deploy/prerequisites.sh tests/cluster/sites.sh benches/mpib/compare-osu.sh .ci/run
FUZZ_SECONDS ?= 60
CHAOS_SECONDS ?= 600
PREFIX ?= /usr/local

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-14s %s\n", $$1, $$2 }'

prerequisites: ## look for compilers, CMake and Rust; install them when root, else say what is missing
	@deploy/prerequisites.sh

build: prerequisites ## the command, target/release/mcr
	cargo build --release --locked -p mcr-cli --bin mcr

install: build ## the command, without debugging lines, to PREFIX/bin (PREFIX=/usr/local)
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -s -m 755 "$$(cargo metadata --format-version 1 --no-deps --offline \
	    | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/mcr" "$(DESTDIR)$(PREFIX)/bin/mcr"

demo: prerequisites ## a simulation and the daemons are killed, and it ends bit for bit as if nothing had been (DAEMONS=1: as processes)
	@deploy/demo.sh $(if $(DAEMONS),--daemons)

test: prerequisites scripts ## all tests and checks
	cargo check --locked -p mcrengine # alone: it must not need what only the daemons have
	cargo test --locked --workspace
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if deploy/prerequisites.sh mpi; then $(MAKE) --no-print-directory test-mpi; \
	    else echo "SKIPPED: the tests of benches/mpib, which need an MPI" >&2; fi

# Red Hat keeps Open MPI beside the path until its module is loaded.
MPIB := cd benches/mpib && PATH="$$PATH:/usr/lib64/openmpi/bin" cargo

# Two minutes of test-sites; the tests themselves say aloud where there can be no sites.
SOME_SITES := models_find_the_links sites_are_found

test-mpi: scripts ## benches/mpib, which needs an MPI, on oversubscribed ranks of this machine, and as root between emulated sites
	@deploy/prerequisites.sh mpi
	$(MPIB) build --locked --examples # a test runs one on several ranks
	$(MPIB) test --locked --lib --bins --test ranks
	$(MPIB) test --locked --test sites -- $(SOME_SITES)
	$(MPIB) clippy --locked --all-targets -- -D warnings

test-sites: scripts ## benches/mpib between all emulated sites, as root, on a machine that does nothing else; 6 minutes
	@deploy/prerequisites.sh mpi
	$(MPIB) test --locked --test sites

test-checkpoints: scripts ## checkpoints of mpib jor, killed and continued; some minutes, most of them HDF5's build
	@deploy/prerequisites.sh mpi
	$(if $(wildcard target/release/mcr),export MCR="$(CURDIR)/target/release/mcr";) \
	    $(MPIB) test --locked --features hdf5 --test checkpoints

lint: scripts ## formatting, clippy and documentation, warnings being errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

scripts: # each script parses; shellcheck, where there is one, has nothing to say
	@for script in $(SCRIPTS); do bash -n "$$script"; done
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); fi

bench: prerequisites ## all benchmarks, as in BENCHMARKS.md; those on real checkpoints need MCR_CORPUS; takes about 25 minutes
	cargo bench --locked -p mcr-cli --bench compare --bench stream --bench memory --bench many
	cargo bench --locked -p mcrengine --bench plan --bench codecs
	cargo test --locked --release -p mcr-cli --test compression -- --include-ignored --nocapture

chaos: prerequisites ## kill, stop and terminate everything at random for CHAOS_SECONDS (600), and check every restored byte
	MCR_CHAOS_SECONDS=$(CHAOS_SECONDS) cargo test --locked -p mcr-cli --test chaos -- --nocapture

fuzz: ## each fuzz target for FUZZ_SECONDS (60); needs cargo-fuzz
	@cargo fuzz --version >/dev/null 2>&1 || { echo "missing: cargo-fuzz; install: cargo install cargo-fuzz --locked" >&2; exit 1; }
	cd tests/fuzz && for target in $$(cargo fuzz list --fuzz-dir .); do \
	    RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir . "$$target" -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048; done
