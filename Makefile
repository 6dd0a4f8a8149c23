PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
SLOW_CASES ?= 100000

.PHONY: test lint types tests test-slow demo bench screenshots clean

test: lint types tests

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(STAMP)
	LOGICDIAG_CASES=$(SLOW_CASES) $(BIN)/pytest -n 2 -m slow

demo: $(STAMP)
	$(BIN)/logicdiag demo

bench: $(STAMP)
	$(BIN)/python benchmarks/reasoning.py

screenshots: $(STAMP)
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV)
