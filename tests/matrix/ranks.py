"""Real launches whose ranks run in another interpreter, started by the engine of this one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpu_engine.plan.records import WORKER
from gpu_engine.runs import folder as runs

from .. import event_lines

HERE = Path(__file__).parent
_TINY = {
    "task.use": "gpu_engine.tasks.bytes_gpt:BytesGPT", "task.params.width": 16,
    "task.params.layers": 1, "task.params.context": 16, "task.params.megabytes": 0.05,
    "task.params.warmup": 2, "batch.size": 16, "train.steps": 8, "train.lr": 0.01,
    "train.workers": 1, "train.checkpoint_every": 4, "devices.ids": "cpu:0"}
_TWO = {"parallel.mode": "ddp", "devices.ids": "cpu:0,cpu:1"}
_PATIENCE = 600


class Failed(Exception):
    """What a case found wrong."""


class Launches:
    """Runs of one interpreter, in a home of their own."""

    def __init__(self, python: str, torch: str, home: Path) -> None:
        self.python, self.torch, self.home = python, torch, home
        self.environ = {**os.environ, "GPU_PANEL_HOME": str(home), "GPU_PANEL_SHARED": "",
                        "OMP_NUM_THREADS": "1"}
        self.plain: runs.Run | None = None
        """The run of `single`, with which others are compared."""

    def engine(self, *words: str, wrong: bool = False) -> str:
        """gpu-engine's output. Raises Failed if it ends otherwise than expected."""
        done = subprocess.run([sys.executable, "-m", "gpu_engine", *words], text=True, check=False,
                              capture_output=True, env=self.environ, timeout=_PATIENCE)
        said = done.stdout + done.stderr
        if bool(done.returncode) != wrong:
            raise Failed(f"gpu-engine {words[0]} ended with {done.returncode}: {said[-600:]}")
        return said

    def start(self, *, command: list[str] | None = None, wrong: bool = False, detach: bool = False,
              **changed: object) -> runs.Run:
        """A run of the tiny task with these keys changed ("amp__dtype"), or of a command."""
        keys = {k.replace("__", "."): v for k, v in changed.items()}
        tiny = {k: v for k, v in _TINY.items()
                if "task.use" not in keys or not k.startswith("task.params.")}
        given = keys if command else {**tiny, "run.python": self.python, **keys}
        words = [w for key, value in given.items() for w in ("--set", f"{key}={value}")]
        before = self._runs()
        self.engine("run", *words, *(["--detach"] if detach else []),
                    *(["--", *command] if command else []), wrong=wrong)
        (new,) = self._runs() - before
        return runs.Run(new)

    def _runs(self) -> set[Path]:
        folder = self.home / "runs"
        return set(folder.iterdir()) if folder.is_dir() else set()

    def export(self, *words: str) -> dict:
        """What the rank's program says of the weights that it has written."""
        done = subprocess.run([self.python, WORKER, "--export", *words], capture_output=True,
                              text=True, check=False, env=self.environ, timeout=_PATIENCE)
        if done.returncode:
            raise Failed(done.stderr[-600:])
        return json.loads(done.stdout.splitlines()[-1])


def single(here: Launches) -> None:
    """One device, with a loader worker, evaluation and checkpoints."""
    run = here.plain = here.start()
    _expect(len(_losses(run)), 8, "steps")
    _expect(all(map(math.isfinite, _losses(run))), True, "finite losses")
    _expect(any(e["kind"] == "eval" for e in _events(run)), True, "an evaluation")
    _expect([c.name for c in sorted((run.path / "checkpoints").iterdir())],
            ["step-00000004", "step-00000008"], "checkpoints")


def resume(here: Launches) -> None:
    """The same steps again from a checkpoint: the same losses, bit for bit."""
    run = _plain(here)
    first = _losses(run)
    here.engine("resume", run.id, "--from", "4")
    _expect(_losses(run)[len(first):], first[4:], "losses of steps 5 to 8")


def ddp(here: Launches, **more: object) -> None:
    """Two ranks over gloo, with the losses of one device."""
    run = here.start(**_under(_TWO), **more)
    mean = [(a + b) / 2 for a, b in zip(_losses(run), _losses(run, 1), strict=True)]
    _alike(mean, _losses(_plain(here))[:8])


def torchrun(here: Launches) -> None:
    """The same under torchrun."""
    ddp(here, parallel__launcher="torchrun")


