# Two commands on a fresh machine with Python 3.11, git and make:
#   make demo   sets up, runs CRAD on images that come with a dependency, shows a table, writes a report
#   make test   sets up, lint, types, tests
# the documentation as a site that opens from disk: make docs; a release, built and tried: make release-check
# while one works, in two minutes: make quick (lint, types and the tests that are not marked slow)
# and where the time goes, about half an hour: make bench (QUICK=1 for three)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Tests read the real subsets from here when the folder is there; they skip where it is not.
export CRAD_DATA ?= $(wildcard $(CURDIR)/../shared/data)
# Bytecode is kept, also where the environment says not to: every worker of pytest collects all tests, and a good hundred
# of processes import the package.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo quick test docs release-check bench fuzz lint types setup clean

demo: $(VENV)/.demo
	$(BIN)/crad demo

quick: lint types
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -q -m 'not slow'

# Four at a time on two cores: tests of the network mostly wait. Lint and types run beside them; what they say comes
# last, and a failure of either fails it all.
test: $(VENV)/.dev
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going lint types > build/lint-and-types.txt 2>&1 & checking=$$!; \
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 25; tests=$$?; \
	wait $$checking; checks=$$?; cat build/lint-and-types.txt; exit $$((tests || checks))

# Strictly: a broken link, a page outside the navigation, a name that is gone or a tutorial that fails fails it. Those are
# executed here, or taken from build/notebooks where that was done before. Not --quiet: warnings that are not said are not counted.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo build/site/index.html

# The wheel and the sdist, built, checked, and used from an empty environment outside the project.
release-check: $(VENV)/.release
	$(BIN)/python -m tools.release

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

# Hostile bytes for every decoder of what peers send, a few minutes; then ten thousand schedules of the protocol.
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.simulation --schedules 10000

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev
	$(BIN)/mypy

setup: $(VENV)/.dev

# Installed again only when what is to be installed has changed.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.release: $(VENV)/.dev
	$(PIP) --editable '.[release]'
	touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --editable '.[fuzz]'
	touch $@

$(VENV)/.bench: $(VENV)/.demo
	$(PIP) --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis
