PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORES ?= $(shell nproc 2>/dev/null || echo 1)

# Make waiting threads yield instead of spin: on a busy machine, small matrix products are then
# several times faster.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test test-slow check docs reference tables reproduce bench clean

demo: $(STAMP)  ## train on the paper's blobs; write a table and a heat map to out/
	$(BIN)/holdfast demo --out out

test: $(STAMP)  ## run all tests but the slow ones; one single-threaded process per core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(CORES) --dist worksteal

test-slow: $(STAMP)  ## run the slow tests: every float32, many more neighbours
	$(BIN)/python -m pytest -m slow

check: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation as a site in site/, which works offline
	$(BIN)/zensical build --strict
	@echo 'Open site/index.html; to search, serve it: python3 -m http.server --directory site'

reference: $(STAMP)  ## generate docs/cli.md from the commands' help texts
	$(BIN)/typer holdfast.cli utils docs --name holdfast --title 'Command line' --output docs/cli.md

tables: $(STAMP)  ## generate the tables of the documentation from docs/results
	$(BIN)/python -m holdfast_paper.tables docs/results docs/*.md

reproduce: $(STAMP)  ## reproduce the paper from HOLDFAST_DATA, with a report in out/paper
	$(BIN)/holdfast reproduce all --report

bench: $(STAMP)  ## run the benchmarks, each with a baseline in the same run
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.queries
	$(BIN)/python -m benchmarks.heads
	$(BIN)/python -m benchmarks.persons
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.large_ledger
	$(BIN)/python -m benchmarks.timing
	$(BIN)/python -m benchmarks.large_tables network
	$(BIN)/python -m benchmarks.large_tables head
	$(BIN)/python -m benchmarks.large_tables workers --rows 60000

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "holdfast needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "The venv module is missing. On Debian or Ubuntu type: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) out build site
