# `make` alone says what there is. Everything goes through Cargo; CARGO_TARGET_DIR and CARGO_BUILD_JOBS work as always.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help prerequisites build demo test lint scripts bench fuzz

# A shell that has never seen rustup's directory finds cargo all the same.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

SCRIPTS := deploy/demo.sh deploy/prerequisites.sh .ci/run
FUZZ_SECONDS ?= 60

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-14s %s\n", $$1, $$2 }'

prerequisites: ## look for compilers, CMake and Rust; install them when root, else say what is missing
	@deploy/prerequisites.sh

build: prerequisites ## the command, target/release/mcr
	cargo build --release --locked -p mcr-cli --bin mcr

demo: prerequisites ## a simulation is killed together with the daemons, and ends bit for bit as if nothing had been
	@deploy/demo.sh

test: prerequisites scripts ## all tests and checks
	cargo check --locked -p mcrengine # alone: it must not need what only the daemons have
	cargo test --locked --workspace
	cargo clippy --locked --workspace --all-targets -- -D warnings

lint: scripts ## formatting and clippy, warnings being errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

scripts: # each script parses; shellcheck, where there is one, has nothing to say
	@for script in $(SCRIPTS); do bash -n "$$script"; done
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); fi

bench: prerequisites ## all benchmarks, as in BENCHMARKS.md; those on real checkpoints need MCR_CORPUS; takes about 15 minutes
	cargo bench --locked -p mcr-cli --bench compare --bench stream --bench memory
	cargo bench --locked -p mcrengine --bench plan --bench codecs

fuzz: ## each fuzz target for FUZZ_SECONDS (60); needs a nightly toolchain and cargo-fuzz
	@cd tests/fuzz && for target in $$(cargo +nightly fuzz list); do \
	    cargo +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS); done
