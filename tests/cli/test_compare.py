"""gpu-engine compare, on runs written by hand."""

from __future__ import annotations

import json
import os

import pytest

from gpu_engine.places.verbs import prepare
from gpu_engine.runs import environment
from gpu_engine.runs.create import create_run
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import AttemptRecord, Run, State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml

from .. import event_lines
from ..command_line import called
from ..conftest import slots

T0 = 1_790_000_000.0


def written(name: str, rate: float, losses: list[float], seconds: float, **env: object) -> Run:
    """A run of two ranks that has ended, with these losses on rank 0 and 1 more on rank 1."""
    made = prepare(from_dict({
        "name": name, "task": {"use": "gpu_engine.tasks.digits:Digits"},
        "devices": {"ids": ["cpu:0", "cpu:1"]}, "parallel": {"mode": "ddp"},
        "train": {"lr": rate, "steps": len(losses)}}), inventory=slots(2))
    run, lock = create_run(name, to_toml(made.spec), made.plan)
    os.close(lock)
    (run.path / "ranks").mkdir(exist_ok=True)
    for rank in (0, 1):
        lines = [event_lines.line("start", {
            "rank": rank, "local_rank": rank, "node": 0, "pid": 1, "device": [f"CPU {rank}"],
            "world_size": 2, "attempt": 1}, t=T0)]
        for at, loss in enumerate(losses, 1):
            lines.append(event_lines.line("step", {
                "step": at, "n": 1, "losses": [loss + rank], "loss": loss + rank, "lr": rate,
                "samples_per_s": 100.0 * (rank + 1), "epoch": 0, "skipped": 0}, t=T0 + at))
        lines.append(event_lines.line("memory", {
            "gpu_allocated": [1 << 30], "gpu_reserved": [2 << 30], "gpu_peak": [(3 + rank) << 30],
            "gpu_process": None, "rss": (1 + rank) << 29}, t=T0 + 9))
        if rank == 0:
            lines.append(event_lines.line("eval", {"step": len(losses), "accuracy": 1 - rate},
                                          t=T0 + 9))
        run.events(rank).write_bytes(b"".join(lines))
    run.write_state(State("completed", run.id, name, T0, started=T0, ended=T0 + seconds,
                          attempts=(AttemptRecord(1, T0, T0 + seconds, "completed"),)))
    environment.write(run.path, Environment(**env))
    return run


@pytest.fixture
def two():
    return (written("slow", 0.1, [4.0, 3.0, 2.0], 60.0, torch="2.13.0", commit="a" * 40),
            written("fast", 0.25, [4.0, 1.0], 30.0, torch="2.14.0", commit="b" * 40))


def test_a_table_of_how_they_ended_and_what_differs(two):
    slow, fast = two
    out = called("compare", slow.id, fast.id)
    assert out.returncode == 0, out.stderr
    rows = [line.split("  ") for line in out.stdout.splitlines() if line]
    told = {cells[0].strip(): [c.strip() for c in cells[1:] if c.strip()] for cells in rows}
    assert told[""] == [f"{slow.id} slow", f"{fast.id} fast"]
    assert told["loss"] == ["2.500", "1.500"]  # the mean of both ranks
    assert told["steps"] == ["3", "2"]
    assert told["eval accuracy"] == ["0.900", "0.750"]
    assert told["time"] == ["01:00", "00:30"]
    assert told["samples per s"] == ["300", "300"]
    assert told["GPU memory"] == ["4.0 GiB", "4.0 GiB"]
    assert told["host memory"] == ["1.0 GiB", "1.0 GiB"]
    assert told["train.lr"] == ["0.1", "0.25"]
    assert told["torch"] == ["2.13.0", "2.14.0"]
    assert told["commit"] == ["a" * 12, "b" * 12]
    assert "task.use" not in told  # the same in both
    assert "python" not in told


def test_for_scripts_and_for_reports(two):
    slow, fast = two
    said = json.loads(called("compare", slow.id, fast.id, "--json").stdout)
    assert said["differences"] == {"name": ["slow", "fast"], "train.steps": ["3", "2"],
                                   "train.lr": ["0.1", "0.25"]}
    assert [r["figures"]["loss"] for r in said["runs"]] == [2.5, 1.5]
    assert [r["figures"]["seconds"] for r in said["runs"]] == [60.0, 30.0]
    assert said["runs"][0]["settings"]["task.use"] == "gpu_engine.tasks.digits:Digits"
    assert said["runs"][1]["environment"]["commit"] == "b" * 40
    lines = called("compare", slow.id, fast.id, "--markdown").stdout.splitlines()
    assert lines[0] == f"|  | {slow.id} slow | {fast.id} fast |"
    assert lines[1] == "|---|---|---|"
    assert "| train.lr | 0.1 | 0.25 |" in lines
    assert all(line.count("|") == 4 for line in lines if line)


def test_mistakes(two):
    slow, _ = two
    alone = called("compare", slow.id)
    assert alone.returncode == 2
    assert "name two runs or more" in alone.stderr
    same = called("compare", slow.id, slow.id)
    assert same.returncode == 2
    assert "name each run once" in same.stderr


def test_what_stands_in_a_run_folder_is_no_escape():
    first = written("a|b", 0.1, [1.0], 1.0, torch="2\x1b[31m")
    second = written("plain", 0.1, [1.0], 1.0)
    out = called("compare", first.id, second.id, "--markdown")
    assert "\x1b" not in out.stdout
    assert "a\\|b |" in out.stdout
