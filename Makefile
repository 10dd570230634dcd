# Everything a newcomer needs. Each target sets up what it uses; see `make help`.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint bench clean
help: ## say what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/:/' | column -t -s:

setup: $(STAMP) ## make .venv and install everything (packages by apt when root, else says what is missing)
$(STAMP): pyproject.toml constraints.txt setup.py scripts/setup $(wildcard netlab/links/core/* netlab/hosts/core/*) netlab/links/relay_build.py
	scripts/setup $(VENV)
	@touch $@

demo: setup ## the CPDP paper's WAN experiment on this machine, with a report (under 6 minutes)
	$(VENV)/bin/cpdp compare profiles/experiments/nancy-sophia.yaml

test: setup lint ## lint, then every test this machine can run
	scripts/test $(VENV) $(PYTEST_ARGUMENTS)

lint: setup ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: setup ## measure against peers and limits, in one run; writes benchmarks/results/*.json
	scripts/bench $(VENV) $(BENCHMARKS)

clean: ## remove what building and testing left (not runs/)
	rm -rf build dist *.egg-info netlab/hosts/netlab-init netlab/links/_relay*.so netlab/links/_relay.c .pytest_cache .mypy_cache .ruff_cache
