"""The record has strict JSON lines and every loss, and its problems never end training."""

from __future__ import annotations

import math
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from gpu_engine.common import procs
from gpu_engine.events import schema
from gpu_engine.events.reader import Tail
from gpu_engine.events.writer import EventWriter
from gpu_engine.worker.rank import getting_on, record_writer, standing
from gpu_engine.worker.rank.pinned import EMPTY, Ring
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.standing import StandingStill
from gpu_engine.worker.rank.step_parts import StepParts

from ... import event_lines
from ...conftest import wait_for


@pytest.fixture
def rec(tmp_path: Path):
    return Recorder(tmp_path / "r.jsonl")


def lines(rec_path: Path) -> list[dict]:
    return event_lines.read(rec_path)


def test_losses_of_every_step_with_nan_and_inf(rec: Recorder, tmp_path: Path) -> None:
    values = [1.5, float("nan"), float("inf"), 0.1]
    for step, value in enumerate(values, 1):
        rec.step(step, 0, torch.tensor(value, dtype=torch.float32), 0.01, 8, 0.0)
    rec.close()
    (event,) = lines(tmp_path / "r.jsonl")
    assert event["n"] == 4
    assert event["step"] == 4
    back = [float(x) for x in event["losses"]]
    assert back[0] == 1.5
    assert math.isnan(back[1])
    assert math.isinf(back[2])
    assert torch.tensor(back[3], dtype=torch.float32) == torch.tensor(0.1)
    assert rec.nonfinite[0] == 2


def test_a_loss_on_its_way_from_a_gpu_holds_back_what_follows(rec: Recorder, tmp_path: Path,
                                                              monkeypatch) -> None:
    rec._losses = ring = Ring(4, pin=False)

    def step(number: int, loss: float) -> Callable[[], None]:
        """Returns what has its loss arrive."""
        rec.step(number, 0, torch.tensor(loss), 0.01, 8, 0.0)
        slot = number - 1
        arrives = partial(ring.bits.__setitem__, slot, ring.bits[slot])
        ring.bits[slot] = EMPTY
        return arrives

    first = step(1, 1.5)
    rec.step_now = 1
    rec.metric({"accuracy": 0.5})
    second = step(2, float("nan"))
    rec.warn("nothing has arrived")
    first()
    rec.warn("the first has")
    assert rec.nonfinite is None
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=second))
    rec.settle()  # waits for the rest
    found = lines(tmp_path / "r.jsonl")
    assert [e["kind"] for e in found] == ["warning", "step", "metric", "warning", "step"]
    assert [e["losses"] for e in found if e["kind"] == "step"] == [[1.5], ["NaN"]]
    assert rec.nonfinite[0] == 2


def test_many_steps_at_once_give_least_and_largest(rec: Recorder, tmp_path: Path) -> None:
    for step in range(1, 101):
        rec.step(step, 0, torch.tensor(float(step)), 0.01, 8, 0.0)
    rec.close()
    (event,) = lines(tmp_path / "r.jsonl")
    assert (event["loss_min"], event["loss_max"], event["loss"]) == (1, 100, 50.5)
    assert event["loss_last"] == 100
    assert "losses" not in event


def test_a_loss_stands_under_its_own_step_beside_steps_without_one(rec: Recorder,
                                                                   tmp_path: Path) -> None:
    for step in range(1, 7):
        if step == 4:
            rec.left_out(step, 0, 0.01)
        else:
            rec.step(step, 0, float(step), 0.01, 8, 0.0)
    rec.write(schema.Warning("and of many at once the first that is not finite is told apart"))
    for step in range(7, 107):
        rec.step(step, 0, math.nan if step == 50 else 1.0, 0.01, 8, 0.0)
    rec.close()
    told = [(e["step"], e["n"], e.get("losses"), "samples_per_s" in e)
            for e in lines(tmp_path / "r.jsonl") if e["kind"] == "step"]
    assert told == [(3, 3, [1, 2, 3], True), (4, 1, None, False), (6, 2, [5, 6], True),
                    (49, 43, None, True), (50, 1, ["NaN"], True), (106, 56, None, True)]


