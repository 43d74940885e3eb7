# From a fresh clone, with Python 3.10+ and make: `make train`, `make test`. Everything is installed into .venv, through constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
DEV := $(VENV)/.dev
PEERS := .peers
PEERS_STAMP := $(PEERS)/.installed
PEERS_SET := -c constraints.txt -r benchmarks/peers.txt -e '.[box2d,atari]'
PEERS_RESOLVED := $(VENV)/.peers-resolved
OUTPUT := runs

# Small networks are faster on one thread, and the tests run side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: generated help install train test test-slow check check-numerics docs format bench performance peers ledger reference results faults clean
.DEFAULT_GOAL := help

help:
	@echo 'make train   train DQN on CartPole and evaluate it (a few minutes)'
	@echo 'make test    the tests          make test-slow  those that take minutes'
	@echo 'make check   lint, format, types, import rules, the versions of the peers, documentation'
	@echo 'make check-numerics  the numeric tests once more, under other arithmetic (a minute)'
	@echo 'make docs    the documentation site into site/'
	@echo 'make format  apply the formatter'
	@echo 'make generated  what is made from the code: the algorithms'\'' pages, the tables of keys, the stub of the managed classes'
	@echo 'make bench   ours and the peers on the same work (installs the peers into $(PEERS))'
	@echo 'make ledger  what every algorithm learns: the suites classic, on_policy, memory and ablation, runs that are not there yet (hours; SUITE=smoke: minutes)'
	@echo 'make reference  the same tasks, seeds and budgets by Stable-Baselines3 and sb3-contrib (hours)'
	@echo 'make results docs/results.md, the numbers of the README and the algorithms'\'' pages, from the records of those runs'
	@echo 'make faults  the fault campaign: kills, torn writes, mutated files, signals, faulty environments, full disks, races (up to 40 minutes)'
	@echo 'make clean   remove caches and builds (keeps $(OUTPUT)/ and $(VENV)/)'

# Training needs the package alone. Tests and checks need the rest, which takes a minute more to install.
$(PACKAGE): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(PACKAGE) $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed; this is " + sys.version.split()[0] + " (make PYTHON=python3.11 ...)" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

install: $(DEV)

# A seed of its own: other episodes than those by which the run chose its best checkpoint.
train: $(PACKAGE)
	$(BIN)/rl-training train --config configs/dqn/cartpole.yaml --output-dir $(OUTPUT)
	@run=$$(ls -dt $(OUTPUT)/dqn__CartPole-v1__*/ | head -n 1); run=$${run%/}; \
	checkpoint=$$run/checkpoints/best; test -e $$checkpoint || checkpoint=$$run/checkpoints/latest; \
	printf '\nGreedy policy of %s over 20 fresh episodes:\n' $$checkpoint; \
	$(BIN)/rl-training eval --checkpoint $$checkpoint --episodes 20 --seed 2026 && \
	printf '\nMore:\n  %s  # %s\n  %s  # %s\n  %s  # %s\n  %s  # %s\n' \
	  ". $(BIN)/activate" 'so that the shell finds rl-training, and the commands above work as they stand' \
	  "$(BIN)/tensorboard --logdir $(OUTPUT)" 'curves' \
	  "$(BIN)/rl-training resume --checkpoint $$run --total-timesteps 100000" 'train on' \
	  "$(BIN)/rl-training algos; $(BIN)/rl-training configs" 'the other algorithms, and the configs shipped for them'

test: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-slow: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

check: $(DEV) $(PEERS_RESOLVED) docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tolerances must hold on every processor: plain instructions instead of AVX, MKL's code for any processor, sums split over two threads.
OTHER_ARITHMETIC := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
check-numerics: $(DEV)
	$(OTHER_ARITHMETIC) $(BIN)/python -m pytest -q -m 'numeric and not slow'

# Whether what `make peers` installs can be installed at all: a pin that our tests like may be one that a peer refuses.
$(PEERS_RESOLVED): pyproject.toml constraints.txt benchmarks/peers.txt | $(DEV)
	$(BIN)/python -m pip install --dry-run $(PEERS_SET) > $@.log || { tail -n 20 $@.log; exit 1; }
	@mv $@.log $@

# Not --quiet, which keeps warnings from being counted.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What is made from the code and stands in the repository: a test fails where it is not what the code says.
generated: $(DEV)
	$(BIN)/python docs/generate.py

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Ours and the peers in one interpreter: the peers' versions stand in benchmarks/peers.txt.
$(PEERS_STAMP): pyproject.toml constraints.txt benchmarks/peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet $(PEERS_SET)
	@touch $@

peers: $(PEERS_STAMP)

bench: $(PEERS_STAMP)
	$(PEERS)/bin/python -m benchmarks.startup --json benchmarks/results/startup.json
	$(PEERS)/bin/python -m benchmarks.throughput --json benchmarks/results/throughput.json
	$(PEERS)/bin/python -m benchmarks.learner --json benchmarks/results/learner.json
	$(PEERS)/bin/python -m benchmarks.replay --json benchmarks/results/replay.json
	$(PEERS)/bin/python -m benchmarks.recurrent --json benchmarks/results/recurrent.json
	$(PEERS)/bin/python -m benchmarks.on_policy --json benchmarks/results/on_policy.json
	$(PEERS)/bin/python -m benchmarks.pqn_cpu --json benchmarks/results/pqn_cpu.json
	$(PEERS)/bin/python -m benchmarks.scaling --json benchmarks/results/scaling.json
	$(PEERS)/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && \
	  $(PEERS)/bin/python -m benchmarks.gpu --json benchmarks/results/gpu.json || echo 'no GPU: benchmarks.gpu left out'
	$(PEERS)/bin/python -m benchmarks.performance

# docs/performance.md from the records as they are
performance: $(DEV)
	$(BIN)/python -m benchmarks.performance

SUITE := classic on_policy memory ablation
ledger: $(DEV)
	set -e; for suite in $(SUITE); do $(BIN)/rl-training ledger $$suite; done

reference: $(PEERS_STAMP)
	$(PEERS)/bin/python -m benchmarks.reference classic

# The algorithms' pages say what their configs reached, so they are made after the tables.
results: $(DEV)
	$(BIN)/python -m benchmarks.publish
	$(BIN)/python docs/generate.py

# Goes on where it was stopped: parts that the record has from this commit are not played again.
faults: $(DEV)
	$(BIN)/python -m benchmarks.faults

clean:
	rm -rf build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
