# make plan    own virtual environment, install, plan one real module, write plan, picture and report into out/
# make test    the tests
# make check   lint, types, tests: what continuous integration runs
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
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: plan test lint types check install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "stowplan needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[viz,frontends,poly,dev]'
	touch $@

$(VENV)/.learned: $(VENV)/.installed
	$(PIP) $(TORCH)
	$(PIP) -e '.[learned,viz,frontends,poly,dev]'
	touch $@

plan: install
	mkdir -p $(OUT)
	$(BIN)/python -m stowplan.portfolio.warm_up
	$(BIN)/stowplan solve $(MODULE) --target $(TARGET) --time-limit $(TIME_LIMIT) \
	    -o $(OUT)/plan.json --png $(OUT)/plan.png --report $(OUT)/report.html
	$(BIN)/stowplan verify $(MODULE) $(OUT)/plan.json --target $(TARGET)

test: $(VENV)/.learned
	$(BIN)/python -m stowplan.portfolio.warm_up
	$(BIN)/python -m pytest -n 2 -q

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.learned
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info
