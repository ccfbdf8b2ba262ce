# Needs Python 3.11+, make and an x86-64 glibc Linux; `make setup` brings all else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip --quiet
INSTALLED := $(VENV)/installed-by-make
SOURCES := pgstream_dagster tests benchmarks .ci
DOCUMENTS := $(wildcard *.md *.yaml) docs deploy benchmarks pgstream_dagster

MAJORS ?= 15,18
WORKERS ?= 3
ENGINES ?= opensearch-3,opensearch-2,elasticsearch-9
SECONDS ?= 60
COUNT ?= 500
SEED ?= 1
ARGS ?=
TRINO ?=
TRINO_JAVA ?=

# Tests with all services real: what cannot be started fails instead of being skipped. A worker has
# servers and a JVM of its own (about 2 GB). Three keep two cores busy, as tests also wait.
# Their JVMs live for seconds, so compiling for speed costs more than it gives: half of all CPU. A
# JVM that is told so keeps 48 MB for code, and stops to compile at all when a worker fills them.
# They load the same classes each time: an archive of those saves a third of a start's CPU.
COMPILE = -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m
ARCHIVE := $(VENV)/java.jsa
ARCHIVED = -XX:SharedArchiveFile=$(CURDIR)/$(ARCHIVE) -Xlog:cds*=off
JAVA = $(COMPILE) $(ARCHIVED)
SHORT_LIVED = JDK_JAVA_OPTIONS="$(JAVA)"
REAL = REQUIRE_SERVERS=1 PGSTREAM_TEST_MAJORS=$(MAJORS) $(SHORT_LIVED)
IN_MEMORY = $(BIN)/python .ci/in_memory.py
PARALLEL = --numprocesses $(WORKERS) --dist worksteal

# A run starts hundreds of processes; without cached bytecode each compiles all modules again, which
# takes longer than most of them live.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup archive lint types format test-unit test test-random test-all test-long crash test-search test-trino test-wheel chaos histories faults outage demo dev bench docs docs-check check lock local-files clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## the virtual environment in .venv, all dependencies, the jars of the demo and the tests

$(INSTALLED): requirements.lock pyproject.toml pgstream_dagster/runtime/jars.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or later: make setup PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# uv itself comes from the lock too, by pip and with its hashes
	@awk '/^uv==/{on=1} on{print} on && !/\\$$/{exit}' requirements.lock > $(VENV)/uv.lock
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	@echo "installing the dependencies of requirements.lock"
	@$(UV) install --python $(BIN)/python --require-hashes --build-constraints requirements.lock -r requirements.lock
	@$(UV) install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@echo "fetching the jars of jars.lock"
	@$(BIN)/python -m pgstream_dagster.runtime.jars spark postgres-15 postgres-18 opensearch-3 kafka-4 elasticmq-1
	@touch $@

lint: setup ## style, names, phrases, layers, spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python .ci/names.py $(SOURCES)
	$(BIN)/python .ci/phrases.py $(DOCUMENTS)
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

types: setup ## strict types of the package
	$(BIN)/basedpyright

format: setup ## write the house format
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

check: lint types docs-check ## lint, types and documents

test-unit: setup ## tests without services, in seconds
	$(BIN)/pytest tests/unit $(ARGS)

test: $(ARCHIVE) ## the tests, all services real: MAJORS=15,18 WORKERS=3
	$(REAL) $(IN_MEMORY) $(BIN)/pytest $(PARALLEL) $(ARGS)

test-random: $(ARCHIVE) ## the tests, in random order: SEED=1 WORKERS=3
	$(REAL) $(IN_MEMORY) $(BIN)/pytest -p randomly --randomly-seed=$(SEED) --randomly-dont-reset-seed \
	  $(PARALLEL) $(ARGS)

test-all: setup ## all tests on Postgres 15, 16, 17 and 18
	PGSTREAM_TEST_ALL=1 $(MAKE) test MAJORS=15,16,17,18

test-long: $(ARCHIVE) ## the longer proofs that `make test` leaves out: WORKERS=3
	$(REAL) PGSTREAM_TEST_LONG=1 $(IN_MEMORY) $(BIN)/pytest -m long --timeout 3600 $(PARALLEL) $(ARGS)

crash: $(ARCHIVE) ## SIGKILL at every failpoint, of search too: minutes
	$(REAL) PGSTREAM_TEST_ALL=1 $(IN_MEMORY) $(BIN)/pytest tests/crash tests/sinks/test_*_kill.py tests/lake/test_*_crash.py \
	  tests/lake/test_*_kill.py tests/sinks/test_all_targets.py tests/sinks/test_kafka.py tests/sinks/test_kafka_source.py --timeout 3600 $(ARGS)

test-search: $(ARCHIVE) ## the tests of search, whole, on each engine: ENGINES=opensearch-3
	$(REAL) PGSTREAM_TEST_ALL=1 PGSTREAM_TEST_SEARCH=$(ENGINES) $(IN_MEMORY) $(BIN)/pytest tests/search \
	  tests/lake/test_search.py --timeout 1200 $(ARGS)

