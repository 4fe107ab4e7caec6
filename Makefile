# Every target sets itself up: a bare clone, Python 3.12 or newer and its pip are enough.
VENV := .venv
BIN := $(VENV)/bin
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 12))'
OLDEST := .venv-oldest
ZARR := .venv-zarr
TORCH := .venv-torch
TOUCHING := $(addsuffix .py,$(addprefix tests/,backend/test_accessor backend/test_engine backend/test_indexers \
	backend/test_open_in_rounds backend/test_slow_indexes backend/test_slow_loads backend/test_xarray_contract \
	codec_pipeline/test_older_zarr fetch/test_missing_objects fetch/test_stores process/test_progress_bar \
	project/test_documentation project/test_supported_versions reads/test_formats stored/test_cf \
	stored/test_metadata tasks/test_dask_graphs tasks/test_one_output tasks/test_reads_ahead \
	tasks/test_task_names training/test_values))
PYTHON ?= $(or $(shell for p in python3 python3.14 python3.13 python3.12 python; do \
	$$p $(NEW_ENOUGH) 2>/dev/null && echo $$p && break; done), python3)

# Without compiled modules every process of the tests rewrites their assertions anew.
unexport PYTHONDONTWRITEBYTECODE

COMPILED := hatch_build.py $(wildcard xarray_gpuzarr/native/*.[ch])

CHECKED := lint types layers workflows cross package gpu-environments docs fresh-notebooks bench-smoke test test-oldest \
	test-zarr test-torch

BENCH_FLAGS ?=
# What `make test` runs with every pair of parameters runs once more with every value.
VALUES = XARRAY_GPUZARR_TEST_COMBINATIONS=$${XARRAY_GPUZARR_TEST_COMBINATIONS:-values}

.PHONY: demo fuzz test test-full test-oldest test-zarr test-torch lint types layers check bench bench-full \
	bench-timed bench-smoke performance docs notebooks fresh-notebooks package cross workflows gpu-environments clean help

help: ## Say what the targets do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 14

demo: $(VENV)/.installed ## Write a sample store, read it with stock xarray and with ours, compare
	$(BIN)/gpuzarr demo

test: $(VENV)/.installed ## Run the test suite, with every pair of parameters
	$(BIN)/python -m pytest -n auto --dist worksteal -q

test-full: $(VENV)/.installed ## The same with all combinations of parameters, other random values, and more of all else (twice as long)
	seed=$${XARRAY_GPUZARR_TEST_SEED:-$$(date +%s)}; echo "XARRAY_GPUZARR_TEST_SEED=$$seed"; XARRAY_GPUZARR_TEST_SEED=$$seed \
	XARRAY_GPUZARR_TEST_COMBINATIONS=all $(BIN)/python -m pytest -n auto --dist worksteal -q

test-oldest: $(OLDEST)/.installed ## Run what touches other libraries with the oldest versions of them
	$(VALUES) $(OLDEST)/bin/python -m pytest -n auto --dist worksteal -q -k 'not simulated' $(TOUCHING)

test-zarr: $(ZARR)/.installed ## Run zarr-python's and xarray's own tests, and some programs, with the codec pipeline and the engine (two minutes)
	$(ZARR)/bin/python .ci/zarr_suite.py
	$(ZARR)/bin/python .ci/xarray_suite.py
	$(ZARR)/bin/python -m pytest -q -c /dev/null -p no:cacheprovider --disable-warnings .ci/test_zarr_programs.py

test-torch: $(TORCH)/.installed ## Run the tests of training with PyTorch and torchdata, whose wheels take 5 GB (two minutes)
	$(VALUES) XARRAY_GPUZARR_REQUIRE_TORCH=1 $(TORCH)/bin/python -m pytest -n auto --dist worksteal -q \
		tests/training/test_torch*.py tests/training/test_batches.py

fuzz: $(VENV)/.installed ## Show mutated frames and update mutated shards by the million, under sanitizers; mutated metadata (half an hour)
	PYTHONPATH=tests $(BIN)/python -m helpers.fuzz
	PYTHONPATH=tests $(BIN)/python -m helpers.fuzzed_updates
	PYTHONPATH=tests $(BIN)/python -m helpers.data.metadata_mutants

lint: $(VENV)/.installed ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed ## Check types
	$(BIN)/mypy

layers: $(VENV)/.installed ## Check that no layer imports from one above it
	$(BIN)/lint-imports

check: $(CHECKED) ## Everything that CI runs

bench: $(VENV)/.installed ## Compare with zarr-python, zarrs, TensorStore and zarrista (minutes)
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

bench-full: $(VENV)/.installed ## The same with published workloads in their full size (hours; 32 GB of memory and disk)
	$(BIN)/python -m benchmarks --full $(BENCH_FLAGS)

bench-timed: $(VENV)/.installed ## Let the CUDA engine read to a modelled device: what stands still? (a minute)
	$(BIN)/python -m benchmarks.timed $(BENCH_FLAGS)

performance: $(VENV)/.installed ## Write docs/performance.md, its figures and build/measurements.md from the newest results
	$(BIN)/python -m benchmarks.page

bench-smoke: $(VENV)/.installed ## One case of each kind on tiny data, to see that it runs
	$(BIN)/python -m benchmarks --smoke

gpu-environments: $(VENV)/bin/python | $(VENV)/bin/uv ## Resolve every environment for GPUs, by pip and uv; let the real CuPy be serialized
	.ci/try-gpu-environments

package: $(VENV)/.release ## Build wheel and sdist, install the wheel into an empty environment, use it there
	.ci/try-package

cross: $(VENV)/.release ## Compile the loops for all platforms that have wheels with them
	.ci/cross

workflows: $(VENV)/.release ## Check workflows, issue forms and the citation by their schemas
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

docs: $(VENV)/.docs ## Build the documentation; warnings are errors
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

notebooks: $(VENV)/.docs ## Run the notebooks and keep their outputs, and the picture of the README
	PYTHONPATH=tests $(BIN)/python -m helpers.notebooks

fresh-notebooks: $(VENV)/.docs ## Run the notebooks, and see that they still give the outputs that are committed
	PYTHONPATH=tests $(BIN)/python -m helpers.notebooks --check

clean: ## Remove what the targets made
	rm -rf $(VENV) .venv-* docs/_build docs/notebooks demo build dist gpu-proof gpu-wheels .gpu-site xarray_gpuzarr/native/loops-*.so

$(VENV)/bin/python:
	@$(PYTHON) $(NEW_ENOUGH) 2>/dev/null || { echo "xarray_gpuzarr needs Python 3.12 or newer;" \
		"found $$($(PYTHON) --version 2>&1 | tail -1): install one, or say make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/bin/uv: | $(VENV)/bin/python
	-$(BIN)/python -m pip install -q --disable-pip-version-check -c .ci/constraints.txt uv

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml .ci/constraints.txt $(COMPILED) | $(VENV)/bin/uv
	.ci/install $(BIN)/python -c .ci/constraints.txt -e '.[dev]'
	@touch $@

$(OLDEST)/.installed: $(VENV)/.installed .ci/oldest.py .ci/constraints-oldest.txt
	$(BIN)/python -m venv $(OLDEST)
	$(BIN)/python .ci/oldest.py > $(OLDEST)/constraints.txt
	.ci/install $(OLDEST)/bin/python -c $(OLDEST)/constraints.txt -e '.[test]'
	@touch $@

$(ZARR)/.installed: $(VENV)/bin/python pyproject.toml .ci/constraints.txt $(COMPILED) | $(VENV)/bin/uv
	$(BIN)/python -m venv $(ZARR)
	.ci/install $(ZARR)/bin/python -c .ci/constraints.txt -e '.[zarr-suite,zarr-programs]'
	@touch $@

$(TORCH)/.installed: $(VENV)/bin/python pyproject.toml .ci/constraints.txt .ci/constraints-torch.txt $(COMPILED) | $(VENV)/bin/uv
	$(BIN)/python -m venv $(TORCH)
	$(BIN)/python .ci/constraints.py torch > $(TORCH)/constraints.txt
	.ci/install $(TORCH)/bin/python -c $(TORCH)/constraints.txt -e '.[torch-suite]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	.ci/install $(BIN)/python -c .ci/constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.release: $(VENV)/.installed
	.ci/install $(BIN)/python -c .ci/constraints.txt -e '.[release]'
	@touch $@

include gpu.mk
