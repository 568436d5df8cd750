"""Run other people's programs with and without gpu-panel, and compare what came of them.

    make foreign                      # or: python -m tests.foreign [WORDS …]

WORDS select the programs of `programs.toml` whose name contains one of them. Each runs twice with
the interpreter of build/foreign: by itself, as its authors would start it (python or torchrun), and
behind `gpu-engine run --`. Exit status and the lines of output that count must be equal, and where
it trains we must have seen its steps. The judge is the program by itself, so it must succeed there.
Exit status 1: some program did not do the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from .. import event_lines

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VENV = ROOT / "build" / "foreign" / ".venv"
LIMIT = 3600.0
"""Seconds for one program."""


@dataclass(frozen=True)
class Program:
    """One entry of programs.toml, where the fields are explained."""

    name: str
    run: list[str]
    packages: list[str]
    ranks: int = 0
    same: str = "^result "
    unlike: str = "(?!)"
    """What is taken out of such a line before it is compared."""
    steps: bool = True

    def command(self) -> list[str]:
        """As its authors would start it."""
        words = [str(HERE / word) if word.endswith(".py") else word for word in self.run]
        if self.ranks:
            return [str(VENV / "bin" / "torchrun"), "--standalone",
                    f"--nproc-per-node={self.ranks}", *words]
        return [str(VENV / "bin" / "python"), *words]

    def lines(self, output: str) -> list[str]:
        """What must be the same."""
        found = [re.sub(self.unlike, "", line) for line in output.splitlines()
                 if re.search(self.same, line)]
        return sorted(found) if self.ranks else found


def programs() -> list[Program]:
    """All of them."""
    return [Program(**p) for p in tomllib.loads((HERE / "programs.toml").read_text())["program"]]


def main(words: Sequence[str]) -> int:
    """Run the programs and say what came of them. Returns the exit status."""
    have = {d.metadata["Name"].lower().replace("_", "-"): d.version
            for d in distributions(path=[str(next((VENV / "lib").glob("python*/site-packages")))])}
    say(f"torch {have['torch']}, Python {sys.version.split()[0]}")
    bad = 0
    for program in programs():
        if words and not any(word.lower() in program.name.lower() for word in words):
            continue
        packages = ", ".join(f"{p} {have[p]}" for p in program.packages)
        began = time.monotonic()
        wrong, what = compare(program)
        bad += bool(wrong)
        say(f"{'DIFFERENT' if wrong else 'same':10} {program.name} ({packages}): {wrong or what}, "
            f"{time.monotonic() - began:.0f} s")
    if not words or any(word.lower() in "exports" for word in words):
        wrong, what = exports()
        bad += bool(wrong)
        say(f"{'DIFFERENT' if wrong else 'same':10} exports (transformers {have['transformers']}, "
            f"tensorboard {have['tensorboard']}): {wrong or what}")
    return 1 if bad else 0


def exports() -> tuple[str, str]:
    """Train a model of transformers as a task, export it and its figures, and have transformers and
    TensorBoard open them. Returns as `compare` does."""
    with tempfile.TemporaryDirectory(prefix="gpu-panel-foreign-") as folder:
        at, env = Path(folder), environment(Path(folder, "home"))
        python = str(VENV / "bin" / "python")
        (at / "tiny.toml").write_text(
            f'[task]\nuse = "{HERE / "tiny_gpt.py"}:TinyGpt"\n[devices]\nids = ["cpu:0"]\n'
            f'[parallel]\nmode = "single"\n[batch]\nsize = 8\n[train]\nsteps = 6\n'
            f'[run]\npython = "{python}"\n')
        engine = [sys.executable, "-m", "gpu_engine"]
        for command in (["run", "-q", "--no-notify", "tiny.toml"],
                        ["export", "last", "out.safetensors"], ["export", "last", "out.pt"],
                        ["export", "last", "--to", "tensorboard", "-o", "figures"]):
            done = run([*engine, *command], env, folder)
            if done.returncode:
                return f"{' '.join(command)} fails with {done.returncode}:\n{done.stdout}", ""
        read = run([python, str(HERE / "read_exports.py"), "out.safetensors", "out.pt", "figures"],
                   env | {"PYTHONPATH": str(ROOT / "engine")}, folder)
        if read.returncode:
            return f"what was exported can't be opened:\n{read.stdout[-3000:]}", ""
        told = {int(step): float.fromhex(value) for step, value in
                re.findall(r"^result step-(\d+) (\S+)$", read.stdout, re.M)}
        ours = {event["step"] - event["n"] + 1 + i: loss
                for path in at.glob("home/runs/*/ranks/*.jsonl")
                for event in event_lines.read(path) if event["kind"] == "step"
                for i, loss in enumerate(event["losses"])}
        if len(ours) != 6 or not told:
            return f"{len(ours)} losses were recorded, and TensorBoard reads {told}", ""
        wrong = {step: (value, ours.get(step)) for step, value in told.items()
                 if abs(value - ours.get(step, 0.0)) > 1e-6 * value}
        if wrong:
            return f"TensorBoard reads other losses: {wrong}", ""
        return "", f"all weights by their names, {len(told)} losses"


def environment(home: Path) -> dict[str, str]:
    """For the programs. `home`: gpu-panel's folder."""
    env = dict(os.environ, OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1",
               CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false", GPU_PANEL_HOME=str(home))
    env.pop("PYTHONPATH", None)
    return env


def compare(program: Program) -> tuple[str, str]:
    """Run a program twice. Returns (what differs, "" for nothing; what was the same)."""
    with tempfile.TemporaryDirectory(prefix="gpu-panel-foreign-") as folder:
        home = Path(folder, "home")
        env = environment(home)
        alone = run(program.command(), env, folder)
        ours = run([sys.executable, "-m", "gpu_engine", "run", "-q", "--no-notify", "--set",
                    "parallel.mode=single", "--devices", "cpu:0", "--", *program.command()],
                   env, folder)
        steps = sum(event.get("n", 1) for path in home.glob("runs/*/ranks/*.jsonl")
                    for event in event_lines.read(path) if event["kind"] == "step")
        slow = said_to_be_slow(env, folder) if program.steps and not ours.returncode else ""
    without, with_us = program.lines(alone.stdout), program.lines(ours.stdout)
    if alone.returncode:
        return f"fails by itself with {alone.returncode}:\n{alone.stdout[-2000:]}", ""
    if not without:
        return f"prints nothing that could be compared:\n{alone.stdout[-2000:]}", ""
    if ours.returncode:
        return f"fails with {ours.returncode}:\n{ours.stdout[-3000:]}", ""
    if without != with_us:
        return "prints other lines:\n" + "\n".join(
            [f"  without: {line}" for line in without if line not in with_us][:10]
            + [f"  with:    {line}" for line in with_us if line not in without][:10]), ""
    if program.steps and not steps:
        return "trains, and no step was seen", ""
    if slow:
        return f"is said to be slow: {slow}", ""
    return "", f"{len(without)} lines" + (f", {steps} steps seen" if program.steps else "")


def said_to_be_slow(env: Mapping[str, str], folder: str) -> str:
    """What `gpu-engine show` says of a program that nobody has made slow: "" if it is as it should
    be."""
    shown = run([sys.executable, "-m", "gpu_engine", "show", "--json", "last"], env, folder)
    try:
        found = json.loads(shown.stdout)["diagnosis"]["verdicts"]
    except (ValueError, KeyError):
        return shown.stdout[-2000:]
    return "; ".join(one["text"] for one in found)


def run(command: list[str], env: Mapping[str, str], folder: str
        ) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Its output and errors come together."""
    return subprocess.run(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
                          errors="replace", check=False)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.foreign")
    parser.add_argument("words", nargs="*")
    sys.exit(main(parser.parse_args().words))