test-trino: setup ## what Trino reads: TRINO=/opt/trino-server-476 TRINO_JAVA=/opt/jdk-25
	@test -n "$(TRINO)" -a -n "$(TRINO_JAVA)" || { echo "name TRINO and TRINO_JAVA: make help"; exit 2; }
	$(REAL) PGSTREAM_TEST_LONG=1 PGSTREAM_TEST_TRINO=$(TRINO) PGSTREAM_TEST_TRINO_JAVA=$(TRINO_JAVA) \
	  $(BIN)/pytest tests/readers/test_trino.py --timeout 1800 $(ARGS)

archive: $(ARCHIVE) ## what the tests' JVMs load, in one file; the tests make it by themselves

# Beside it the tests are collected, which compiles them: each worker would do so for itself.
$(ARCHIVE): $(INSTALLED)
	@echo "archiving the classes of Spark, and compiling the tests"
	@$(BIN)/pytest --collect-only --quiet > $(VENV)/collected.log 2>&1 & \
	JDK_JAVA_OPTIONS="$(COMPILE)" $(BIN)/python -m tests.support.lake.java_archive $@.new 2> $(VENV)/java.log; \
	code=$$?; wait; [ $$code -eq 0 ] || cat $(VENV)/java.log; exit $$code
	@mv $@.new $@

test-wheel: setup ## the wheel, installed and used outside the checkout
	PGSTREAM_TEST_LONG=1 $(BIN)/pytest tests/test_wheel.py $(ARGS)

chaos: $(ARCHIVE) ## kill the capture at random under load: SECONDS=60 SEED=1
	$(SHORT_LIVED) $(IN_MEMORY) $(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED)

histories: setup ## random histories of rows, keys, types, names, publications: COUNT=500 SEED=1
	$(IN_MEMORY) $(BIN)/python -m tests.support.harness.play --count $(COUNT) --seed $(SEED) $(ARGS)

faults: setup ## break network, disks, servers, processes under a stream: ARGS="lake_disk_full"
	$(BIN)/python -m tests.faults $(ARGS)

outage: setup ## every target of the outbox away for SECONDS=7200, then compared
	$(REAL) PGSTREAM_TEST_LONG=1 PGSTREAM_TEST_AWAY_SECONDS=$(SECONDS) $(BIN)/pytest --timeout 0 \
	  tests/sinks/test_outbox_targets.py $(ARGS)

demo: setup ## the whole way on real data with private servers, all compared: ARGS=--full
	$(if $(wildcard $(ARCHIVE)),JDK_JAVA_OPTIONS="$$JDK_JAVA_OPTIONS $(ARCHIVED)") $(BIN)/pgstream demo $(ARGS)

dev: setup ## Dagster's UI on a live pipeline with private servers, until Ctrl-C
	$(BIN)/pgstream dev $(ARGS)

bench: setup ## the benchmarks, as a table and JSON
	$(BIN)/python -m benchmarks $(ARGS)

docs: setup ## write the generated pages again
	$(BIN)/python -c 'from pgstream_dagster.config import reference; print(reference(), end="")' \
	  > docs/reference/configuration.md
	$(BIN)/python -c 'from pgstream_dagster.settings import reference; print(reference(), end="")' \
	  > docs/reference/environment.md
	$(BIN)/python -c 'from pgstream_dagster.search.reference import reference; print(reference(), end="")' \
	  > docs/reference/search-types.md
	$(BIN)/python -c 'from pgstream_dagster.tables.reference import reference; print(reference(), end="")' \
	  > docs/reference/table-types.md
	$(BIN)/python -c 'from pgstream_dagster.modifiers.reference import reference; print(reference(), end="")' \
	  > docs/reference/transformers.md
	$(BIN)/python -c 'from pgstream_dagster.cli.reference import reference; print(reference(), end="")' \
	  > docs/reference/command-line.md
	$(BIN)/python -c 'from pgstream_dagster.schema.ddl_reference import reference; print(reference(), end="")' \
	  > docs/reference/ddl.schema.json
	$(BIN)/python -c 'from tests.scenarios.ddl_effects import page; print(page(), end="")' \
	  > docs/reference/ddl-effects.md
	$(BIN)/python -c 'from tests.faults.page import page; print(page(), end="")' \
	  > docs/guides/what-happens-when.md

docs-check: setup ## links, commands and generated pages of the documents
	$(BIN)/pytest tests/docs --quiet

lock: setup ## write requirements.lock and jars.lock again
	$(UV) compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --all-extras --group dev pyproject.toml --output-file requirements.lock > /dev/null
	$(BIN)/python .ci/lock_jars.py

local-files: setup ## compile delta/LocalFiles.java again, which needs a JDK
	$(BIN)/python .ci/local_files.py

clean: ## remove what was made here; downloads in the user's cache stay
	rm -rf $(VENV) .demo .state dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
