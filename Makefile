# skep: `make run` sets up, builds, bakes and serves; `make test` sets up, builds, bakes and tests.
# Both work from a clean clone, and again. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests agent preload openapi binary build run rustfmt-and-clippy test test-all test-dashboard soak-dashboard check rounds stress schemathesis clients audit bench bench-forks bench-sizes fuzz soak update-test clean

TARGET := x86_64-unknown-linux-gnu
AGENT := target/guest/$(TARGET)/guest/skep-agent
SKEP := target/release/skep
# Tests bake once, into an image directory of their own.
TEST_IMAGES := $(CURDIR)/target/images
# The size of most VMs of tests, see `small_vms` in tests/harness.
BAKE_FOR_TESTS = $(SKEP) bake --image-dir $(TEST_IMAGES) --base-memory-mb 128 --base-vcpus 1 --base-disk-mb 2048
# What tests the API from its document lives in a virtual environment of its own.
VENV := target/schemathesis
# What generates clients from its document, and what those need.
CLIENTS := target/clients
NEXTEST := packaging/nextest
# What tests read of where their parts lie.
TEST_ENVIRONMENT = SKEP_BINARY=$(CURDIR)/$(SKEP) SKEP_TEST_IMAGES=$(TEST_IMAGES) \
	SKEP_SCHEMATHESIS=$(CURDIR)/$(VENV)/bin/schemathesis SKEP_CLIENTS=$(CURDIR)/$(CLIENTS)
# Where the data of `make run` lies; as an ordinary user skep chooses a place in that user's home.
ARGS ?=
SOAK_BOOTS ?= 10000
SOAK_COPY_ROUNDS ?= 100
SOAK_GIT_ROUNDS ?= 2000

help: ## list what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{ printf "make %-14s %s\n", $$1, $$2 }'

setup: ## install what is missing (as root), or name it
	@packaging/setup

# Tests take more disk space than `make run`.
setup-tests:
	@packaging/setup tests

agent:
	@echo "==> guest agent (static)"
	@CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static' \
		cargo build --locked --package skep-agent --profile guest --target $(TARGET) --target-dir target/guest

preload:
	@echo "==> library that is preloaded into VMMs"
	@cargo build --locked --package skep-preload --profile guest --target $(TARGET) --target-dir target/preload

# Both packages are named, because cargo would build the dependencies of one alone once more, with other features. The library comes
# first, because a build that looks for it while it is written embeds none, and later builds take its time for an earlier one.
openapi: preload
	@echo "==> what prints the document of the API (the first build takes some minutes)"
	@cargo build --locked --release --package skep --package skep-openapi --bin skep-openapi

# The dashboard's types come from the API's document, which a small binary prints; then skep embeds the dashboard, the agent and the
# library. Those are linked by one processor each, so that a build of them alone leaves processors idle.
binary:
	@$(MAKE) --no-print-directory --jobs=2 openapi agent
	@packaging/dashboard target/release/skep-openapi
	@echo "==> skep"
	@cargo build --locked --release --package skep

build: setup ## build what is embedded, and the binary, target/release/skep; root compiles as the owner of the clone, if that user has Rust
	@packaging/as-owner --hand-over
	@packaging/as-owner $(MAKE) --no-print-directory binary

run: build ## set up, build, bake the base template, serve until Ctrl-C
	@if [ "$$(id -u)" = 0 ]; then $(SKEP) bake $(ARGS); fi
	@exec $(SKEP) serve $(ARGS)

test: setup-tests build rustfmt-and-clippy schemathesis clients ## all tests, with real VMs
	@[ "$$(id -u)" = 0 ] || { echo "make test: VMs need root (namespaces, taps, cgroups); \`make check\` needs none" >&2; exit 1; }
	@packaging/setup browser
	@echo "==> base template for the tests"
	@$(BAKE_FOR_TESTS)
	@$(TEST_ENVIRONMENT) tests/stages/run lint check unit service vm dashboard

test-all: setup-tests build rustfmt-and-clippy schemathesis clients ## all tests, with the thorough ones: many rounds, a kill at each step, floods, each operation with generated requests
	@[ "$$(id -u)" = 0 ] || { echo "make test-all: VMs need root (namespaces, taps, cgroups); \`make check\` needs none" >&2; exit 1; }
	@packaging/setup browser
	@echo "==> base template for the tests"
	@$(BAKE_FOR_TESTS)
	@$(TEST_ENVIRONMENT) tests/stages/run lint check unit service vm thorough dashboard dashboard-thorough

