# make run | test | lint | docs | bench | clean. Each sets up what it needs: a virtual environment in .venv, once.
# Variables: PYTHON (3.11 or newer), ARGS (further arguments of run.py), JOBS (processes of the tests).
PYTHON ?= python3
ARGS ?=
JOBS ?= 2

BIN := .venv/bin
# Modules are compiled when they are first imported, which most never are. A plain path to this folder, so that
# `import graphopt` finds the package from the parent folder as well.
PIP := --no-compile --disable-pip-version-check --no-warn-script-location -c constraints.txt --config-settings editable_mode=compat
CODE := graphopt tests benchmarks docs/conf.py run.py

.PHONY: run test lint docs bench clean

run: .venv/ready
	$(BIN)/python run.py experiment=quick $(ARGS)

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: .venv/ready-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

docs: .venv/ready-dev
	$(BIN)/sphinx-build -q -W --keep-going -c docs . build/site
	@echo "build/site/index.html"

bench: .venv/ready-dev
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: installed again only when what is to be installed changes.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "graphopt needs Python 3.11 or newer, but '$(PYTHON)' is not: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Setting up .venv (two minutes, about 2 GB)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP) -e '.[html]'
	@touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install $(PIP) -e '.[dev]'
	@touch $@
