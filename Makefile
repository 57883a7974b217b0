# Every target sets up what it needs: a virtual environment in .venv with the tested versions.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help solve check resolve lint types test wheel docs sglang soak train clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

solve: .venv/core ## solve the bundled problem set
	$(BIN)/reason solve

check: lint types test wheel ## everything CI runs

lint: .venv/ready ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready ## mypy over sources, scripts and tests
	$(BIN)/mypy

test: .venv/ready ## pytest on the CPU, a process for each core, four at most; all but those of `make sglang`
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --ignore tests/sglang

wheel: .venv/ready ## build the wheel, install it elsewhere, solve a problem with it
	$(BIN)/python scripts/dev/check_wheel.py

docs: .venv/ready ## the documentation as pages in site/; a link that leads nowhere is an error
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

sglang: .venv/ready .venv-sglang/ready ## engine and plugin against real SGLang servers on the CPU
	SGLANG_VENV=.venv-sglang $(BIN)/python -m pytest tests/sglang

# What a machine without any pip configuration sees: only the public index. Nothing is downloaded but metadata.
resolve: .venv/ready ## the tested versions exist on the public index
	env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null \
		$(BIN)/python -m pip install -q --dry-run --ignore-installed -c constraints.txt -e ".[dev]"
	$(BIN)/python scripts/dev/check_platforms.py

soak: .venv/ready ## ten minutes of kills, hostile servers, cancellations and clients; not in CI
	$(BIN)/python scripts/dev/soak/soak.py

train: .venv/ready ## train the bundled models from scratch (hours on a CPU)
	$(BIN)/python scripts/train.py

clean: ## remove what the targets made
	rm -rf .venv .venv-sglang site build dist *.egg-info

# What solves; the tools of developers come with the targets that need them.
.venv/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, and \
	$(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt pip
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[full]"
	$(BIN)/reason doctor --compile
	touch $@

.venv/ready: .venv/core
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

.venv-sglang/ready: tests/sglang/requirements.txt tests/sglang/setup.sh
	PYTHON=$(PYTHON) tests/sglang/setup.sh .venv-sglang
	touch $@
