"""Traces of live runs: what the reader makes of them, and that ranks trace when they are asked."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import traces
from gpu_engine.diagnose.traces import trace
from gpu_engine.events.schema import Trace
from gpu_engine.runs import folder as runs
from gpu_engine.worker.rank.tracer import Tracer

from .. import odd_runs
from ..conftest import wait_for
from ..observe.kit import PYTHON, SCRIPTS

TWO = ("--mode", "ddp", "--devices", "cpu:0,cpu:1", "--set", "parallel.launcher=direct")
ENV = {"OMP_NUM_THREADS": "1"}


def written(folder: Path, *events: tuple) -> Path:
    """A trace of (category, name, thread, from, to), in microseconds."""
    (folder / "t.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": [
        {"ph": "X", "cat": cat, "name": name, "tid": tid, "pid": 1, "ts": a, "dur": b - a,
         "args": {"x": 1}} for cat, name, tid, a, b in events]
        + [{"ph": "M", "name": "process_name", "tid": 0}]}).encode()))
    return folder


def test_own_time_of_operators_on_a_processor(tmp_path):
    step = "ProfilerStep#{}"
    found = traces.read(written(
        tmp_path, ("user_annotation", step.format(1), 1, 0, 1000),
        ("user_annotation", step.format(2), 1, 1000, 2000),
        ("cpu_op", "aten::linear", 1, 0, 400), ("cpu_op", "aten::addmm", 1, 100, 300),
        ("cpu_op", "aten::mm", 2, 600, 700), ("cpu_op", "c10d::allreduce_", 1, 500, 520),
        ("cpu_op", "aten::mm", 1, 1900, 2000), ("cpu_op", "aten::mm", 1, 2000, 2400)),
        "t.json.gz")
    assert (found.steps, found.gpu) == (2, False)
    assert found.seconds == pytest.approx(0.002)
    assert {(o.name, round(o.seconds * 1e6), o.calls) for o in found.operators} == {
        ("aten::linear", 200, 1), ("aten::addmm", 200, 1), ("aten::mm", 200, 2),
        ("c10d::allreduce_", 20, 1)}
    assert found.operators[-1].name == "c10d::allreduce_"


def test_kernels_of_a_gpu_come_before_the_operators_that_launch_them(tmp_path):
    """Three steps of an MLP in bf16 on an H200, by torch 2.11."""
    folder = Path(__file__).parent
    found = traces.read(folder, "h200.json.gz")
    assert (found.gpu, found.steps) == (True, 3)
    assert found.seconds == pytest.approx(0.01729, abs=1e-5)
    _, _, lines = traces.describe(runs.Run(folder), Trace(1, 3, "h200.json.gz"))
    assert lines[0] == "3 steps in 17.29 ms, 5.76 ms each with the profiler"
    assert lines[2].startswith("  1.64 ms    9%      12×  multi_tensor_apply_kernel<FusedOptimizer")


@pytest.mark.parametrize("data", [
    b"", b"{}", gzip.compress(b"{}"), gzip.compress(b'{"traceEvents": [{"ts": "x"}]}'),
    gzip.compress(b'{"traceEvents": []}'), gzip.compress(b"[" * 10**5), gzip.compress(b"x")[:-9]],
    ids=map(str, range(7)))
def test_what_is_no_trace_is_a_sentence(tmp_path, data):
    (tmp_path / "t.json.gz").write_bytes(data)
    with pytest.raises(UserError):
        traces.read(tmp_path, "t.json.gz")


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
        assert one["summary"]["steps"] == 2
        assert {"aten::addmm", "c10d::allreduce_"} <= {o["name"] for o in
                                                       one["summary"]["operators"]}
        assert Path(one["path"]).stat().st_mode & 0o77 == 0
    assert first["path"].partition("-step-")[2] == second["path"].partition("-step-")[2]
    assert not (run.path / "trace.json").exists()
    only = CliRunner().invoke(cli, ["trace", run.id, "--rank", "1"])
    assert only.exit_code == 0, only.output
    assert only.stdout.startswith("--- rank 1 ---")
    assert "3 steps in" in only.stdout
    assert run.state().live
    assert "UserWarning" not in "".join(run.log(rank).read_text() for rank in (0, 1))
    with pytest.raises(UserError, match="no rank 7"):
        trace(run, ranks=[7])
    run.stop(now=True)
    wait_for(lambda: not run.state().live)
    with pytest.raises(UserError, match="not running"):
        trace(run)


def test_a_task_traces_and_one_that_profiles_itself_says_so(home, whole_torch):
    one = ("--devices", "cpu:0", "--mode", "single")
    run = begin("--set", "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT",
                "--set", "train.steps=1000000", options=one)
    answer = trace(run)[0]
    assert answer is not None
    assert answer.problem is None
    assert traces.read(run.path, answer.path or "").steps == 3
    run.stop(now=True)
    own = begin("--", PYTHON, str(SCRIPTS / "steady.py"), "own", options=one)
    answer = trace(own)[0]
    assert answer is not None
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


def test_a_request_of_another_user_is_not_obeyed(tmp_path, monkeypatch):
    (tmp_path / "ranks").mkdir()
    asks(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    tracer = Tracer(tmp_path / "ranks/00000.jsonl")
    tracer.tick()
    assert not tracer.wanted


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
