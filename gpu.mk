# Targets that need an NVIDIA GPU; the Makefile includes them. docs/gpu.md describes them.
CUDA ?= 13
GPU := .venv-cuda$(CUDA)
GPU_PYTHON ?= $(GPU)/bin/python
GPU_READY := $(if $(filter $(GPU)/%,$(GPU_PYTHON)),$(GPU)/.installed)
# Wheels that `make gpu-wheels` collected, for an interpreter that lacks them; the interpreter itself is not changed.
GPU_WHEELS ?=
PRESENT ?=
SITE := .gpu-site
ifneq ($(GPU_WHEELS),)
export PYTHONPATH := $(CURDIR):$(CURDIR)/$(SITE)
GPU_READY += $(SITE)/.installed
endif
# For the programs beside the tests for GPUs; they import `benchmarks` from here.
ON_GPU = PYTHONPATH=$(CURDIR)/tests:$(CURDIR)$(if $(GPU_WHEELS),:$(CURDIR)/$(SITE)) $(GPU_PYTHON) -m on_gpu
SANITIZER ?= $(firstword $(shell command -v compute-sanitizer) $(wildcard /usr/local/cuda/bin/compute-sanitizer \
	/opt/cuda/bin/compute-sanitizer $(GPU)/lib/python3.*/site-packages/nvidia/cu*/bin/compute-sanitizer))
SANITIZE = memcheck racecheck initcheck synccheck
SANITIZE_FLAGS ?=
TEST_FLAGS ?=
SOAK_SECONDS = 180

# Before a process starts CUDA: with the default of 8, streams of several reads share hardware queues.
export CUDA_DEVICE_MAX_CONNECTIONS ?= 32

OUT ?= gpu-proof
STEP = @mkdir -p $(OUT); step() { limit=$$1 name=$$2; shift 2; echo "== $$name"; \
	timeout -k 5 $$limit "$$@" >$(OUT)/$$name.log 2>&1; code=$$?; tail -n 12 $(OUT)/$$name.log; \
	echo "== $$name: exit status $$code"; [ $$code = 0 ] || status=1; }; \
	export PYTHONUNBUFFERED=1 XARRAY_GPUZARR_REQUIRE_GPU=1; status=0
# Each process collects all tests by itself: more of them than cores only take longer.
GPU_TEST_PROCESSES ?= $(shell n=$$(nproc); echo $$((n < 12 ? n : 12)))
GPU_TEST = $(GPU_PYTHON) -m pytest -m gpu -q -p no:cacheprovider --maxfail=25

.PHONY: gpu-install gpu-wheels gpu-a gpu-b gpu-c test-gpu facts-gpu bench-gpu doctor-gpu soak-gpu profile-gpu proof-gpu sanitize-gpu

gpu-install: $(GPU_READY) ## Install what the commands for GPUs need into .venv-cuda13 (CUDA=12: .venv-cuda12)

gpu-wheels: $(VENV)/.installed ## Collect the wheels that a machine without a network lacks (PRESENT=freeze.txt), with their sizes
	$(BIN)/python .ci/gpu_wheels.py gpu-wheels $(if $(PRESENT),--present $(PRESENT))

gpu-a: $(GPU_READY) ## First of three short calls: known answers, the engine's tests (OUT=gpu-proof; at most 260 seconds)
	$(STEP); \
	step 75 doctor $(GPU_PYTHON) -m xarray_gpuzarr doctor --device cuda --json $(OUT)/doctor.json; \
	step 150 engine $(GPU_TEST) -n $(GPU_TEST_PROCESSES) --dist worksteal tests/on_gpu \
		-k "(native_device or self_checks or nvcomp_alone or stress) and not compiles"; exit $$status

gpu-b: $(GPU_READY) ## Second: the pool of reads, nvCOMP alone, kernels and formats (at most 270 seconds)
	$(STEP); \
	step 45 pool $(GPU_PYTHON) -m benchmarks.gpu.pool --seconds 36 --out $(OUT)/pool.json; \
	step 100 saturation $(GPU_PYTHON) -m benchmarks.gpu.saturation --seconds 85 --out $(OUT)/saturation.json \
		--only "zstd 3, 1024" "zstd 3, 64 kB" "lz4, 1024" "lz4, 64 kB"; \
	step 110 kernels $(GPU_TEST) -n $(GPU_TEST_PROCESSES) --dist worksteal tests/on_gpu/test_kernels_on_gpu.py \
		tests/reads/test_formats.py tests/reads/test_blosc_writers.py; exit $$status

