# `make chat` is all that is needed to talk; `make test` is what CI runs.

# Any Python from 3.11 on, e.g. `make chat PYTHON=python3.13`.
PYTHON ?= python3
BIN := .venv/bin
# wgpu's Vulkan loader wants a runtime folder, which a login without a desktop does not have.
PYTEST := XDG_RUNTIME_DIR=$${XDG_RUNTIME_DIR:-$$(mktemp -d)} $(BIN)/python -m pytest -ra
MODEL ?= smollm2-135m-instruct
PEER ?= $(BIN)/python
# Tests in three processes, since many wait for a terminal or a clock; neighbours stay together, and share their engines.
# A software adapter has one thread in each. Tests that measure time come by themselves, afterwards.
TOGETHER := LP_NUM_THREADS=1 $(PYTEST) -n 3 --dist worksteal

.PHONY: chat test test-all lint bench fixtures

chat: .venv/runtime-installed
	@$(BIN)/chat

test: lint fixtures
	$(TOGETHER) -m "not slow and not alone"
	$(PYTEST) -m "alone and not slow"

test-all: lint fixtures
	$(TOGETHER) -m "not alone" --hypothesis-profile=new
	$(PYTEST) -m alone

lint: .venv/development-installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The figures of docs/performance.md for a machine without a GPU; a WebGPU adapter, software too, is measured if there
# is one. llama.cpp takes part where PEER is a Python that has llama-cpp-python.
bench: .venv/runtime-installed
	@$(BIN)/python tools/time_start.py --model $(MODEL)
	@$(BIN)/chat bench --device cpu --model $(MODEL)
	-@$(BIN)/chat bench --device webgpu --model $(MODEL)
	@if $(PEER) -c 'import llama_cpp' 2>/dev/null; then \
		$(BIN)/python tools/compare_llama_cpp.py --model $(MODEL) --python $(PEER); \
	else echo "$(PEER) has no llama-cpp-python: nothing to compare with (make bench PEER=other/bin/python)"; fi

# What the tests need besides Python packages: a WebGPU adapter and two real models.
fixtures: .venv/development-installed
	$(BIN)/python tools/software_vulkan.py
	$(BIN)/python tools/fetch_test_models.py

# The two files below only record that the environment is newer than pyproject.toml.
.venv/runtime-installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Glasschat needs Python 3.11 or newer; name one with: make PYTHON=python3.13"; exit 1; }
	@echo "Making the environment in .venv (a minute or so, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/development-installed: pyproject.toml .venv/runtime-installed
	@$(BIN)/python -m pip install --quiet --group test --group lint
	@touch $@
