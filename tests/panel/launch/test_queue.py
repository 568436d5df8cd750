"""Q: the form's run waits in the queue, is moved there, taken out, and starts in its turn."""

from __future__ import annotations

import datetime
import os
import shlex
import time
from dataclasses import replace

import pytest
from textual.widgets import Button, Input

from gpu_engine.cli.run import run as run_command
from gpu_engine.cli.spec_options import SpecChoice
from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.devices import leases as lease
from gpu_engine.devices.records import DeviceProcess, Sample
from gpu_engine.queue import serve, submit
from gpu_engine.runs import notes, sweep, waiting
from gpu_engine.runs.folder import Run
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict
from gpu_panel.common.choice import Choice
from gpu_panel.common.command_dialog import MORE, CommandDialog
from gpu_panel.common.dialogs import Confirm, Message
from gpu_panel.launch.devices import DevicesPane
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.queueing import FORM, Queued, put, to_vary
from gpu_panel.run.screen import RunScreen

from ...command_line import called
from ...conftest import gpus, slots
from ..panel_kit import (
    StillSampler,
    fields_of,
    on_top,
    panel,
    press,
    said_below,
    screen_text,
    settled,
    shown,
    until,
)


def words(pilot) -> str:
    """The screen's text on one line, without frames."""
    return " ".join(screen_text(pilot.app).replace("│", " ").split())


async def dialog(pilot, key="Q") -> dict[str, Input | Choice]:
    """The fields of the dialog that this key opens."""
    await pilot.press(key)
    await on_top(pilot, CommandDialog)
    return fields_of(pilot.app)


async def test_a_run_waits_for_a_busy_device_is_moved_taken_out_and_starts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # in no repository: its code is not kept, which is said
    held = lease.acquire(paths.leases_folder(), slots(1).devices, "3f2a")
    with held:
        async with panel(slots(1), command=("true",), size=(160, 48), notifications=True,
                         sets=("devices.ids=cpu:0",)) as (pilot, screen):
            line = await dialog(pilot)
            for name, text, said in (
                    ("--begin", "25:99", "25:99: no time that is understood"),
                    ("--after", "9f9f", "no run '9f9f'"), ("--priority", "x", "not a valid int"),
                    ("--tag", "a 'b", "No closing quotation"), (MORE, "--after", "an argument"),
                    (MORE, "ddp", "only options"), (MORE, "-- python b.py", "only options"),
                    (MORE, "--detach", "in a shell"), (MORE, "--help", "No such option"),
                    (MORE, "--set batch.sise=4", "did you mean batch.size?"),
                    (MORE, "--grid 'x", "No closing quotation"), ("-n", "9", "most 1 can be")):
                line[name].value = text
                line["--after"].focus()
                await pilot.press("enter")
                await until(pilot, lambda said=said: said in words(pilot))
                await said_below(pilot, line[name])
                line[name].value = ""
                await until(pilot, lambda: not pilot.app.screen.query_one("#trouble").display)
            await pilot.press("enter")
            await until(pilot, lambda: screen.runs.waiting == 1)
            said = words(pilot)
            assert "waits in the queue" in said
            assert "is in no git repository" in said
            await until(pilot, lambda: "waits for CPU 0, which is held by run 3f2a" in words(pilot))

            await dialog(pilot)
            for _ in range(2):  # as by a finger that is slow to let go
                pilot.app.screen.action_submit()
            await until(pilot, lambda: screen.runs.waiting == 2)
            first, second = (line.id for line in screen.runs.lines)

            screen.runs.focus()
            await until(pilot, lambda: screen.runs.has_focus)
            screen.runs.cursor = 1
            await pilot.press("left_square_bracket")
            await until(pilot, lambda: screen.runs.keys == [second, first])
            assert screen.runs.key_at_cursor == second  # the cursor stays with the run
            assert list(waiting.line(paths.queue_folder())) == [second, first]
            await pilot.press("right_square_bracket")
            await until(pilot, lambda: screen.runs.keys == [first, second])
            await pilot.press("s")
            await on_top(pilot, Confirm)
            assert f"Remove run {second} from the queue" in words(pilot)
            await pilot.press("y")
            await until(pilot, lambda: screen.runs.waiting == 1)
            assert Run(paths.runs_folder() / second).state().state == "stopped"

            screen.runs.cursor = 0
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen)
                        and pilot.app.screen.store.turn is not None)
            await until(pilot, lambda: "place 1 of 1 in the queue · since" in words(pilot))
            run = pilot.app.screen
            assert run.run_folder.id == first
            held.__exit__(None, None, None)
            await until(pilot, lambda: run.store.state.state == "completed")
            await until(pilot, lambda: "✓ completed" in words(pilot))
            assert run.store.turn is None


