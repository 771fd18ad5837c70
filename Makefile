# make demo: predict two examples on a GPU that need not be here.   make test: run the tests.   Both set up all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --no-compile -c constraints.txt
# What pip would do on one core. Some packages bring templates along that are no Python.
COMPILE := $(BIN)/python -m compileall -qq -j 0 src $(VENV)/lib || true
BASE := $(VENV)/.base
TESTS := $(VENV)/.tests
LINT := $(VENV)/.lint

# Those that need no GPU.
BENCHMARKS := start_up verb_speed all_sets against_hta large_trace sketch_speed recorder_cost simulate_speed predict_speed \
	kernel_models device_time collectives host_time job_accuracy job_speed other_gpus other_gpu_kernels pipelines vtrain \
	vtrain_whole sharding sharding_gloo sharding_search edits cudagraph

.PHONY: demo test lint bench clean

demo: $(BASE)
	rm -rf demo && mkdir demo
	$(BIN)/foretrace predict examples/dlrm.py --on h200 --top 5 --html demo/dlrm.html
	$(BIN)/foretrace predict examples/gpt.py --on h200 --top 5 --html demo/gpt.html --trace demo/gpt.json
	@echo
	@echo "Nothing of this ran: both steps were sketched. Open demo/dlrm.html and demo/gpt.html; demo/gpt.json opens on"
	@echo "ui.perfetto.dev. Go on with:"
	@echo "  $(BIN)/foretrace predict examples/gpt.py --on a100              another GPU; platform list shows all"
	@echo "  $(BIN)/foretrace predict examples/gpt.py --parallel data=8      on eight of them"
	@echo "  $(BIN)/foretrace whatif examples/gpt.py --set batch=32          a larger batch"
	@echo "  $(BIN)/foretrace record --out mine -- $(BIN)/python examples/bert.py   then: show mine, predict mine, check mine, replay mine"

test: $(TESTS)
	$(BIN)/python -m pytest -n 2 --dist worksteal  # neighbours share fixtures, so they stay together as long as it pays

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
	@echo "Installing Foretrace and PyTorch into $(VENV): a minute or two"
	$(INSTALL) -e '.[torch]'
	$(COMPILE)
	touch $@

# TorchRec asks for the CUDA build of FBGEMM; its CPU build serves the tests, and only without their wishes.
$(TESTS): $(BASE)
	$(INSTALL) -e '.[test,torchrec]'
	$(INSTALL) --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
	$(COMPILE)
	touch $@

$(LINT): $(BASE)
	$(INSTALL) -e '.[lint]'
	touch $@
