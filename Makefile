# Each target first installs its requirements into .venv. You need Python ≥ 3.11 and git.
PYTHON ?= python3
BIN := .venv/bin
# Skip byte-compiling at install time; Python caches bytecode on first import. Unset
# PYTHONDONTWRITEBYTECODE, or each process would take twenty seconds to compile torch and timm.
QUICKLY := --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test tests lint ruff imports types docs coverage bench prove trained clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is required. Select one with: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install $(QUICKLY) --editable .
	@touch $@

.venv/installed-all: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install $(QUICKLY) --editable '.[all]'
	@touch $@ .venv/installed

demo: .venv/installed ## Install, examine three small networks, write runs/demo/report.html
	$(BIN)/retinoscope examine --preset standard --images 256 --out runs/demo

# Types are checked in parallel with the tests. Slower tests are marked proof: make prove.
test: .venv/installed-all ## Install everything, lint, and run all tests (8 minutes on 2 cores)
	@$(MAKE) --no-print-directory ruff imports
	@$(MAKE) --no-print-directory --jobs 2 types tests

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

tests: .venv/installed-all
	$(PYTEST)

lint: ruff imports types ## Check style, types and import contracts

ruff: .venv/installed-all
	$(BIN)/ruff check
	$(BIN)/ruff format --check

imports: .venv/installed-all
	$(BIN)/lint-imports

types: .venv/installed-all
	$(BIN)/pyright

docs: .venv/installed-all ## Run the examples and the code of the documentation
	$(PYTEST) -m docs

coverage: .venv/installed-all ## Run all tests and print the line coverage
	$(PYTEST) --cov=retinoscope --cov-report=term:skip-covered

bench: .venv/installed-all ## Measure speed against baselines
	$(BIN)/python benchmarks/watching.py
	$(BIN)/python benchmarks/anatomy.py
	$(BIN)/python benchmarks/alternet.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/hessian.py
	$(BIN)/python benchmarks/landscape.py
	$(BIN)/python benchmarks/similarity.py
	$(BIN)/python benchmarks/lesion.py

prove: .venv/installed-all ## Run long tests, kill and damage runs, replay all timm modules (docs/zoo.md) and all our models
	$(PYTEST) -m proof
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/endurance.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/resuming.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/zoo.py --jobs 2
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/registered.py --jobs 2

trained: .venv/installed-all ## Train missing networks under RETINOSCOPE_RUNS (resumable), write tables to results/
	$(BIN)/python benchmarks/trained.py --jobs 2
	$(BIN)/python benchmarks/curvature.py
	$(BIN)/python benchmarks/units.py

clean: ## Remove .venv, runs and caches
	rm -rf .venv runs .pytest_cache .ruff_cache .import_linter_cache
