# Two commands do everything on a fresh machine: `make panel` and `make test`.
# Both first set up .venv as the constraints file says; PYTHON chooses the interpreter.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
PEERS := build/peers/.venv
FAST := $(addprefix tests/,common events plan spec settings test_walls.py test_floors.py) \
	$(addprefix tests/panel/,charts terminal common test_keys.py test_private_names.py \
	launch/test_goldens.py run/test_goldens.py)
FOREIGN := build/foreign/.venv
# Machines of one machine, with a real sshd and a real Slurm: not part of `make test`.
MACHINES := $(addprefix tests/,nodes slurm e2e/test_nodes.py)
# The other files that only the night has time for: every hostile folder, every fault, every command of
# the documents, every verdict on a real run.
SLOW := $(addprefix tests/,trust/test_corpus_panel.py trust/test_corpus_files.py \
	trust/test_fuzz.py faults/test_launches.py faults/test_files.py panel/test_theme.py \
	docs/test_as_typed.py diagnose/test_real.py queue/test_idle_night.py)
PYTEST := $(VENV)/bin/python -m pytest
# Six files at a time, also on two cores: most tests wait for processes.
SIX := -n 6 --dist loadfile --no-loadscope-reorder

.PHONY: panel test test-fast tested machines night fuzz test-gpu faults mutants matrix lint lock reference docs bench bench-peers foreign clean

panel: $(READY)
	$(VENV)/bin/gpu-panel

# The linters need one core for a while, and run beside the tests.
test: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint tested

# What needs neither torch nor other programs, for the time while one works: a minute or two.
test-fast: $(READY)
	$(VENV)/bin/python -m pytest -q -n 4 --dist loadfile $(FAST)

# Collected once before, the tests are compiled; otherwise each of the six processes would compile all
# of them.
tested: $(READY)
	@$(PYTEST) --collect-only -q >/dev/null || true
	$(PYTEST) $(SIX) $(addprefix --ignore=,$(MACHINES) $(SLOW))

# Needs root, openssh-server and Debian's Slurm; tests without them are skipped.
machines: $(READY)
	$(PYTEST) -n 4 --dist loadfile $(MACHINES)

# All there is, for a night: docs/testing.md. Every bench once, small: that it runs, not what it says.
night: lint
	$(PYTEST) $(SIX)
	@$(MAKE) --no-print-directory fuzz faults foreign mutants
	BENCH_RUNS=1 BENCH_SECONDS=3 BENCH_KEYS=5 BENCH_POINTS=100000 BENCH_GB=0.1 $(MAKE) bench

# The property tests with other examples than before, and ten times as many; every hostile folder
# against every command.
fuzz: $(READY)
	GPU_PANEL_EXAMPLES=fuzz $(VENV)/bin/python -m pytest -n 6 -m hypothesis
	GPU_PANEL_EXAMPLES=fuzz $(VENV)/bin/python -m pytest -n 6 tests/trust

test-gpu: $(READY)
	$(VENV)/bin/python -m pytest tests/gpu

faults: $(READY)
	$(VENV)/bin/python -m tests.faults

# Faults put into the code that decides; pyproject.toml says which files, and which tests must notice.
# ROOM=plan is one room. mutmut looks for code below src/, so it gets a folder of links.
MUTANTS := build/mutants
mutants: $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	mkdir -p $(MUTANTS)
	ln -sfn ../../engine $(MUTANTS)/src
	for name in tests tui presets docs examples pyproject.toml; do ln -sfn ../../$$name $(MUTANTS)/$$name; done
	cd $(MUTANTS) && GPU_PANEL_EXAMPLES=mutants $(CURDIR)/$(VENV)/bin/mutmut run --max-children 2 \
		$(if $(ROOM),'gpu_engine.$(ROOM)*')
	cd $(MUTANTS) && $(CURDIR)/$(VENV)/bin/mutmut results | grep -v ': not checked$$' || true

# Other people's programs with and without us: docs/testing.md. PROGRAMS="lightning trl" are some of them.
foreign: $(READY) $(FOREIGN)/.ready
	$(VENV)/bin/python -m tests.foreign $(PROGRAMS)

# litgpt by itself: it asks for versions of other packages that it does not need to train.
$(FOREIGN)/.ready: tests/foreign/requirements.txt
	$(PYTHON) -m venv $(FOREIGN)
	$(FOREIGN)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(FOREIGN)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps litgpt==0.5.13
	@touch $@

# Other Pythons and torches: docs/compatibility.md. MATRIX="ranks --only 3.9x2.2" is one of them.
matrix: $(READY)
	$(VENV)/bin/python -m tests.matrix --write $(MATRIX)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright --level error

# locked.txt anew, after a version in constraints.txt has changed: what the environment has, with the hashes.
lock: $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv -e '.[dev]'
	$(VENV)/bin/python -m pip freeze --exclude-editable | grep -vE '^(torch==|triton|nvidia-[a-z]+-cu|cuda-|uv==)' > $(VENV)/has.txt
	$(VENV)/bin/uv pip compile --quiet --no-deps --universal --generate-hashes --no-annotate --no-header \
		--python-version 3.11 -o locked.txt $(VENV)/has.txt

# docs/{commands,spec}.md, after a command or a key of the spec has changed.
reference: $(READY)
	$(VENV)/bin/python docs/site/reference.py

# The documentation as a site, in build/site. A link that leads nowhere fails.
docs: $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(VENV)/bin/python -m sphinx -q -W --keep-going -c docs/site . build/site

bench: $(READY)
	$(VENV)/bin/python -m bench

# Beside other programs, which get an environment of their own: docs/performance.md, and about an hour.
# GROUPS="gpus log" measures only these. nvtop is taken from the PATH, or BENCH_NVTOP names it.
bench-peers: $(READY) $(PEERS)/.ready
	$(VENV)/bin/python -m bench.peers measure $(GROUPS)
	$(VENV)/bin/python -m bench.peers write

$(PEERS)/.ready: bench/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements.txt
	@touch $@

# Everything but torch by its hash; then torch, which is another file on each index, and ours.
$(READY): pyproject.toml constraints.txt locked.txt
	@$(PYTHON) -c 'import sys; sys.exit("gpu-panel needs Python 3.11 or newer; this is %d.%d: make PYTHON=python3.12 …" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r locked.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
