# Suites that need more than .venv: Docker, agent programs, environments, engines, the newest packages. The Makefile
# includes this.

# Agent programs that tests run unmodified.
AGENT_PACKAGES := mini-swe-agent==2.4.6 openai-agents==0.24.0 langgraph==1.2.22 langchain-openai==1.7.3 \
	'smolagents[openai]==1.26.0' 'pydantic-ai-slim[openai]==2.68.0' litellm==1.83.0 openai==3.54.0
# From npm, where it is installed, into the same folder of programs.
NPM_PACKAGES := @google/gemini-cli@0.61.0
# Environments that tests train on, each package in an environment of its own.
VERIFIERS_PACKAGES := verifiers==0.4.0 marble-v1==0.1.0
OLDER_VERIFIERS_PACKAGES := verifiers==0.1.14
OPENENV_PACKAGES := openenv==0.10.0
# It needs Python 3.12 or later: of the interpreters here the first that is.
NEMO_GYM_PACKAGES := nemo-gym==0.4.0
NEWER_PYTHON = $(shell for p in $(PYTHON) python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.1[23]*/bin/python); do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$$p" && break; done)

# Builds the sandbox's image and attacks it, runs agents, tasks and tests in containers. As root on Debian it installs and
# starts a Docker engine if none runs; other obstacles are printed in one line. AGENTRL_DOCKER_TIER=extra: the image with
# more languages; DOCKER_TESTS=docker: also each of the task folders (a minute).
DOCKER_TESTS ?= docker and not slow
test-docker: $(VENV)/.test
	$(BIN)/python -m pytest -q -rs -m '$(DOCKER_TESTS)' tests/sandbox/docker tests/containers tests/gateway tests/docs tests/tasks

# uv, because pip needs minutes to choose the versions of so many packages; pip, where uv does not reach an index.
.venv-agents/.installed: WANTED = $(AGENT_PACKAGES)
.venv-verifiers/.installed: WANTED = $(VERIFIERS_PACKAGES)
.venv-older-verifiers/.installed: WANTED = $(OLDER_VERIFIERS_PACKAGES)
.venv-openenv/.installed: WANTED = $(OPENENV_PACKAGES)
.venv-nemo-gym/.installed: WANTED = $(NEMO_GYM_PACKAGES)
INTERPRETER = $(PYTHON)
.venv-nemo-gym/.installed: INTERPRETER = $(or $(NEWER_PYTHON),$(PYTHON))
ENVIRONMENTS := .venv-agents .venv-verifiers .venv-older-verifiers .venv-openenv .venv-nemo-gym
$(ENVIRONMENTS:=/.installed): tests/suites.mk
	@test -x $(@D)/bin/python || $(INTERPRETER) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(UV)
	@$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python $(WANTED) \
		|| $(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(WANTED)
	@touch $@

.venv-agents/bin/gemini: .venv-agents/.installed
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix .venv-agents/npm \
		$(NPM_PACKAGES) && ln -sf ../npm/node_modules/.bin/gemini $@; fi

# Agent programs and environments of the registries behind the gateway, in environments of their own, and the pages about
# them. With bytecode: each of them imports some thousand modules.
test-agents: $(VENV)/.test $(ENVIRONMENTS:=/.installed) .venv-agents/bin/gemini
	AGENTRL_AGENTS=$(CURDIR)/.venv-agents/bin AGENTRL_VERIFIERS=$(CURDIR)/.venv-verifiers \
		AGENTRL_OLDER_VERIFIERS=$(CURDIR)/.venv-older-verifiers \
		AGENTRL_OPENENV=$(CURDIR)/.venv-openenv AGENTRL_NEMO_GYM=$(CURDIR)/.venv-nemo-gym OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= \
		$(BIN)/python -m pytest -q -m agents -n 2 --dist worksteal tests/gateway tests/docs tests/environments

# With real SGLang and vLLM, from `agentrl engine install`.
test-engines: $(VENV)/.test
	$(BIN)/python -m pytest -q -m 'engine and not gpu' --timeout 1800

# The ranges of pyproject.toml without the lock file, in a separate environment. PyTorch keeps the version of TORCH: its
# newest release for Linux has gigabytes of CUDA.
test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINTS= PIP_OPTIONS='--upgrade --upgrade-strategy eager'

# The lowest versions that pyproject.toml allows of the packages that it names, in a separate environment. PyTorch keeps
# the version of TORCH: its older releases for Linux have gigabytes of CUDA, and no build for the CPU on pip's index.
.venv-oldest/constraints.txt: pyproject.toml
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(UV)
	@echo "$(TORCH)" | $(@D)/bin/uv pip compile --quiet --resolution lowest-direct --python $(@D)/bin/python --extra test \
		--upgrade --no-annotate --custom-compile-command "make test-oldest" pyproject.toml - --output-file $@

test-oldest: .venv-oldest/constraints.txt
	$(MAKE) setup VENV=.venv-oldest CONSTRAINTS=$<
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= .venv-oldest/bin/python -m pytest -q -n logical --maxprocesses 4 \
		--dist loadfile --no-loadscope-reorder
