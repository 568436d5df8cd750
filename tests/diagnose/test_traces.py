"""Traces of live runs: ranks trace when they are asked."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import traces
from gpu_engine.diagnose.traces import able, trace
from gpu_engine.events.paths import MOST_TRACED
from gpu_engine.runs import folder as runs
from gpu_engine.worker.rank import tracer as rank_tracer
from gpu_engine.worker.rank.tracer import Tracer

from .. import event_lines, odd_runs
from ..conftest import over, wait_for
from ..observe.kit import PYTHON, SCRIPTS

TWO = ("--mode", "ddp", "--devices", "cpu:0,cpu:1", "--set", "parallel.launcher=direct")
ENV = {"OMP_NUM_THREADS": "1"}


def begin(*words: str, options=TWO) -> runs.Run:
    done = CliRunner().invoke(cli, ["run", "--detach", *options, *words], env=ENV)
    assert done.exit_code == 0, done.output
    run = runs.find(done.stdout.strip())
    wait_for(lambda: len(run.ranks()) and all(
        run.events(r).exists() and b'"kind":"step"' in run.events(r).read_bytes()
        for r in run.ranks()))
    return run


def test_all_ranks_of_a_script_trace_the_same_steps_and_train_on(home):
    run = begin("--", PYTHON, str(SCRIPTS / "steady.py"))
    done = CliRunner().invoke(cli, ["trace", run.id, "--steps", "2", "--json"])
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)
    for one in (first, second):
        assert one["problem"] is None
        events = json.loads(gzip.decompress(Path(one["path"]).read_bytes()))["traceEvents"]
        assert {"aten::addmm", "c10d::allreduce_"} <= {e["name"] for e in events}
        assert sum(e["name"].startswith("ProfilerStep#") for e in events) == 2
        assert Path(one["path"]).stat().st_mode & 0o77 == 0
    assert first["path"].partition("-step-")[2] == second["path"].partition("-step-")[2]
    assert not (run.path / "trace.json").exists()
    only = CliRunner().invoke(cli, ["trace", run.id, "--rank", "1"])
    assert only.exit_code == 0, only.output
    assert only.stdout.startswith(f"rank 1: {run.path}/traces/00001-step-")
    assert run.state().live
    logs = "".join(run.log(rank).read_text() for rank in (0, 1))
    assert "UserWarning" not in logs
    assert "Profiler" not in logs
    with pytest.raises(UserError, match="no rank 7"):
        trace(run, ranks=[7])
    run.stop(now=True)
    over(run)
    with pytest.raises(UserError, match="not running"):
        trace(run)


def test_a_task_traces_and_one_that_profiles_itself_says_so(home, whole_torch):
    one = ("--devices", "cpu:0", "--mode", "single")
    run = begin("--set", "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT",
                "--set", "train.steps=1000000", options=one)
    answer = trace(run)[0]
    assert answer.problem is None
    run.stop(now=True)
    own = begin("--", PYTHON, str(SCRIPTS / "steady.py"), "own", options=one)
    answer = trace(own)[0]
    assert "profiled already" in (answer.problem or "")
    assert own.state().live
    own.stop(now=True)


def asks(run: Path, **other: object) -> None:
    (run / "trace.json").write_text(json.dumps(
        {"steps": 2, "from": 0, "until": time.time() + 60, "ranks": None} | other))


@pytest.mark.parametrize(("spoil", "wanted"), [
    (lambda run: None, True),
    (lambda run: run.chmod(0o777), False),
    (lambda run: run.chmod(0o770), False),
    (lambda run: run.chmod(0o702), False),
    (lambda run: asks(run, until=time.time() - 1), False),
    (lambda run: asks(run, ranks=[1, 2]), False),
    (lambda run: asks(run, steps=10**6), False),
    (lambda run: (run / "trace.json").write_text("[" * 9999), False),
    (lambda run: (run / "trace.json").rename(run / "a") and (run / "trace.json").symlink_to("a"),
     False)])
def test_whose_request_is_obeyed(tmp_path, spoil, wanted):
    (tmp_path / "ranks").mkdir()
    asks(tmp_path)
    spoil(tmp_path)
    tracer = Tracer(tmp_path / "ranks/00000.jsonl")
    assert tracer.tick() is None
    assert tracer.wanted is wanted


def test_a_request_that_nobody_waits_for_any_more_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_tracer, "_EVERY", 0.0)
    (tmp_path / "ranks").mkdir()
    tracer = Tracer(tmp_path / "ranks/00000.jsonl")

    def wanted():
        tracer.tick()
        return tracer.wanted

    asks(tmp_path)
    assert wanted()
    (tmp_path / "trace.json").unlink()
    assert not wanted()
    asks(tmp_path)
    assert wanted()
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert not wanted()


def test_a_request_of_another_user_is_not_obeyed(tmp_path, monkeypatch):
    (tmp_path / "ranks").mkdir()
    asks(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    tracer = Tracer(tmp_path / "ranks/00000.jsonl")
    tracer.tick()
    assert not tracer.wanted


class Live:
    """A run of two ranks that make ten steps a second, on a clock of its own."""

    def __init__(self, path: Path, monkeypatch, answers: int):
        self.path, self.id, self.answers = path, "3f2a", answers
        self.now, self.live, self.asked = 1000.0, True, None
        monkeypatch.setattr(traces, "time", SimpleNamespace(
            time=lambda: self.now, sleep=self.goes_on))

    def state(self):
        return SimpleNamespace(live=self.live, state="running")

    def ranks(self):
        return [1, 0]

    def events(self, rank: int) -> Path:
        return self.path / f"{rank}.jsonl"

    def goes_on(self, seconds: float):
        self.now += seconds
        for rank in self.ranks() if self.answers else ():
            at = round(self.now * 10) - 9990 + rank
            self.say(rank, "step", {"step": at, "n": 2, "losses": [1.0, 1.0]})
        if self.asked is None and (self.path / "trace.json").exists():
            self.asked = json.loads((self.path / "trace.json").read_text())
            for rank in range(self.answers):
                self.say(rank, "trace", {"first": 50, "steps": 3, "path": f"traces/{rank}"})

    def say(self, rank: int, kind: str, fields: dict):
        event_lines.append(self.events(rank), event_lines.line(kind, fields, t=self.now))


@pytest.mark.parametrize(("answers", "took"), [(2, 0.6), (1, 30.0), (0, 30.0)])
def test_all_begin_at_a_step_that_none_reaches_before_the_last_has_seen_the_request(
        tmp_path, monkeypatch, answers, took):
    run = Live(tmp_path, monkeypatch, answers)
    run.say(0, "trace", {"first": 1, "steps": 3, "path": "traces/old"})
    found = trace(run, wait=30.0)
    assert {rank: one and one.path for rank, one in found.items()} == {
        rank: f"traces/{rank}" if rank < answers else None for rank in (0, 1)}
    begun = run.asked.pop("until") - 30.0
    begins = run.asked.pop("from")
    assert run.asked == {"steps": 3, "ranks": [0, 1]}
    assert begins - (round(begun * 10) - 9989) in (25, 26) if answers else begins == 0
    assert run.now - begun == pytest.approx(took, abs=0.45)
    assert not (tmp_path / "trace.json").exists()


def test_who_can_be_asked(tmp_path, monkeypatch):
    run = Live(tmp_path, monkeypatch, 0)
    assert (able(run, 1, []), able(run, MOST_TRACED, [1])) == ([0, 1], [1])
    for steps, ranks, says in ((0, [], "0 steps: from 1 to"), (MOST_TRACED + 1, [], "be traced"),
                               (1, [0, 8, 7], "run 3f2a has no rank 7 yet")):
        with pytest.raises(UserError, match=says):
            able(run, steps, ranks)
    run.ranks = tuple
    assert trace(run) == {}, "none has begun"
    run.live = False
    (tmp_path / "traces").mkdir()
    for number in range(9):
        (tmp_path / "traces" / f"{number}").touch()
        with pytest.raises(UserError) as refused:
            able(run, 1, [])
        assert str(refused.value).endswith("traces/7 and 1 more" if number == 8 else f"/{number}")


def test_of_a_run_that_has_ended_it_names_the_traces_that_there_are(home):
    run = odd_runs.ended()
    with pytest.raises(UserError, match=r"is not running: it is completed$"):
        trace(run)
    (run.path / "traces").mkdir()
    file = run.path / "traces" / "0-step-7.json.gz"
    file.touch()
    (run.path / "traces" / ".1.unfinished").touch()
    (run.path / "traces" / "link").symlink_to("/etc/passwd")
    with pytest.raises(UserError) as refused:
        trace(run)
    assert str(refused.value).endswith(f"for https://ui.perfetto.dev: {file}")