gpu-c: $(GPU_READY) ## Third: the published workload, warm; a cluster; memcheck (at most 255 seconds)
	$(STEP); \
	step 100 warm $(GPU_PYTHON) -m benchmarks.gpu --only "blog, warm" --seconds 85 --rounds 3 --out $(OUT)/warm.json; \
	step 70 cluster $(GPU_TEST) tests/on_gpu/test_local_cuda_cluster.py -k "two and threads and not workers"; \
	step 70 memcheck make --no-print-directory sanitize-gpu SANITIZE=memcheck; \
	exit $$status

test-gpu: $(GPU_READY) ## Run what needs an NVIDIA GPU; a missing one is a failure (CUDA=12 for CUDA 12)
	status=0; \
	XARRAY_GPUZARR_REQUIRE_GPU=1 $(GPU_PYTHON) -m pytest -m gpu -q --continue-on-collection-errors $(TEST_FLAGS) || status=1; \
	$(GPU_PYTHON) .ci/zarr_suite.py --gpu || status=1; \
	exit $$status

facts-gpu: $(GPU_READY) ## What does nvCOMP alone decode, by format, chunks and streams, and what of damage? (five minutes)
	@$(GPU_PYTHON) -m benchmarks.gpu.sanitize --probe
	$(ON_GPU).damage
	$(GPU_PYTHON) -m benchmarks.gpu.saturation

bench-gpu: $(GPU_READY) ## Measure reads to the GPU, its ceilings and the kernels (seven minutes)
	$(GPU_PYTHON) -m benchmarks.gpu $(BENCH_FLAGS)

doctor-gpu: $(GPU_READY) ## Is it right here? Known answers, copies, rates (a minute)
	$(GPU_PYTHON) -m xarray_gpuzarr doctor --device cuda --json benchmarks/results/doctor.json

soak-gpu: $(GPU_READY) ## Read random arrays on random threads and budgets; memory flat (SOAK_SECONDS=180)
	$(ON_GPU).soak --seconds $(SOAK_SECONDS)

profile-gpu: $(GPU_READY) ## Let Nsight Compute look at the kernels, where it is installed
	ncu --target-processes all --section SpeedOfLight --section Occupancy --export kernels --force-overwrite \
		$(GPU_PYTHON) -m benchmarks.gpu --only kernels --rounds 1 --scale 0.1

proof-gpu: $(GPU_READY) ## What docs/gpu.md lists for owners of a GPU, in order, half an hour; logs in gpu-proof/
	$(ON_GPU).proof

sanitize-gpu: $(GPU_READY) ## Run kernels and reads under compute-sanitizer (SANITIZE=memcheck for one tool)
	@$(GPU_PYTHON) -m benchmarks.gpu.sanitize --probe
	@test -n "$(SANITIZER)" || { echo "compute-sanitizer was not found. It comes with the CUDA toolkit, and as a wheel:" \
		"$(GPU_PYTHON) -m pip install nvidia-cuda-sanitizer-api; or say make sanitize-gpu SANITIZER=/path/to/it" >&2; exit 1; }
	@status=0; for tool in $(SANITIZE); do echo "== $$tool"; \
		$(SANITIZER) --tool $$tool --error-exitcode 1 $(SANITIZE_FLAGS) \
			$(GPU_PYTHON) -m benchmarks.gpu.sanitize || status=1; \
	done; exit $$status

$(SITE)/.installed: $(wildcard $(GPU_WHEELS)/*.whl)
	@test -n "$^" || { echo "GPU_WHEELS=$(GPU_WHEELS) holds no wheels; make gpu-wheels collects them" >&2; exit 1; }
	@$(GPU_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || { echo "the wheels are for Python 3.12;" \
		"GPU_PYTHON=$(GPU_PYTHON) is $$($(GPU_PYTHON) --version 2>&1 | tail -1)" >&2; exit 1; }
	@echo "$(words $^) wheels of $(GPU_WHEELS) are unpacked into $(SITE)"
	@rm -rf $(SITE)
	@$(GPU_PYTHON) -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target $(SITE) $^
	@cp $(SITE)/xarray_gpuzarr/native/loops-*.so xarray_gpuzarr/native/
	@touch $@

$(GPU)/.installed: $(VENV)/bin/python pyproject.toml .ci/constraints.txt .ci/constraints-cuda$(CUDA).txt $(COMPILED) | $(VENV)/bin/uv
	$(BIN)/python -m venv $(GPU)
	$(BIN)/python .ci/constraints.py cuda$(CUDA) > $(GPU)/constraints.txt
	.ci/install $(GPU)/bin/python -c $(GPU)/constraints.txt -e '.[test,zarr-suite,gds$(CUDA),dask-cuda]' \
		nvidia-cuda-sanitizer-api$(if $(filter 12,$(CUDA)),-cu12)
	@touch $@
