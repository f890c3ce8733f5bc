# Everything sets itself up from a fresh clone with only Python (3.11 or newer) and make.
PYTHON ?= python3
# Two environments: users of the simulator never pay for the engine's 2 GB.
VENV := .venv
ENGINE := .venv-engine
LOWEST := .venv-lowest
VIRTUAL = .venv-virtual-$(notdir $(PYTHON))
VERL := .venv-verl
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes: none of them need compile what another has.
export PYTHONDONTWRITEBYTECODE :=

DEMO_POLICIES := --policy sync --policy 'april(over_sampling=2)' --policy sagc \
  --policy 'pods(keep=4)' --policy prefix_reuse \
  --policy 'all together = april(over_sampling=2)+sagc+pods(keep=4)+prefix_reuse'

# A test that hangs ends its worker, and is tried again by the next: without a bound, for ever.
TWO := -n 2 --max-worker-restart 2

.PHONY: demo demo-engine demo-overlap test test-core test-lowest test-virtual test-verl laws check bench evidence measure memory-proof architectures kills notebook clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --editable '.[dev]'
	touch $@

# The pinned list is installed without its dependencies: some of them would pull CUDA builds that
# break vLLM on a CPU. On a CUDA machine: pip install -e '.[engine,dev]' instead.
$(ENGINE)/.installed: pyproject.toml engine/engine-cpu.lock
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/pip install --quiet --no-deps --requirement engine/engine-cpu.lock
	$(ENGINE)/bin/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## The main job: compare the policies for Qwen3-8B on 8 H100
	$(VENV)/bin/rollcast compare examples/april.yaml --out demo --force $(DEMO_POLICIES)

demo-engine: $(ENGINE)/.installed  ## The same loop on a real engine and torch; NAME=transformers
	$(ENGINE)/bin/rollcast run examples/engine.yaml --set engine.name=$(or $(NAME),vllm) \
	  --set steps=40 --out demo-engine --force

demo-overlap: $(ENGINE)/.installed  ## Rollout beside training, on two cores, and what was forecast
	$(ENGINE)/bin/python -m benchmarks.overlap --out demo-overlap

test: $(ENGINE)/.installed  ## All tests, those with real vLLM and torch included
	$(ENGINE)/bin/python -m compileall -q -j 2 benchmarks calibration engine rollcast simulator
	OMP_NUM_THREADS=1 $(ENGINE)/bin/python -m tests.gate

test-core: $(VENV)/.installed  ## The tests that need no engine
	$(VENV)/bin/python -m pytest $(TWO) --ignore tests/engine

$(LOWEST)/.installed: pyproject.toml tests/lowest.py
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tests/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet --constraint $(LOWEST)/constraints.txt --editable . \
	  pytest pytest-timeout hypothesis
	touch $@

# What newer libraries deprecate in older ones is no error here.
test-lowest: $(LOWEST)/.installed  ## The command line under the lowest versions that it asks for
	$(LOWEST)/bin/python -m pytest -o filterwarnings=default \
	  tests/test_scenario.py tests/test_output.py tests/test_cli.py

# The clock reaches into asyncio and threading, which change with every minor version.
test-virtual:  ## The virtual clock's tests under another Python: PYTHON=python3.13
	$(PYTHON) -m venv $(VIRTUAL)
	$(VIRTUAL)/bin/pip install --quiet --editable . pytest pytest-timeout hypothesis aiohttp httpx looptime
	$(VIRTUAL)/bin/python -m pytest tests/virtual

# Without verl's own bounds: the engine here needs a newer transformers than they allow. verl and
# its queue install their tests as a package named tests, which would hide ours.
$(VERL)/.installed: pyproject.toml benchmarks/in_verl/verl-cpu.lock
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/pip install --quiet --no-deps --requirement benchmarks/in_verl/verl-cpu.lock
	$(VERL)/bin/pip install --quiet --no-deps --editable .
	rm -rf $(VERL)/lib/python3*/site-packages/tests
	touch $@

# What verl and slime do with libraries that deprecate it is no error here.
# SLIME=/path/to/slime: its rollout code too, from a checkout.
test-verl: $(VERL)/.installed  ## Exported plans inside verl's own trainer, on a CPU
	ROLLCAST_SLIME=$(SLIME) $(VERL)/bin/python -m pytest -o filterwarnings=default \
	  tests/stacks_verl tests/export/test_verl.py

laws: $(VENV)/.installed  ## The same laws on new random examples, each time others
	HYPOTHESIS_PROFILE=search $(VENV)/bin/python -m pytest $(TWO) --timeout 7200 --ignore tests/engine

check: $(VENV)/.installed  ## Types, lint, formatting, import contracts
	$(VENV)/bin/mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

memory-proof: $(ENGINE)/.installed  ## A real model's trainer on 8 ranks under torch's memory tracker
	ROLLCAST_MEMORY_PROOF=1 $(ENGINE)/bin/python -m pytest -n 0 tests/engine/test_memory_proof.py

architectures: $(ENGINE)/.installed  ## Six architectures, both engines, adapters: trained, kept, loaded
	ROLLCAST_ARCHITECTURES=1 OMP_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest -n 0 \
	  tests/engine/test_architectures.py

kills: $(ENGINE)/.installed  ## A hundred SIGKILLs at random moments of real runs, half an hour
	$(ENGINE)/bin/python -m benchmarks.kills

bench: $(VENV)/.installed  ## Speed and memory of the simulator and of imports
	$(VENV)/bin/python -m benchmarks.speed

evidence: $(VENV)/.installed  ## Forecasts against published measurements, into the documents
	$(VENV)/bin/python -m benchmarks.validation
	$(VENV)/bin/python -m benchmarks.memory --counts
	$(VENV)/bin/python -m benchmarks.real_policies
	$(VENV)/bin/python -m benchmarks.held_out
	$(VENV)/bin/python -m benchmarks.pearl
	$(VENV)/bin/python -m benchmarks.evidence

measure: $(ENGINE)/.installed  ## Real runs of every policy, here, afresh: an hour of two idle cores
	$(ENGINE)/bin/python -m benchmarks.measure --work measured --out measured/kept
	$(ENGINE)/bin/python -m benchmarks.measured pack measured/kept benchmarks/data/real/runs.tar.xz

notebook: $(VENV)/.installed  ## Runs the notebook again and keeps its pictures
	$(VENV)/bin/pip install --quiet --editable '.[notebooks]'
	$(VENV)/bin/jupyter execute --inplace notebooks/calibrate_and_confirm.ipynb

clean:
	rm -rf $(VENV) $(ENGINE) $(LOWEST) $(VERL) demo demo-engine demo-overlap .pytest_cache .hypothesis .mypy_cache .ruff_cache
