"""What all tests share: a home folder of their own, and invented machines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import inspect
import os
import runpy
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.interpreters import inspection
from gpu_engine.interpreters.inspection import Build
from gpu_engine.runs import folder as runs

# Asserts in these shared modules should also show what was compared.
pytest.register_assert_rewrite(*(f"tests.{name}" for name in (
    "observe.kit", "training.ranks", "training.streams", "faults", "panel.panel_kit")))

# Child processes inherit ignored signals: under nohup, or in the background of a script without
# job control, none of them would get Ctrl-C or SIGHUP.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT
                      else signal.SIG_DFL)

# Screens are compared with pictures, whose colours are not those of whatever terminal this is.
os.environ["TEXTUAL_COLOR_SYSTEM"] = "truecolor"

# Without bytecode files, each of the suite's many processes would compile the code again, which
# takes minutes of processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline: how long an example takes only shows how busy the machine is. The suite tries the
# same examples each time, so that it fails for what was changed; `make fuzz` looks for new ones.
try:
    from hypothesis import HealthCheck, Phase, settings
except ImportError:  # `make test-gpu` does without
    pass
else:
    settings.register_profile("suite", deadline=None, derandomize=True,
                              suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("fuzz", settings.get_profile("suite"), derandomize=False,
                              max_examples=1000)
    # Nobody reads the example by which `make mutants` notices a fault.
    settings.register_profile("mutants", settings.get_profile("suite"), database=None,
                              phases=[Phase.explicit, Phase.generate])
    settings.load_profile(os.environ.get("GPU_PANEL_EXAMPLES", "suite"))

LONG = ("nodes", "e2e", "observe", "faults", "remote", "queue", "worker", "training", "supervisor",
        "slurm", "trust")
"""Folders with the files that take longest, which several processes begin with: at the end of a run
most of them would wait for one that has a long file left. Their tests start several processes, most
of them with torch, which takes minutes where many others compute: `LIMIT` is their time limit."""
LIMIT = 300.0
"""Seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of LONG first, and have each `async` test end at the line where it waits."""
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)
    for item in items:
        if place(item) < len(LONG):
            item.add_marker(pytest.mark.timeout(LIMIT))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _limited(item.obj)


def _limited(test):
    """An exception in a signal's handler, which is how pytest's limit works, may get lost in
    asyncio's loop."""
    @functools.wraps(test)
    async def run(*args, **named):
        async with asyncio.timeout(patience() + 2):
            await test(*args, **named)

    return run


_end = float("inf")
"""When the present test has to be over, monotonic seconds."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _begin(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _begin(item)


def _begin(item: pytest.Item) -> None:
    global _end
    mark = item.get_closest_marker("timeout")
    with contextlib.suppress(ValueError):  # where pytest has no limits
        _end = time.monotonic() + float(mark.args[0] if mark else
                                        item.config.getoption("timeout", None)
                                        or item.config.getini("timeout"))


def patience() -> float:
    """Seconds for which the present test may wait for something: somewhat less than pytest lets it,
    so that the test says what never came."""
    return max(_end - time.monotonic() - 5, 1.0)


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from imported modules, and have it run less often. This saves
    more than a tenth of the time of a test of the panel."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# What other users of this machine hold is none of the suite's business. Tests of it name a folder.
os.environ["GPU_PANEL_SHARED"] = ""

# As if the environment of the tests had been activated: a run takes it without asking others, and
# there is a `python`, which Debian alone does not have.
if sys.prefix != sys.base_prefix:
    os.environ["VIRTUAL_ENV"] = sys.prefix
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if folders[0] != (bin_folder := str(Path(sys.prefix, "bin"))):
        os.environ["PATH"] = os.pathsep.join((bin_folder, *folders))

# Ranks start in half of the time: see there.
QUICK = os.fspath(Path(__file__).with_name("quick_ranks"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (QUICK, os.environ.get("PYTHONPATH"))))

# One thread a rank: the suite's ranks share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


HAS_TORCH = importlib.util.find_spec("torch") is not None


def torch_version() -> str:
    """Of the torch that the tests have, with its local part: "2.13.0+cpu"."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"]


def gpus(count: int) -> Inventory:
    """A machine with `count` equal GPUs."""
    return Inventory(tuple(Device(str(i), "gpu", "NVIDIA A100-SXM4-80GB", i,
                                  f"GPU-{i:08d}-0000-0000-0000-000000000000", 80 << 30)
                           for i in range(count)), "nvml", driver="580.159", cuda="13.0")


def slots(count: int, cores: int = 1) -> Inventory:
    """A machine without GPUs, with its cores in `count` CPU slots."""
    return Inventory(tuple(Device(f"cpu:{i}", "cpu", f"CPU core {i}", i, None, 16 << 30,
                                  tuple(range(i * cores, (i + 1) * cores)))
                           for i in range(count)), "cpu")


@pytest.fixture
def whole_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks do without QUICK."""
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in paths if p != QUICK))


@pytest.fixture(autouse=True)
def torch_for_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Have torch look as if it were built for GPUs. Invented machines and the stand-in driver have
    GPUs, but the torch under which the tests run may be built without. Where there is none, as for
    `make test-fast`, it looks as if there were."""
    if request.node.get_closest_marker("own_torch") is None:
        look, build = inspection.inspect, Build("2.13.0+cu130", "13.0", None)

        def looked(python: str) -> inspection.Seen:
            seen = look(python)
            if not HAS_TORCH and inspection.ours(seen.path):
                return replace(seen, torch=Path(sys.prefix, "torch", "version.py"), build=build)
            return replace(seen, build=build) if seen.has_torch else seen

        monkeypatch.setattr(inspection, "inspect", looked)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A $GPU_PANEL_HOME for this test alone. Processes still running in it at the end are ended."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GPU_PANEL_HOME", str(folder))
    yield folder
    for run in runs.all_runs():
        state = run.state()
        if state.live and procs.alive(state.pid, state.ticks):
            os.kill(state.pid, signal.SIGQUIT)
            over(run)


def over(run: runs.Run, seconds: float | None = None) -> runs.State:
    """Its state, once the run has ended and its supervisor with it."""
    return wait_for(lambda: not (state := run.state()).live and not run.supervised() and state,
                    seconds)


def wait_for(condition, seconds: float | None = None):
    """Wait until `condition()` is true and return its value. Fails the test after `seconds`, or
    right before its time limit."""
    began = time.monotonic()
    end = began + (seconds or patience())
    while not (value := condition()):
        assert time.monotonic() < end, in_vain(condition, time.monotonic() - began)
        time.sleep(0.02)
    return value


def in_vain(condition, seconds: float) -> str:
    """What never came."""
    with contextlib.suppress(OSError, TypeError):
        condition = " ".join(inspect.getsource(condition).split())
    return f"waited {seconds:.0f} s in vain for {condition}"