def test_what_happens_stays_in_order(rec: Recorder, tmp_path: Path) -> None:
    rec.step(1, 0, torch.tensor(1.0), 0.01, 8, 0.0)
    rec.step_now = 1
    rec.metric({"accuracy": torch.tensor(0.5), "odd": "text"})
    rec.step(2, 0, torch.tensor(2.0), 0.01, 8, 0.0)
    rec.write(schema.Checkpoint(2, "x", 0.0, 1))
    rec.metric({"odd": "text", "many": torch.zeros(2, 3), "big": 10**400})
    rec.close()
    kinds = [e["kind"] for e in lines(tmp_path / "r.jsonl")]
    assert kinds == ["step", "metric", "warning", "step", "checkpoint", "metric", "warning",
                     "warning"]
    assert [e["message"] for e in lines(tmp_path / "r.jsonl") if e["kind"] == "warning"] == [
        "gpu_engine.log: odd is not recorded: 'text' is no number",
        "gpu_engine.log: many is not recorded: the tensor has 6 values",
        "gpu_engine.log: big is not recorded: it is too large"]
    assert lines(tmp_path / "r.jsonl")[1] | {"t": 0} == {
        "t": 0, "kind": "metric", "step": 1, "accuracy": 0.5, "odd": None}


def test_log_takes_a_tensor_as_it_was(rec: Recorder, tmp_path: Path, monkeypatch) -> None:
    import gpu_engine

    monkeypatch.setattr(record_writer, "current", rec)
    value = torch.tensor(1.0)
    gpu_engine.log(value=value)
    value += 5
    rec.close()
    assert lines(tmp_path / "r.jsonl")[0]["value"] == 1.0


def test_pauses_do_not_count_in_the_rate(rec: Recorder, tmp_path: Path,
                                         monkeypatch) -> None:
    now = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rec.mark()
    now[0] += 0.1
    rec.step(1, 0, torch.tensor(1.0), 0.01, 100, 0.0)
    now[0] += 300.0  # an evaluation
    rec.mark()
    now[0] += 0.2
    rec.step(2, 0, torch.tensor(1.0), 0.01, 100, 0.05)
    rec.close()
    first, second = lines(tmp_path / "r.jsonl")
    assert (first["samples_per_s"], second["samples_per_s"]) == (1000.0, 500.0)
    assert (first["data_wait"], second["data_wait"]) == (0.0, 0.25)


def test_heartbeat_once_a_second(tmp_path: Path) -> None:
    rec = Recorder(tmp_path / "r.jsonl")
    rec.phase = "forward"
    rec.begin()

    def beats() -> list[dict]:
        return [e for e in lines(tmp_path / "r.jsonl") if e["kind"] == "phase"]

    wait_for(lambda: len(beats()) == 3)
    rec.close()
    first, second, third = (e["t"] for e in beats())
    assert second - first > 0.9
    assert third - second > 0.9
    assert beats()[-1]["phase"] == "forward"
    assert next(e for e in lines(tmp_path / "r.jsonl") if e["kind"] == "memory")["rss"] > 1 << 20


