# Every target sets itself up: a bare clone, Python 3.12 or newer and its pip are enough.
VENV := .venv
BIN := $(VENV)/bin
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 12))'
CUDA ?= 13
PYTHON ?= $(or $(shell for p in python3 python3.14 python3.13 python3.12 python; do \
	$$p $(NEW_ENOUGH) 2>/dev/null && echo $$p && break; done), python3)

SANITIZER ?= $(firstword $(shell command -v compute-sanitizer) $(wildcard /usr/local/cuda/bin/compute-sanitizer \
	/opt/cuda/bin/compute-sanitizer $(VENV)/lib/python3.*/site-packages/nvidia/cu*/bin/compute-sanitizer))
SANITIZE = memcheck racecheck initcheck
SANITIZE_FLAGS ?=

.PHONY: demo test test-gpu bench-gpu sanitize-gpu lint types layers check bench bench-smoke docs clean help

help: ## Say what the targets do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 14

demo: $(VENV)/.installed ## Write a sample store, read it with stock xarray and with ours, compare
	$(BIN)/gpuzarr demo

test: $(VENV)/.installed ## Run the whole test suite
	$(BIN)/python -m pytest -n auto -q

test-gpu: $(VENV)/.gpu ## Run what needs an NVIDIA GPU; a missing one is a failure (CUDA=12 for CUDA 12)
	XARRAY_GPUZARR_REQUIRE_GPU=1 $(BIN)/python -m pytest -m gpu -q

bench-gpu: $(VENV)/.gpu ## Measure reads to the GPU, its ceilings and the kernels (seven minutes)
	$(BIN)/python -m benchmarks.gpu

sanitize-gpu: $(VENV)/.gpu ## Run kernels and reads under compute-sanitizer (SANITIZE=memcheck for one tool)
	@test -n "$(SANITIZER)" || { echo "compute-sanitizer was not found. It comes with the CUDA toolkit, and as a wheel:" \
		"$(BIN)/python -m pip install nvidia-cuda-sanitizer-api; or say make sanitize-gpu SANITIZER=/path/to/it" >&2; exit 1; }
	for tool in $(SANITIZE); do \
		$(SANITIZER) --tool $$tool --error-exitcode 1 $(SANITIZE_FLAGS) $(BIN)/python -m benchmarks.gpu.sanitize || exit 1; done

lint: $(VENV)/.installed ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed ## Check types
	$(BIN)/mypy

layers: $(VENV)/.installed ## Check that no floor imports from one above it
	$(BIN)/lint-imports

check: lint types layers test docs ## Everything that CI runs

bench: $(VENV)/.bench ## Compare with zarr-python, zarrs and TensorStore (minutes)
	$(BIN)/python -m benchmarks

bench-smoke: $(VENV)/.bench ## The same on tiny data, to see that it runs
	$(BIN)/python -m benchmarks --smoke

docs: $(VENV)/.docs ## Build the documentation; warnings are errors
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean: ## Remove what the targets made
	rm -rf $(VENV) docs/_build demo build dist

$(VENV)/bin/python:
	@$(PYTHON) $(NEW_ENOUGH) 2>/dev/null || { echo "xarray_gpuzarr needs Python 3.12 or newer;" \
		"found $$($(PYTHON) --version 2>&1 | tail -1): install one, or say make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.gpu: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,cuda$(CUDA)]'
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
