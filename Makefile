# Set-up, the demo and the tests. A fresh machine needs Python 3.11 to 3.13 and make; `make help` lists what there is.
#
#   ARGS           arguments of the demo:           make demo ARGS="--samples 20000 --json summary.json"
#   TESTS          arguments of pytest:             make test TESTS="tests/ps -k pull"
#   WORKERS        processes of pytest:             make test WORKERS=4 (0: none beside pytest itself)
#   RUNS           runs of the search for flaky tests: make flaky RUNS=3 TESTS="tests/end_to_end/test_stopped.py"
#   PYTHON         interpreter of a new .venv:      make setup PYTHON=python3.12
#   FRESHET_TORCH  another torch build:             make setup FRESHET_TORCH="torch==2.15.0+cpu"
#                  (its index is given by uv's own UV_INDEX; the choice is remembered until `make clean`)
#   SYSTEM=no      leaves the system's packages alone in `make test`

ARGS ?=
TESTS ?=
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell expr $(CORES) + 1)
RUNS ?= 10
PYTHON ?=
FRESHET_TORCH ?=
SYSTEM ?= yes
BIN := .venv/bin
STAMP := .venv/.freshet-setup

# Where Python is told to write no bytecode, every process of every test would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick flaky prepare check kernels jars system clean FORCE

help: ## what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16
	@sed -n 's/^#   \([A-Z].*\)/  \1/p' Makefile

setup: $(STAMP) ## the environment in .venv

# A torch build that differs from the one installed makes the stamp old.
ifneq ($(FRESHET_TORCH),)
ifneq ($(FRESHET_TORCH),$(shell cat $(STAMP) 2>/dev/null))
$(STAMP): FORCE
endif
endif

$(STAMP): pyproject.toml client/pyproject.toml constraints.txt infra/deploy/setup.sh
	@PYTHON="$(PYTHON)" FRESHET_TORCH="$(FRESHET_TORCH)" STAMP="$(STAMP)" sh infra/deploy/setup.sh

# Job control (set -m) gives the demo the terminal: Ctrl-C reaches it alone, it drains, and make sees it exit 0.
demo: $(STAMP) ## set-up, then the main job with a live display, until Ctrl-C
	@if [ -t 0 ]; then set -m; fi; $(BIN)/freshet demo $(ARGS); exit $$?

check: $(STAMP) ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

system: ## Java, Maven, PostgreSQL, Chromium, kcat, through the system's package manager
	@if [ "$(SYSTEM)" != no ]; then sh infra/deploy/system.sh; fi

kernels: $(STAMP) ## compiles what numba compiles, unless it is in the user's cache folder
	@$(BIN)/python -m infra.run.warm_up

# In the background: it is the network's time, and the first test that needs the jars waits for them. What goes wrong
# is told by that test, too. Kafka's come first: the tests of the broker begin early, those of the bucket late.
jars: $(STAMP) system
	@{ $(BIN)/python -c "from infra.kafka.jars import kafka_jars; kafka_jars()"; \
	   $(BIN)/python -c "from tests.buckets import s3proxy_jars; s3proxy_jars()"; } >/dev/null 2>&1 </dev/null &

prepare: system jars kernels

# The checks take one core for a minute where nothing is cached: beside the tests, which end later. What they find is
# told at the end.
define beside_checks
	@mkdir -p build; $(MAKE) --no-print-directory check >build/check.log 2>&1 </dev/null & check=$$!; \
	PYTHONFAULTHANDLER=1 $(BIN)/python -m pytest --no-loadscope-reorder $(1) $(TESTS); tests=$$?; \
	wait $$check || { cat build/check.log; exit 1; }; exit $$tests
endef

test: ## set-up, checks, and the whole test suite
	@$(MAKE) --no-print-directory -j4 prepare
	$(call beside_checks,-n $(WORKERS))

# None of these tests waits for other processes, so each core has one of pytest's.
quick: kernels ## checks, and the tests that tell most in a minute
	$(call beside_checks,-q -n $(CORES) --quick)

flaky: $(STAMP) ## the tests of processes RUNS times beside a busy loop on each core, and a table of what failed
	@$(BIN)/python -m tests.flaky --runs $(RUNS) --workers $(WORKERS) $(TESTS)

clean: ## removes the environment and every cache, and no run
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
