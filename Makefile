PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORES ?= $(shell nproc 2>/dev/null || echo 1)

# Threads that wait give way to others: on a busy machine small matrix products are several times faster so.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test test-slow check reference reproduce bench clean

demo: $(STAMP)  ## the paper's blobs: a table and a heat map in out/
	$(BIN)/holdfast demo --out out

test: $(STAMP)  ## everything that takes minutes, not hours; one process per core, each on one thread
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(CORES) --dist worksteal

test-slow: $(STAMP)  ## the long checks: every float32, many more neighbours
	$(BIN)/python -m pytest -m slow

check: $(STAMP)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reference: $(STAMP)  ## the page of all commands, from their help texts
	$(BIN)/python -m holdfast.cli.reference > docs/cli.md

reproduce: $(STAMP)  ## the paper's figures and table, on the data in HOLDFAST_DATA, with a report in out/paper
	$(BIN)/holdfast reproduce all --report

bench: $(STAMP)  ## speed, each against a rival in the same run
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.queries
	$(BIN)/python -m benchmarks.ledger

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "holdfast needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "The venv module is missing. On Debian or Ubuntu type: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) out build
