"""The rules about devices on made figures: each speaks on its fault, and on nothing near it."""

from __future__ import annotations

import json

import pytest

from gpu_engine.diagnose import device_times, verdicts
from gpu_engine.diagnose.device_times import DeviceTimes
from gpu_engine.events import schema
from gpu_engine.events.paths import DEVICES, HOSTS
from gpu_engine.events.rank_view import RankView
from gpu_engine.report import content

from .. import event_lines
from ..command_line import called
from ..export.kit import T0, Written

GIB = 1 << 30
HEALTHY = {"utilization": 0.98, "temperature": 70.0, "clock": 0.95, "throttle": "", "others": 0.0}


def readings(*each: dict) -> list[DeviceTimes]:
    """One GPU with these readings, in which what is not named is HEALTHY's."""
    found = device_times.Readings()
    for one in each:
        found.add(None, schema.Devices(("0",), **{
            name: () if value is None else (value,) for name, value in (HEALTHY | one).items()}))
    return found.devices()


def two(one: dict, other: dict) -> list[DeviceTimes]:
    """Two GPUs, each with the same readings all the time."""
    found = device_times.Readings()
    for _ in range(20):
        found.add(None, schema.Devices(("0", "1"), **{
            name: ((HEALTHY | one)[name], (HEALTHY | other)[name]) for name in HEALTHY}))
    return found.devices()


def device(**values) -> list[DeviceTimes]:
    return readings(*[values] * 20)


def rank(number: int = 0, steps: int = 100, device: int | None = 1, **values) -> RankView:
    """A rank with steps of 10 ms on a GPU, which it keeps busy."""
    parts = {"data": 0.01, "copy": 0.02, "forward": 0.3, "backward": 0.5, "optimizer": 0.1,
             "median": 0.01, "caught_up": 0, "waited": 0} | values
    view = RankView(number)
    for at in range(1, 9):
        view.spent([schema.StepTime(at * steps, steps, 1.0, device=device, **parts)])
    return view


def codes(views, devices=()) -> list[str]:
    return [v.code for v in verdicts.of(views, devices)]


def test_a_healthy_gpu_has_none():
    assert codes([rank()], device()) == []
    assert codes([rank(0, wait=0.05), rank(1, wait=0.05)], device()) == []
    assert codes([], device()) == []


def test_a_processor_has_none():
    """Its marks have no events, and its supervisor records neither clocks nor processes."""
    views = [rank(device=None, caught_up=None, waited=None)]
    quiet = dict.fromkeys(("temperature", "clock", "throttle", "others"))
    assert codes(views, device(utilization=0.3, **quiet)) == []


# --- memory ---------------------------------------------------------------------------------------

@pytest.mark.parametrize(("peak", "total", "retries", "there"), [
    ([77 * GIB], [80 * GIB], [], True), ([70 * GIB], [80 * GIB], [], False),
    ([79 * GIB], [], [], False), ([79 * GIB], [None], [], False), ([], [80 * GIB], [], False),
    ([9 * GIB, 79 * GIB], [80 * GIB, 80 * GIB], [], True),
    ([9 * GIB, 60 * GIB], [80 * GIB, 80 * GIB], [0, 12], True), ([95], [100], [], True),
    ([60 * GIB], [80 * GIB], [12], True), ([60 * GIB], [80 * GIB], [3], False)])
def test_memory_near_its_end(peak, total, retries, there):
    view = RankView(0, gpu_peak=peak, gpu_total=total, gpu_retries=retries, at_step=500)
    assert codes([view]) == ["memory"] * there


def test_memory_that_runs_out_once_in_many_steps_is_no_reason():
    assert codes([RankView(0, gpu_peak=[60 * GIB], gpu_total=[80 * GIB], gpu_retries=[12],
                           at_step=5000)]) == []


# --- throttling -----------------------------------------------------------------------------------

