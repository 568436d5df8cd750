"""Who held the memory: worked out by hand, from what an allocator would say, and of runs."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.runs import folder as runs
from gpu_engine.worker.rank import memory

from ...observe.kit import PYTHON, SCRIPTS

ONE = ("--mode", "single", "--devices", "cpu:0")


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


OOM = {"action": "oom", "size": 300, "frames": []}
ACTIVATION, GRADIENT = 1000, 2064
STEP = {"segments": [segment(0, block(64), block(936, free=True)),
                     segment(4096, block(500, free=True)), segment(8192, block(32, LINEAR, NET))],
        "device_traces": [[
            alloc(ACTIVATION, 700, LINEAR, NET), alloc(GRADIENT, 200), *free(ACTIVATION, 700),
            alloc(8192, 32, LINEAR, NET), *free(GRADIENT, 200)], []]}


def test_what_was_held_as_memory_ran_out_and_not_as_the_error_arrived():
    trace = [alloc(1, 700, NET), alloc(2, 100, LINEAR),
             {"action": "oom", "size": 5000, "frames": []},
             *free(1, 700), alloc(5, 8000, NET), *free(5, 8000)]
    told = memory.summary({"segments": [segment(2, block(100, LINEAR)),
                                            segment(0, block(900), device=1)],
                               "device_traces": [trace, []]})
    assert [p["bytes"] for p in told["places"]] == [700, 100]
    assert told["places"][1]["place"] == "linear.py:125 in forward"  # where no line is one's own
    assert (told["device"], told["requested"]) == (0, 5000)


def test_the_last_time_that_memory_ran_out_counts():
    """A script may catch the first error, and go on with a smaller batch."""
    oom = [{"action": "oom", "size": size, "frames": []} for size in (5000, 300)]
    trace = [alloc(1, 700, NET), oom[0], *free(1, 700), alloc(2, 800, LINEAR, NET), oom[1]]
    told = memory.summary({"segments": [segment(2, block(800, LINEAR, NET))],
                               "device_traces": [trace]})
    assert (told["requested"], told["bytes"]) == (300, 800)


def test_what_another_stream_still_uses_is_held():
    """It is freed, and yet nothing else can have it."""
    pending = {"state": "active_pending_free"}
    told = memory.summary({
        "segments": [segment(0, block(64) | pending), segment(1000, block(700, NET) | pending),
                     segment(2000, block(100, LINEAR))],
        "device_traces": [[alloc(1000, 700, NET), free(1000, 700)[0], alloc(2000, 100, LINEAR),
                           OOM]]})
    assert [p["bytes"] for p in told["places"]] == [700, 100]
    assert (told["bytes"], told["early"]) == (864, 64)


def test_a_block_without_an_address_lies_behind_the_one_before():
    """As an older torch tells them."""
    told = memory.summary({"segments": [segment(1000, block(64), block(700, NET))],
                               "device_traces": [[alloc(1064, 700, NET), OOM]]})
    assert (told["bytes"], told["early"]) == (764, 64)


@pytest.mark.parametrize("snapshot", [
    {"segments": [], "device_traces": []}, {"segments": [], "device_traces": [[], []]},
    {"segments": [segment(0, block(9))], "device_traces": []}])
def test_little_that_is_known_is_told_as_that(snapshot):
    told = memory.summary(snapshot)
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


def test_recording_begins_with_the_first_use_of_a_gpu_and_not_before(allocator, monkeypatch):
    later = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", later.append)
    monkeypatch.setattr(memory, "_from_start", False)
    memory.record_from_start()
    assert allocator == []
    later[0]()
    assert [enabled for enabled, _ in allocator] == ["all"]


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
