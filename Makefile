# Every target sets up what it needs, once: the virtual environment is rebuilt only when the lock changes.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SEED   ?= 0

export RAY_USAGE_STATS_ENABLED := 0
export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1
export HF_HUB_OFFLINE := 1

.PHONY: setup demo test test-all check format policy policy-coder bench-async bench-gateway bench-isolation bench-rewards bench-trainer chaos clean

setup: $(READY)

# The lock is complete, so pip resolves nothing (--no-deps). Its torch is the CPU build; where pip does not
# find that wheel, add PyTorch's CPU wheel index with PIP_EXTRA_INDEX_URL (see docs/install.md).
$(READY): requirements/cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else "agentrl: the CPU lock is for Python 3.11, found %d.%d; run make PYTHON=/path/to/python3.11" % v)'
	@echo "agentrl: installing $$(grep -c == requirements/cpu.lock) packages into $(VENV) (3 GB); pip is quiet for some minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==26.3
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/cpu.lock || \
		{ echo "agentrl: the lock was not installed. If pip found no torch 2.13.0+cpu, set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index (docs/install.md)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(READY)
	$(BIN)/agentrl train examples/01_calculator/run.toml --seed $(SEED) --overwrite
	$(BIN)/agentrl audit runs/demo

# Two at a time; those that start the real engines one after another (tests/conftest.py).
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

# And those that make it longer than twenty minutes.
test-all: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

policy: $(READY)
	$(BIN)/python tools/build_policy.py

policy-coder: $(READY)
	$(BIN)/python tools/build_policy.py --model agentrl:tiny-coder

# The gateways of other projects, each pinned in an environment of its own.
bench/.peers/%/.ready: bench/gateway/peers/%.lock
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

bench-gateway: $(READY) bench/.peers/rllm/.ready bench/.peers/openenv/.ready
	$(BIN)/python -m bench.gateway $(BENCH)

bench-async: $(READY)
	$(BIN)/python -m bench.async_loop $(BENCH)

bench-isolation: $(READY)
	$(BIN)/python -m bench.isolation $(BENCH)

bench-rewards: $(READY)
	$(BIN)/python -m bench.rewards $(BENCH)

bench-trainer: $(READY)
	$(BIN)/python -m bench.trainer $(BENCH)

# Faults of every kind in one real run. As root, the disk of its directory is filled too.
chaos: $(READY)
	$(BIN)/python -m bench.chaos $(CHAOS)

clean:
	rm -rf $(VENV) bench/.peers .adapters .mypy_cache .ruff_cache .hypothesis