@pytest.mark.parametrize(("values", "there"), [
    ({"throttle": "too hot (hardware)", "clock": 0.4, "temperature": 93.0}, True),
    ({"throttle": "power brake (power supply)", "clock": None}, True),
    ({"throttle": "power limit", "clock": 0.9}, False),  # as nearly every busy one
    ({"throttle": "power limit", "clock": 0.5}, True),
    ({"throttle": "power limit", "clock": None}, False),
    ({"throttle": "too hot, power limit", "clock": 0.92}, False),
    ({"throttle": "", "clock": 0.3}, False),
    ({"throttle": None, "clock": 0.3}, False),
    ({"throttle": "hardware slowdown", "utilization": 0.1}, False),
    ({"throttle": "hardware slowdown", "utilization": None}, False)])
def test_throttling(values, there):
    assert codes([], device(**values)) == ["throttling"] * there


def test_throttling_has_its_reason_and_figures_beside_it():
    (found,) = verdicts.of([], device(throttle="too hot (hardware)", clock=0.4, temperature=93.0))
    assert found.figures == {"share": 1.0, "temperature": 93.0, "clock": 0.4}
    assert all(part in found.text for part in ("GPU 0", "too hot (hardware)", "93 °C", "40%"))
    assert found.cost == pytest.approx(0.6)


def test_the_device_that_is_worst_is_named():
    hot = {"throttle": "too hot (hardware)", "clock": 0.4}
    half = {"throttle": "power limit", "clock": 0.5}
    found = device_times.Readings()
    for at in range(20):
        one = HEALTHY | (half if at % 4 else {})
        found.add(None, schema.Devices(("0", "1"), **{
            name: (one[name], (HEALTHY | hot)[name]) for name in HEALTHY}))
    (verdict,) = verdicts.of([], found.devices())
    assert "GPU 1 is held down for 100%" in verdict.text
    for devices, name in ((two({"others": 0.2}, {"others": 0.4}), "GPU 1"),
                          (two({"others": 0.4}, {"others": 0.0}), "GPU 0")):
        (verdict,) = verdicts.of([], devices)
        assert (verdict.figures, verdict.cost) == ({"share": 0.4}, 0.4)
        assert f"time of {name}:" in verdict.text


def test_a_short_one_and_few_readings_carry_nothing():
    hot = {"throttle": "too hot (hardware)"}
    assert codes([], readings(*[{}] * 40, *[hot] * 15)) == []
    assert codes([], readings(*[hot] * 11)) == []
    assert codes([], readings(*[hot] * 12)) == ["throttling"]


@pytest.mark.parametrize(("bound", "value", "each"), [
    ("HELD", 0.5, [{"throttle": "power limit, too hot", "clock": 0.5}]),
    ("BUSY", 0.5, [{"throttle": "hardware slowdown", "utilization": 0.5}]),
    ("MOSTLY", 0.5, [{"throttle": f"hardware slowdown, {'x' * 90}"}, {}])])
def test_what_is_at_a_bound_counts(monkeypatch, bound, value, each):
    monkeypatch.setattr(verdicts, bound, value)
    assert codes([], readings(*each * 24)) == ["throttling"]


# --- other processes ------------------------------------------------------------------------------

@pytest.mark.parametrize(("others", "there"), [
    (0.4, True), (0.1, True), (0.09, False), (0.0, False), (None, False)])
def test_another_process_on_the_card(others, there):
    assert codes([], device(others=others)) == ["another-process"] * there


# --- the process and the GPU ----------------------------------------------------------------------

BY_PYTHON, WAITS = {"caught_up": 98}, {"waited": 99}


@pytest.mark.parametrize(("values", "utilization", "code"), [
    (BY_PYTHON, 0.5, "python-bound"), (BY_PYTHON, 0.8, None), (BY_PYTHON, None, None),
    (WAITS, 0.7, "loss-read"), (WAITS, 0.95, None), (WAITS, None, None),
    ({"caught_up": 80}, 0.5, None), ({"waited": 50}, 0.5, None),
    (BY_PYTHON | {"median": 0.3}, 0.5, None),
    (BY_PYTHON | {"data": None}, 0.5, None),
    (BY_PYTHON | {"save": 0.3, "backward": 0.2}, 0.5, "saving"),
    (BY_PYTHON | {"eval": 0.3, "backward": 0.2}, 0.5, None)])
