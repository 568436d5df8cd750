"""Other machines in the device table: grouped, with the age of their figures, and ticked."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from textual.widgets import Static

from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import Sample
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.watcher import HostSeen
from gpu_engine.remote.run import freest
from gpu_panel.common.command_dialog import MORE, CommandDialog
from gpu_panel.launch import row_keys
from gpu_panel.launch.device_source import DeviceSource
from gpu_panel.launch.device_table import DeviceTable
from gpu_panel.launch.plan import PlanPane
from gpu_panel.launch.review import busy_devices

from ....conftest import gpus, slots
from ...machines import NOT_THERE, away, lab, seen
from ...panel_kit import StillHosts, StillSampler, fields_of, on_top, panel, settled, shown, until
from .test_lines import text


def said(plan: PlanPane) -> str:
    return str(plan.query_one("#plan-text", Static).content)


def test_a_group_a_machine_with_its_age_and_why_it_is_away():
    own, hosts = slots(1), lab()
    source = DeviceSource(own, StillSampler(own, (Sample(own.devices[0], 0.1),)), hosts)
    table = DeviceTable(source.machines, ("gpu1 0",), now=hosts.seen[1].heard + 75)
    lines = text(table, 120).splitlines()
    groups = [line for line in lines if line.startswith(("this machine", "gpu", "alice"))]
    assert groups == ["this machine", "gpu1  left  1 of 2 free · the freest",
                      "alice@gpu2  1 of 1 free  seen 75 s ago", "gpu3", "gpu4  asking …"]
    assert "  ! no answer: it is off, or a firewall is between" in lines
    assert "  ! " + NOT_THERE in lines
    boxes = [line[:3] for line in lines if line[1:2] == " " and line[0] in "▣☐·"]
    assert boxes == ["☐ c", "▣ 0", "☐ 1", "☐ 0"]


def test_cpu_slots_that_something_uses_are_counted_as_the_command_line_counts_them():
    busy = {f"cpu:{n}": Availability("busy", "busy") for n in (0, 1)}
    host = replace(seen(Host("gpu1"), slots(2)), freedom=busy)
    source = DeviceSource(slots(1), None, StillHosts(host))
    assert freest.free_on(host) == ["cpu:0", "cpu:1"]
    assert "gpu1  2 of 2 usable" in text(DeviceTable(source.machines), 120).splitlines()


def test_what_a_host_says_can_do_nothing_to_the_terminal():
    own, bad = slots(1), gpus(1)
    evil = replace(bad.devices[0], name="A\x1b]52;c;ZQ==\x07\x9b2J")
    host = seen(Host("gpu1", label="x\x1b[2J"), replace(bad, devices=(evil,), problem="\x1b[2J!"))
    host = replace(host, reason="no\x1b[2J", state="away",
                   freedom={"0": Availability("busy", "\x1b]0;x\x07")})
    assert "\x1b" not in text(DeviceTable(DeviceSource(own, None, StillHosts(host)).machines))
    assert "\x9b" not in text(DeviceTable(DeviceSource(own, None, StillHosts(host)).machines))


_KEYS = st.lists(st.builds(row_keys.of, st.sampled_from(["gpu1", "alice@gpu2", None]),
                           st.sampled_from(["0", "1", "cpu:0", "GPU-0000-11", "MIG-GPU-1/2/3"])),
                 min_size=1, unique=True)


@given(_KEYS)
def test_ticks_become_entries_and_entries_ticks(keys):
    entries = row_keys.entries(keys)
    if entries is None:
        assert all(row_keys.split(key)[0] is None for key in keys)
        return
    again = row_keys.of_hosts(entries, {})
    assert sorted(again) == sorted(keys), "nothing is lost"
    assert [k for k in again if k.startswith("gpu1 ")] == \
        [k for k in keys if k.startswith("gpu1 ")], "each machine's in the order of ticking"
    assert row_keys.entries(again) == entries


async def test_ticks_over_machines_and_back():
    async with panel(slots(2), hosts=lab()) as (pilot, screen):
        pane = screen.devices
        await pilot.press("1")
        await until(pilot, lambda: "gpu1 0" in pane.keys)
        pane.tick([])
        for key in ("gpu1 0", "cpu:1", "alice@gpu2 0", "gpu1 1"):
            pane.cursor = pane.keys.index(key)
            await pilot.press("space")
            await until(pilot, lambda key=key: key in pane.ticked)
        assert screen.draft.data["devices"] == {
            "hosts": ["gpu1:0,1", "local:cpu:1", "alice@gpu2:0"]}
        assert pane.ticked == ("gpu1 0", "gpu1 1", "cpu:1", "alice@gpu2 0")
        for key in ("gpu1 0", "gpu1 1", "alice@gpu2 0"):
            pane.cursor = pane.keys.index(key)
            await pilot.press("space")
            await until(pilot, lambda key=key: key not in pane.ticked)
        assert screen.draft.data["devices"] == {"ids": ["cpu:1"]}


async def test_a_preset_that_leaves_the_machine_open_gets_the_freest_and_waits_for_any():
    one, two = (seen(Host(name), gpus(n)) for name, n in (("gpu1", 2), ("gpu2", 3)))
    hosts = StillHosts(*(replace(m, recent=m.recent * 3, welcome=changed(
        m.welcome, interpreter="/there/bin/python")) for m in (one, two)),
                       HostSeen(Host("gpu3"), "away", reason="no answer"))
    named = "devices.hosts=gpu1,gpu2,gpu3,local"
    async with panel(gpus(1), hosts=hosts, sets=(named, "devices.pick=2")) as (pilot, screen):
        await until(pilot, lambda: screen.devices.ticked == ("gpu2 0", "gpu2 1"))
        await settled(pilot, screen)
        assert screen.review.problems == ()
        lines = text(screen.devices._table, 120).splitlines()
        assert [line for line in lines if "free" in line and line.startswith(("gpu", "this"))] == [
            "this machine  1 of 1 free", "gpu1  2 of 2 free", "gpu2  3 of 3 free · the freest"]
        assert not [line for line in lines if "The preset asks" in line]
        await pilot.press("Q")
        await on_top(pilot, CommandDialog)
        asked = {name: widget.value for name, widget in fields_of(pilot.app).items()}
        assert {name: text for name, text in asked.items() if text} == {
            "-n": "2", MORE: f"--set {named} "}


async def test_ticks_of_a_host_that_never_answered_can_be_taken_away():
    async with panel(slots(2), hosts=lab()) as (pilot, screen):
        pane = screen.devices
        await pilot.press("1")
        for entry in ("gpu4:0", "gpu4"):
            [key] = row_keys.of_hosts([entry], {})
            screen.draft.tick([key, "cpu:1"], [entry, "local:cpu:1"])
            pane.paint()
            await until(pilot, lambda key=key: pane.ticked == (key, "cpu:1") and key in pane.keys)
            pane.cursor = pane.keys.index(key)
            await pilot.press("space")
            await until(pilot, lambda: pane.ticked == ("cpu:1",))
            assert screen.draft.data["devices"] == {"ids": ["cpu:1"]}
            assert key not in pane.keys


async def test_what_would_run_on_each_host_is_shown():
    hosts = lab()
    hosts.show(replace(hosts.seen[1], state="seen", reason=None))
    async with panel(gpus(1), hosts=hosts, size=(160, 60),
                     sets=("batch.size=33",)) as (pilot, screen):
        await until(pilot, lambda: "gpu1 0" in screen.devices.keys)
        screen.devices.tick(["gpu1 0", "gpu1 1", "alice@gpu2 0"])
        await settled(pilot, screen)
        assert screen.review.problems == ()
        mode = screen.form.query_one("#f-parallel-mode")
        assert (mode.value, screen.draft.value("parallel.mode")) == ("multinode", "ddp")
        assert not screen.form.query_one("#f-parallel-node_rank").display
        screen.devices.tick(["gpu1 0", "gpu1 1"])
        await settled(pilot, screen)
        assert mode.value == "ddp"
        screen.devices.tick(["gpu1 0", "gpu1 1", "alice@gpu2 0"])
        await settled(pilot, screen)
        plan = said(screen.plan)
        assert "gpu1        GPU 0 → cuda:0 rank 0   GPU 1 → cuda:1 rank 1\n" in plan
        assert "alice@gpu2  GPU 0 → cuda:0 rank 2\n" in plan
        assert """--set 'devices.hosts=["gpu1:0,1", "alice@gpu2:0"]'""" in plan
        await pilot.press("3", "v")
        await until(pilot, lambda: "Processes ─ 3 on 2 machines" in str(
            pilot.app.screen.query(".sheet").first().border_title)
            if pilot.app.screen.query(".sheet") else False)
        await pilot.press("escape")

        hosts.show(away(hosts.seen[0], "the connection broke"))
        screen.devices.poll()
        await until(pilot, lambda: "the connection broke" in said(screen.plan))
        assert screen.review.plan is None
        hosts.show(HostSeen(Host("gpu1")))
        screen.devices.poll()
        await until(pilot, lambda: "Asking gpu1 …" in said(screen.plan))


async def test_all_free_devices_of_a_host_are_ticked_at_a_key_and_have_details():
    async with panel(slots(1), hosts=lab(), notifications=True) as (pilot, screen):
        pane = screen.devices
        await pilot.press("1")
        await until(pilot, lambda: "gpu1 1" in pane.keys)
        before = pane.ticked
        pane.cursor = pane.keys.index("gpu1 1")
        await pilot.press("a")
        await until(pilot, lambda: set(pane.ticked) == {*before, "gpu1 0"})
        await pilot.press("a")
        await until(pilot, lambda: pane.ticked == before)

        # Its details.
        pane.cursor = pane.keys.index("gpu1 1")
        await pilot.press("i")
        await until(pilot, lambda: "GPU 1 on gpu1" in str(screen.detail.border_title))
        assert "python train.py" in shown(screen.detail)


async def test_a_wrong_hosts_file_is_said_and_nothing_else_suffers():
    hosts.path().parent.mkdir(parents=True, exist_ok=True)
    hosts.path().write_text('[hosts."a b"]\n')
    async with panel(slots(1)) as (pilot, screen):
        await until(pilot, lambda: "is no name of a host" in shown(screen.devices))
        assert screen.source.hosts == ()
        hosts.path().unlink()
        await screen.source.watch_hosts()
        await until(pilot, lambda: "is no name" not in shown(screen.devices))


async def test_the_freest_of_the_machine_under_the_cursor_and_those_that_are_not_free():
    async with panel(slots(2), hosts=lab()) as (pilot, screen):
        pane = screen.devices
        await until(pilot, lambda: "gpu1 1" in pane.keys)
        taken = await busy_devices(screen.source, ["gpu1 0", "gpu1 1", "gpu9 0", "gpu4 0"])
        assert list(map(str, taken.values())) == [
            "GPU 1 on gpu1: alice · python train.py · 70.0 GiB · 3 days"]
        await pilot.press("1")
        pane.cursor = pane.keys.index("gpu1 1")
        await pilot.press("f")
        await until(pilot, lambda: pane.ticked == ("gpu1 0",))
        pane.cursor = 0
        await pilot.press("f")
        await until(pilot, lambda: screen.draft.data["devices"].get("ids") == ["cpu:0"])


async def test_hosts_that_it_opens_with_are_planned_once_they_have_answered():
    first = lab().seen[0]
    hosts = StillHosts(HostSeen(first.host))
    async with panel(slots(1), hosts=hosts, sets=("devices.hosts=gpu1:0,1",), size=(160, 60),
                     ready=False) as (pilot, screen):
        await until(pilot, lambda: screen.devices.resolved)
        await settled(pilot, screen)
        assert "Asking gpu1 …" in said(screen.plan)
        hosts.show(first)
        await until(pilot, lambda: "GPU 1 → cuda:1 rank 1" in said(screen.plan))
        assert "has not answered" not in shown(screen.form)


async def test_a_preset_s_hosts_are_ticked_and_saved_as_they_are():
    sets = ("devices.hosts=gpu1:1,local:cpu:0",)
    async with panel(slots(1), hosts=lab(), sets=sets) as (pilot, screen):
        await until(pilot, lambda: screen.devices.ticked == ("gpu1 1", "cpu:0"))
        await settled(pilot, screen)
        spec = screen.draft.to_save(screen.source.inventory)
        assert spec.devices.hosts == ["gpu1:1", "local:cpu:0"]
        assert spec.devices.ids is None
        assert [p.key for p in screen.review.problems] == ["devices.hosts"], \
            "GPUs and CPU slots don't train together"