test-dashboard: build ## the dashboard in a browser (Chromium), with real VMs; needs root
	@[ "$$(id -u)" = 0 ] || { echo "make test-dashboard: VMs need root (namespaces, taps, cgroups)" >&2; exit 1; }
	@packaging/setup browser
	@$(BAKE_FOR_TESTS)
	@$(TEST_ENVIRONMENT) tests/stages/run dashboard dashboard-thorough

soak-dashboard: build ## the dashboard with 1,000 VMs and 10,000 tickets, and a picture of each page in target/pictures
	@[ "$$(id -u)" = 0 ] || { echo "make soak-dashboard: VMs need root (namespaces, taps, cgroups)" >&2; exit 1; }
	@packaging/setup browser
	@$(BAKE_FOR_TESTS)
	@$(TEST_ENVIRONMENT) packaging/node npm run --prefix dashboard --silent soak

rustfmt-and-clippy: setup
	@packaging/as-owner sh -c '{ cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 || rustup component add rustfmt clippy'

check: build rustfmt-and-clippy ## format, lints and the tests that need neither root nor VMs
	@$(TEST_ENVIRONMENT) tests/stages/run lint check unit service

QUIET ?= 3
LOADED ?= 2
ROUNDS_FILE ?= $(HOME)/skep-rounds
rounds: setup-tests build schemathesis clients ## the tests QUIET times, and LOADED times beside one busy process on each processor, with a line for each run in ROUNDS_FILE; needs root
	@packaging/setup browser
	@$(BAKE_FOR_TESTS)
	@$(TEST_ENVIRONMENT) tests/stages/rounds $(QUIET) $(LOADED) $(ROUNDS_FILE)

ROUNDS ?= 50
stress: build ## the tests that TEST, a filter of nextest, names, ROUNDS times beside one busy process on each processor; root's too with SKEP_TEST_ROOT=1
	@[ -n "$(TEST)" ] || { echo "make stress: name the tests: TEST='test(restart::)'" >&2; exit 1; }
	@$(TEST_ENVIRONMENT) tests/stages/stress '$(TEST)' $(ROUNDS)

schemathesis: $(VENV)/ready

# The environment is made whole or not at all: what an interrupted one left is thrown away.
$(VENV)/ready: tests/binary/schemathesis/requirements.txt | build
	@echo "==> virtual environment for schemathesis"
	@rm -rf $(VENV)
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --requirement $<
	@$(VENV)/bin/pip check --disable-pip-version-check
	@touch $@

clients: $(CLIENTS)/ready

$(CLIENTS)/ready: tests/binary/clients/python/requirements.txt tests/binary/clients/typescript/package-lock.json | build
	@echo "==> generators of Python and TypeScript clients"
	@rm -rf $(CLIENTS)
	@python3 -m venv $(CLIENTS)/python
	@$(CLIENTS)/python/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --requirement $<
	@$(CLIENTS)/python/bin/pip check --disable-pip-version-check
	@mkdir $(CLIENTS)/typescript
	@cp tests/binary/clients/typescript/package.json tests/binary/clients/typescript/package-lock.json $(CLIENTS)/typescript
	@cd $(CLIENTS)/typescript && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

audit: ## licences, bans, sources and advisories of the dependencies (cargo-deny)
	@packaging/as-owner cargo deny --version >/dev/null 2>&1 || { echo "make audit: cargo-deny is missing; install it: cargo install --locked cargo-deny" >&2; exit 1; }
	@packaging/as-owner cargo deny --all-features check

FUZZ_SECONDS ?= 60
# The sanitizer needs options that a stable compiler has only for its own build, and takes by RUSTC_BOOTSTRAP.
fuzz: ## what a guest may send: frames of the channel, first bytes of connections, DNS queries, each FUZZ_SECONDS long (cargo-fuzz)
	@packaging/as-owner --hand-over
	@packaging/as-owner cargo fuzz --version >/dev/null 2>&1 || { echo "make fuzz: cargo-fuzz is missing; install it: cargo install --locked cargo-fuzz" >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "make fuzz: a C++ compiler is missing, for libFuzzer; install it: apt-get install g++" >&2; exit 1; }
	@for target in host_end first_bytes dns_query; do \
		RUSTC_BOOTSTRAP=1 packaging/as-owner cargo fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=60 || exit; \
	done

# Both packages are named, because cargo would build the dependencies of one alone once more, with other features.
BUILD_BENCH := packaging/as-owner cargo build --locked --release --package skep --package skep-bench
bench: build ## boots out of the pool, cold, and by plain QEMU, measured here; ARGS are those of skep-bench
	@packaging/as-owner cargo build --locked --release --package skep-engine --example plain_qemu
	@$(BUILD_BENCH)
	@benches/boot/run $(SKEP) target/release/skep-bench target/release/examples/plain_qemu $(TEST_IMAGES) $(ARGS)

