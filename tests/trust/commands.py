"""The commands that take a run or list runs, as they are called on a hostile one."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from .hostile_runs import CASES, GOOD, KINDS, NAMES
from .watching import Watch

EVERY = 1 if os.environ.get("GPU_PANEL_EXAMPLES") == "fuzz" else 5
"""Each folder gets every fifth command, beginning with another one, so that each command meets each
file and each way in which one is wrong; `make fuzz` tries all with all."""
_COMPLETED = ("gpu-engine show ", "gpu-engine stop ", "gpu-engine sweep ",
              "gpu-engine queue priority ")


def _begin(case: str, every: int) -> int:
    """Another one for each file of a kind, and for each kind of a file."""
    number = [*CASES, *NAMES].index(case) if every > 1 else 0
    return (number + number // len(KINDS)) % every


def look(watch: Watch, path: Path, case: str, *, few: bool = False, every: int = EVERY) -> None:
    """The commands that only look: at this run, and at all. `few`: each way to read it once."""
    run, good, out = str(path), str(path.parent / GOOD), watch.world.root / "out"
    listed = watch.call("runs", "-n", "5000")
    if GOOD not in listed:
        watch.problems.append(f"runs: the good run is not listed: {listed[-200:]!r}")
    if few:
        for words in (("show", "--", run), ("logs", "-n", "3", "--", run),
                      ("report", "-o", str(out / "r.html"), "--", run)):
            watch.call(*words)
        return
    calls = [("runs", "-f", "state:failed note:a mode:ddp task:digits"),
             ("runs", "--json", "-n", "5000"), ("show", "--json", "--", run),
             ("queue", "--json"), ("sweep", "--json"), ("sweep", "show", "s1", "--json"),
             ("compare", "--json", "--", run, good), ("note", "--json", "--", run),
             ("show", "--", run), ("logs", "--", run), ("logs", "-n", "3", "--", run),
             ("logs", "--rank", "0", "--", run), ("logs", "--supervisor", "--", run),
             ("compare", "--", run, good), ("compare", "--markdown", "--", good, run),
             ("report", "-o", str(out / "r.html"), "--", run),
             ("report", "-o", str(out / "two.html"), "--", run, good),
             ("page", "-o", str(out / "p.html")),
             ("code", "--", run), ("code", "--to", run, "--", good),
             ("runs", "--best", "max:loss", "--since", "9d"),
             ("export", "--to", "csv", "-o", str(out / "r.csv"), "--", run),
             ("note", "--", run), ("queue",), ("sweep",), ("sweep", "show", "last"),
             ("sweep", "show", "s1", "--by", "eval:loss"),
             ("runs", "prune", "--keep", "0")]
    if not (watch.world.locks or (path / "queue.json").exists() or (path / "slurm.json").exists()):
        calls.append(("logs", "-f", "--", run))
    for words in calls[_begin(case, every)::every]:
        text = watch.call(*words)
        for word in ("NaN", "Infinity") if "--json" in words else ():
            if f": {word}" in text or f": -{word}" in text:
                watch.problems.append(f"{words[0]} --json: {word} is no JSON")
    judge_tables(watch, *(path.read_text() for path in out.glob("*.csv")))
    for line in _COMPLETED[_begin(case, every)::every]:
        watch.call("complete", COMP_WORDS=line, COMP_CWORD=str(len(line.split())),
                   _GPU_ENGINE_COMPLETE="zsh_complete")


def judge_tables(watch: Watch, *texts: str) -> None:
    """No cell of these CSV texts, which a spreadsheet opens, begins a formula."""
    for cell in (cell for text in texts for line in csv.reader(text.splitlines()) for cell in line):
        if cell[:1] in ("=", "@", "+", "\t", "\r") or (cell[:1] == "-" and not _is_number(cell)):
            watch.problems.append(ascii(f"CSV has a formula: {cell}"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def act(watch: Watch, path: Path, case: str, *, every: int = EVERY) -> None:
    """The commands that change something of this run, or ask its processes."""
    run, out = str(path), watch.world.root / "out"
    calls = (("note", "--", run, "a note"), ("note", "--name", "x", "--tag", "y", "--", run),
             ("note", "--step", "5", "--", run, "here"),
             ("stacks", "--wait", "0", "--", run),
             ("export", "--", run, str(out / "w.safetensors")),
             ("export", "--from", "best", "--", run, str(out / "w.pt")),
             ("queue", "move", "--", run, "first"), ("queue", "priority", "--", run, "5"),
             ("sweep", "stop", "--no-wait", "s1"),
             ("stop", "--no-wait", "--", run), ("stop", "--no-wait", "--now", "--", run),
             ("runs", "rm", "--yes", "--here", "--", run), ("runs", "rm", "--yes", "--", run),
             ("runs", "prune", "--yes", "--keep", "1"))
    for words in calls[_begin(case, every)::every]:
        watch.call(*words)
