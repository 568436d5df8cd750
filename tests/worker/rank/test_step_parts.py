"""Where a step's time goes: marks in, sums out, with a clock that the test turns."""

from __future__ import annotations

import gc

import pytest
import torch

from gpu_engine.events import schema
from gpu_engine.observe import parts as script
from gpu_engine.observe.parts import ScriptParts
from gpu_engine.worker.rank import step_parts
from gpu_engine.worker.rank.step_parts import READY, STEP, LastGradient, StepParts


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which the test turns on."""
    now = [100.0]
    monkeypatch.setattr(step_parts, "_clock", lambda: now[0])
    monkeypatch.setattr(step_parts.time, "monotonic", lambda: now[0])
    return now


def told(parts: StepParts, clock: list[float], *marks: tuple[str, float], times: int = 1
         ) -> schema.StepTime:
    """The event after these marks, each with the seconds until the next."""
    for _ in range(times):
        for kind, seconds in marks:
            parts.mark(kind)
            clock[0] += seconds
    parts.mark("")
    event = parts.event(7, over=True)
    assert event is not None
    return event


def known(event: schema.StepTime) -> dict[str, float]:
    return {name: value for name in schema.PARTS if (value := getattr(event, name)) is not None}


def test_each_phase_of_the_loop_has_its_part_and_a_pause_is_the_rest(clock):
    event = told(StepParts(), clock, ("data", 1), ("forward", 2), ("backward", 4),
                 ("optimizer", 8), (STEP, 16), ("checkpoint", 32), ("eval", 64), times=2)
    assert (event.step, event.n, event.seconds) == (7, 2, 254)
    assert known(event) == {"data": 2, "copy": 0, "forward": 4, "backward": 8, "optimizer": 16,
                            "save": 64, "eval": 128}
    assert event.median == 31  # without saving and evaluation


def test_after_the_last_gradient_a_pass_waits_for_others(clock):
    step = (("data", 1), ("forward", 1), ("backward", 2), (READY, 4), (READY, 8), ("optimizer", 1),
            (STEP, 0))
    event = told(StepParts(), clock, *step, times=3)
    assert (event.backward, event.wait, event.exchange) == (18, 24, 8)


def test_the_exchange_is_what_is_waited_where_nobody_else_is_late(clock):
    steps = [(("forward", 1), ("backward", 2), (READY, late), ("optimizer", 1), (STEP, 0))
             for late in (4, 9, 4, 9)]
    event = told(StepParts(), clock, *sum(steps, ()))
    assert (event.wait, event.exchange) == (26, 4)


def test_steps_that_take_much_longer_are_told_with_their_distance(clock):
    parts, usual = StepParts(), (("forward", 0.01), ("optimizer", 0.01), (STEP, 0))
    assert told(parts, clock, *usual, times=10).stalls is None
    event = told(parts, clock, *usual * 4, ("forward", 0.01), ("optimizer", 0.01), (STEP, 2),
                 times=3)
    assert (event.stalls, event.every, event.stalled_in) == (2, 5, "other")
    assert event.stalled == pytest.approx(4)


def test_full_garbage_collections_are_counted():
    parts = StepParts()
    for _ in range(2):
        parts.mark(STEP)
        parts.event(1, over=True)
    gc.collect()
    parts.mark(STEP)
    event = parts.event(2, over=True)
    assert event is not None
    assert event.gcs
    assert event.gc


def test_if_that_is_not_seen_of_each_pass_it_is_not_known(clock):
    parts = StepParts()
    seen = (("forward", 1), ("backward", 2), (READY, 4), ("optimizer", 0), (STEP, 0))
    for kind, seconds in seen:
        parts.mark(kind)
        clock[0] += seconds
    event = told(parts, clock, ("forward", 1), ("backward", 6), ("optimizer", 0), (STEP, 0))
    assert (event.backward, event.wait) == (12, None)


# --- a script -------------------------------------------------------------------------------------

ASKS, AGAIN, BATCH, NONE = script.ASKS, script.ASKS_AGAIN, script.BATCH, script.NO_BATCH
BACKWARD, BACK, OPTIMIZER = script.BACKWARD, script.BACK, script.OPTIMIZER
SAVES, SAVED = script.SAVES, script.SAVED


def test_a_scripts_loop_is_told_by_what_follows_what(clock):
    event = told(ScriptParts(), clock, (ASKS, 1), (BATCH, 2), (BACKWARD, 4), (BACK, 8),
                 (OPTIMIZER, 16), (STEP, 32), (SAVES, 64), (SAVED, 128), times=2)
    assert known(event) == {"data": 2, "forward": 4, "backward": 8, "optimizer": 48, "save": 128}
    assert event.seconds == 510


def test_batches_without_a_backward_pass_are_an_evaluations(clock):
    train = ((ASKS, 1), (BATCH, 2), (BACKWARD, 1), (BACK, 1), (OPTIMIZER, 1), (STEP, 0))
    event = told(ScriptParts(), clock, *train, (ASKS, 10), (BATCH, 20), (AGAIN, 10), (BATCH, 20),
                 (AGAIN, 10), (NONE, 0), *train)
    assert event.eval == 10 + 20 + 10 + 20 + 10
    assert event.data == 2


def test_a_batch_that_is_only_looked_at_is_no_evaluation(clock):
    event = told(ScriptParts(), clock, (ASKS, 1), (BATCH, 30), (ASKS, 1), (BATCH, 2), (BACKWARD, 1),
                 (BACK, 1), (OPTIMIZER, 1), (STEP, 0))
    assert (event.eval, event.data, event.forward) == (None, 1, 2)
    event = told(ScriptParts(), clock, (ASKS, 1), (BATCH, 30), (AGAIN, 1), (BATCH, 2),
                 (BACKWARD, 1), (BACK, 1), (OPTIMIZER, 1), (STEP, 0))
    assert event.eval is None, "a resume passes over those that were trained on"


def test_without_a_loader_the_forward_pass_is_unknown_and_not_nothing(clock):
    event = told(ScriptParts(), clock, (BACKWARD, 1), (BACK, 0), (OPTIMIZER, 1), (STEP, 5),
                 (BACKWARD, 1), (BACK, 0), (OPTIMIZER, 1), (STEP, 0))
    assert known(event) == {"backward": 2, "optimizer": 2}


def test_accumulation_closures_and_second_optimizers_are_forward_passes(clock):
    event = told(ScriptParts(), clock, (ASKS, 1), (BATCH, 2), (BACKWARD, 4), (BACK, 8),
                 (BACKWARD, 4), (BACK, 16), (OPTIMIZER, 32), (BACKWARD, 4), (BACK, 64), (STEP, 128),
                 (BACKWARD, 4), (BACK, 0), (OPTIMIZER, 0), (script.STEPPED, 0))
    assert event.forward == 2 + 8 + 32 + 128
    assert (event.backward, event.optimizer, event.n) == (16, 16 + 64, 1)


# --- the device's clock ---------------------------------------------------------------------------


class Event:
    """An event of a stream that is a second behind each call."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        Event.made += 1
        self.at: float | None = None
        self.over = False

    def query(self) -> bool:
        return self.over

    def elapsed_time(self, other: Event) -> float:
        assert self.over
        assert other.over
        assert self.at is not None
        assert other.at is not None
        return (other.at - self.at) * 1000


