"""Traces of live runs: what the reader makes of them, and that ranks trace when they are asked."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import traces
from gpu_engine.events.schema import Trace
from gpu_engine.runs import folder as runs
from gpu_engine.runs.traces import trace
from gpu_engine.worker.rank.tracer import Tracer

from .. import odd_runs
from ..conftest import wait_for
from ..export.kit import Written
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


def test_own_time_idle_and_hidden_communication_of_a_processor(tmp_path):
    step = "ProfilerStep#{}"
    found = traces.read(written(
        tmp_path, ("user_annotation", step.format(1), 1, 0, 1000),
        ("user_annotation", step.format(2), 1, 1000, 2000),
        ("cpu_op", "aten::linear", 1, 0, 400), ("cpu_op", "aten::addmm", 1, 100, 300),
        ("cpu_op", "aten::mm", 2, 600, 700), ("cpu_op", "c10d::allreduce_", 1, 500, 520),
        ("cpu_op", "aten::mm", 1, 1900, 2000), ("cpu_op", "aten::mm", 1, 2000, 2400),
        ("user_annotation", "gloo:all_reduce", 3, 600, 1000)), "t.json.gz")
    assert (found.steps, found.gpu) == (2, False)
    assert found.seconds == pytest.approx(0.002)
    assert [(o.name, round(o.seconds * 1e6), o.calls) for o in found.operators] == [
        ("aten::linear", 200, 1), ("aten::addmm", 200, 1), ("aten::mm", 200, 2),
        ("c10d::allreduce_", 20, 1)]
    assert found.idle == pytest.approx(1 - 600 / 2000)  # what waits for others is not computing
    assert found.communication == pytest.approx(0.2)
    assert found.hidden == pytest.approx(0.25)
    assert round(found.gaps[0].seconds * 1e6) == 1200
    assert (found.gaps[0].after, found.gaps[0].before) == ("aten::mm", "aten::mm")
    assert ["55%" in text for text in found.advice] == [True]


def test_kernels_of_a_gpu_come_before_the_operators_that_launch_them(tmp_path):
    kernels = [("kernel", "gemm", 7, 10 * i, 10 * i + 5) for i in range(50)]
    found = traces.read(written(
        tmp_path, ("user_annotation", "ProfilerStep#9", 1, 0, 1000), *kernels,
        ("cpu_op", "aten::mm", 1, 0, 990), ("cpu_op", "aten::item", 1, 700, 900),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32", 8, 400, 700)), "t.json.gz", usual=0.001)
    assert found.gpu
    assert found.operators[0].name == "ncclDevKernel_AllReduce_Sum_f32"
    assert found.operators[1].calls == 50
    assert found.communication == pytest.approx(0.3)
    assert found.hidden == pytest.approx(1 / 6)
    assert found.idle == pytest.approx(1 - (40 * 5 + 300) / 1000)
    assert [text[:12].split()[0] for text in found.advice] == ["for", "25%", "20%"]


def test_the_time_that_the_profiler_takes_is_not_the_gpus():
    """Three steps of an MLP in bf16 on an H200, from pinned memory, by torch 2.11: by events of the
    script's own, 3.0 of the 3.2 ms that a step took were the GPU's."""
    found = traces.read(Path(__file__).parent, "h200.json.gz", usual=0.0032)
    assert found.gpu
    assert (found.steps, found.of) == (3, pytest.approx(0.0096))
    assert found.seconds == pytest.approx(0.01729, abs=1e-5)
    assert found.idle == pytest.approx(0.14, abs=0.005)
    assert found.advice == ()
    first, *rest = traces.lines(found)
    assert first == ("3 steps in 17.29 ms, 5.76 ms each (3.20 ms without the profiler: shares are "
                     "of that); no kernel on the GPU for 14% of it")
    assert rest[1].startswith("  1.64 ms   17%      12×  multi_tensor_apply_kernel<FusedOptimizer")
    unknown = traces.read(Path(__file__).parent, "h200.json.gz")
    assert (round(unknown.idle, 2), unknown.advice) == (0.52, ())  # nor whose it is
    assert traces.read(Path(__file__).parent, "h200.json.gz", usual=0.0055).of == unknown.seconds
    more = traces.read(Path(__file__).parent, "h200.json.gz", usual=1e-9)  # these did more
    assert (more.idle, round(more.of, 4)) == (0, round(0.48 * unknown.seconds, 4))


@pytest.mark.parametrize(("medians", "usual"), [
    ([0.5, 0.0032, 0.0032, 9.0], 0.0032), ([], None), ([-1.0, 0.0, math.nan, math.inf], None)])
def test_how_long_steps_usually_take_is_known_from_those_before(home, medians, usual):
    with Written() as it:
        it.start()
        for at, median in enumerate(medians):
            it.tell(0, "step_time", t=1.0 + at, step=10 * at + 10, n=10, seconds=1.0,
                    median=median)
    (it.run.path / "traces").mkdir()
    shutil.copy(Path(__file__).with_name("h200.json.gz"), it.run.path / "traces" / "a.json.gz")
    answer = Trace(first=39, steps=3, path="traces/a.json.gz")
    _, found, _ = traces.describe(it.run, 0, answer)
    assert isinstance(found, traces.Summary)
    assert found.of == pytest.approx(found.seconds if usual is None else 3 * usual)


def test_copies_from_memory_that_is_not_pinned_are_advised_against(tmp_path):
    copies = [("gpu_memcpy", f"Memcpy HtoD ({'Pageable' if i % 2 else 'Pinned'} -> Device)", 7,
               100 * i, 100 * i + 30) for i in range(10)]
    found = traces.read(written(tmp_path, ("user_annotation", "ProfilerStep#9", 1, 0, 1000),
                                ("kernel", "gemm", 7, 30, 990), *copies), "t.json.gz")
    assert [text[:3] for text in found.advice] == ["15%"]


def test_nothing_is_advised_where_no_figure_carries_it(tmp_path):
    found = traces.read(written(
        tmp_path, ("user_annotation", "ProfilerStep#1", 1, 0, 1000),
        ("cpu_op", "aten::mm", 1, 10, 990),
        ("user_annotation", "Optimizer.step#SGD.step", 1, 900, 990)), "t.json.gz")
    assert found.advice == ()
    assert found.hidden is None


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
        assert one["summary"]["communication"] > 0
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
