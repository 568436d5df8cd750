"""Runs a script with and without the panel's command line, and reads what was recorded of it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.runs import folder as runs

from .. import event_lines
from ..training import ranks

SCRIPTS = Path(__file__).parents[1] / "scripts"
FORKED = Path(__file__).with_name("forked.py")
PYTHON = sys.executable


@dataclass(frozen=True)
class Ran:
    """A script's run, both by itself and observed. `bare`: what it did by itself, if that is known.
    `main`: its rank. `output`: the file with its output, if that is not the log of rank 0."""

    run: runs.Run
    state: dict
    bare: subprocess.CompletedProcess[bytes] | None
    main: int = 0
    output: Path | None = None

    def events(self, rank: int | None = None) -> list[dict]:
        return event_lines.read(self.run.events(self.main if rank is None else rank))

    def of(self, kind: str, rank: int | None = None) -> list[dict]:
        return [e for e in self.events(rank) if e["kind"] == kind]

    def log(self, rank: int = 0) -> str:
        return (self.output or self.run.log(rank)).read_text(errors="replace")

    def printed(self, name: str = "loss") -> list[float]:
        """The losses that the script printed, rounded as in events."""
        return [float(f"{float(line.removeprefix(name)):.9g}") for line in self.log().splitlines()
                if line.startswith(name + " ")]

    def losses(self, rank: int | None = None) -> list[float]:
        return [x for e in self.of("step", rank) for x in e.get("losses", ())]

    def others(self, index: int = 1) -> list[dict]:
        found = [e.get("others", {}).get(str(index)) for e in self.of("step")]
        return [o for o in found if o]

    def same_as_without(self) -> None:
        """Check that output and exit status are exactly the same in both runs."""
        observed, alone = (self.output or self.run.log(0)).read_bytes(), self.bare.stdout
        assert observed == alone, first_difference(observed, alone)
        ended = 0 if self.output else self.state["processes"][0]["exit"]  # `each` has seen to that
        assert ended == self.bare.returncode


def first_difference(observed: bytes, alone: bytes) -> str:
    """The first line in which two outputs differ, and what follows it."""
    pairs = itertools.zip_longest(observed.splitlines(True), alone.splitlines(True), fillvalue=b"")
    for number, (one, other) in enumerate(pairs, 1):
        if one != other:
            rest = b"".join(observed.splitlines(True)[number:number + 20])
            return (f"line {number} of the output differs\n  observed: {one!r}\n  alone:    "
                    f"{other!r}\nand after it, observed:\n{rest.decode(errors='replace')}")
    return ""


def engine_run(*args: str, env: dict[str, str] | None = None) -> tuple[runs.Run, dict]:
    """`gpu-engine run --json` with these arguments, in this process: (the run, its state)."""
    done = CliRunner().invoke(cli, ["run", "--json", *args], env=env)
    assert isinstance(done.exception, SystemExit | None), repr(done.exception)
    state = json.loads(done.stdout.splitlines()[-1])
    return runs.find(state["id"]), state


def start(*command: str, devices: str = "cpu:0") -> Ran:
    """`gpu-engine run --detach` with this command."""
    done = CliRunner().invoke(cli, ["run", "--detach", "--devices", devices, "--", *command])
    assert done.exit_code == 0, repr(done.exception)
    return Ran(runs.find(done.stdout.strip()), {}, None)


def observe(*script: str, bare: bool = True, env: dict[str, str] | None = None,
            options: tuple[str, ...] = ("--devices", "cpu:0")) -> Ran:
    """Run a script (of tests/scripts, with its arguments) under the panel; `bare`: beside that
    also by itself, at the same time (see `Alone`)."""
    command = [str(SCRIPTS / script[0]), *script[1:]]
    alone = Alone(*command, env=env, site=(env or {}).get("PYTHONPATH")) if bare else None
    run, state = engine_run(*options, "--", PYTHON, *command, env=env)
    return Ran(run, state, alone and alone.done())


class Alone:
    """A script (a path, and its arguments) that runs by itself, forked from a process that has
    imported torch. `site`: with the sitecustomize in that folder, of the panel or a person."""

    def __init__(self, *script: str, env: dict[str, str] | None = None,
                 site: str | None = None) -> None:
        own = {k: v for k, v in os.environ.items() if not k.startswith("GPU_PANEL_")}
        words = [*(("--site", site) if site else ()), *script]
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.output = Path(file.name)
        self.words = script
        self.process = ranks.zygote().start(words, own | (env or {}), self.output, FORKED)

    def done(self) -> subprocess.CompletedProcess[bytes]:
        """Wait for its end: its exit status and all that it has written."""
        code = self.process.wait()
        out = self.output.read_bytes()
        self.output.unlink()
        return subprocess.CompletedProcess(self.words, code, out)


def observe_each(folder: Path, which: str, *scripts: str) -> dict[str, Ran]:
    """As `observe`, for several scripts (each with its arguments) in one run, in which each has a
    process of its own, forked from one that has imported torch (see `each.py` for `which`): what
    each of them did."""
    bare = []
    for script in scripts:
        name, *words = script.split()
        bare.append(Alone(str(SCRIPTS / name), *words))
    run, state = engine_run("--devices", "cpu:0", "--", PYTHON, str(SCRIPTS / "each.py"), which,
                            str(folder), *scripts)
    whole = Ran(run, state, None)
    # It prints how each script has ended.
    assert whole.log().splitlines() == [f"{script} 0" for script in scripts]
    return {script: Ran(run, state, alone.done(), rank, folder / str(rank))
            for rank, (script, alone) in enumerate(zip(scripts, bare, strict=True), 1)}