class Cuda:
    """torch.cuda, as far as it is used."""

    def __init__(self) -> None:
        self.capturing, self.now = False, 0.0
        self.recorded: list[Event] = []

    def Event(self, enable_timing: bool) -> Event:
        event = Event(enable_timing)

        def record() -> None:
            event.at, event.over = self.now, False
            self.recorded.append(event)
        event.record = record
        return event

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def test_a_gpus_seconds_are_those_between_its_events_and_nothing_waits(clock):
    cuda, parts = Cuda(), StepParts()
    parts._device = step_parts._DeviceClock(cuda)
    for kind, seconds in ("data", 1), ("forward", 2), ("backward", 4), ("optimizer", 8), (STEP, 0):
        parts.mark(kind)
        cuda.now += seconds
    assert parts.event(1, over=True) is None  # the device is not so far
    for event in cuda.recorded[:3]:
        event.over = True
    event = parts.event(1, over=True)
    assert known(event) == {"data": 1, "copy": 0, "forward": 2, "backward": 0, "optimizer": 0,
                            "save": 0, "eval": 0}
    assert event.device == 1
    for one in cuda.recorded:
        one.over = True
    event = parts.event(1, over=True)
    assert (event.backward, event.optimizer, event.n) == (4, 8, 1)
    assert len(parts._device.free) == step_parts._POOL - 1  # all but the last


