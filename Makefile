# Every target first brings .venv up to date, so any of them can be the first one called in a fresh checkout.
# Another interpreter: make setup PYTHON=python3.12. Further arguments: make test ARGS="-k wire", make train ARGS="ppo --env-id CartPole-v1".

PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.asyncrl-setup
FLOORS_STAMP := .venv-floors/.asyncrl-setup
CODE = $(wildcard asyncrl envserver tests examples benchmarks protos)
TYPED = $(foreach folder,asyncrl envserver tests examples benchmarks,$(if $(shell find $(folder) -name '*.py' 2>/dev/null),$(folder)))
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
FAST := -m "not slow and not nightly"

# `setup` has nothing compiled in advance: without files for it every process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup train check lint types imports caps proto-check proto format test test-slow test-nightly \
	test-portable test-floors cov bench mutants clean

help:
	@echo "make setup | check | test | test-slow | test-nightly | test-portable | test-floors | cov | bench | mutants | proto | format | train | clean"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		test -n "$(PYTHON)" || { echo "asyncrl needs Python 3.11 or later: make setup PYTHON=/path/to/python" >&2; exit 1; }; \
		echo "making .venv (one to five minutes; 1.5 GB, or 5 GB with the CUDA build of torch)..."; \
		$(PYTHON) -m venv .venv; \
	else \
		echo "bringing .venv up to date with pyproject.toml and constraints.txt..."; \
	fi
	@# Python compiles what is imported when it is: a few files of the thousands that pip would.
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt torch==2.13.0 -e '.[dev]'
	@touch $@

train: $(STAMP)
	@$(BIN)/asyncrl train $(ARGS)

# ------------------------------------------------------------------------------------------------------------- checking

check: lint types imports caps proto-check

lint: $(STAMP)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(STAMP)
	$(BIN)/mypy --num-workers auto $(TYPED)

imports: $(STAMP)
	$(BIN)/lint-imports

caps: $(STAMP)
	$(BIN)/python -m tests.house.caps
	$(BIN)/python -m tests.house.catalogue --check

proto-check: $(STAMP)
	$(BIN)/python protos/generate.py --check

proto: $(STAMP)
	$(BIN)/python protos/generate.py

format: $(STAMP)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# -------------------------------------------------------------------------------------------------------------- testing

test: $(STAMP)
	$(PYTEST) $(FAST) $(ARGS)

test-slow: $(STAMP)
	$(PYTEST) -m "slow and not nightly" $(ARGS)

test-nightly: $(STAMP)
	$(PYTEST) -m nightly $(ARGS)

# As on Windows: without uvloop, then without Unix sockets.
test-portable: $(STAMP)
	ASYNCRL_UVLOOP=0 $(PYTEST) $(FAST) $(ARGS)
	ASYNCRL_UVLOOP=0 ASYNCRL_UNIX_SOCKETS=0 $(PYTEST) $(FAST) $(ARGS)

# The lowest versions that pyproject.toml allows, in an environment of their own. Left out: an oracle that is wrong in
# Gymnasium 1.3 (its episode statistics under same-step autoreset miss the first step), and one that reads what
# grpcio keeps since 1.83 only.
FLOORS_WITHOUT := \
	--deselect tests/unit/vector/test_vector.py::test_episode_statistics_are_those_of_the_wrapper \
	--deselect tests/unit/client/test_grpc_transport.py::test_calls_are_collected_after_close

test-floors: $(FLOORS_STAMP)
	.venv-floors/bin/python -m pytest -n 2 --dist worksteal $(FAST) $(FLOORS_WITHOUT) $(wildcard tests/unit tests/rpc) $(ARGS)

$(FLOORS_STAMP): pyproject.toml constraints.txt tests/house/floors.py | $(STAMP)
	@echo "making .venv-floors with the lowest versions allowed..."
	@$(BIN)/python -m tests.house.floors .venv-floors
	@touch $@

cov: $(STAMP)
	$(PYTEST) $(FAST) --cov --cov-report=term $(ARGS)

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks.rollout $(ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
