"""The draft: a preset's dict that is edited in the form."""


import pytest
from textual.command import CommandPalette
from textual.events import Key
from textual.widgets import Input, OptionList

from gpu_engine.common.errors import SpecError
from gpu_engine.common.values import Kind
from gpu_engine.devices.records import Sample, Snapshot
from gpu_engine.spec import presets
from gpu_engine.spec.catalog import TaskField
from gpu_engine.spec.read import from_dict
from gpu_panel.common.dialogs import AskLine, Confirm, Message
from gpu_panel.launch.draft import Draft, first_draft

from ...conftest import gpus
from ..panel_kit import _met, on_top, panel, says, screen_text, settled, type_into, until


@pytest.fixture
def draft():
    return Draft(None, presets.load("default"))


def looks(inventory, busy=()):
    samples = tuple(Sample(d, utilization=0.9 if d.id in busy else 0.0, memory_used=0,
                           memory_total=d.memory_total, processes=())
                    for d in inventory.devices)
    return (Snapshot(1.0, samples),) * 3


def test_what_does_not_parse_is_kept_and_named(draft):
    draft.put("batch.size", "many")
    assert draft.text("batch.size") == "many"
    with pytest.raises(SpecError) as told:
        draft.spec()
    assert [p.key for p in told.value.problems] == ["batch.size"]


def test_retyping_the_same_value_is_no_change(draft):
    assert not draft.changed
    draft.put("train.lr", "0.0020")
    draft.put("train.seed", "0")
    assert not draft.changed
    draft.put("train.seed", "1")
    assert draft.changed
    assert draft.title.endswith("(changed)")


def test_what_a_mode_has_no_field_for_is_kept_aside(draft):
    draft.put("parallel.mode", "multinode")
    draft.put("parallel.node_rank", "1")
    draft.put("parallel.master_port", "29511")
    draft.put("parallel.mode", "single")
    assert draft.spec().parallel.nodes == 1
    draft.put("parallel.mode", "multinode")
    parallel = draft.spec().parallel
    assert (parallel.nodes, parallel.node_rank, parallel.master_port) == (2, 1, 29511)


def test_a_text_parameter_stays_a_text(draft):
    draft.put_param(TaskField("text", "str", "", False, "", Kind("str")), "123")
    draft.put_param(TaskField("width", "int", 1, False, "", Kind("int")), "64")
    assert draft.value("task.params.text") == "123"
    assert draft.value("task.params.width") == 64


def test_cards_are_found_by_uuid_and_absent_ones_named():
    machine = gpus(2)
    draft, _ = first_draft("default", [f"devices.ids={machine.devices[1].uuid},GPU-gone"], None)
    draft.resolve(machine, (), {})
    assert draft.ids == ["1"]
    assert draft.absent == ("GPU-gone",)
    draft.tick(["0"])
    assert draft.absent == ()


def test_another_task_has_none_of_the_parameters_of_the_one_before(draft):
    draft.use_task("a:Task")
    draft.put_param(TaskField("width", "int", 1, False, "", Kind("int")), "64")
    draft.use_task("a:Task")
    assert draft.says("task.params.width")
    draft.put("run.grad_norm", "true")  # which is for a command alone
    draft.use_task("b:Task")
    assert not draft.says("task.params.width")
    assert not draft.says("run.grad_norm")


def test_about_the_same_changes_one_is_asked_once(draft):
    machine = gpus(2)
    assert not draft.should_ask
    draft.put("train.lr", "0.5")
    assert draft.should_ask
    draft.asked()
    draft.resolve(machine, looks(machine), {})
    assert not draft.should_ask
    draft.put("train.lr", "0.25")
    assert draft.should_ask


def test_a_preset_keeps_cards_by_uuid_and_untouched_wishes_as_they_were(draft):
    machine = gpus(3)
    draft.resolve(machine, looks(machine), {})
    assert draft.to_save(machine).devices.pick == 2
    draft.tick(["2", "0"])
    assert draft.to_save(machine).devices.ids == [machine.devices[2].uuid, machine.devices[0].uuid]


def test_that_a_preset_shares_outlives_ticks():
    draft, _ = first_draft("default", ["devices.ids=0", "devices.share=true"], None)
    machine = gpus(2)
    draft.resolve(machine, (), {})
    assert draft.spec().devices.share is True
    draft.tick(["1"])
    assert draft.spec().devices.share is True
    assert draft.to_save(machine).devices.share is True


