# From a fresh clone, with Python 3.10+ and make: `make train`, `make test`. Everything is installed into .venv, through constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .peers
PEERS_STAMP := $(PEERS)/.installed
OUTPUT := runs

# Small networks are faster on one thread, and the tests run side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: help install train test test-slow check docs format bench performance peers ledger reference results clean
.DEFAULT_GOAL := help

help:
	@echo 'make train   train DQN on CartPole and evaluate it (a few minutes)'
	@echo 'make test    the tests          make test-slow  those that take minutes'
	@echo 'make check   lint, format, types, import rules, documentation'
	@echo 'make docs    the documentation site into site/'
	@echo 'make format  apply the formatter'
	@echo 'make bench   ours and the peers on the same work (installs the peers into $(PEERS))'
	@echo 'make ledger  what every algorithm learns: the suites classic, on_policy, memory and ablation, runs that are not there yet (hours; SUITE=smoke: minutes)'
	@echo 'make reference  the same tasks, seeds and budgets by Stable-Baselines3 and sb3-contrib (hours)'
	@echo 'make results docs/results.md and the table of the README, from the records of those runs'
	@echo 'make clean   remove caches and builds (keeps $(OUTPUT)/ and $(VENV)/)'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed; this is " + sys.version.split()[0] + " (make PYTHON=python3.11 ...)" if sys.version_info < (3, 10) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)

# A seed of its own: other episodes than those by which the run chose its best checkpoint.
train: $(STAMP)
	$(BIN)/rl-training train --config configs/dqn/cartpole.yaml --output-dir $(OUTPUT)
	@run=$$(ls -dt $(OUTPUT)/dqn__CartPole-v1__*/ | head -n 1); run=$${run%/}; \
	checkpoint=$$run/checkpoints/best; test -e $$checkpoint || checkpoint=$$run/checkpoints/latest; \
	printf '\nGreedy policy of %s over 20 fresh episodes:\n' $$checkpoint; \
	$(BIN)/rl-training eval --checkpoint $$checkpoint --episodes 20 --seed 2026 && \
	printf '\nNext:\n  %s  # %s\n  %s  # %s\n  %s  # %s\n' \
	  "$(BIN)/tensorboard --logdir $(OUTPUT)" 'curves' \
	  "$(BIN)/rl-training resume --checkpoint $$run --total-timesteps 100000" 'train on' \
	  "$(BIN)/rl-training algos; $(BIN)/rl-training configs" 'the other algorithms, and the configs shipped for them'

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 -m slow

check: $(STAMP) docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Not --quiet, which keeps warnings from being counted.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Ours and the peers in one interpreter: the peers' versions stand in benchmarks/peers.txt.
$(PEERS_STAMP): pyproject.toml constraints.txt benchmarks/peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	grep -v '^filelock' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet -c $(PEERS)/constraints.txt -r benchmarks/peers.txt -e ".[box2d]"
	@touch $@

peers: $(PEERS_STAMP)

bench: $(PEERS_STAMP)
	$(PEERS)/bin/python -m benchmarks.startup --json benchmarks/results/startup.json
	$(PEERS)/bin/python -m benchmarks.throughput --json benchmarks/results/throughput.json
	$(PEERS)/bin/python -m benchmarks.learner --json benchmarks/results/learner.json
	$(PEERS)/bin/python -m benchmarks.replay --json benchmarks/results/replay.json
	$(PEERS)/bin/python -m benchmarks.recurrent --json benchmarks/results/recurrent.json
	$(PEERS)/bin/python -m benchmarks.on_policy --json benchmarks/results/on_policy.json
	$(PEERS)/bin/python -m benchmarks.scaling --json benchmarks/results/scaling.json
	$(PEERS)/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && \
	  $(PEERS)/bin/python -m benchmarks.gpu --json benchmarks/results/gpu.json || echo 'no GPU: benchmarks.gpu left out'
	$(PEERS)/bin/python -m benchmarks.performance

# docs/performance.md from the records as they are
performance: $(STAMP)
	$(BIN)/python -m benchmarks.performance

SUITE := classic on_policy memory ablation
ledger: $(STAMP)
	set -e; for suite in $(SUITE); do $(BIN)/rl-training ledger $$suite; done

reference: $(PEERS_STAMP)
	$(PEERS)/bin/python -m benchmarks.reference classic

results: $(STAMP)
	$(BIN)/python -m benchmarks.publish

clean:
	rm -rf build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
