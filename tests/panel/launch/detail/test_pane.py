"""The detail pane: everything that a look tells, unknown as a dash, and the small curves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_engine.devices.availability import Freedom
from gpu_engine.devices.leases import Holder
from gpu_engine.devices.records import Device, DeviceProcess, Sample, Snapshot
from gpu_panel.launch.detail.lines import ORDERS, View, build
from gpu_panel.launch.detail.pane import DetailPane
from gpu_panel.launch.devices.history import KEPT, History, curve
from gpu_panel.launch.devices.pane import DevicesPane

from ....conftest import gpus, slots
from ...panel_kit import NOW, StillSampler, compare, panel, screen_text, settled, shown, until

pytestmark = pytest.mark.usefixtures("home")
GPU = Device("0", "gpu", "NVIDIA A100-SXM4-80GB", 0, "GPU-00000000-0000", 80 << 30,
             capability=(8, 0))
WHOLE = Sample(
    GPU, 0.74, 34 << 30, 80 << 30, 61.0, 301.0, 400.0, 1_410_000_000, 1_593_000_000, 0.3,
    ("power limit",), (
        DeviceProcess(7, 30 << 30, user="alice", command="python train.py", started=NOW - 7300,
                      host_memory=2 << 30, cpu=1.07, utilization=0.7),
        DeviceProcess(8, 3 << 30, visible=False),
        DeviceProcess(9, None, "graphics", user="gdm", command="Xorg", started=NOW - 9 * 86400)),
    taken=NOW, memory_reserved=600 << 20, memory_utilization=0.33,
    notes=("persistence mode is off",), clock_sm_max=1_410_000_000,
    clock_memory_max=1_593_000_000, performance_state=0, ecc_corrected=3, ecc_uncorrected=0,
    persistence=False, compute_mode="default", pcie_generation=4, pcie_width=16,
    pcie_sent=1.5 * 2**30, pcie_received=20.0 * 2**20)


def text(view: View, width: int = 156) -> str:
    return "\n".join("".join(part for part, _ in line).rstrip()
                     for row in build(view, width) for line in row.lines)


def test_everything_that_a_look_has_is_said():
    said = text(View(GPU, WHOLE, Freedom("busy", "alice"), Holder("x", run="3f2a", user="bob"),
                     True, ours={7: "run 3f2a rank 1"}, now=NOW))
    for words in (
        "● busy: alice", "NVIDIA A100-SXM4-80GB", "GPU-00000000-0000", "index 0",
        "compute capability 8.0", "74 %", "34.0 of 80.0 GiB, 0.59 reserved", "61 °C",
        "301 of 400 W", "fan          30 %", "P0", "1,410 of 1,410 MHz", "1,593 of 1,593 MHz",
        "memory busy 33 %", "power limit", "gen 4 ×16",
        "1.5 GiB/s / 20.0 MiB/s", "3 corrected, 0 not", "persistence  off",
        "compute mode default", "not sliced", "run 3f2a of bob", "! persistence mode is off",
        "no fault of the hardware", "alice", "30.0 GiB", "70 %", "107 %", "2.0 GiB", "2 h",
        "● run 3f2a rank 1 python train.py", "can't be seen from here", "graphics · Xorg", "9 d",
    ):
        assert words in said, words


def test_what_is_not_known_is_a_dash_and_never_a_zero():
    said = text(View(GPU, Sample(GPU)))
    assert "0 %" not in said
    assert " 0 " not in said.replace("index 0 ", "")
    assert "° C" not in said
    for label in ("temperature  – °C", "power        – of – W", "fan          –", "performance  –",
                  "– of – MHz", "memory busy –", "slowed by    –", "gen – ×–",
                  "– corrected, – not", "persistence  –", "compute mode –", "lease        –",
                  "the driver does not say which", "? –"):
        assert label in said, label
    assert "no fault" not in said  # nobody has looked


def test_nobody_on_it_and_nobody_holds_it():
    said = text(View(GPU, replace(WHOLE, processes=()), leases_known=True))
    assert "No process is on it" in said
    assert "nobody" in said


def test_faults_of_the_hardware_stand_out_once():
    bad = replace(WHOLE, problem="GPU is lost", health=("2 uncorrected memory errors",))
    said = text(View(GPU, bad, Freedom("unhealthy", "GPU is lost")))
    assert said.count("GPU is lost") == 1
    assert "✗ 2 uncorrected memory errors" in said


def test_a_cpu_slot_has_no_gpu_s_facts():
    slot = slots(1, cores=2).devices[0]
    said = text(View(slot, Sample(slot, 0.5, 1 << 30, 16 << 30)))
    assert "cores 0, 1" in said
    assert "PCIe" not in said


def test_a_slice_says_whose():
    part = Device("MIG-1", "mig", "NVIDIA A100 MIG 1g.10gb 0:1", 0, "MIG-1", 10 << 30,
                  visible_index=1)
    said = text(View(part, Sample(part, taken=NOW)))
    assert "a slice of GPU 0" in said
    assert "place 1 in CUDA_VISIBLE_DEVICES" in said


@pytest.mark.parametrize("width", [44, 60, 76, 104, 120, 156, 240])
def test_no_line_is_wider_than_the_pane(width):
    said = text(View(GPU, replace(WHOLE, throttle=("x" * 300,)), Freedom("busy", "y" * 300),
                     now=NOW, history=History()), width)
    assert max(map(len, said.splitlines())) <= max(width, 76)


def test_names_of_others_are_harmless():
    evil = "[bold]x\x1b]52;c;AAAA\x07\x9b31m\u202etxt\nnext"
    s = replace(WHOLE, processes=(DeviceProcess(7, user=evil, command=evil),),
                notes=(evil,), throttle=(evil,), compute_mode=evil, health=(evil,))
    said = text(View(replace(GPU, name=evil), s, Freedom("busy", evil),
                     Holder("x", run=evil), ours={7: evil}))
    assert all(c.isprintable() or c == "\n" for c in said)
    assert "[bold]x" in said
    assert "52;c" not in said


@pytest.mark.parametrize(("order", "first"), [("memory", "7"), ("SM", "7"), ("CPU", "7"),
                                              ("age", "9")])
def test_processes_can_be_sorted(order, first):
    keys = [r.key for r in build(View(GPU, WHOLE, order=order, now=NOW), 156) if r.key]
    assert keys[0] == first
    assert set(keys) == {"7", "8", "9"}
    assert order in ORDERS


# --- the small curves ---------------------------------------------------------------------------

def test_a_curve_s_scale_is_always_the_whole():
    assert curve([0.0, 0.5, 1.0], KEPT).strip() == "▁▅█"
    assert set(curve([0.01] * KEPT, 10)) == {"▁"}
    assert curve([7.0, -3.0], KEPT).strip() == "█▁"


def test_a_curve_has_gaps_where_nothing_is_known():
    assert curve([None, math.nan, math.inf, 0.5], KEPT).endswith("   ▅")
    assert curve([], 8) == " " * 8
    assert curve([0.5], 0) == ""


@pytest.mark.parametrize("width", [1, 7, 10, 12, 60, 119, 120, 200])
@pytest.mark.parametrize("count", [0, 1, 5, 119, 120])
def test_a_curve_is_as_wide_as_told(width, count):
    assert len(curve([0.3] * count, width, seen=count + 7)) == width


def test_between_two_looks_only_the_last_cell_moves():
    values = [i / 120 for i in range(120)]
    history = History()
    shots = [Snapshot(float(i), (Sample(GPU, v, int(v * GPU.memory_total)),))
             for i, v in enumerate(values)]
    before = ""
    for i, shot in enumerate(shots):
        history.learn(shots[:i + 1])
        assert history.seen == i + 1
        now = history.utilization("0", 10)
        if before and i % 12:
            assert now[:-1] == before[:-1]
        before = now
        assert shot is shots[i]
    assert history.memory("0", 10) == history.utilization("0", 10)
    history.learn(shots)
    assert history.seen == 120


# --- on the screen -------------------------------------------------------------------------------

@pytest.fixture
def steady(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "lab-a100")
    monkeypatch.setattr("gpu_panel.launch.host_bar.time.strftime", lambda _: "14:02")
    monkeypatch.setattr("gpu_panel.launch.runs.feed.RunsFeed.refresh", lambda self: ([], 0))
    monkeypatch.setattr("gpu_panel.launch.detail.pane.time.time", lambda: NOW)


def machine():
    four = gpus(4)
    samples = (replace(WHOLE, device=four.devices[0]),
               *(Sample(d, 0.0, 0, 80 << 30, 33.0, 54.0, 400.0, processes=(), taken=NOW)
                 for d in four.devices[1:]))
    return four, StillSampler(four, samples)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=str)
async def test_golden(size, steady):
    four, sampler = machine()
    async with panel(four, sampler=sampler, size=size) as (pilot, screen):
        await until(pilot, lambda: screen.source.freedom and screen.runs.lines is not None)
        await pilot.press("i")
        await settled(pilot, screen)
        compare(f"detail-{size[0]}", screen_text(pilot.app))


async def test_it_follows_the_table_s_cursor():
    four, sampler = machine()
    async with panel(four, sampler=sampler) as (pilot, screen):
        detail = screen.query_one(DetailPane)
        assert not detail.display
        await pilot.press("i")
        await pilot.pause()
        assert detail.border_title.startswith("GPU 0 ─ ")
        assert screen.focused.id == "devices"
        await pilot.press("down")
        await pilot.pause()
        assert detail.border_title.startswith("GPU 1 ─ ")
        assert "No process is on it" in shown(detail)
        await pilot.press("up", "enter", "i")
        await pilot.pause()
        assert not detail.display
        assert screen.focused.id == "devices"


async def test_the_bus_is_measured_for_what_is_looked_at_alone():
    four, sampler = machine()
    async with panel(four, sampler=sampler) as (pilot, _):
        assert sampler.bus == ()
        await pilot.press("down", "i")
        await until(pilot, lambda: sampler.bus == ("1",))
        await pilot.press("down")
        await until(pilot, lambda: sampler.bus == ("2",))
        await pilot.press("question_mark")
        await until(pilot, lambda: sampler.bus == ())
        await pilot.press("escape")
        await until(pilot, lambda: sampler.bus == ("2",))
        await pilot.press("i")
        await until(pilot, lambda: sampler.bus == ())


def test_slowed_by_nothing_is_not_the_same_as_not_known():
    assert "slowed by    nothing" in text(View(GPU, replace(WHOLE, throttle=())))
    assert "slowed by    –" in text(View(GPU, replace(WHOLE, throttle=None)))


async def test_narrow_it_is_a_view_of_its_own():
    four, sampler = machine()
    async with panel(four, sampler=sampler, size=(80, 24)) as (pilot, screen):
        await pilot.press("i")
        await pilot.pause()
        detail = screen.query_one(DetailPane)
        assert screen.focused is detail
        assert not screen.query_one(DevicesPane).is_on_screen or not \
            screen.query_one("#top").display
        await pilot.press("right")
        await pilot.pause()
        assert detail.border_title.startswith("GPU 1 ─ ")
        await pilot.press("left", "o")
        await pilot.pause()
        assert "by SM" in str(detail.border_title)
        await pilot.press("escape")
        await pilot.pause()
        assert not detail.display
        assert screen.focused.id == "devices"
        await pilot.press("i", "2")
        await pilot.pause()
        assert not detail.display
        assert screen.query_one("#form").display


async def test_the_table_can_be_sorted_and_ranks_keep_the_machine_s_order():
    four, sampler = machine()
    busiest = [0.1, 0.9, None, 0.5]
    samples = tuple(replace(s, utilization=u)
                    for s, u in zip(sampler.latest.samples, busiest, strict=True))
    async with panel(four, sampler=StillSampler(four, samples)) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        await pilot.press("o")
        await pilot.pause()
        assert table.keys == ["1", "3", "0", "2"]
        assert "busiest first" in str(table.border_title)
        await pilot.press("a")
        await settled(pilot, screen)
        assert screen.draft.ids == ["0", "1", "2", "3"]
        await pilot.press("o", "o")
        await pilot.pause()
        assert "free first" in str(table.border_title)
        await pilot.press("o")
        await pilot.pause()
        assert table.keys == ["0", "1", "2", "3"]


@pytest.mark.parametrize("size", [(120, 26), (80, 16)], ids=str)
async def test_with_little_room_the_words_can_be_scrolled(size):
    four, sampler = machine()
    async with panel(four, sampler=sampler, size=size) as (pilot, screen):
        await pilot.press("enter")
        await pilot.pause()
        detail = screen.query_one(DetailPane)
        assert "GPU-00000000" in shown(detail)
        await pilot.press("down", "down", "down", "down")
        await pilot.pause()
        assert "graphics" in screen_text(pilot.app)
        assert detail.process_at_cursor.pid == 9
        await pilot.press(*["up"] * 30)
        await pilot.pause()
        assert "GPU-00000000" in shown(detail)
