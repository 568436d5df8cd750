# Two commands do everything on a fresh machine: `make panel` and `make test`.
# Both first set up .venv as the constraints file says; PYTHON chooses the interpreter.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: panel test test-gpu faults mutants lint bench clean

panel: $(READY)
	$(VENV)/bin/gpu-panel

# Four files at a time, also on two cores: most tests wait for processes.
test: lint
	$(VENV)/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test-gpu: $(READY)
	$(VENV)/bin/python -m pytest -m gpu

faults: $(READY)
	$(VENV)/bin/python -m tests.faults

mutants: $(READY)
	$(VENV)/bin/python -m tests.mutants

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright --level error

bench: $(READY)
	$(VENV)/bin/python -m bench

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("gpu-panel needs Python 3.11 or newer; this is %d.%d: make PYTHON=python3.12 …" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