def test_a_full_disk_pauses_the_record_with_a_warning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(record_writer, "_RETRY", 0.0)
    rec = Recorder(tmp_path / "r.jsonl")
    write = EventWriter.write

    def half(self, *data: bytes) -> None:
        import errno
        import os

        os.write(self._file.descriptor(), data[0][:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    rec.warn("before")
    for _ in range(2):
        monkeypatch.setattr(EventWriter, "write", half)
        rec.warn("lost")
        monkeypatch.setattr(EventWriter, "write", write)
        rec.warn("after")
    tail = Tail(tmp_path / "r.jsonl")
    messages = [e.message for e in tail.read()]
    assert messages[0] == "before"
    assert messages[2::2] == ["after"] * 2
    assert all("1 are missing" in message for message in messages[1::2])
    assert tail.skipped == 2  # the half lines


def test_what_comes_while_the_disk_is_known_to_be_full_is_counted(tmp_path: Path, monkeypatch,
                                                                  ) -> None:
    rec = Recorder(tmp_path / "r.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(EventWriter, "write", Mock(side_effect=OSError(28, "full")))
        rec.warn("lost")
        for step in (1, 2):  # not tried again for some seconds
            rec.metric({"accuracy": step})
            rec.flush()
    rec.warn("after")
    assert "3 are missing" in lines(tmp_path / "r.jsonl")[0]["message"]


def test_a_phase_keeps_its_beginning_and_a_problem_is_told_once(rec: Recorder, tmp_path: Path,
                                                                 monkeypatch, capsys) -> None:
    now = [1000.0]
    monkeypatch.setattr(record_writer, "HEARTBEAT", 0.0)
    monkeypatch.setattr(time, "time", lambda: now[0])
    for phase in ("data", "data", "forward"):
        rec.phase = phase
        rec.tick()
        rec.guard(lambda: 1 / 0)
        rec.metric({"step": 7})
        now[0] += 5
    told = lines(tmp_path / "r.jsonl")
    assert [e["since"] for e in told if e["kind"] == "phase"] == [1000, 1000, 1010]
    assert len([e for e in told if e["kind"] == "warning"]) == 1  # of the name
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_a_line_of_progress_is_printed_once(tmp_path: Path, monkeypatch, capsys) -> None:
    now = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rec = Recorder(tmp_path / "r.jsonl", echo=True)
    rec.total_steps = 9
    rec.step(1, 0, 1.5, 0.01, 8, 0.0)
    for _ in range(3):
        rec._tick()
        now[0] += 5
    assert capsys.readouterr().out.count("step 1/9 epoch 1 loss 1.5000") == 1


def test_a_rank_says_once_where_it_stands_and_again_after_another_step(monkeypatch) -> None:
    clock, works = SimpleNamespace(now=100.0, time=lambda: 1.0), [False]
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(standing, "time", clock)
    monkeypatch.setattr(StandingStill, "_gets_on", lambda self, *looked: works[0])
    begun: dict[int, schema.Collective] = {}
    monkeypatch.setattr(standing, "collectives", lambda: begun)
    monkeypatch.setattr(standing, "_frames", lambda *_: [("train.py", 3, "main", "")])
    still = StandingStill()

    def after(seconds: float, step: int = 5, phase: str = "forward") -> schema.Stands | None:
        clock.now += seconds
        return still.event(step, phase, StepParts())

    assert [after(0), after(5.5)] == [None, None]
    said = after(5)
    assert (said.step, said.phase, said.works) == (5, "forward", False)
    assert after(5) is None  # nothing is new
    works[0] = True
    said = after(5)
    assert said.works
    assert [after(1, 6), after(5.5, 6)] == [None, None]
    said = after(5, 6)  # at the same line
    assert said.step == 6
    works[0] = False
    assert not after(5, 6).works
    begun[0] = schema.Collective("0", 7, "all_reduce", "", 1.0, done=False)
    assert after(5, 6).works, "it has begun another operation"
    assert [after(5, 6), after(5, 6)] == [None, None]
    assert not after(5, 6).works
    assert [after(1, 6, "done"), after(99, 6, "done")] == [None, None]


def begin(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def lock():
    """Taken, until the test is over."""
    taken = threading.Lock()
    taken.acquire()
    yield taken
    taken.release()


def test_a_thread_that_is_given_a_core_again_and_again_gets_on_and_a_blocked_one_does_not(lock):
    def takes() -> None:
        while turns.get() is not None:
            taken.release()

    taken, turns = threading.Semaphore(0), queue.SimpleQueue()
    one, other = begin(takes), begin(lambda: lock.acquire() and lock.release())
    wait_for(lambda: procs.status(f"self/task/{other.native_id}", "State").startswith("S"))
    for thread, gets_on in ((one, True), (other, False)):
        before = getting_on.look(thread.ident, None, below=False)
        for _ in range(20):
            turns.put(1)
            taken.acquire()
        now = getting_on.look(thread.ident, None, below=False)
        now = now._replace(at=before.at + 1e6)  # whatever this process uses else
        assert getting_on.gets_on(before, now) is gets_on
        assert getting_on.gets_on(before, now._replace(said="another batch"))
    turns.put(None)


@pytest.mark.parametrize(("more", "gets_on"), [
    ({"seconds": 0.9}, True), ({"seconds": 0.4}, False), ({"moved": 1 << 20}, True),
    ({"moved": 9 << 10}, False), ({"turns": {7: 14}, "below": True}, False),
    ({"turns": {7: 19}, "below": True}, True), ({"turns": {8: 99}}, False)])
def test_what_a_rank_uses_in_ten_seconds_says_whether_it_gets_on(more, gets_on):
    before = getting_on.Look(0.0, 0.0, 0, {7: 10}, False, None)
    assert getting_on.gets_on(before, before._replace(at=10.0, **more)) is gets_on


def test_bytes_over_tcp_are_counted_though_the_kernel_counts_no_reading_of_them():
    before = getting_on._over_tcp()
    with socket.create_server(("127.0.0.1", 0)) as server, \
            socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        read = procs.moved("self", "rchar", "wchar")
        one.sendall(bytes(200_000))
        got = 0
        while got < 200_000:
            got += len(other.recv(1 << 16))
        assert procs.moved("self", "rchar", "wchar") - read < 100_000
        assert getting_on._over_tcp() - before >= 200_000
        assert one.fileno() >= 0
        assert other.send(b"x") == 1, "they are as they were"


def test_the_thread_that_is_waited_for_is_the_one_that_trains(lock):
    def train() -> None:
        lock.acquire()
        lock.release()

    inner = begin(train)
    outer = begin(inner.join)
    wait_for(lambda: any(name == "join" for *_, name in standing._trains(outer.ident)[1])
             or standing._trains(outer.ident)[0] == inner.ident)
    for asked in (outer.ident, inner.ident):
        thread, stack = standing._trains(asked)
        assert thread == inner.ident
        assert stack[0][2] == "train"
    assert standing._trains(-1)[0] == threading.main_thread().ident


@pytest.mark.parametrize(("line", "waits"), [
    ("    store.wait(['a'])", "store.wait"), ("self.tcp_store.get(key)", "self.tcp_store.get"),
    ("req[0].wait()", "req[0].wait"), ("    time.sleep(pause)", schema.SLEEP),
    ("if sleep(3): pass", schema.SLEEP), ("values.get(key)", None), ("lock.acquire()", None),
    ("nosleep(3)", None), ("pause = lambda: time.sleep(3); lock.acquire()", None),
    ("é = values.get(key); store.wait(['é'])", "store.wait")])
def test_what_a_call_waits_in_is_known_by_its_name(tmp_path, line, waits):
    script, stacks = tmp_path / "train.py", []
    script.write_text(f"\n{line.strip()}\n")

    class Anything:
        """Notes where it is called last."""

        def __getattr__(self, name):
            return self

        def __getitem__(self, key):
            return self

        def __call__(self, *args):
            frame = sys._getframe(1)
            stacks.append(standing._frames([(frame, frame.f_lineno)], frame))

    exec(compile(script.read_text(), str(script), "exec"), dict.fromkeys(
        ("store", "self", "req", "time", "sleep", "values", "lock", "nosleep", "key", "pause"),
        Anything()))
    assert standing._waits_in(stacks[-1]) == waits
    inside = [("/v/torch/distributed/distributed_c10d.py", 5, "recv", ""),
              ("/v/torch/distributed/c10d_logger.py", 8, "wrapper", ""),
              (str(script), 2, "main", "")]
    assert standing._waits_in(inside) == "recv"
    debugged = [("/python3.11/cmd.py", 5, "cmdloop", ""),
                ("/python3.11/pdb.py", 8, "interaction", "")]
    assert standing._waits_in([*debugged, *inside]) == schema.DEBUGGER
