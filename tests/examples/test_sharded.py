"""The example of a model that is divided among ranks: it computes what one process does, and goes
on from what it has saved on any number of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_engine.runs import folder as runs

from ..command_line import called
from ..conftest import over, wait_for
from ..observe.kit import PYTHON, Ran
from ..remote.run.kit import losses_so_far
from . import sharded
from .sharded import EXACT, LAYERS, SCRIPT, TINY, by_hand, train, write_text

STEPS = 9
HELD = Path(__file__).with_name("held.py")


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def saved(text: Path, tmp_path_factory) -> Path:
    """A folder in which two ranks have saved at steps 3, 6 and 9."""
    folder = tmp_path_factory.mktemp("saved")
    train(2, folder / "log", *words(text, folder, STEPS), "--save-every", "3", "--accumulate", "2")
    return folder


def words(text: Path, folder: Path | str, steps: int | str) -> list[str]:
    return ["--text", str(text), "--save", str(folder), "--steps", str(steps)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def assert_as_by_hand(found: tuple[list[float], list[float]], text: Path, steps: int,
                      after: int = 0) -> None:
    for values, wanted in zip(found, by_hand(text, steps), strict=True):
        assert values == pytest.approx(wanted[after:], rel=EXACT)


@pytest.mark.parametrize("world", [1, 4])
def test_any_number_of_ranks_trains_as_one_process_with_whole_batches(tmp_path, text, world):
    found = train(world, tmp_path / "log", "--text", str(text), "--steps", str(STEPS))
    assert_as_by_hand(found, text, STEPS)


def test_two_ranks_that_accumulate_do_too_and_keep_the_two_newest_checkpoints(saved, text):
    assert_as_by_hand(sharded.printed((saved / "log-0").read_text()), text, STEPS)
    assert names(saved) == ["step-00000006", "step-00000009"]


@pytest.mark.parametrize("world", [1, 4])
def test_another_number_of_ranks_goes_on_as_if_nothing_had_ended(tmp_path, text, saved, world):
    """From the newest checkpoint that is whole: weights, moments and the place in the data."""
    shutil.copytree(saved, folder := tmp_path / "saved")
    (folder / names(folder)[-1] / ".metadata").unlink()  # killed while it was written
    found = train(world, tmp_path / "log", *words(text, folder, STEPS))
    assert_as_by_hand(found, text, STEPS, after=6)
    assert (folder / "step-00000009/.metadata").exists()


def test_a_rank_holds_its_part_and_a_block_is_gathered_and_computed_again_by_itself(tmp_path):
    held = [list(map(int, said.split())) for said in sharded.run(2, tmp_path / "log", HELD)]
    whole = held[0][2]
    assert sum(weights for weights, *_ in held) == whole
    for weights, gradients, _, modules, computed in held:
        assert weights == gradients == pytest.approx(whole / 2, rel=0.02)
        assert (modules, computed) == (LAYERS + 1, 2 * LAYERS)


def test_bfloat16_computes_with_half_the_digits(tmp_path, text):
    """bfloat16 has 8 bits: the loss is off, by less than its last one."""
    found, _ = train(2, tmp_path / "log", "--text", str(text), "--steps", "3", "--amp", "bf16")
    wanted = by_hand(text, STEPS)[0][:3]
    assert found == pytest.approx(wanted, rel=2 ** -8)
    assert found != pytest.approx(wanted, rel=EXACT)


def test_a_stop_saves_and_a_resume_goes_on_with_another_number_of_devices(home, text):
    """Each rank's loss is recorded once a step, and nothing that is not so is told of the run."""
    command = [PYTHON, str(SCRIPT), *TINY, *words(text, "{run.dir}/saved", "{steps}"),
               "--accumulate", "2"]
    done = called("run", "--detach", "--mode", "ddp", "--devices", "cpu:0,cpu:1", "--set",
                  "train.steps=1000000", "--", *command)
    assert done.returncode == 0, done.stderr
    run = runs.find(done.stdout.strip())
    wait_for(lambda: run.events(0).exists() and len(losses_so_far(run.path, 0)) > 2)
    assert called("stop", run.id).returncode == 0
    over(run)
    assert run.state().state == "stopped", run.state()
    (name,) = names(run.path / "saved")
    steps = int(name.removeprefix("step-"))
    ran = Ran(run, {}, None)
    each = [ran.losses(rank) for rank in (0, 1)]
    assert [len(losses) for losses in each] == [steps, steps]
    printed = sharded.printed(ran.log())[0]
    assert [sum(pair) / 2 for pair in zip(*each, strict=True)] == pytest.approx(printed, rel=EXACT)
    wanted = by_hand(text, STEPS)[0]
    assert printed[:STEPS] == pytest.approx(wanted[:steps], rel=EXACT)

    assert called("resume", run.id, "--set", "devices.ids=cpu:0", "--set",
                  f"train.steps={steps + 3}").returncode == 0
    state = run.state()
    assert (state.state, state.warnings) == ("completed", ()), state
    assert f"step {steps + 1}: loss" in ran.log().partition("--- attempt 2 ---")[2]
    assert len(ran.losses(0)) == steps + 3
    assert ran.of("step")[-1]["step"] == 3, "no step but those of the training"
    assert not ran.of("warning")
    shown = called("show", run.id).stdout
    assert "completed" in shown
    assert "warning" not in shown