def test_what_a_preset_shares_is_shared_by_a_run_that_waits():
    draft = Draft(from_dict({"devices": {"ids": ["0"], "share": True}}), run="3f2a")
    draft.tick(["1"])
    assert draft.spec_to_wait().devices.share is True


def test_two_devices_keys_of_one_command_line_are_refused_as_by_the_engine():
    draft, said = first_draft("default", ("devices.hosts=gpu1:0", "devices.pick=2"), None)
    assert "devices.hosts names devices (gpu1:0), and this chooses them" in str(said)
    assert draft.spec() == presets.load("default").spec


# --- Presets are chosen by a part of their name and saved under one; what is unsaved is ---


async def load(pilot, name):
    await pilot.press("ctrl+o")
    await on_top(pilot, CommandPalette, "default")
    await pilot.press(*name)
    found = pilot.app.screen.query_one(OptionList)
    await until(pilot, lambda: found.option_count
                and str(found.get_option_at_index(0).prompt).startswith(f"{name}\n"))
    await pilot.press("enter")


async def test_another_is_loaded_and_what_is_unsaved_is_asked_about_once():
    presets.own_folder().mkdir(parents=True)
    (presets.own_folder() / "bad.toml").write_text("[bold]\nx = 1\n")
    async with panel(gpus(3)) as (pilot, screen):
        await load(pilot, "bad")
        await on_top(pilot, Message, "there is no such key")
        await pilot.press("escape")
        await load(pilot, "ddp")  # nothing has changed, nothing is asked
        await until(pilot, lambda: screen.form.border_title == "Launch ─ preset ddp")
        await settled(pilot, screen)
        await type_into(pilot, screen, "f-train-lr", "0.005")
        for answer, mine in (("n", "0.005"), ("y", "0.001")):
            await load(pilot, "dp")
            await on_top(pilot, Confirm)
            await pilot.press(answer)
            await on_top(pilot, screen)
            await settled(pilot, screen)
            assert screen.query_one("#f-train-lr", Input).value == mine
        assert screen.query_one("#f-parallel-mode").value == "dp"
        await type_into(pilot, screen, "f-train-lr", "0.5")
        await pilot.press("ctrl+q")
        await on_top(pilot, Confirm, "are lost: n")
        await pilot.press("n")
        await on_top(pilot, screen)
        pilot.app.post_message(Key("ctrl+q", None))  # is not asked again
        await _met(pilot, lambda: pilot.app._exit)


async def test_saving_keeps_comments_names_cards_by_uuid_and_says_what_it_replaces():
    machine = gpus(3)
    async with panel(machine, "single") as (pilot, screen):
        await pilot.press("down", "space")
        await type_into(pilot, screen, "f-train-lr", "5e-3")
        await pilot.press("ctrl+s")
        await on_top(pilot, AskLine, "single ships with gpu-panel. Yours")
        box = pilot.app.screen.query_one(Input)
        for wrong, instead in (("../evil", "evil"), ("my preset", "my-preset")):
            box.value = wrong
            await says(pilot, "can't be a preset's name", f"Enter offers {instead}")
            await pilot.press("enter")
            await until(pilot, lambda instead=instead: box.value == instead)
            assert isinstance(pilot.app.screen, AskLine), "it is offered first"
        box.value = "mine"
        await pilot.press("enter")
        await until(pilot, lambda: screen.draft.preset.name == "mine")
        await settled(pilot, screen)
        saved = presets.load("mine")
        assert saved.spec.devices.ids == [d.uuid for d in machine.devices[:2]]
        assert saved.spec.train.lr == 5e-3
        # Its runs are not called as those of the preset that it was made of.
        assert saved.spec.name == screen.query_one("#f-name", Input).value == "mine"
        assert not screen.draft.changed
        assert screen.form.border_title == "Launch ─ preset mine"
        saved.path.write_text("# why this one\n" + saved.path.read_text())
        await type_into(pilot, screen, "f-train-lr", "6e-3")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "mine.toml already exists" in " ".join(
            screen_text(pilot.app).replace("│", "").split()))
        await pilot.press("enter")
        await until(pilot, lambda: presets.load("mine").spec.train.lr == 6e-3)
        assert saved.path.read_text().startswith("# why this one")
        await settled(pilot, screen)
        await type_into(pilot, screen, "f-batch-size", "many")
        await pilot.press("ctrl+s")
        await on_top(pilot, Message, "batch.size")
    async with panel(machine, "mine") as (_, screen):
        assert screen.draft.ids == ["0", "1"]
        assert not screen.draft.changed