async def test_launch_on_a_busy_device_offers_the_queue_and_what_can_not_wait_is_said():
    machine = gpus(2)
    with lease.acquire(paths.leases_folder(), machine.devices[1:], "3f2a"):
        async with panel(machine, "single", size=(80, 24), notifications=True) as (pilot, screen):
            await until(pilot, lambda: screen.source.freedom
                        and screen.source.freedom["1"].state == "leased")
            screen.devices.tick(["1"])
            await settled(pilot, screen)
            await pilot.press("ctrl+l")
            await on_top(pilot, Confirm)
            assert "Q puts the run into the queue" in words(pilot)
            line = await dialog(pilot)
            assert "It waits for 1" in words(pilot)
            for name, about in (("-n", "the N freest devices"), ("--begin", "as 22:00, +90m"),
                                (MORE, "--asha N, --set KEY=VALUE, --mode")):
                line[name].focus()
                await until(pilot, lambda about=about: about in words(pilot))
            assert "--detach" not in words(pilot)
            await pilot.press("escape")
            await on_top(pilot, screen)
            screen.draft.put("batch.size", "x")
            await pilot.press("Q")
            await until(pilot, lambda: isinstance(pilot.app.screen, Message)
                        and "batch.size" in words(pilot))


def test_that_devices_were_shared_once_does_not_hold_for_a_run_that_waits():
    draft = Draft()
    draft.tick(["0", "3"])
    draft.share()  # by a question of Launch
    assert draft.spec_to_wait().devices.share is False


SPEC = {"name": "x", "devices": {"ids": ["cpu:0"]}, "run": {"limit": "9m"},
        "task": {"command": ["true", "--lr", "1", "{seed}"]}}
OPTIONS = {
    "sets": "--set run.grace=7 --set run.limit=90s", "mode": "--mode ddp", "count": "-n 1",
    "nodes": "--nodes 1",
    "devices": "--devices cpu:1", "run_limit": "--limit 5m", "queued": "--queue",
    "metrics": r"--metric 'val: (\S+)' --metric 'acc=(\S+)'", "tags": "--tag a,b --tag c",
    "search": "--grid lr=1..9 --tries 3 --search tpe --set run.best=min:val",
    "after": "--after {first}", "begin": "--begin '{later} 03:04'", "priority": "--priority 3",
    "grid": "--grid lr=1,2 --grid run.grace=5,6", "repeat": "--repeat 2 --set train.seed=4",
    "stop_worse": "--grid lr=1,2,3,4 --stop-worse", "halving": "--grid lr=1,2,3,4 --halving 2",
    "asha": "--grid lr=1,2,3,4 --asha 2",
    "tries": "--grid lr=1,2,3,4 --tries 2", "give_way": "--give-way --give-way-again",
    "give_way_again": "--give-way-again"}
REFUSED = {"detach": "--detach", "as_json": "--json", "quiet": "-q", "no_notify": "--no-notify",
           "preset": "ddp"}


