# Each target installs what it needs into .venv first; only Python ≥ 3.11 and git are assumed.
PYTHON ?= python3
BIN := .venv/bin
# What is never imported need not be compiled, and what is need be only once, whatever the shell says:
# importing torch and timm from their sources takes twenty seconds in every process.
QUICKLY := --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test tests lint ruff imports types docs coverage bench prove trained clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install $(QUICKLY) --editable .
	@touch $@

.venv/installed-all: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install $(QUICKLY) --editable '.[all]'
	@touch $@ .venv/installed

demo: .venv/installed ## Install, examine three small networks, and write runs/demo/report.html
	$(BIN)/retinoscope examine --images 256 --probe fourier --probe variance --probe hessian:batches=4 \
		--probe landscape:points=7 --probe trajectory --out runs/demo

# Types are checked beside the tests. What would take longer than this is a proof: make prove.
test: .venv/installed-all ## Install everything, lint, and run all tests (6 minutes on 2 cores)
	@$(MAKE) --no-print-directory ruff imports
	@$(MAKE) --no-print-directory --jobs 2 types tests

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

tests: .venv/installed-all
	$(PYTEST)

lint: ruff imports types ## Style, types and import contracts

ruff: .venv/installed-all
	$(BIN)/ruff check
	$(BIN)/ruff format --check

imports: .venv/installed-all
	$(BIN)/lint-imports

types: .venv/installed-all
	$(BIN)/pyright

docs: .venv/installed-all ## Run the examples, and the code of the documentation
	$(PYTEST) -m docs

coverage: .venv/installed-all ## Run all tests and print which share of the lines they reach
	$(PYTEST) --cov=retinoscope --cov-report=term:skip-covered

bench: .venv/installed-all ## Measure speed, side by side with what it is compared to
	$(BIN)/python benchmarks/watching.py
	$(BIN)/python benchmarks/anatomy.py
	$(BIN)/python benchmarks/alternet.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/hessian.py
	$(BIN)/python benchmarks/landscape.py

prove: .venv/installed-all ## Long tests; kill and damage runs; take every timm module (docs/zoo.md) and name of ours apart
	$(PYTEST) -m proof
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/endurance.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/resuming.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/zoo.py --jobs 2
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/registered.py --jobs 2

trained: .venv/installed-all ## Train what is missing under RETINOSCOPE_RUNS, resumably; tables in results/
	$(BIN)/python benchmarks/trained.py --jobs 2
	$(BIN)/python benchmarks/curvature.py

clean: ## Remove what the targets above have made
	rm -rf .venv runs .pytest_cache .ruff_cache .import_linter_cache