BENCH_VMS ?= 60
BENCH_SCALE ?= 40
bench-forks: build ## forks, snapshots and pauses to disk of VMs that changed 50 and 256 MB (ROUNDS of each); needs root
	@[ "$$(id -u)" = 0 ] || { echo "make bench-forks: VMs need root (namespaces, taps, cgroups)" >&2; exit 1; }
	@packaging/as-owner cargo build --locked --release --package skep-engine --example plain_qemu
	@benches/forks $(SKEP) target/release/examples/plain_qemu $(TEST_IMAGES) 50 256

bench-sizes: build ## boots by the size of VMs (ROUNDS of ten each), BENCH_VMS idle VMs of 1 GiB, and a Python test suite (BENCH_SCALE) in VMs with one and two processors; needs root
	@[ "$$(id -u)" = 0 ] || { echo "make bench-sizes: VMs need root (namespaces, taps, cgroups)" >&2; exit 1; }
	@$(BUILD_BENCH)
	@benches/boot_sizes $(SKEP) target/release/skep-bench $(TEST_IMAGES)
	@benches/idle $(SKEP) $(TEST_IMAGES) $(BENCH_VMS)
	@benches/sizes $(SKEP) $(TEST_IMAGES) $(BENCH_SCALE)

# A minute of VMs for each hundred boots; SOAK_SEED=... runs one again, and SKEP_TEST_SEED=... the kills during copies. The work
# takes an hour.
soak: build ## what VMs share that were never seeded, 50 copies of one VM, and npm in a VM; SOAK_BOOTS boots and ends with VMMs killed at random; SOAK_SERVER=1: a tenth of it with servers killed too; SOAK_WORK_MINUTES of work in SOAK_WORK_VMS VMs; SOAK_COPY_ROUNDS kills at random during forks, snapshots, pauses and resumes each; SOAK_GIT_ROUNDS calls of git while its settings are rewritten
	@[ "$$(id -u)" = 0 ] || { echo "make soak: VMs need root (namespaces, taps, cgroups)" >&2; exit 1; }
	@packaging/as-owner $(NEXTEST) build
	@$(BAKE_FOR_TESTS)
	@$(TEST_ENVIRONMENT) SKEP_TEST_ROOT=1 SOAK_BOOTS=$(SOAK_BOOTS) SOAK_COPY_ROUNDS=$(SOAK_COPY_ROUNDS) \
		$(NEXTEST) run --profile soak --no-capture -E 'binary_id(skep-tests::binary)' -- \
		soak::boots_with_$(if $(SOAK_SERVER),servers,vmms) soak::copies:: soak::node:: soak::resources:: \
		soak::without_reseed:: soak::work:: thorough::random_kills::copies::
	@SOAK_GIT_ROUNDS=$(SOAK_GIT_ROUNDS) $(NEXTEST) run --profile soak -E 'binary_id(skep-service-tests::service)' -- git::races::

EARLIER ?=
EARLIER_TREE := $(CURDIR)/target/earlier
# Without EARLIER it is the commit that `packaging/earlier` names.
update-test: build ## VMs of an earlier revision after an update to this one; EARLIER=<git revision>, else that of packaging/earlier
	@[ "$$(id -u)" = 0 ] || { echo "make update-test: VMs need root (namespaces, taps, cgroups)" >&2; exit 1; }
	@git="packaging/as-owner git"; revision="$(EARLIER)"; [ -n "$$revision" ] || revision=$$(cat packaging/earlier); \
		[ -n "$$revision" ] || { echo "make update-test: name the earlier revision: EARLIER=<git revision>" >&2; exit 1; }; \
		revision=$$($$git rev-parse --verify "$$revision^{commit}"); \
		echo "==> the earlier revision, $$revision (the first build takes some minutes)"; \
		$$git worktree prune; \
		[ -e $(EARLIER_TREE)/.git ] || $$git worktree add --quiet --detach $(EARLIER_TREE) "$$revision"; \
		$$git -C $(EARLIER_TREE) checkout --quiet --force --detach "$$revision"
	@packaging/as-owner $(MAKE) --directory $(EARLIER_TREE) build
	@packaging/as-owner $(NEXTEST) build
	@$(SKEP) bake --image-dir $(TEST_IMAGES)
	@$(TEST_ENVIRONMENT) SKEP_TEST_ROOT=1 SKEP_EARLIER_BINARY=$(EARLIER_TREE)/$(SKEP) \
		$(NEXTEST) run --profile soak --no-capture -E 'binary_id(skep-tests::binary) & test(/^update::/)'

clean: ## remove what was built
	@[ ! -d target ] || find target/. -mindepth 1 -delete
