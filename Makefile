# `make bench` measures, `make test` checks. The first of each installs what it needs into .venv; the
# stamps make every later one start at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt
# Programs that only tests need: a browser for the report, mpirun for poprun, a server for the store. Without the right to
# install them, or a network, a line says which are missing, their tests are skipped, and the set-up goes on.
MISSING = { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || echo chromium; \
	command -v mpirun >/dev/null || echo openmpi-bin iproute2; \
	{ command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1 || echo postgresql
define PROGRAMS
@missing=$$($(MISSING)); [ -z "$$missing" ] || { export DEBIAN_FRONTEND=noninteractive; \
	timeout 120 apt-get update -qq; \
	for each in $$missing; do timeout 300 apt-get install -y -qq $$each; done; } </dev/null >/dev/null 2>&1; \
	missing=$$($(MISSING)); [ -z "$$missing" ] || \
	echo "could not be installed, so their tests are skipped; type: apt-get install" $$missing
endef

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help bench test test-full lint perf docs site clean

help:
	@echo "make bench   measure the quick suite on three runtimes, print the table, write the report"
	@echo "make test    style, types, import rules and every test"
	@echo "make test-full  the same, with every combination of the contract tests and what is repeated fifty times"
	@echo "make lint    style, types and import rules only"
	@echo "make perf    measure Layermark itself: start-up, overhead, detection, programs and networks by hand, the loader"
	@echo "make docs    write docs/cli.md from the parsers, docs/support.md from small preparations"
	@echo "make site    build the documentation as a site into build/site; a broken link fails"
	@echo "make clean   remove .venv and caches"

# A run in which something failed (status 1) is reported, too; a wrong or interrupted one is not.
bench: $(VENV)/.bench
	$(BIN)/layermark run --suite quick --backend torch,onnxruntime,openvino --time-box 1.5s --budget 285s; status=$$?; \
	[ $$status -le 1 ] || exit $$status; \
	$(BIN)/layermark report -o build/report.html && exit $$status

test: lint
	$(BIN)/python -m pytest

test-full: lint
	LAYERMARK_TEST_FULL=1 $(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

perf: $(VENV)/.dev
	$(BIN)/python perf/startup.py
	$(BIN)/python perf/overhead.py
	PYTHONPATH=perf/plugins $(BIN)/python perf/detect.py
	$(BIN)/python perf/gate.py --record build/gate_blocks.json
	$(BIN)/python perf/layers.py
	$(BIN)/python perf/cnn.py
	$(BIN)/python perf/train.py
	$(BIN)/python perf/scale.py
	$(BIN)/python perf/loader.py
	$(BIN)/python perf/profiles.py

docs: $(VENV)/.dev
	$(BIN)/python -m layermark.cli.docs docs/cli.md
	$(BIN)/python -m layermark.cli.support docs/support.md

site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site: build/site/index.html"

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[torch,onnxruntime,openvino]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[all,dev]'
	$(PIP) --no-deps tf-keras
	$(PROGRAMS)
	touch $@ $(VENV)/.bench
