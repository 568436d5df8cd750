"""gpu-engine compare, on runs written by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events import schema
from gpu_engine.events.view import RunView
from gpu_engine.runs import compare, environment, notes
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import Run, State

from ..command_line import called
from ..export.kit import T0, Written


def written(name: str, rate: float, losses: list[float], seconds: float, **env: object) -> Run:
    """A run of two ranks that has ended, with these losses on rank 0 and 1 more on rank 1."""
    run = Written(name, 2, train={"lr": rate, "steps": len(losses)})
    for rank in (0, 1):
        run.start(rank)
        for at, loss in enumerate(losses, 1):
            run.steps(rank, at, [loss + rank], t=at, samples_per_s=100.0 * (rank + 1))
        run.tell(rank, "memory", t=9, gpu_allocated=[1 << 30], gpu_reserved=[2 << 30],
                 gpu_peak=[(3 + rank) << 30], rss=(1 + rank) << 29)
    run.tell(0, "eval", t=9, step=len(losses), accuracy=1 - rate)
    environment.write(run.path, Environment(**env))
    return run.end(seconds=seconds)


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


def test_a_run_is_compared_by_what_it_is_told_and_called_as_a_person_calls_it(two):
    own = written("own", 0.1, [1.0], 9.0, code="c" * 20, folder="/x" * 9)
    (own.path / "spec.toml").write_text('name = "own"\n[task]\ncommand = ["x", "{lr}"]\n')
    notes.change(own.path, lambda noted: replace(noted, name="mine"))
    facts = [compare.read(run)[0] for run in (two[0], own)]
    rows = [(title, {row.name: row.values for row in rows})
            for title, rows in compare.parts(facts)]
    assert [title for title, _ in rows] == ["", "settings", "environment"]
    (_, figures), (_, settings), (_, environment) = rows
    assert list(figures) == ["state", "steps", "loss", "eval accuracy", "time", "samples per s",
                             "GPU memory", "host memory"]
    assert {"train.lr", "batch.size"} & set(settings) == {"train.lr", "batch.size"}
    assert (settings["batch.size"][1], settings["name"]) == (None, ("slow", "own"))
    assert (environment["code"][1], environment["folder"][1]) == ("c" * 12, "/x" * 9)
    assert compare.heads(facts)[1] == f"{own.id} mine"
    # Before its events are read only its state is known.
    assert compare.without_figures(own, own.state()).figures == compare.Figures("completed")


def test_of_what_is_logged_the_first_thirty_are_compared_without_what_is_no_value_of_its_own():
    values = {"grad_norm": 1.0, "loss[1]": 2.0, **{f"v{n:02}": n / 8 for n in range(40)}}
    view, state = RunView(), State("running", "id", "r", T0, started=T0)
    for event in (schema.Schedule(40, *[None] * 5), schema.Metric(3, values)):
        view.fold(0, event)
    facts = compare.with_figures(
        compare.RunFacts("id", "r", compare.Figures("?"), {}, Environment()), state, view)
    told = facts.figures
    assert (told.state, told.total_steps, told.logged) == (
        "running", 40, {f"v{n:02}": n / 8 for n in range(28)})
    assert told.seconds > 0
    shown = {row.name: row.values for row in compare.figure_rows([facts])}
    assert (shown["v03"], "v28" in shown) == (("0.375",), False)


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=2 * compare.WIDEST))
def test_a_value_is_shown_whole_or_cut_to_the_width(text):
    shown = compare.cell(text)
    assert shown == (text if len(text) <= compare.WIDEST else text[:compare.WIDEST - 1] + "…")
    assert len(shown) == min(len(text), compare.WIDEST)
    assert compare.cell(None) == "–"


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
