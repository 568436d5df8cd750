"""Q: the form's run waits in the queue, is moved there, taken out, and starts in its turn."""

from __future__ import annotations

import time

import pytest
from textual.widgets import Input, Static

from gpu_engine.common import paths
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices import leases as lease
from gpu_engine.queue.submit import When
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict
from gpu_panel.common.choice import Choice
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.queueing import QueueDialog, Wish, Wrong, field_of, first_wish, to_vary
from gpu_panel.run.screen import RunScreen

from ...conftest import gpus, slots
from ..panel_kit import panel, screen_text, settled, until


def words(pilot) -> str:
    """The screen's text on one line, without frames."""
    return " ".join(screen_text(pilot.app).replace("│", " ").split())


async def test_a_run_waits_for_a_busy_device_is_moved_taken_out_and_starts(home, monkeypatch,
                                                                           tmp_path):
    monkeypatch.chdir(tmp_path)  # in no repository: its code is not kept, which is said
    held = lease.acquire(paths.leases_folder(), slots(1).devices, "3f2a")
    with held:
        async with panel(slots(1), command=("true",), size=(160, 48), notifications=True,
                         sets=("devices.ids=cpu:0",)) as (pilot, screen):
            await pilot.press("Q")
            await until(pilot, lambda: isinstance(pilot.app.screen, QueueDialog))
            dialog = pilot.app.screen
            assert "● CPU 0" in screen_text(pilot.app)
            dialog.query_one("#q-begin", Input).value = "25:99"
            await pilot.press("enter")
            await until(pilot, lambda: "25:99: no time that is understood" in words(pilot))
            assert dialog.query_one("#q-begin", Input).has_focus
            dialog.query_one("#q-begin", Input).value = ""
            dialog.query_one("#q-devices", Choice).choose("any")
            dialog.query_one("#q-count", Input).value = "9"
            await pilot.press("enter")
            await until(pilot, lambda: dialog.query_one("#wrong-count").display)
            assert "this machine has 1" in str(dialog.query_one("#wrong-count", Static).content)
            dialog.query_one("#q-devices", Choice).choose("these")
            await pilot.press("enter")
            await until(pilot, lambda: screen.runs.waiting == 1)
            said = words(pilot)
            assert "waits in the queue for CPU 0" in said
            assert "is in no git repository" in said
            await until(pilot, lambda: "waits for CPU 0, which is held by run 3f2a" in words(pilot))

            await pilot.press("Q")
            await until(pilot, lambda: isinstance(pilot.app.screen, QueueDialog))
            await pilot.press("enter")
            await until(pilot, lambda: screen.runs.waiting == 2)
            first, second = (line.id for line in screen.runs.lines)
            screen.edited()
            await settled(pilot, screen)
            assert f"! run {first} has been waiting for CPU 0 since" in words(pilot)

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
            await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
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


async def test_launch_on_a_busy_device_offers_the_queue_and_what_can_not_wait_is_said(home):
    machine = gpus(2)
    with lease.acquire(paths.leases_folder(), machine.devices[1:], "3f2a"):
        async with panel(machine, "single", size=(80, 24), notifications=True) as (pilot, screen):
            await until(pilot, lambda: screen.source.freedom
                        and screen.source.freedom["1"].state == "leased")
            screen.devices.tick(["1"])
            await settled(pilot, screen)
            await pilot.press("ctrl+l")
            await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
            assert "Q puts the run into the queue" in words(pilot)
            await pilot.press("Q")
            await until(pilot, lambda: isinstance(pilot.app.screen, QueueDialog))
            assert "● GPU 1" in screen_text(pilot.app)
            assert "Queue it" in screen_text(pilot.app)  # all of it fits
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is screen)
            screen.draft.put("batch.size", "x")
            await pilot.press("Q")
            await until(pilot, lambda: "Can't launch" in words(pilot))
            assert pilot.app.screen is screen


def test_what_is_typed_becomes_what_the_engine_takes():
    spec = from_dict({"devices": {"ids": ["1"], "share": True}})
    now = time.mktime((2026, 11, 22, 10, 2, 0, 0, 0, -1))
    assert Wish().spec(spec).devices.ids == ["1"]
    free = Wish(any=True, count="2", free="19.5").spec(spec).devices
    assert (free.ids, free.pick, free.free_gib, free.share) == (None, 2, 19.5, True)
    assert Wish().when(now) == When()
    assert Wish(after="3f2a", begin="22:00", priority="-2", free_for="1.5").when(now) \
        == When("3f2a", now + 12 * 3600 - 120, -2, 1.5)


