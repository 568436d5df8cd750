"""Exports while a run is being written, killed ones, and disks that are full."""

from __future__ import annotations

import csv
from pathlib import Path

from gpu_engine.runs import folder as runs

from .disks import fill, mounted
from .kit import Box, case, events


def exported(path: Path) -> list[tuple[int, float]]:
    """(step, loss) of each line that is whole."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [(int(row["step"]), float(row["train/loss"])) for row in csv.DictReader(file)
                if row.get("train/loss")]


def recorded(run: runs.Run) -> list[tuple[int, float]]:
    """(step, mean of the ranks' losses), from their own lines."""
    ranks = [{e["step"]: e["loss"] for e in events(run, r, "step")} for r in run.ranks()]
    return [(step, sum(each[step] for each in ranks if step in each)
             / sum(step in each for each in ranks)) for step in sorted(set().union(*ranks))]


@case("A run is exported while its ranks write",
      "every step is there once, with the mean of the ranks that have written it")
def an_export_of_a_run_that_is_written(box: Box) -> None:
    run = box.go("start(); meet(); train(1500, pause=0.001)")
    box.stepping(run, 50)
    once = box.tmp / "once.csv"
    assert box.cli("export", run.id, "--to", "csv", "-o", str(once)).returncode == 0
    steps = [step for step, _ in exported(once)]
    assert steps == list(range(1, len(steps) + 1))
    box.ended(run)
    assert box.cli("export", run.id, "--to", "csv", "-o", str(once)).returncode == 0
    assert exported(once) == recorded(run)
    assert not list(box.tmp.glob(".export*"))


@case("The disk of an export is full, or its folder can't be written to",
      "exit code 1 or 2 with the reason; the file of an earlier export stays as it was", root=True)
def an_export_to_a_full_disk(box: Box) -> None:
    run = box.go("start(); train(1500, pause=0)", ranks=1)
    box.ended(run)
    with mounted(box.tmp / "small", "128k") as small:
        out = small / "x.csv"
        assert box.cli("export", run.id, "--to", "csv", "-o", str(out), "--rank", "0"
                       ).returncode == 0
        before = out.read_bytes()
        ballast = fill(small)
        for words in (("export", run.id, "--to", "csv", "-o", str(out)),
                      ("report", run.id, "-o", str(small / "r.html"))):
            full = box.cli(*words)
            assert full.returncode in (1, 2)
            assert "no space left on device" in full.stderr, full
        assert out.read_bytes() == before
        ballast.unlink()
        assert [p.name for p in small.iterdir()] == ["x.csv"]
    with mounted(box.tmp / "closed", "256k", "ro") as closed:
        denied = box.cli("export", run.id, "--to", "csv", "-o", str(closed / "x.csv"))
        assert denied.returncode == 2
        assert "read-only file system" in denied.stderr
