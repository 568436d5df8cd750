"""Who holds the memory: worked out by hand, from what an allocator would say, and of live runs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.cuda import _memory_viz

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.common.held_memory import held
from gpu_engine.diagnose import memory_traces
from gpu_engine.runs import folder as runs
from gpu_engine.worker.rank import gpu_memory, torch_private
from gpu_engine.worker.rank.tracer import Tracer

from ..conftest import wait_for
from ..observe.kit import PYTHON, SCRIPTS
from .test_traces import asks, begin

ONE = ("--mode", "single", "--devices", "cpu:0")


def test_who_holds_what_when_most_is_held():
    actions = [(1, 10, "a"), (2, 20, "b"), (9, -5, None), (1, -10, None), (3, 4, "a"),
               (2, -20, None)]
    most = held(actions, {3: (4, "a"), 7: (100, None), 8: (3, "w")})
    assert most.places == [("b", 20, 1), ("a", 10, 1), ("w", 3, 1)]
    assert most.early == 100 + 5  # what is freed later was there, and so was what is never freed
    assert most.bytes == 138
    assert held(actions, moment=4).places == [("b", 20, 1)]
    assert held(actions, moment=len(actions)).places == [("a", 4, 1)]
    assert held([(1, 5, "a"), (2, 5, "a"), (1, -5, None)]).places == [("a", 10, 2)]
    assert held([]).bytes == 0


def test_what_is_held_is_counted_once_and_in_full():
    # It is there at the end without its place, and yet it is known who allocated it.
    assert held([(3, 4, "a")], {3: (4, None)}) == ([("a", 4, 1)], 4, 0)
    many = held([(at, 1 + at, f"line {at}") for at in range(30)])
    assert len(many.places) == 20
    assert many.bytes == sum(range(31))  # also of the places that are not told


# --- a GPU: snapshots in the form of torch.cuda.memory._snapshot's docstring ----------------------

NET = {"filename": "/home/me/net.py", "line": 12, "name": "forward"}
LINEAR = {"filename": torch.nn.modules.linear.__file__, "line": 125, "name": "forward"}


def block(size: int, *frames: dict, free: bool = False) -> dict:
    return {"size": size, "requested_size": size, "frames": list(frames),
            "state": "inactive" if free else "active_allocated"}


def segment(address: int, *blocks: dict, device: int = 0) -> dict:
    return {"device": device, "address": address, "total_size": sum(b["size"] for b in blocks),
            "allocated_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
            "blocks": list(blocks), "stream": 0, "segment_type": "large", "is_expandable": False}


def alloc(address: int, size: int, *frames: dict) -> dict:
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": list(frames)}


def free(address: int, size: int) -> list[dict]:
    return [{"action": f"free_{what}", "addr": address, "size": size, "stream": 0, "frames": [NET]}
            for what in ("requested", "completed")]


ACTIVATION, GRADIENT = 1000, 2064
STEP = {"segments": [segment(0, block(64), block(936, free=True)),
                     segment(4096, block(500, free=True)), segment(8192, block(32, LINEAR, NET))],
        "device_traces": [[
            alloc(ACTIVATION, 700, LINEAR, NET), alloc(GRADIENT, 200), *free(ACTIVATION, 700),
            alloc(8192, 32, LINEAR, NET), *free(GRADIENT, 200)], []]}


def test_the_lines_of_a_gpu_when_most_is_held():
    told = gpu_memory.summary(STEP)
    assert [(p["bytes"], p["blocks"], p["place"]) for p in told["places"]] == [
        (700, 1, "home/me/net.py:12 in forward"), (200, 1, gpu_memory._NO_LINE)]
    assert (told["bytes"], told["early"]) == (964, 64)  # the weights were there before
    assert (told["reserved"], told["allocated"], told["fragmented"]) == (1532, 96, 936)
    assert told["requested"] is None


def test_what_was_held_as_memory_ran_out_and_not_as_the_error_arrived():
    trace = [alloc(1, 700, NET), alloc(2, 100, LINEAR),
             {"action": "oom", "size": 5000, "frames": []},
             *free(1, 700), alloc(5, 8000, NET), *free(5, 8000)]
    told = gpu_memory.summary({"segments": [segment(2, block(100, LINEAR)),
                                            segment(0, block(900), device=1)],
                               "device_traces": [trace, []]}, out_of_memory=True)
    assert [p["bytes"] for p in told["places"]] == [700, 100]
    assert told["places"][1]["place"] == "linear.py:125 in forward"  # where no line is one's own
    assert (told["device"], told["requested"]) == (0, 5000)


def test_the_last_time_that_memory_ran_out_counts():
    """A script may catch the first error, and go on with a smaller batch."""
    oom = [{"action": "oom", "size": size, "frames": []} for size in (5000, 300)]
    trace = [alloc(1, 700, NET), oom[0], *free(1, 700), alloc(2, 800, LINEAR, NET), oom[1]]
    told = gpu_memory.summary({"segments": [segment(2, block(800, LINEAR, NET))],
                               "device_traces": [trace]}, out_of_memory=True)
    assert (told["requested"], told["bytes"]) == (300, 800)


def test_what_another_stream_still_uses_is_held():
    """It is freed, and yet nothing else can have it."""
    pending = {"state": "active_pending_free"}
    told = gpu_memory.summary({
        "segments": [segment(0, block(64) | pending), segment(1000, block(700, NET) | pending),
                     segment(2000, block(100, LINEAR))],
        "device_traces": [[alloc(1000, 700, NET), free(1000, 700)[0], alloc(2000, 100, LINEAR)]]})
    assert [p["bytes"] for p in told["places"]] == [700, 100]
    assert (told["bytes"], told["early"]) == (864, 64)


def test_a_block_without_an_address_lies_behind_the_one_before():
    """As an older torch tells them."""
    told = gpu_memory.summary({"segments": [segment(1000, block(64), block(700, NET))],
                               "device_traces": [[alloc(1064, 700, NET)]]})
    assert (told["bytes"], told["early"]) == (764, 64)


@pytest.mark.parametrize("snapshot", [
    {"segments": [], "device_traces": []}, {"segments": [], "device_traces": [[], []]},
    {"segments": [segment(0, block(9))], "device_traces": []}])
def test_little_that_is_known_is_told_as_that(snapshot):
    told = gpu_memory.summary(snapshot, out_of_memory=True)
    assert told["bytes"] == told["early"] == sum(s["total_size"] for s in snapshot["segments"])


@pytest.fixture
def allocator(monkeypatch):
    """What torch's allocator is asked, in place of a GPU's."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history",
                        lambda enabled="all", **options: asked.append((enabled, options)))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: STEP | {"device_traces": [
        STEP["device_traces"][0] if asked and asked[-1][0] else []]})
    return asked


