"""The launch screen, driven by keys: ticks, typing, and the answers to them."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
from textual.events import Key
from textual.widgets import Button, Input

from gpu_engine.devices.records import Sample
from gpu_engine.places import verbs
from gpu_engine.runs.create import create_run
from gpu_engine.spec import presets
from gpu_panel.common.choice import Choice
from gpu_panel.common.dialogs import Message
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch import screen as launch_screen
from gpu_panel.launch.devices import DevicesPane
from gpu_panel.launch.fields import OWN_CLASS, OWN_COMMAND
from gpu_panel.launch.form import FormPane

from ...conftest import gpus, slots
from ...plans import plan
from ..panel_kit import (
    StillSampler,
    on_top,
    panel,
    press,
    problems_below,
    says,
    screen_text,
    settled,
    shown,
    type_into,
    until,
)


def plan_text(screen) -> str:
    return str(screen.query_one("#plan-text").content)


async def choose(pilot, screen, field, value):
    screen.query_one("#" + field, Choice).choose(value)
    await settled(pilot, screen)


async def test_opens_with_the_default_ready_to_launch_to_copy_and_with_help(home):
    async with panel(slots(2)) as (pilot, screen):
        assert screen.draft.ids == ["cpu:0", "cpu:1"]
        assert problems_below(screen) == []
        assert not screen.query_one("#launch", Button).disabled
        assert "32 global = 16 per slot × 2 slots × 1" in plan_text(screen)
        assert "$ gpu-engine run default --set devices.ids=cpu:0,cpu:1" in plan_text(screen)
        assert "CPU 0 → cpu rank 0" in plan_text(screen)
        assert screen.query_one(FormPane).border_title == "Launch ─ preset default"
        await pilot.press("y")
        await until(pilot, lambda: (home / "copied.txt").exists())
        assert (home / "copied.txt").read_text() == "\n".join(screen.review.plan.lines) + "\n"
        assert pilot.app.clipboard == "\n".join(screen.review.plan.lines)
        await pilot.press("v")
        await pilot.pause()
        said = str(pilot.app.screen.query_one(".sheet > Static").content)
        assert "Process 2 of 2: rank, rank 1" in said
        assert "LOCAL_RANK=1" in said
        assert "CUDA_VISIBLE_DEVICES=" in said
        await pilot.press("escape")
        await on_top(pilot, screen)
        await pilot.press("question_mark")
        await pilot.pause()
        said = str(pilot.app.screen.query_one(".sheet > Static").content)
        assert all(k.tooltip in said for part in screen.key_sections() for k in part.keys)
        assert "Tick the devices that the run may use" in said
        await pilot.press("escape")
        await on_top(pilot, screen)
        for pane in ("1", "2", "3", "4"):
            await pilot.press("escape", pane)
            await pilot.pause()
            await pilot.pause()
            assert 3 <= len(screen.query_one(KeyBar).shown) <= 8


async def test_ticks_all_none_freest_and_by_a_click_and_the_plan_follows():
    async with panel(gpus(4)) as (pilot, screen):
        assert screen.draft.ids == ["0", "1"]
        await press(pilot, screen, "space", "down", "down", "space")
        assert screen.draft.ids == ["1", "2"]
        assert "GPU 1 → cuda:0 rank 0   GPU 2 → cuda:1 rank 1" in plan_text(screen)
        assert "devices.ids=1,2" in plan_text(screen)
        assert screen.query_one(DevicesPane).border_title.startswith("Devices ─ 2 ticked")
        await press(pilot, screen, "a")
        assert screen.draft.ids == ["1", "2", "0", "3"]
        await press(pilot, screen, "a")
        assert screen.draft.ids == []
        assert "choose at least one device" in shown(screen.query_one(DevicesPane))
        await press(pilot, screen, "f")
        assert screen.draft.ids == ["0"]
        lines = shown(screen.query_one(DevicesPane)).splitlines()
        there = next(y for y, line in enumerate(lines) if "☐ 2" in line)
        await pilot.click("#devices", offset=(4, there))
        await settled(pilot, screen)
        assert screen.draft.ids == ["0", "2"]


async def test_what_is_not_free_is_left_to_the_person():
    machine = gpus(2)
    busy = tuple(Sample(d, 0.9, 70 << 30, 80 << 30, processes=()) for d in machine.devices)
    async with panel(machine, sampler=StillSampler(machine, busy)) as (pilot, screen):
        assert screen.draft.ids == []
        said = " ".join(shown(screen.query_one(DevicesPane)).split())
        assert "the 2 freest devices, and none can be taken; GPU 0: 70.0 GiB of" in said
        await press(pilot, screen, "space")
        assert screen.review.problems == ()


# --- each refusal, beside its field ------------------------------------------------------------

async def test_a_global_size_that_does_not_divide_and_a_task_that_is_not_there():
    async with panel(slots(2)) as (pilot, screen):
        await type_into(pilot, screen, "f-batch-size", "33")
        assert problems_below(screen) == \
            ["✗ size: a global batch must divide by 2 replicas; 32 or 34 would"]
        assert screen.query_one("#f-batch-size").has_class("-invalid")
        button = screen.query_one("#launch", Button)
        assert button.disabled
        assert plan_text(screen) == "✗ see the form: size"  # a sentence stands in one place
        screen.action_pane("devices")
        screen.bring_forward("devices")
        assert plan_text(screen).startswith("✗ batch.size = 33: a global batch must divide")
        await pilot.press("ctrl+l")  # goes to the field
        await until(pilot, lambda: screen.focused is not None
                    and screen.focused.id == "f-batch-size")
        await type_into(pilot, screen, "f-batch-size", "34")
        assert problems_below(screen) == []
        assert not button.disabled
        assert "34 global = 17 per slot" in plan_text(screen)
        screen.query_one("#task-choice", Choice).choose(OWN_CLASS)
        await settled(pilot, screen)
        assert "name a task" in problems_below(screen)[0]
        await type_into(pilot, screen, "f-task-use", "no_such_module:Net")
        assert problems_below(screen) == ["✗ there is no module no_such_module"]


async def test_launch_brings_the_field_with_the_problem_into_view():
    async with panel(slots(2), sets=("run.python=/no/such/python",), size=(110, 30)) as (
            pilot, screen):
        field, form = screen.query_one("#f-run-python"), screen.query_one("Fieldset")
        await pilot.press("ctrl+l")
        await until(pilot, lambda: form.region.contains_region(field.region))


async def test_fields_ask_for_what_they_need():
    async with panel(slots(2)) as (pilot, screen):
        assert not screen.query_one("#f-parallel-nodes").display
        assert not screen.query_one("#f-train-lr_reference_batch").display
        box = next(b for b in screen.query("#params Input").results(Input)
                   if b.placeholder == "128")
        await type_into(pilot, screen, box.id, "64")
        assert "--set task.params.width=64" in plan_text(screen)
        await choose(pilot, screen, "f-train-lr_scale", "linear")
        assert "needs the global batch" in problems_below(screen)[0]
        await type_into(pilot, screen, "f-train-lr_reference_batch", "16")
        assert "lr 0.004 = 0.002 × 2 (linear, reference batch 16)" in plan_text(screen)
        await choose(pilot, screen, "f-parallel-mode", "multinode")
        assert screen.query_one("#f-parallel-nodes").display
        await type_into(pilot, screen, "f-parallel-node_rank", "5")
        assert "with 2 nodes the ranks are 0 to 1" in problems_below(screen)[0]
        await type_into(pilot, screen, "f-parallel-node_rank", "1")
        await type_into(pilot, screen, "f-parallel-master_addr", "10.0.0.1")
        assert problems_below(screen) == []
        assert plan_text(screen).count("torch.distributed.run") == 2


async def test_the_default_takes_the_one_device_there_is_and_an_own_command_too():
    async with panel(slots(1)) as (pilot, screen):
        assert screen.draft.ids == ["cpu:0"]
        assert screen.review.problems == ()
        screen.query_one("#task-choice", Choice).choose(OWN_COMMAND)
        await settled(pilot, screen)
        assert problems_below(screen) == ["✗ the command is empty"]
        await type_into(pilot, screen, "f-task-command", "python -m x.py --bs {batch.per_gpu}")
        assert problems_below(screen) == []
        assert "x.py --bs 64" in plan_text(screen)
        await type_into(pilot, screen, "f-task-command", "python {oops}")
        assert "there is no such placeholder" in problems_below(screen)[0]


async def test_a_preset_with_markup_in_its_words():
    presets.own_folder().mkdir(parents=True)
    (presets.own_folder() / "odd.toml").write_text(
        'name = "[bold]x[/nope]"\n[task]\nuse = "[red]a:B"\n'
        '[devices]\nids = ["cpu:0", "[blink]"]\n')
    async with panel(slots(1), "odd") as (_, screen):
        assert "[blink]" in shown(screen.query_one(DevicesPane))
        assert "[red]a" in plan_text(screen)


# --- presets that can't be had -----------------------------------------------------------------

@pytest.mark.parametrize(("preset", "sets", "said"), [
    ("nope", (), "there is no preset 'nope'"),
    (None, ("batch.sise=3",), "did you mean batch.size?"),
])
async def test_what_can_not_be_read_is_said_and_the_panel_opens(preset, sets, said):
    async with panel(slots(1), preset, sets=sets, ready=False) as (pilot, screen):
        await on_top(pilot, Message)
        assert said in str(pilot.app.screen.query_one(".dialog-text > Static").content)
        await pilot.press("escape")
        await until(pilot, lambda: screen.review is not None)


# --- The form takes the place of the runs and gives it back; what its keys and a tick do ---


async def test_it_comes_with_a_key_or_a_click_and_goes_with_escape_or_a_launch():
    async with panel(slots(1), command=("true",)) as (pilot, screen):
        assert not screen.form.display
        assert "true   single" in screen_text(pilot.app)
        await pilot.press("3", "enter")
        await until(pilot, lambda: screen.form.has_focus_within and not screen.preview.display)
        assert screen.runs.is_on_screen  # the form lies over the preview alone
        assert screen.focused.id == "task-choice"
        screen.query_one("#f-parallel-mode").focus()
        await pilot.press("escape")
        await until(pilot, lambda: screen.devices.has_focus and screen.form.display)
        await pilot.press("escape")
        await until(pilot, lambda: not screen.form.display)
        await pilot.press("2")  # the field that was used last has the focus again
        await until(pilot, lambda: screen.focused is screen.query_one("#f-parallel-mode"))
        await pilot.press("4")
        await until(pilot, lambda: not screen.form.display)
        await pilot.click(screen.plan, offset=(5, 1))
        await until(pilot, lambda: screen.form.has_focus_within)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.runs.lines and screen.runs.has_focus)


def test_a_run_that_begins_has_its_devices_once_it_is_more_than_written(home, monkeypatch):
    """As long as its state is that of its making, its devices look free."""
    run, lock = create_run("a", "", plan())
    states = ["starting", "running"]
    monkeypatch.setattr(launch_screen.time, "sleep", lambda _: run.write_state(
        replace(run.state(), state=states.pop(0))))
    launch_screen.has_begun(run)
    assert not states
    run.write_state(replace(run.state(), state="queued", reason="Slurm job 7 waits"))
    launch_screen.has_begun(run)
    os.close(lock)


async def test_a_second_launch_while_one_starts_is_none_and_keys_wait_for_the_form(monkeypatch):
    """From the first moment on, when neither preset nor devices are known."""
    begun, started = threading.Event(), []

    def start(prepared):
        started.append(prepared)
        return create(prepared)

    create = verbs.start
    monkeypatch.setattr(verbs, "start", start)
    monkeypatch.setattr(launch_screen, "has_begun", lambda run: begun.wait(60))
    async with panel(slots(1), command=("true",), ready=False, notifications=True) as (
            pilot, screen):
        for key in ("ctrl+l", "ctrl+l"):
            pilot.app.post_message(Key(key, None))
        await until(pilot, lambda: screen.runs.lines and screen.runs.has_focus)
        await pilot.press("ctrl+l")
        await says(pilot, "The run is already starting")
        assert len(started) == 1
        begun.set()
        await until(pilot, lambda: not screen._launching)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: len(started) == 2)
        await until(pilot, lambda: len(screen.runs.lines) == 2)


async def test_a_field_is_found_by_a_part_of_its_name():
    async with panel(gpus(2), size=(80, 24)) as (pilot, screen):
        await pilot.press("g")
        await says(pilot, "parallel.mode")
        await pilot.press("l", "r")
        await says(pilot, "train.lr_scale")
        await pilot.press("enter")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-train-lr"))
        await press(pilot, screen, "0", ".", "5")
        assert screen.draft.value("train.lr") == 0.5


async def test_what_is_no_number_is_told_at_its_field_and_the_plan_follows_again():
    async with panel(slots(2)) as (pilot, screen):
        for odd in ("nan", "1e400", "-inf"):
            await type_into(pilot, screen, "f-train-lr", odd)
            await until(pilot, lambda: problems_below(screen)
                        == ["✗ learning rate: expected a number greater than 0"])
            assert plan_text(screen) == "✗ see the form: learning rate"
            await type_into(pilot, screen, "f-train-lr", "0.01")
            await until(pilot, lambda: "lr 0.01, not scaled" in plan_text(screen))


# --- ticks, and what they do to the mode --------------------------------------------------------

async def test_a_second_tick_turns_single_into_ddp_and_back_and_says_so():
    async with panel(gpus(3), command=("true",), notifications=True) as (pilot, screen):
        assert (screen.draft.ids, screen.draft.mode) == (["0"], "single")
        await press(pilot, screen, "down", "space")
        assert (screen.draft.ids, screen.draft.mode) == (["0", "1"], "ddp")
        assert screen.query_one("#f-parallel-mode", Choice).value == "ddp"
        await says(pilot, "2 devices: DDP")
        await press(pilot, screen, "space")
        assert (screen.draft.ids, screen.draft.mode) == (["0"], "single")
        await pilot.press("space")
        screen.query_one("#f-parallel-mode", Choice).choose("single")
        await settled(pilot, screen)
        assert "single trains on one device and 2 are chosen" in screen_text(pilot.app)
        await press(pilot, screen, "space", "space")
        assert screen.draft.mode == "single"  # that the person has chosen stays