def test_what_a_graph_is_captured_in_has_no_events_and_is_left_out(clock):
    cuda, parts = Cuda(), StepParts()
    parts._device = step_parts._DeviceClock(cuda)
    for kind in "data", "forward", "backward", "optimizer", STEP:
        cuda.capturing = kind == "backward"
        parts.mark(kind)
        cuda.now += 1
    for one in cuda.recorded:
        one.over = True
    cuda.capturing = True
    assert parts.event(1, over=True) is None  # whoever asks while capturing waits for its end
    cuda.capturing = False
    event = parts.event(1, over=True)
    assert (event.data, event.forward, event.backward, event.optimizer) == (1, 0, 0, 1)
    assert len(parts._device.free) == step_parts._POOL - 1


def driven(clock: list[float], step: tuple[tuple[str, float, float], ...], parts: StepParts,
           ) -> schema.StepTime:
    """Ten steps with a GPU that does one thing after the other. Each mark has the seconds of work
    that the process then gives the GPU, and the seconds for which the process itself is busy until
    the next; inf: until the GPU has done everything."""
    cuda = Cuda()
    parts._device = step_parts._DeviceClock(cuda)
    done = clock[0]
    for _ in range(10):
        for kind, work, own in step:
            for event in cuda.recorded:
                event.over = event.at is not None and event.at <= clock[0]
            cuda.now = max(done, clock[0])
            parts.mark(kind)
            done = cuda.now + work
            clock[0] = max(done, clock[0]) if own == float("inf") else clock[0] + own
    for event in cuda.recorded:
        event.over = True
    event = parts.event(10, over=True)
    assert event is not None
    return event


ALL = float("inf")


@pytest.mark.parametrize(("own", "reads", "caught_up", "waited"), [
    (0.001, 0.001, False, False),  # the process is ahead: as it should be
    (0.1, 0.1, True, False),  # the GPU has nothing to do
    (0.001, ALL, False, True),  # it reads the loss
    (0.001, 0.3, False, False)])  # it does something else, for longer than the GPU has work
@pytest.mark.parametrize("of", ["task", "script"])
def test_who_waits_for_whom_on_a_gpu(clock, of, own, reads, caught_up, waited):
    marks = {"task": ("data", "forward", "backward", "optimizer", STEP),
             "script": (ASKS, BATCH, BACKWARD, OPTIMIZER, STEP)}[of]
    works = dict(zip(marks, (0.001, 0.02, 0.04, 0.01, 0.0), strict=True))
    at = marks[1] if of == "task" else STEP
    step = tuple((kind, work, reads if kind == at else own) for kind, work in works.items())
    event = driven(clock, step, ScriptParts() if of == "script" else StepParts())
    # The first step may be otherwise.
    assert (event.n, event.caught_up // 9, event.waited // 9) == (10, caught_up, waited)
    assert event.caught_up % 9 <= 1
    assert event.waited % 9 <= 1


def test_a_scripts_copy_of_its_batch_is_no_loss_that_is_read(clock):
    step = ((ASKS, 0.001, 0.001), (BATCH, 0.02, ALL), (BACKWARD, 0.04, 0.001),
            (OPTIMIZER, 0.01, 0.001), (STEP, 0.0, 0.001))
    assert driven(clock, step, ScriptParts()).waited == 0


def test_on_a_processor_nobody_knows_who_waits(clock):
    event = told(StepParts(), clock, ("forward", 1), (STEP, 0))
    assert (event.caught_up, event.waited) == (None, None)


# --- the last gradient ----------------------------------------------------------------------------


def test_only_the_last_gradients_parameter_keeps_a_hook():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    model[1].bias.requires_grad_(False)
    came: list[None] = []
    LastGradient(model.parameters(), lambda: came.append(None))
    each = []
    for _ in range(9):
        came.clear()
        model(torch.ones(2, 3)).sum().backward()
        each.append(len(came))
    assert each[:3] == [5, 5, 5]
    assert each[-3:] == [1, 1, 1]


def test_passes_that_end_otherwise_tell_nothing():
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    came: list[None] = []
    LastGradient([*one.parameters(), *two.parameters()], lambda: came.append(None))
    for at in range(6):
        a, b = (one, two) if at % 2 else (two, one)
        a(b(torch.ones(2, 3))).sum().backward()
    came.clear()
    two(one(torch.ones(2, 3))).sum().backward()
    assert not came
