# Everything sets itself up from a fresh clone with only Python (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check bench published clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## The main job: compare the policies for Qwen3-8B on 8 H100
	$(BIN)/rollcast compare examples/april.yaml --out demo --force $(DEMO_POLICIES)

DEMO_POLICIES := --policy sync --policy 'april(over_sampling=2)' --policy sagc \
  --policy 'pods(keep=4)' --policy prefix_reuse \
  --policy 'all together: april(over_sampling=2)+sagc+pods(keep=4)+prefix_reuse'

test: $(VENV)/.installed  ## All tests
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.installed  ## Types, lint, formatting, import contracts
	$(BIN)/mypy
	$(BIN)/ruff check simulator tests benchmarks
	$(BIN)/ruff format --check simulator tests benchmarks
	$(BIN)/lint-imports

bench: $(VENV)/.installed  ## Speed and memory, side by side
	$(BIN)/python benchmarks/speed.py

published: $(VENV)/.installed  ## Forecasts against published measurements
	$(BIN)/python benchmarks/published.py

clean:
	rm -rf $(VENV) demo .pytest_cache .hypothesis .mypy_cache .ruff_cache
