# Needs python3.11, Java 17 and make; everything else is installed into .venv from requirements.lock.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Images set it. Then each of hundreds of processes in the tests would compile all that it imports, for five seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup lint check test test-long histories demo bench build release docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMPS)/jars ## .venv with the locked packages, dvsync itself, and Spark's jars

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dvsync needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

# PySpark comes as sources, and is half of the work: its wheel is made beside the rest, and its jars are not compressed
# only to be unpacked. Python compiles modules when they are first imported, which most never are. The lock names all.
$(STAMPS)/packages: export DIST_EXTRA_CONFIG = $(abspath $(STAMPS))/wheels.cfg
$(STAMPS)/packages: $(STAMPS)/venv requirements.lock
	rm -rf $(STAMPS)/wheels
	printf '[bdist_wheel]\ncompression = stored\n' >$(STAMPS)/wheels.cfg
	grep '^pyspark==' requirements.lock >$(STAMPS)/pyspark.txt
	grep -v '^pyspark==' requirements.lock >$(STAMPS)/others.txt
	$(PIP) wheel --no-deps --wheel-dir $(STAMPS)/wheels --requirement $(STAMPS)/pyspark.txt & wheel=$$!; \
	$(PIP) install --no-compile --no-deps --requirement $(STAMPS)/others.txt; others=$$?; \
	wait $$wheel && exit $$others
	$(PIP) install --no-compile --no-deps --no-index $(STAMPS)/wheels/pyspark-*.whl
	rm -rf $(STAMPS)/wheels
	touch $@

$(STAMPS)/dvsync: $(STAMPS)/packages pyproject.toml
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(STAMPS)/jars: $(STAMPS)/dvsync $(wildcard daemon/spark/jars.py)
	@command -v java >/dev/null || { echo "Java 17 is needed: no 'java' on PATH" >&2; exit 1; }
	$(BIN)/python -m daemon.spark.setup
	touch $@

lint: $(STAMPS)/dvsync ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# With COVERAGE=yes the lines and branches are measured that run, in each process: `python -m tests.kit.covered`.
RUN_PYTEST := $(if $(COVERAGE),$(BIN)/coverage run -m pytest,$(BIN)/pytest)
# Twice as many workers as cores: each waits half of the time for what it has asked of a daemon. In the order of the
# folders, the short unit tests are last, and all workers end together.
PYTEST := $(RUN_PYTEST) --numprocesses 4 --dist loadfile --no-loadscope-reorder
TESTS ?= tests/integration

# Tests force much to the disk; in memory, where there is room, that takes no time.
check test test-long: export TMPDIR := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 \
	2>/dev/null && echo /dev/shm || echo "$${TMPDIR:-/tmp}")

check: $(STAMPS)/dvsync ## the fast gate: lint beside unit and contract tests; no JVM
	.ci/beside lint -- $(PYTEST) --quiet tests/unit tests/contract -m "not spark and not long" -k "not postgresql"

# Each of the tests' JVMs starts with a third less work. One made by another Java is not used.
$(STAMPS)/spark.jsa: $(STAMPS)/jars
	rm -f $@
	$(BIN)/python -m tests.kit.class_archive $@ >$(STAMPS)/class_archive.log 2>&1

test: setup $(STAMPS)/spark.jsa ## lint and packages beside the tests, with Spark and all readers: 12 minutes on two cores
	@echo "make test: format, lint, types and packages, and beside them all tests but the long ones, with Spark, DuckDB,"
	@echo "Polars and PyIceberg as readers; about 12 minutes on two cores. Failures are listed again at the end."
	.ci/beside lint build -- $(PYTEST) --durations 40 --durations-min 5 -m "not long"

test-long: setup $(STAMPS)/spark.jsa ## more variants of tests, more random inputs, and Spark writes the recorded histories again
	$(PYTEST) --hypothesis-profile long -m "long or hypothesis"
	$(PYTEST) -m recorded --histories check tests/integration

histories: setup ## record in tests/histories what Spark writes in tests; in some of them with TESTS=a file or a test
	$(BIN)/pytest -m recorded --histories record "$(TESTS)"

demo: setup ## a Delta table changed by Spark, followed into Iceberg, read by every engine
	$(BIN)/dvsync demo

bench: setup ## measure what docs/performance.md and benchmarks/NOTES.md report
	$(BIN)/python -m benchmarks

build: $(STAMPS)/dvsync ## wheel and sdist in dist/
	$(BIN)/python -m build --no-isolation

release: $(STAMPS)/dvsync ## what is published of VERSION=0.1.0, in dist/0.1.0
	$(BIN)/python -m deploy.release "$(or $(VERSION),$(error say which: make release VERSION=0.1.0))"

docs: $(STAMPS)/dvsync ## rewrite the keys in docs/configuration.md from the settings' descriptions
	sed --in-place '/^## Keys$$/q' docs/configuration.md
	{ echo; $(BIN)/python -m tests.kit.keys; } >>docs/configuration.md

lock: $(STAMPS)/venv ## rewrite requirements.lock from pyproject.toml
	$(PIP) install uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --quiet \
		--custom-compile-command "make lock" --no-annotate --no-emit-index-url --no-emit-find-links --output-file requirements.lock

clean: ## remove what was built and the caches; .venv too
	rm -rf $(VENV) build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