def test_what_keeps_a_gpu_from_being_busy(values, utilization, code):
    assert codes([rank(**values)], device(utilization=utilization)) == [code] * (code is not None)


@pytest.mark.parametrize("values", [BY_PYTHON, WAITS])
def test_one_rank_that_is_otherwise_leaves_it_unsaid(values):
    views = [rank(0, **values, wait=0.01), rank(1, wait=0.01)]
    assert codes(views, device(utilization=0.4)) == []


@pytest.mark.parametrize("values", [BY_PYTHON, WAITS])
def test_one_device_that_is_busy_leaves_it_unsaid(values):
    """The other may be one that the run has and its script does not use."""
    views = [rank(0, **values, wait=0.01), rank(1, **values, wait=0.01)]
    assert codes(views, two({"utilization": 0.4}, {"utilization": 0.4})) != []
    assert codes(views, two({"utilization": 0.4}, {})) == []


def test_a_gpu_that_waits_for_data_waits_for_that():
    views = [rank(data=0.5, forward=0.1, backward=0.2, **BY_PYTHON)]
    assert codes(views, device(utilization=0.4)) == ["input-bound"]


# --- the files ------------------------------------------------------------------------------------

def test_the_last_readings_of_this_machine_and_of_hosts_are_read(tmp_path):
    (tmp_path / HOSTS).mkdir()
    here, there = tmp_path / DEVICES, tmp_path / HOSTS / f"gpu2.{DEVICES}"
    for at in range(400):
        line = {"ids": ["0", "1"], "throttle": ["", None], "others": [0.5, 0.25],
                "utilization": [0.5, None], "clock": [1.0], "power": [float(at), 1.0]}
        event_lines.append(here, event_lines.line("devices", line, t=100.0 + at))
    event_lines.append(there, event_lines.line("devices", {"ids": ["0\x1b[31m"]}, t=500.0))
    one, two, three = device_times.read(tmp_path)
    assert [d.name for d in (one, two)] == ["GPU 0", "GPU 1"]
    assert three.name.endswith(" of gpu2")
    assert "\x1b" not in three.name
    assert len(one.readings) == device_times.LAST
    assert (one.readings[-1].throttle, two.readings[-1].throttle) == ("", None)
    assert (two.readings[-1].others, two.readings[-1].clock) == (0.25, None)
    event_lines.append(here, event_lines.line("devices", {"ids": ["1"]}, t=501.0))
    two = device_times.read(tmp_path)[0]
    assert (two.name, len(two.readings)) == ("GPU 1", 1)  # the other place was another device's
    assert [len(d.readings) for d in device_times.read(tmp_path, since=500.5)] == [1]


def test_figures_that_cannot_be_true_say_nothing():
    for odd in (float("nan"), float("inf"), -1.0):
        assert codes([rank(**BY_PYTHON)], device(others=odd, utilization=odd, clock=odd)) == []
    assert verdicts.FULL < 1


def test_a_run_shows_what_its_devices_did_and_so_does_its_report(home):
    with Written() as run:
        run.start()
        run.steps(0, 3, [1.0, 2.0, 3.0], t=1.0)
        for at in range(40):
            line = {"ids": ["0"], "utilization": [1.0], "throttle": ["too hot (hardware)"],
                    "clock": [0.4]}
            event_lines.append(run.path / DEVICES,
                               event_lines.line("devices", line, t=T0 - 80 + 5 * at))
    [text] = content.read(run.run).verdicts
    assert text.startswith("throttling: the clock of GPU 0 is held down for 100% of the time ")
    assert text in called("show", run.run.id).stdout
    told = json.loads(called("show", "--json", run.run.id).stdout)["diagnosis"]["verdicts"]
    assert [(one["code"], one["figures"]) for one in told] == [
        ("throttling", {"share": 1.0, "clock": 0.4})]