def kept(run: Run) -> dict[str, object]:
    """What the folder of a waiting run says, without what is its own."""
    entry, member, plan = waiting.read(run.path), sweep.read(run.path), run.plan()
    return {"spec": (run.path / "spec.toml").read_text(), "plan": (plan.spec, plan.lines),
            "tags": notes.read(run.path).tags,
            "turn": replace(entry, submitted=0.0, number=0.0, sweep=None),
            "place": member and replace(member, sweep="", begun=0.0)}


@pytest.mark.parametrize("option", [  # -o is for runs that wait in Slurm's queue: test_slurm
    param.name for param in run_command.params
    if param.name != "sbatch" and not getattr(param, "hidden", False)])
def test_each_option_does_what_it_does_in_a_shell_or_is_refused(option, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    spec = from_dict(SPEC)
    if option in REFUSED:
        with pytest.raises(UserError, match=f"{REFUSED[option]}.*(in a shell|only options)"):
            FORM.parse([REFUSED[option]])
        return
    presets.save("form", spec)
    monkeypatch.setattr(serve, "ensure", lambda folder=None: 0)  # nobody starts them
    monkeypatch.setattr(submit, "supervise", lambda run, fd: os.close(fd))
    def queued(typed: str) -> Queued:
        return put(FORM.parse(shlex.split(typed)), SpecChoice(spec, ("form", spec), slots(2)))

    first = queued("").run
    typed = OPTIONS[option].format(
        first=first.id, later=datetime.date.today() + datetime.timedelta(2))
    known = {first.id}
    lines = [shlex.split(f"run --queue form {typed}"), queued(typed).words]
    assert lines[1].count("--queue") == 1
    assert not {"-n", "--devices", "--mode", "--limit"} & set(lines[1])  # --set says it
    each = [waits(known)]
    for words in lines:
        done = called(*words)
        assert done.returncode == 0, done.stderr
        each.append(waits(known))
    assert each[0] == each[1] == each[2]


def waits(known: set[str]) -> list[dict[str, object]]:
    """What the folders say that are new, in the order of the line."""
    new = [w.run for w in serve.line() if w.run.id not in known]
    known |= {run.id for run in new}
    assert new
    return [kept(run) for run in new]


async def test_a_sweep_from_the_form_after_a_few_keys(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with lease.acquire(paths.leases_folder(), slots(1).devices, "3f2a"):
        async with panel(slots(1), command=("true", "--lr", "0.1", "--n", "7"), size=(80, 24),
                         sets=("devices.ids=cpu:0",), notifications=True) as (pilot, screen):
            line = await dialog(pilot, "V")
            grid = line["--grid"]
            assert grid.has_focus
            for vary, said in (("train.lrr=1,2", "did you mean train.lr?"),
                               ("batch.size=2,4", "batch.size: has no effect")):
                grid.value = vary
                await pilot.press("enter")
                await until(pilot, lambda said=said: said in words(pilot))
                await said_below(pilot, grid)
            grid.value, line["--stop-worse"].value = "lr=1,2", "yes"
            await pilot.press("enter")
            await until(pilot, lambda: "compares 4 runs or more" in words(pilot))
            await said_below(pilot, line["--stop-worse"])
            grid.value, line["--stop-worse"].value = "lr=", ""
            pilot.app.screen.query_one(Button).focus()
            await pilot.press("shift+tab", *["shift+tab"] * 5)
            assert grid.has_focus
            await pilot.press("full_stop", "1", "comma", "full_stop", "3", "enter")
            await until(pilot, lambda: screen.runs.waiting == 2)
            assert "Sweep s" in words(pilot)
            await until(pilot, lambda: screen.runs.sweep_at_cursor is not None)
    line = serve.line()
    assert [w.run.plan().spec.task.command for w in line] == [
        ["true", "--lr", v, "--n", "7"] for v in (".1", ".3")]
    assert [sweep.read(w.run.path).values for w in line] == [{"lr": ".1"}, {"lr": ".3"}]
    for one in line:
        one.run.stop()


@pytest.mark.parametrize(("spec", "said"), [
    ({"task": {"use": "a:B"}}, "train.lr="),
    ({"task": {"command": ["x", "{lr}", "--n", "1"]}}, "train.lr="),
    ({"task": {"command": ["x", "y"]}}, ""),
])
def test_what_is_proposed_to_vary(spec, said):
    assert to_vary(from_dict(spec)) == said


# --- Devices that are not free are shared only after a question; the freest are ticked ---


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Records launches instead of starting them."""
    plans = []

    def start(prepared):
        plans.append(prepared)
        return Run(tmp_path / "none")

    monkeypatch.setattr("gpu_engine.places.verbs.start", start)
    monkeypatch.setattr("gpu_panel.launch.runs.RunsPane.open", lambda self, run: None)
    return plans


async def asked(pilot, *said: str):
    await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                and all(text in screen_text(pilot.app) for text in said))


async def test_a_device_that_another_run_holds_can_be_shared_after_one_question(started):
    machine = gpus(2)
    with lease.acquire(paths.leases_folder(), machine.devices[1:], "3f2a"):
        async with panel(machine, "single") as (pilot, screen):
            await until(pilot, lambda: screen.source.freedom
                        and screen.source.freedom["1"].state == "leased")
            screen.devices.tick(["1"])
            await settled(pilot, screen)
            assert "held by run 3f2a" in shown(screen.query_one(DevicesPane))
            assert screen.review.problems
            await pilot.press("ctrl+l")
            await asked(pilot, "GPU 1: held by run 3f2a", "Share and launch")
            await pilot.press("n")
            await on_top(pilot, screen)
            assert started == []
            await pilot.press("ctrl+l")
            await asked(pilot, "Share and launch")
            await pilot.press("y")
            await until(pilot, lambda: started)
            assert started[0].spec.devices.share is True
            assert "devices.share=true" in started[0].plan.lines[0]
            screen.devices.tick(["0"])
            assert not screen.draft.data["devices"].get("share")


async def test_something_else_that_does_not_fit_is_said_before_sharing(started):
    machine = gpus(2)
    with lease.acquire(paths.leases_folder(), machine.devices, "3f2a"):
        async with panel(machine, "single") as (pilot, screen):
            screen.draft.put("parallel.mode", "single")
            screen.devices.tick(["0", "1"])
            await settled(pilot, screen)
            await pilot.press("ctrl+l")
            await pilot.pause(0.2)
            assert pilot.app.screen is screen
            assert started == []


async def test_a_busy_device_ticked_by_hand_is_asked_about_once(started):
    machine = gpus(1)
    bob = DeviceProcess(7, 9 << 30, user="bob", command="python [bold]x.py", started=time.time())
    busy = Sample(machine.devices[0], 0.9, 9 << 30, 80 << 30, processes=(bob,))
    async with panel(machine, "single", sampler=StillSampler(machine, (busy,))) as (pilot, screen):
        await press(pilot, screen, "space")
        await pilot.press("ctrl+l")
        await asked(pilot, "GPU 0: bob · python [bold]x.py", "Share and launch")
        await pilot.press("y")
        await until(pilot, lambda: started)
        assert started[0].spec.devices.share is True
        assert "devices.share=true" in started[0].plan.lines[0]  # the same by hand


async def test_a_device_with_a_fault_is_asked_about_and_not_shared(started):
    machine = gpus(1)
    worn = Sample(machine.devices[0], 0.0, 0, 80 << 30, processes=(), health=("2 errors",))
    async with panel(machine, "single", sampler=StillSampler(machine, (worn,))) as (pilot, screen):
        await press(pilot, screen, "space")
        await pilot.press("ctrl+l")
        await asked(pilot, "GPU 0: 2 errors", "Launch anyway")
        await pilot.press("y")
        await until(pilot, lambda: started)
        assert started[0].spec.devices.share is False

