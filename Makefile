# make demo: predict two examples on a GPU that need not be here.   make test: run the tests.   make docs: build the site in
# build/site.   All set up what they need.

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
DOCS := $(VENV)/.docs

# Claims that need no GPU.
CLAIMS := \
	$(addprefix speed.,start_up verb_speed against_hta large_trace sketch_speed recorder_cost simulate_speed predict_speed job_speed) \
	$(addprefix accuracy.,all_sets headlines own_gpu kernel_models device_time collectives host_time job_accuracy other_gpus other_gpu_kernels \
		pipelines vtrain vtrain_whole edits cudagraph) \
	$(addprefix sharding.,sharding sharding_gloo sharding_search) \
	$(addprefix fleet.,fleet_stragglers fleet_suite fleet_scale) \
	$(addprefix usability.,training_scripts consistency mutated_files)

.PHONY: demo test lint docs bench clean

demo: $(BASE)
	@$(BIN)/python -m compileall -qq src  # what changed since: some environments keep Python from doing so itself
	@rm -rf demo && mkdir demo
	@echo && echo "1. How long does a training step of a DLRM take on an H200? Nothing runs: the step is sketched." && echo
	$(BIN)/foretrace predict examples/dlrm.py --on h200 --top 3 --html demo/dlrm.html
	@echo && echo "2. The device idles, since the host is slow. What if the whole step were one CUDA graph?" && echo
	$(BIN)/foretrace whatif examples/dlrm.py --on h200 --fuse launches --top 3 --html demo/dlrm-whatif.html
	@echo && echo "3. And GPT-2 on eight of them, each with a batch of its own?" && echo
	$(BIN)/foretrace predict examples/gpt.py --on h200 --parallel data=8 --top 3 --html demo/gpt.html --trace demo/gpt.json
	@echo
	@echo "Open demo/dlrm.html, demo/dlrm-whatif.html and demo/gpt.html; ui.perfetto.dev opens demo/gpt.json. Go on with:"
	@echo "  $(BIN)/foretrace predict examples/gpt.py --on a100              another GPU; platform list shows all"
	@echo "  $(BIN)/foretrace whatif examples/gpt.py --set autocast=bf16     in mixed precision"
	@echo "  $(BIN)/foretrace sweep examples/gpt.py --set batch=8,16,32      the best batch"
	@echo "  $(BIN)/foretrace record --out mine -- $(BIN)/python examples/bert.py   then: show mine, predict mine, check mine, replay mine"

test: $(TESTS)
	$(BIN)/python -m pytest -n 2 --dist worksteal  # neighbours share fixtures, so they stay together as long as it pays

lint: $(LINT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(BASE)
	@failed=; \
	for name in $(CLAIMS); do \
		echo "$$name"; \
		$(BIN)/python -m benchmarks.claims.$$name || failed="$$failed $$name"; \
	done; \
	$(BIN)/python -m benchmarks.lib.results; \
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

$(DOCS): $(BASE)
	$(INSTALL) -e '.[docs]'
	touch $@
