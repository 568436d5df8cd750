"""gpu-engine export --to csv and tensorboard, read back with other readers than ours."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

from gpu_engine.export import TARGETS, exporter
from gpu_engine.export.exporter import cell, quoted
from gpu_engine.export.rows import Source
from gpu_engine.runs.folder import Run

from ..command_line import called
from .kit import T0, Written, told


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def run(home) -> Run:
    """Two ranks, three steps in two events, an evaluation, odd names, a value that is NaN."""
    with Written("digits", ranks=2, train={"lr": 0.1, "steps": 3}) as it:
        for rank in (0, 1):
            it.start(rank)
            it.steps(rank, 2, [2.5 + rank, 1.25], 2.0)
            it.tell(rank, "metric", t=2.5, step=2, **{'a "b",c': 1.0, "ä b": 2.0, "d": math.nan})
            it.steps(rank, 3, [0.1 + rank], 3.0, lr=0.05)
            it.tell(rank, "memory", t=2.9, rss=1 << 30, gpu_process=None)
        it.tell(0, "eval", t=3.5, step=3, accuracy=0.75)
    return it.run


def test_csv_has_the_numbers_of_the_ranks_own_lines(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = called("export", run.id, "--to", "csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run.id}: 3 rows, up to step 3: {run.id}.csv\n"
    path = tmp_path / f"{run.id}.csv"
    (plain := tmp_path / "plain").touch()
    assert path.stat().st_mode == plain.stat().st_mode, "as the umask would have it"
    plain.unlink()
    found = table(path)
    mine = [[loss for e in told(run, rank, "step") for loss in e["losses"]] for rank in (0, 1)]
    assert [float(r["train/loss"]) for r in found] == [
        (a + b) / 2 for a, b in zip(*mine, strict=True)]
    assert [int(r["step"]) for r in found] == [1, 2, 3]
    assert [r["train/lr"] for r in found] == ["", "0.1", "0.05"]
    assert [r["log/d"] for r in found] == ["", "nan", ""]
    assert found[1]['log/a "b",c'] == "1"
    assert float(found[2]["eval/accuracy"]) == 0.75
    assert found[2]["time"] == f"{T0 + 3:.3f}"
    assert found[2]["memory/host"] == str(1 << 30)
    columns = path.read_text().splitlines()[0].count(",")
    assert {len(r) for r in found} == {columns}  # one comma is in a name
    before = path.read_bytes()
    assert called("export", run.id, "--to", "csv").returncode == 0
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == [path.name]


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "＝"])
def test_a_text_never_begins_a_formula(begin, tmp_path):
    head = io.StringIO(f"{quoted(begin + '1,1')},{cell(-1.5)},{quoted('a=1')}")
    assert list(csv.reader(head)) == [[f"'{begin}1,1", "-1.5", "a=1"]]


def test_several_runs_and_scripts(run, tmp_path):
    with Written("other") as it:
        it.start()
        it.steps(0, 1, [1.0], 1.0)
    out = tmp_path / "deep" / "all"
    done = called("export", run.id, it.run.id, "--to", "csv", "-o", str(out), "--json")
    assert [(o["run"], o["rows"], o["last_step"], o["state"]) for o in json.loads(done.stdout)] \
        == [(run.id, 3, 3, "completed"), (it.run.id, 1, 1, "completed")]
    assert sorted(p.name for p in out.iterdir()) == sorted([f"{run.id}.csv", f"{it.run.id}.csv"])


def test_tensorboard_reads_it(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second replaces the first
        done = called("export", run.id, "--to", "tensorboard", "-o", str(tmp_path / "logs"))
        assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name == f"{run.id}-digits"
    assert len(list(folder.iterdir())) == 1
    read = EventAccumulator(str(folder))
    read.Reload()
    losses = [(e.step, e.wall_time) for e in read.Scalars("train/loss")]
    assert losses == [(1, T0 + 2), (2, T0 + 2), (3, T0 + 3)]
    mine = [[loss for e in told(run, rank, "step") for loss in e["losses"]] for rank in (0, 1)]
    assert [e.value for e in read.Scalars("train/loss")] == pytest.approx(
        [(a + b) / 2 for a, b in zip(*mine, strict=True)], rel=1e-6)  # float32
    assert [e.value for e in read.Scalars("eval/accuracy")] == [0.75]
    assert math.isnan(read.Scalars("log/d")[0].value)
    assert {"log/a__b__c", "log/ä_b"} <= set(read.Tags()["scalars"])


def test_columns_that_appear_later_are_empty_before(home, tmp_path):
    with Written() as it:
        it.start()
        it.steps(0, 1, [1.0], 1.0)
        it.steps(0, 2, [2.0], 2.0)
        it.tell(0, "metric", t=2.5, step=2, b=3.0, c=4.0)
    assert called("export", it.run.id, "--to", "csv", "-o", str(tmp_path / "f.csv")).returncode == 0
    assert [(r["train/loss"], r["log/b"], r["log/c"]) for r in table(tmp_path / "f.csv")] == [
        ("1", "", ""), ("2", "3", "4")]


def test_what_was_there_stays_when_the_export_fails(run, tmp_path, monkeypatch):
    out = tmp_path / "x.csv"
    out.write_text("step,time,attempt: mine")
    monkeypatch.setattr(exporter, "cell", lambda value: str(os.write(-1, b"")))
    done = called("export", run.id, "--to", "csv", "-o", str(out))
    assert done.returncode == 1
    assert "bad file descriptor" in done.stderr
    monkeypatch.setattr(exporter, "cell", cell)
    source = Source.rows
    monkeypatch.setattr(Source, "rows", lambda self: [*source(self), run.remove()][:-1])
    done = called("export", run.id, "--to", "csv", "-o", str(out))
    assert done.returncode == 1
    assert "was removed meanwhile" in done.stderr
    assert out.read_text() == "step,time,attempt: mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "x.csv"]


@pytest.mark.parametrize(("words", "says"), [
    (["x", "y.pt", "-o", "z"], "--out does not go with weights"),
    (["x", "--to", "csv", "--from", "best"], "--from does not go with --to csv"),
    (["x", "--to", "tensorboard", "--project", "p"], "--project does not go with --to"),
    (["x", "--to", "xlsx"], "csv"), (["nothing", "--to", "csv"], "there is no run 'nothing'")])
def test_mistakes(home, words, says):
    done = called("export", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_mistakes_about_a_run_and_a_place(run, tmp_path):
    for words, says in (
            ((run.id, run.id, "--to", "csv"), "name each run once"),
            ((run.id, "--to", "csv", "-o", "/proc/x.csv"), "/proc/x.csv: can't be written")):
        done = called("export", *words)
        assert done.returncode == 2, done
        assert says in done.stderr


def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    for extra in TARGETS[1:]:
        with pytest.raises(exporter.UserError) as found:
            exporter.load(extra, f"{extra}.no_such_module_of_it" if extra == "tensorboard"
                        else "no_such_module_at_all")
        assert re.search(rf"{sys.executable} -m pip install {extra} ", str(found.value))
    assert "can't be imported" in str(found.value)
    # The folder that W&B makes is not its library.
    (tmp_path / "no_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(exporter.UserError, match="no_library is not installed"):
        exporter.load("no_library", "no_library")


@pytest.mark.parametrize("step", [2, 3])
def test_an_attempt_that_only_evaluates_takes_nothing_away(home, tmp_path, step):
    """As one that is resumed from its last step, or ends before it has done one."""
    with Written() as it:
        it.start()
        it.steps(0, 3, [3.0, 2.0, 1.0], 3.0)
        it.start(attempt=2, t=50)
        it.tell(0, "eval", t=50.5, step=step, accuracy=0.75)
    out = tmp_path / "x.csv"
    done = called("export", it.run.id, "--to", "csv", "-o", str(out))
    assert done.returncode == 0, done
    lines = list(csv.DictReader(out.open()))
    assert [(line["step"], line["attempt"]) for line in lines] == [
        ("1", "1"), ("2", "1"), ("3", "1"), (str(step), "2")]
