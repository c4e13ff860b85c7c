# make demo   train FedAvg and FedOMG on the embedded data set and compare them on an unseen style
# make test   lint, types and tests
# make slow   tests of federations of processes, and their faults: five minutes or more
# Each makes .venv and installs what it needs; a second run installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint types check slow clean

demo: $(VENV)/installed
	$(BIN)/fedomg demo

test: lint types check

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

check: $(VENV)/installed-dev
	$(BIN)/python -m pytest --cov --cov-report=term -m "not slow" --numprocesses 2 --dist worksteal

slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m slow

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo "installing fedomg into $(VENV) (once, about a minute)"
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing the test tools into $(VENV) (once)"
	$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage build dist src/*.egg-info