def test_the_history_lasts_from_the_request_to_its_end_and_the_file_is_torchs(tmp_path, allocator):
    (tmp_path / "ranks").mkdir()
    asks(tmp_path, memory=True)
    tracer = Tracer(tmp_path / "ranks/00000.jsonl")
    tracer.tick()
    told = []
    for step in range(1, 6):
        if tracer.wanted:
            tracer.stepped(step)
        told.append([enabled for enabled, _ in allocator])
    assert told == [["all"]] * 3 + [["all", None]] * 2  # a step to warm up, two that are traced
    tracer._due = 0
    answer = tracer.tick()
    assert answer.path == "traces/00000-memory-step-3.pickle"
    path = tmp_path / answer.path
    assert path.stat().st_mode & 0o77 == 0
    drawn = subprocess.run([sys.executable, _memory_viz.__file__, "stats", path],
                           capture_output=True, text=True, check=True)
    assert "total_reserved: 1.5KiB\ntotal_allocated: 96.0B" in drawn.stdout
    told = memory_traces.read(tmp_path, answer.path)
    assert told.places[0].place == "home/me/net.py:12 in forward"
    text = "\n".join(memory_traces.lines(told))
    assert "GPU 0: 964 B held" in text
    assert "fragmented 936 B" in text


def test_a_history_that_is_on_stays_on(allocator):
    torch_private.record_memory(7)
    one = gpu_memory.Recording()
    one.start()
    one.stop()
    assert [enabled for enabled, _ in allocator] == ["all"]
    assert allocator[0][1]["max_entries"] == 7


def test_recording_begins_with_the_first_use_of_a_gpu_and_not_before(allocator, monkeypatch):
    later = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", later.append)
    monkeypatch.setattr(gpu_memory, "_from_start", False)
    gpu_memory.record_from_start()
    assert allocator == []
    later[0]()
    assert [enabled for enabled, _ in allocator] == ["all"]


@pytest.mark.parametrize("told", [
    b"", b"[]", b'{"places": [], "bytes": "x"}', b'{"places": 7, "bytes": 1}', b"[" * 9999,
    b'{"places": [], "bytes": 1, "more": "' + b"x" * (1 << 20) + b'"}'], ids=range(6))
def test_what_is_no_summary_is_a_sentence(tmp_path, told):
    (tmp_path / "a.json").write_bytes(told)
    (tmp_path / "a.pickle").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(UserError):
        memory_traces.read(tmp_path, "a.pickle")
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["../a.pickle", "/etc/passwd", "none.json.gz"])
def test_no_file_outside_is_read(tmp_path, name):
    with pytest.raises(UserError):
        memory_traces.read(tmp_path, name)


# --- a processor --------------------------------------------------------------------------------


