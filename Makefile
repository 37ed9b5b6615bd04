# Everything happens in one virtual environment ($(VENV)); nothing outside it is changed.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
ENVIRONMENTS := environments/echo_v1 environments/reverse_text_v1 environments/gsm8k_v1

.DELETE_ON_ERROR:
.PHONY: help quickstart test benchmarks clean

help:
	@echo "make quickstart   set up, then optimize a prompt against the simulated endpoint"
	@echo "make test         set up, then lint, type-check and test"
	@echo "make benchmarks   set up, then measure speed, search quality and memory (14 minutes)"
	@echo "make clean        remove $(VENV) and the caches"
	@echo "Variables: PYTHON (now $(PYTHON), 3.11 to 3.14), VENV (now $(VENV))"

quickstart: $(VENV)/.installed
	$(BIN)/python -m verifiers_gepa.simulated $(BIN)/gepa @ configs/quickstart.toml

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadgroup

benchmarks: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/all.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): about a minute the first time"
	$(PIP) install -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(ENVIRONMENTS:%=%/pyproject.toml) | $(BIN)/python
	@echo "Installing into $(VENV): about a minute the first time"
	$(PIP) install -e '.[dev]' $(ENVIRONMENTS:%=-e %)
	@touch $(VENV)/.installed $@