def bf16_stop(here: Launches) -> None:
    """AMP in bf16, stopped in the middle and continued."""
    run = here.start(detach=True, amp__dtype="bf16", train__steps=100_000)
    _wait(lambda: len(_losses(run)) >= 8 or run.state().ended is not None, run)
    here.engine("stop", run.id)
    _expect(run.state().state, "stopped", "state")
    step = max(e["step"] for e in _events(run) if e["kind"] == "checkpoint")
    here.engine("resume", run.id, "--set", f"train.steps={step + 2}")
    _expect(run.state().state, "completed", "state")
    _expect(_events(run)[-1].get("steps"), step + 2, "steps")


def own_task(here: Launches) -> None:
    """A task from a file without postponed annotations, with parameters."""
    use = f"{HERE / 'task.py'}:Probe"
    run = here.start(task__use=use, **_under({
        "task.params.width": 8, "task.params.rates": "[1, 2]", "task.params.table": "{a = 1}"}))
    _expect(len(_losses(run)), 8, "steps")


def export(here: Launches) -> None:
    """A checkpoint's weights as a file."""
    out = here.home / "weights.pt"
    found = here.export(str(_plain(here).path / "checkpoints"), str(out))
    _expect(found["bytes"], out.stat().st_size, "bytes")


def script(here: Launches) -> None:
    """A person's own script, observed."""
    folder = here.home / "script"
    folder.mkdir()
    run = here.start(command=[here.python, str(HERE / "script.py"), str(folder)],
                     devices__ids="cpu:0")
    _as_written(run, folder, 1)


def script_compiled(here: Launches) -> None:
    """A script whose step is compiled; without the panel it computes the same to the last bit."""
    alone, folder = here.home / "alone", here.home / "script-compiled"
    alone.mkdir()
    folder.mkdir()
    command = [here.python, str(HERE / "compiled.py")]
    path = str(Path(WORKER).parents[2])
    done = subprocess.run([*command, str(alone)], capture_output=True, text=True, check=False,
                          env=here.environ | {"PYTHONPATH": path}, timeout=_PATIENCE)
    if done.returncode:
        raise Failed(f"without the panel: {done.stderr[-600:]}")
    run = here.start(command=[*command, str(folder)], devices__ids="cpu:0")
    _as_written(run, folder, 1)
    _expect((folder / "losses-0.json").read_text(), (alone / "losses-0.json").read_text(), "losses")


def script_torchrun(here: Launches) -> None:
    """The same script under a torchrun of its own."""
    folder = here.home / "script-torchrun"
    folder.mkdir()
    run = here.start(command=[here.python, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                              "--standalone", str(HERE / "script.py"), str(folder)],
                     devices__ids="cpu:0,cpu:1", parallel__mode="ddp")
    _as_written(run, folder, 2)


CASES: tuple[Callable[[Launches], None], ...] = (
    single, resume, ddp, torchrun, bf16_stop, own_task, export, script, script_compiled,
    script_torchrun)


def _as_written(run: runs.Run, folder: Path, ranks: int) -> None:
    for rank in range(ranks):
        written = json.loads((folder / f"losses-{rank}.json").read_text())
        _alike(_losses(run, rank), written)
        _expect(any(e["kind"] == "metric" for e in _events(run, rank)), True, "a logged value")
    errors = run.path / "observe-errors.log"
    if errors.exists():
        raise Failed(errors.read_text())


def _plain(here: Launches) -> runs.Run:
    if here.plain is None:
        raise Failed("nothing to compare with: single has failed")
    return here.plain


def _under(keys: dict[str, object]) -> dict[str, object]:
    return {k.replace(".", "__"): v for k, v in keys.items()}


def _events(run: runs.Run, rank: int = 0) -> list[dict]:
    return event_lines.read(run.events(rank))


def _losses(run: runs.Run, rank: int = 0) -> list[float]:
    return [x for e in _events(run, rank) if e["kind"] == "step" for x in e["losses"]]


def _alike(some: list[float], others: list[float]) -> None:
    if len(some) != len(others) or any(
            not math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
            for a, b in zip(some, others, strict=False)):
        raise Failed(f"losses {some} instead of {others}")


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise Failed(f"{what}: {found} instead of {expected}")


def _wait(until: Callable[[], bool], run: runs.Run) -> None:
    end = time.monotonic() + _PATIENCE
    while not until():
        if time.monotonic() > end:
            raise Failed(f"nothing happened in {_PATIENCE} s: {run.state()}")
        time.sleep(0.3)
