# make demo: record an example and see where its step goes.   make test: run the tests.   Both set up all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install -c constraints.txt
BASE := $(VENV)/.base
TESTS := $(VENV)/.tests
LINT := $(VENV)/.lint

# Those that need no GPU.
BENCHMARKS := start_up all_sets against_hta large_trace sketch_speed recorder_cost

.PHONY: demo test lint bench clean

demo: $(BASE)
	rm -rf demo
	$(BIN)/foretrace record --out demo -- $(BIN)/python examples/dlrm.py
	$(BIN)/foretrace show demo
	@echo
	@echo "The recording is in demo/. Go on with:"
	@echo "  $(BIN)/foretrace show demo --json"
	@echo "  $(BIN)/foretrace export demo --perfetto demo.json      then open it on ui.perfetto.dev"
	@echo "  $(BIN)/foretrace record --out mine -- python your_training.py"

test: $(TESTS)
	$(BIN)/python -m pytest -n 2

lint: $(LINT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BASE)
	@failed=; \
	for name in $(BENCHMARKS); do \
		echo "$$name"; \
		$(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; \
	done; \
	$(BIN)/python -m benchmarks.results; \
	test -z "$$failed" || { echo "claims that did not hold:$$failed"; exit 1; }

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(BASE): $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e '.[torch]'
	touch $@

# TorchRec asks for the CUDA build of FBGEMM; its CPU build serves the tests, and only without their wishes.
$(TESTS): $(BASE)
	$(INSTALL) -e '.[test,torchrec]'
	$(PIP) install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
	touch $@

$(LINT): $(TESTS)
	$(INSTALL) -e '.[lint]'
	touch $@
