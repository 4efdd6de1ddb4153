# make plan       own virtual environment, install, plan one real module, write plan, picture and report into out/
# make test       the tests, but for the slow ones
# make test-slow  the slow ones
# make check      lint, types, all tests: what continuous integration runs (.ci/run)
# make test-versions  a part of the tests with the lowest and the highest versions of the dependencies; needs a network
# make docs       the documentation as a site, in out/site; fails at any dead link
# make torch-memory  train twelve models within memory limits beside torch's own partitioner (about an hour)
# make executorch  export a small model with plans of this package, run it, compare; installs executorch
# make library    check the library of instances, without a solver
# make sbom       all components of the installation that plans need, in CycloneDX, as out/sbom.cdx.json
# make report     docs/report as PDF, as out/report.pdf
# make gallery    the pictures of docs/guide/gallery.md anew, with the commands that the page names
#
# Plans need no torch; tests and types do, for the learned policies. It is installed first, by itself. Where a
# plain torch brings gigabytes of CUDA, its builds for processors alone are elsewhere:
#   make test TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
MODULE ?= examples/data/alexnet_train_b32.hlo.txt.gz
TARGET ?= tpu-v4
TIME_LIMIT ?= 20
TORCH ?= torch==2.13.0
# Nothing is built apart from this environment: that would download numba and SciPy twice.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt
# Each worker takes neighbouring tests and, once it is done, half of what the other has left.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -q

.PHONY: plan executorch torch-memory test test-slow test-versions lint types check docs library sbom report gallery install clean

install: $(VENV)/.installed

# What plans need and what compiles heuristics; tools, and what reads other inputs, come with the next.
$(VENV)/.planning: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "stowplan needs Python 3.11 or later")'
	@echo '[1/4] an environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo '[2/4] numba, NumPy and SciPy (120 MB)'
	@$(PIP) setuptools numba scipy msgspec
	@echo '[3/4] machine code of heuristics (two minutes of a processor)'
	@$(BIN)/python -m stowplan.compiled.build
	@echo '[4/4] stowplan, solvers and matplotlib (90 MB)'
	@$(PIP) -e '.[viz]'
	@touch $@

$(VENV)/.installed: $(VENV)/.planning
	$(PIP) -e '.[viz,frontends,poly,dev]'
	touch $@

$(VENV)/.learned: $(VENV)/.installed
	$(PIP) $(TORCH)
	$(PIP) -e '.[learned,cluster,viz,frontends,poly,docs,dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.planning
	$(PIP) -e '.[docs]'
	touch $@

# An environment of its own, so that these tools are no components of the installation that they list.
$(OUT)/tools/.installed: pyproject.toml
	$(PYTHON) -m venv $(OUT)/tools
	$(OUT)/tools/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])')
	touch $@

$(VENV)/.executorch: $(VENV)/.installed
	$(PIP) $(TORCH)
	$(PIP) -e '.[executorch]'
	touch $@

executorch: $(VENV)/.executorch
	$(BIN)/python examples/plan_for_executorch.py

torch-memory: $(VENV)/.learned
	$(BIN)/python -m benchmarks.torch_memory.limits -o $(OUT)/torch_memory.jsonl

plan: $(VENV)/.planning
	mkdir -p $(OUT)
	$(BIN)/stowplan solve $(MODULE) --target $(TARGET) --time-limit $(TIME_LIMIT) \
	    -o $(OUT)/plan.json --png $(OUT)/plan.png --report $(OUT)/report.html
	$(BIN)/stowplan verify $(MODULE) $(OUT)/plan.json --target $(TARGET)

test: $(VENV)/.learned
	$(BIN)/python -m stowplan.compiled.build
	$(PYTEST) -m 'not slow'

test-slow: $(VENV)/.learned
	$(BIN)/python -m stowplan.compiled.build
	$(PYTEST) -m slow

test-versions: install
	$(BIN)/python -m tests.versions $(VERSIONS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.learned
	$(BIN)/mypy

check: lint types test test-slow

docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --quiet --strict

library: $(VENV)/.planning
	$(BIN)/stowplan library check

sbom: $(VENV)/.planning $(OUT)/tools/.installed
	$(OUT)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON \
	    -o $(OUT)/sbom.cdx.json $(BIN)/python

report: $(OUT)/tools/.installed
	$(OUT)/tools/bin/python docs/report/build.py $(OUT)/report.pdf

gallery: install
	$(BIN)/python docs/gallery.py

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info
