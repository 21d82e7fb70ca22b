# `make` without a target lists the targets. Cargo, which builds all programs, reads the variables CARGO_TARGET_DIR and
# CARGO_BUILD_JOBS.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help prerequisites build install packages demo test test-reader test-mpi test-sites test-checkpoints test-cluster \
    test-packages picture lint scripts bench bench-size fuzz chaos

# With this PATH, make finds Cargo even if rustup's directory is not in the PATH of the shell.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

SCRIPTS := deploy/demo.sh deploy/packages.sh deploy/prerequisites.sh $(wildcard deploy/slurm/examples/*.sh) \
    deploy/packages/common.sh $(wildcard deploy/slurm/*.d/*) \
    tests/cluster/sites.sh tests/cluster/bed tests/cluster/run tests/cluster/soak tests/cluster/node.sh \
    tests/cluster/gate.sh tests/cluster/metrics.sh tests/cluster/hostile.sh tests/packages/run \
    benches/mpib/compare-osu.sh .ci/run
FUZZ_SECONDS ?= 60
CHAOS_SECONDS ?= 600
PREFIX ?= /usr/local
TARGET = $(shell cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-14s %s\n", $$1, $$2 }'

prerequisites: ## check for compilers, CMake and Rust; as root, install missing tools; other users get a list
	@deploy/prerequisites.sh

# mcr is a hard link of a file that Cargo keeps. So objcopy must not change the file: a new file replaces the link.
build: prerequisites ## build target/release/mcr, and mcr.debug, which has the line numbers for backtraces
	cargo build --release --locked -p mcr-cli --bin mcr
	@cd $(TARGET)/release && objcopy --only-keep-debug mcr mcr.debug && \
	    objcopy --strip-unneeded --add-gnu-debuglink=mcr.debug mcr mcr.small && mv -f mcr.small mcr

install: build ## copy mcr to PREFIX/bin (PREFIX=/usr/local), and mcr.debug to PREFIX/bin/.debug
	install -D -m 755 "$(TARGET)/release/mcr" "$(DESTDIR)$(PREFIX)/bin/mcr"
	install -D -m 644 "$(TARGET)/release/mcr.debug" "$(DESTDIR)$(PREFIX)/bin/.debug/mcr.debug"

packages: prerequisites ## build target/packages/*.deb and *.rpm, for glibc 2.28 or newer; downloads tools
	@deploy/packages.sh

demo: prerequisites ## kill a simulation and the daemons, restart, compare the final state (DAEMONS=1: separate daemons)
	@deploy/demo.sh $(if $(DAEMONS),--daemons)

# The crate mcrengine is also checked alone, because a build of the whole workspace hides that a dependency is missing.
# The tests use two threads for each core, because most tests wait for other processes.
test: prerequisites scripts ## run all tests and checks
	cargo check --locked -p mcrengine
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} cargo test --locked --workspace
	@$(MAKE) --no-print-directory test-reader
	@if deploy/prerequisites.sh mpi; then $(MAKE) --no-print-directory test-mpi; \
	    else echo "SKIPPED: the tests of benches/mpib, which need an MPI" >&2; fi

picture: ## make docs/page.png again, from daemons that run for a minute; needs chromium
	MCR_PICTURE="$(CURDIR)/docs/page.png" cargo test --locked -p mcr-cli --test e2e -- page::a_picture --nocapture

test-reader: ## save checkpoints with mcr, restore them with the reader in Python (tests/reader), compare every byte
	@cargo test --locked --quiet --workspace --test e2e --no-run # builds mcr, from the libraries of `make test`
	@python=target/reader/bin/python; if python3 -m venv target/reader >&2 && \
	        $$python -m pip install --quiet --disable-pip-version-check -r tests/reader/requirements.txt; then \
	    MCR="$$PWD/target/debug/mcr" $$python tests/reader/test_reader.py tests/data/checkpoints; \
	    else echo "SKIPPED: the tests of tests/reader, which need python3 with venv (Debian: python3-venv) and the packages" \
	        "of tests/reader/requirements.txt" >&2; fi

# On Red Hat, Open MPI is not in the PATH until its module is loaded.
MPIB := cd benches/mpib && PATH="$$PATH:/usr/lib64/openmpi/bin" cargo

# The tests of test-sites that test-mpi runs too. A test prints a message if this machine cannot emulate sites.
SOME_SITES := models_find_the_links sites_are_found

test-mpi: scripts ## test benches/mpib, which needs an MPI; as root also between emulated sites
	@deploy/prerequisites.sh mpi
	$(MPIB) build --locked --examples # a test runs an example on several ranks
	$(MPIB) test --locked --lib --bins --test ranks --test packages
	$(MPIB) test --locked --test sites -- $(SOME_SITES)

test-sites: scripts ## test benches/mpib between all emulated sites; needs root and an idle machine
	@deploy/prerequisites.sh mpi
	$(MPIB) test --locked --test sites

test-checkpoints: scripts ## kill mpib jor and continue it from its checkpoints; some minutes, mostly to build HDF5
	@deploy/prerequisites.sh mpi
	$(if $(wildcard target/release/mcr),export MCR="$(CURDIR)/target/release/mcr";) \
	    $(MPIB) test --locked --features hdf5 --test checkpoints

test-cluster: scripts ## run, cancel and requeue jobs on emulated SLURM clusters; needs root; 4 minutes
	@bash tests/cluster/run --beds 3 || [ $$? = 77 ] # 77: skipped; the script prints the reason

test-packages: scripts ## install, upgrade and remove the packages below a temporary directory; needs root
	@[ "$$(id -u)" != 0 ] || $(MAKE) --no-print-directory packages
	@bash tests/packages/run || [ $$? = 77 ] # 77: skipped; the script prints the reason

lint: scripts ## check formatting, clippy and documentation; warnings are errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if deploy/prerequisites.sh mpi; then $(MPIB) clippy --locked --all-targets -- -D warnings; \
	    else echo "SKIPPED: clippy of benches/mpib, which needs an MPI" >&2; fi
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

scripts: # check that bash can parse each script, and run shellcheck if it is installed
	@for script in $(SCRIPTS); do bash -n "$$script"; done
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); fi

bench: prerequisites ## run the benchmarks of BENCHMARKS.md; some need MCR_CORPUS; about 35 minutes
	cargo bench --locked -p mcr-cli --bench compare --bench stream --bench memory --bench many
	cargo bench --locked -p mcrengine --bench plan --bench codecs
	cargo test --locked --release -p mcr-cli --test compression -- --nocapture

bench-size: prerequisites ## save, restore and mount checkpoints of 1 GiB with mcr and other programs; about 50 minutes
	cargo bench --locked -p mcr-cli --bench size --bench mount

chaos: prerequisites ## kill processes at random for CHAOS_SECONDS (600), and check every restored byte
	MCR_CHAOS_SECONDS=$(CHAOS_SECONDS) cargo test --locked -p mcr-cli --test chaos -- --nocapture

fuzz: ## run each fuzz target for FUZZ_SECONDS (60); needs cargo-fuzz
	@cargo fuzz --version >/dev/null 2>&1 || { echo "missing: cargo-fuzz; install: cargo install cargo-fuzz --locked" >&2; exit 1; }
	cd tests/fuzz && for target in $$(cargo fuzz list --fuzz-dir .); do \
	    RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir . "$$target" -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048; done