@pytest.mark.parametrize(("wish", "field"), [
    (Wish(any=True, count="x"), "count"), (Wish(any=True, count="0"), "count"),
    (Wish(any=True, free="much"), "free"), (Wish(any=True, free="-1"), "free"),
    (Wish(any=True, free="nan"), "free"), (Wish(begin="soon"), "begin"),
    (Wish(priority="1.5"), "priority"), (Wish(free_for="inf"), "free-for")])
def test_what_does_not_fit_is_said_at_its_field(wish, field):
    with pytest.raises(Wrong) as caught:
        (wish.spec(from_dict({})), wish.when(0.0))
    assert caught.value.field == field


def test_what_the_engine_says_is_shown_at_its_field():
    assert field_of(UserError("--after 3f2a: it failed")) == ("after", "3f2a: it failed")
    assert field_of(UserError("--free-for 9999: give less")) == ("free-for", "9999: give less")
    assert field_of(UserError("the disk is full")) == (None, "the disk is full")
    assert field_of(SpecError([Problem("devices.pick", 9, "there are 4")])) \
        == ("count", "there are 4")
    assert field_of(SpecError([Problem("batch.size", 5, "must divide")]))[0] is None


def test_what_the_dialog_proposes():
    draft = Draft()
    assert first_wish(draft) == Wish(any=True, count="1")
    draft.tick(["0", "3"])
    assert first_wish(draft) == Wish(any=False, count="2")
    draft.share()  # by a question of Launch
    assert draft.spec_to_wait().devices.share is False


async def test_an_option_of_an_own_command_varies_after_a_few_keys(home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    held = lease.acquire(paths.leases_folder(), slots(1).devices, "3f2a")
    with held:
        async with panel(slots(1), command=("true", "--lr", "0.1", "--n", "7"),
                         sets=("devices.ids=cpu:0",)) as (pilot, screen):
            await pilot.press("V")
            await until(pilot, lambda: isinstance(pilot.app.screen, QueueDialog))
            assert pilot.app.screen.query_one("#q-vary", Input).value == "lr="
            await pilot.press("full_stop", "1", "comma", "full_stop", "3", "enter")
            await until(pilot, lambda: screen.runs.waiting == 2)
            await until(pilot, lambda: screen.runs.sweep_at_cursor is not None)
    from gpu_engine.queue import change

    line = change.line()
    assert [w.run.plan().spec.task.command for w in line] == [
        ["true", "--lr", v, "--n", "7"] for v in (".1", ".3")]
    for one in line:
        one.run.stop()


@pytest.mark.parametrize(("spec", "said"), [
    ({"task": {"use": "a:B"}}, "train.lr="),
    ({"task": {"command": ["x", "{lr}", "--n", "1"]}}, "train.lr="),
    ({"task": {"command": ["x", "--learning-rate=1e-3", "--n", "1"]}}, "learning-rate="),
    ({"task": {"command": ["x", "--n", "1", "--name", "y"]}}, "n="),
    ({"task": {"command": ["x", "y"]}}, ""),
])
def test_what_is_proposed_to_vary(spec, said):
    assert to_vary(from_dict(spec)) == said


async def test_a_sweep_from_the_form(home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    held = lease.acquire(paths.leases_folder(), slots(1).devices, "3f2a")
    with held:
        async with panel(slots(1), command=("true", "{lr}"), size=(80, 24), notifications=True,
                         sets=("devices.ids=cpu:0",)) as (pilot, screen):
            await pilot.press("Q")
            await until(pilot, lambda: isinstance(pilot.app.screen, QueueDialog))
            dialog = pilot.app.screen
            for vary, words_said in (("train.lrr=1,2", "did you mean train.lr?"),
                                     ("batch.size=2,4", "is never told it")):
                dialog.query_one("#q-vary", Input).value = vary
                await pilot.press("enter")
                await until(pilot, lambda said=words_said: said in words(pilot))
                assert dialog.query_one("#q-vary", Input).has_focus
            assert screen.runs.waiting == 0
            dialog.query_one("#q-vary", Input).value = "train.lr=0.1,0.2,0.3"
            await pilot.press("enter")
            await until(pilot, lambda: screen.runs.waiting == 3)
            assert "Sweep s" in words(pilot)
    from gpu_engine.queue import change
    from gpu_engine.runs import sweep

    line = change.line()
    assert [sweep.read(w.run.path).values for w in line] == [
        {"train.lr": v} for v in ("0.1", "0.2", "0.3")]
    for one in line:
        one.run.stop()
