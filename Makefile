# Two commands do everything on a machine with Python 3.11+: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo dev test test-system lint types check clean

demo: $(VENV)/core
	$(BIN)/supple demo

# An environment to work in: source .venv/bin/activate
dev: $(VENV)/dev

# One worker per core.
test: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# What takes longer: whole pages, examples and exports, several processes at work.
test-system: $(VENV)/dev
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq chromium) || echo "no chromium: tests of the page are skipped"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "system and not browser"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m browser

lint: $(VENV)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/dev
	$(BIN)/mypy

check: lint types test test-system

$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,audio,detect,export,ray,serve,table]"
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
