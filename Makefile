# `make bench` measures, `make test` checks. The first of each installs what it needs into .venv; the
# stamps make every later one start at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help bench test lint perf docs clean

help:
	@echo "make bench   measure the quick suite and print the table"
	@echo "make test    style, types, import rules and every test"
	@echo "make lint    style, types and import rules only"
	@echo "make perf    measure Layermark itself: start-up, overhead, detection, programs and networks by hand, the loader"
	@echo "make docs    write docs/cli.md from the parsers, docs/support.md from small preparations"
	@echo "make clean   remove .venv and caches"

bench: $(VENV)/.bench
	$(BIN)/layermark run --suite quick --backend torch

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

perf: $(VENV)/.dev
	$(BIN)/python perf/startup.py
	$(BIN)/python perf/overhead.py
	PYTHONPATH=perf/plugins $(BIN)/python perf/detect.py
	$(BIN)/python perf/native.py
	$(BIN)/python perf/cnn.py
	$(BIN)/python perf/loader.py

docs: $(VENV)/.dev
	$(BIN)/python -m layermark.cli.docs docs/cli.md
	$(BIN)/python -m layermark.cli.support docs/support.md

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[torch]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[all,dev]'
	$(PIP) --no-deps tf-keras
	touch $@ $(VENV)/.bench