def test_the_operator_and_the_function_of_a_processor(tmp_path):
    def inside(cat, name, a, b, tid=1):
        return {"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": a, "dur": b - a}

    def memory(at, address, size, tid=1, **more):
        return {"ph": "i", "name": "[memory]", "tid": tid, "ts": at, "cat": "cpu_instant_event",
                "args": {"Addr": address, "Bytes": size, "Device Type": 0, "Total Allocated": 1}
                | more}

    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": [
        inside("python_function", "train.py(40): main", 0, 1000),
        inside("python_function", "net.py(9): forward", 10, 500),
        inside("python_function", "torch/nn/modules/linear.py(1): forward", 20, 400),
        inside("python_function", "threading.py(9): run", 25, 390),
        inside("cpu_op", "aten::linear", 30, 300), inside("cpu_op", "aten::addmm", 40, 200),
        memory(50, 1, 4096), memory(60, 2, 1024), memory(70, 2, -1024),
        memory(600, 3, 512), memory(610, 9, 999, **{"Device Type": 1}),
        inside("cpu_op", "aten::mul", 605, 700, 2), memory(620, 4, 256, 2), memory(900, 1, -4096),
    ]}).encode()))
    told = memory_traces.read(tmp_path, "t.json.gz")
    assert [(p.bytes, p.blocks, p.place) for p in told.places] == [
        (5120, 2, "aten::linear in forward, net.py:9")]
    assert (told.bytes, told.early, told.device) == (5120, 0, None)


@pytest.mark.parametrize(("function", "own"), [
    ("train.py(40): main", True), ("gpu_engine/tasks/digits.py(31): loss", True),
    ("gpu_engine/training/loop.py(9): run", False), ("torch/nn/functional.py(3): relu", False),
    ("threading.py(9): run", False), ("<built-in method relu>", False),
    ("nn.Module: Linear_0", False)])
def test_a_task_of_this_package_is_a_persons_own_function(function, own):
    events = [memory_traces._Entry("X", "python_function", function, 1, 0, 100),
              memory_traces._Entry("X", "cpu_op", "aten::relu", 1, 10, 80),
              memory_traces._Entry("i", None, "[memory]", 1, 20,
                                   args=memory_traces._Of(1, 64, 0))]
    (place,) = memory_traces.of_processor(events).places
    assert (" in " in place.place) == own


def test_a_live_run_on_a_processor_says_which_function_holds_most(home):
    run = begin("--", PYTHON, str(SCRIPTS / "memory.py"), options=ONE)
    done = CliRunner().invoke(cli, ["trace", run.id, "--memory", "--steps", "2", "--json"])
    assert done.exit_code == 0, done.output
    (one,) = json.loads(done.stdout)
    first = one["summary"]["places"][0]
    assert "hold_much, memory.py:" in first["place"]
    assert first["bytes"] == 2 * (8 << 20)  # the last is held while the next is made
    assert run.state().live
    text = CliRunner().invoke(cli, ["trace", run.id, "--memory"])
    assert "held when it was most" in text.stdout
    assert "as torch notes no lines on a processor" in text.stdout
    run.stop(now=True)
    wait_for(lambda: not run.state().live)


# --- out of memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_that_is_out_of_memory_names_the_lines_that_held_most(home, asked):
    done = CliRunner().invoke(cli, [
        "run", *ONE, "--set", f"run.oom_snapshot={str(asked).lower()}", "--",
        PYTHON, str(SCRIPTS / "memory.py"), "oom"])
    assert done.exit_code == 1, done.output
    run = runs.find("last")
    cause = run.state().cause
    assert cause.message.startswith("out of GPU memory: requested 6.0 GiB")
    line = "held most: 8.0 GiB by "
    assert (line in cause.line) == asked
    assert ("memory.py:19 in hold_much" in cause.line) == asked
    traces = run.path / "traces"
    assert sorted(p.suffix for p in traces.glob("*")) == [".json", ".pickle"] * asked


def test_a_task_does_so_too(home, tmp_path):
    (tmp_path / "full.py").write_text("""
import torch
from gpu_engine.tasks.digits import Digits

class Full(Digits):
    def loss(self, model, batch):
        frames = [{"filename": __file__, "line": 8, "name": "loss"}]
        torch.cuda.memory._snapshot = lambda: {"segments": [], "device_traces": [
            [{"action": "alloc", "addr": 0, "size": 1 << 30, "frames": frames},
             {"action": "oom", "size": 1, "frames": frames}]]}
        raise torch.OutOfMemoryError("CUDA out of memory")
""")
    done = CliRunner().invoke(cli, [
        "run", *ONE, "--set", f"task.use={tmp_path}/full.py:Full", "--set", "train.steps=3",
        "--set", "train.workers=0", "--set", "run.oom_snapshot=true"])
    assert done.exit_code == 1, done.output
    cause = runs.find("last").state().cause
    assert "held most: 1.0 GiB by " in cause.line
    assert "full.py:8 in loss; " in cause.line  # and what would fit
