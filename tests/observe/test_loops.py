"""Every kind of training loop, in scripts that know nothing of the panel. The record has the losses
that the script printed, and observing does not change a bit of its results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli

from .kit import Ran, observe, observe_each

PARTS = ("autograd.py", "accumulate.py", "scaler.py plain", "scaler.py clips",
         "scaler.py unscales clips", "gan.py",
         "by_hand.py 120",
         "chunks.py", "trainings.py folds,layers,closures,groups", "logs.py tensorboardX",
         "odd.py workers,log", "odd.py at_once", "beside.py",
         "rest.py dropped", "rest.py carried", "rest.py stepped", "rest.py probed")


@pytest.fixture(scope="module")
def each(tmp_path_factory):
    """What the scripts that need no run of their own did, in one run. Tests only read it."""
    folder = tmp_path_factory.mktemp("each")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PANEL_HOME", str(folder / "home"))
        return observe_each(folder, "quick", *PARTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same for scripts that need all of torch. Each imports its framework itself."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PANEL_HOME", str(folder / "home"))
        return {name.split()[0]: seen for name, seen in observe_each(
            folder, "whole", "with_lightning.py", f"with_transformers.py {folder}/out",
            "compiled.py").items()}


def checked(seen: Ran, steps: int) -> Ran:
    """The checks for all: output, exit status, losses, steps, events."""
    assert seen.state["state"] == "completed", seen.log()
    seen.same_as_without()
    assert len(seen.printed()) == steps
    assert seen.losses() == seen.printed()
    assert seen.of("step")[-1]["step"] == steps
    assert not seen.of("warning")
    kinds = [e["kind"] for e in seen.events()]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert seen.events()[-1]["outcome"] == "completed"
    assert not (seen.run.path / "observe-errors.log").exists()
    return seen


@pytest.mark.parametrize(("script", "steps"), [
    ("autograd.py", 9), ("chunks.py", 10)])
def test_steps_and_losses_are_seen(each, script, steps):
    assert not checked(each[script], steps).of("metric")


def test_an_end_by_os_exit_is_an_end(each):
    assert not checked(each["odd.py at_once"], 5).of("error")


@pytest.mark.parametrize(("script", "steps"), [("plain.py", 12), ("pipeline.py", 5)])
def test_a_script_with_a_process_of_its_own_tells_its_phases(home, script, steps):
    seen = observe(script)
    checked(seen, steps)
    assert seen.of("phase")
    assert seen.of("memory")
    assert not seen.of("metric")


@pytest.mark.parametrize(("script", "steps", "logged"), [
    ("with_lightning.py", 6 + 12, {"mean", "held_out"}),
    ("with_transformers.py", 6, {"train_loss", "epoch"})])
def test_steps_losses_and_logged_values_of_frameworks_are_seen(whole, script, steps, logged):
    seen = checked(whole[script], steps)
    assert seen.of("memory")
    values = {k: v for e in seen.of("metric") for k, v in e.items()}
    assert logged <= set(values)
    assert all(isinstance(values[name], float) for name in logged)
    if "held_out" in logged:  # the mean of the last evaluation, which the script has printed
        assert values["held_out"] == pytest.approx(seen.printed("held")[-1])


def test_the_learning_rate_and_the_gradients_norm_are_seen(home, each):
    checked(each["accumulate.py"], 8)
    seen = observe("accumulate.py", bare=False, options=(
        "--devices", "cpu:0", "--set", "run.grad_norm=true"))
    checked(replace(seen, bare=each["accumulate.py"].bare), 8)
    assert seen.of("step")[-1]["lr"] == 0.01 * 0.5 ** 2  # of the last step, not the next
    assert all(0 < e["grad_norm"] <= 1.00001 for e in seen.of("step"))  # clipped to 1


def test_steps_that_a_scaler_leaves_out_are_counted(each):
    assert checked(each["scaler.py plain"], 11).of("step")[-1]["skipped"] == 1


def test_gradients_that_are_clipped_before_they_are_unscaled_are_told(each):
    assert not checked(each["scaler.py unscales clips"], 11).of("warning")
    seen = each["scaler.py clips"]
    seen.same_as_without()
    (told,) = seen.of("warning")
    assert told["code"] == "clip-before-unscale"
    assert "clipped to 1 while the GradScaler scales them by 1024" in told["message"]


@pytest.mark.parametrize(("how", "steps", "codes"), [
    ("dropped", 8, ["rest-dropped"]), ("carried", 8, []), ("stepped", 12, []),
    ("probed", 8, [])])
def test_batches_at_the_end_of_an_epoch_that_are_in_no_step_are_told(each, how, steps, codes):
    seen = each[f"rest.py {how}"]
    seen.same_as_without()
    assert [e["code"] for e in seen.of("warning")] == codes
    assert seen.of("step")[-1]["step"] == steps


def test_each_of_two_optimizers_has_its_own_loss(each):
    seen = checked(each["gan.py"], 10)
    others = seen.others()
    assert [x for o in others for x in o["losses"]] == seen.printed("second")
    assert (others[-1]["name"], others[-1]["step"]) == ("SGD", 5)
    assert not seen.others(2)  # the third optimizer has no loss of its own


def test_each_loss_stands_under_the_step_that_was_made_of_it(each):
    """Batches that a guard leaves out count nowhere, and steps without a loss shift none."""
    seen = each["beside.py"]
    seen.same_as_without()
    printed = {}
    for line in seen.log().splitlines():
        if line.startswith("step "):
            _, step, loss = line.split()
            printed[int(step)] = pytest.approx(float(loss), rel=1e-8)
    recorded = {}
    for e in seen.of("step"):
        recorded.update(enumerate(e.get("losses", ()), e["step"] - e["n"] + 1))
    assert recorded == printed
    assert sorted(printed) == [*range(1, 12), *range(14, 25)]  # 12 and 13 are not known
    assert not seen.of("warning")
    assert "nonfinite" not in {told["code"] for told in seen.state["warnings"]}


def test_a_compiled_step_is_seen_and_compiled_into_the_same_graphs(whole):
    seen = whole["compiled.py"]
    assert seen.losses() == seen.printed()
    assert len(seen.losses()) == 6
    assert without_times(seen.log()) == without_times(seen.bare.stdout.decode())


def without_times(log: str) -> list[str]:
    """The output without the lines that torch logs with a time."""
    return [line for line in log.splitlines() if not line.startswith(("W", "E"))
            or line.startswith("weights")]


def test_without_an_optimizer_each_backward_is_a_step(each):
    seen = each["by_hand.py 120"]
    seen.same_as_without()
    assert seen.losses() == seen.printed()[-len(seen.losses()):]  # of the first ones the mean
    assert sum(e["n"] for e in seen.of("step")) == seen.of("step")[-1]["step"] == 120
    assert seen.events()[-1]["outcome"] == "completed"
    (warning,) = seen.of("warning")
    assert "no step of a torch optimizer" in warning["message"]


def test_trainings_one_after_another_are_told_apart(each):
    """Folds (new optimizers), layers (existing ones in turn), L-BFGS after Adam, and an optimizer
    that is stepped for each group."""
    seen = each["trainings.py folds,layers,closures,groups"]
    seen.same_as_without()
    assert seen.losses() == seen.printed()
    lengths = [6, 7, 8, 9, 60, 60, 60, 60, 8, 5, 12]
    begins = [sum(lengths[:i]) for i in range(1, len(lengths))]
    assert [e["step"] for e in seen.of("training")] == begins
    assert [e["number"] for e in seen.of("training")] == list(range(2, len(lengths) + 1))
    assert [e["name"] for e in seen.of("training")][-3:] == ["Adam", "LBFGS", "Adam"]
    last = seen.of("step")[-1]
    assert last["step"] == sum(lengths) == sum(e["n"] for e in seen.of("step"))
    assert not seen.of("warning")


def test_logged_values_are_recorded_and_reach_the_logger_unchanged(each):
    seen = checked(each["logs.py tensorboardX"], 6)
    assert seen.of("memory")
    values = {k: v for e in seen.of("metric") for k, v in e.items()}
    assert values["train/loss"] == pytest.approx(seen.printed()[-1])
    assert (values["both/a"], values["both/b"]) == (5.0, 10.0)
    assert "words" not in values
    assert "events.out.tfevents" in seen.log()


def test_loader_workers_are_no_ranks_and_values_that_a_script_logs_are_added(each):
    seen = each["odd.py workers,log"]
    assert seen.state["state"] == "completed"
    assert seen.run.ranks() == list(range(len(PARTS) + 1))
    assert len(seen.of("start")) == 1
    assert seen.losses() == seen.printed()
    assert len(seen.losses()) == 9
    first, second = ({k: v for k, v in e.items() if k not in ("t", "kind")}
                     for e in seen.of("metric"))
    assert first == {"step": 9, "accuracy": 0.93, "tensor": 2.5, "step_": 1, "huge": None, "_": 5}
    assert len(second) == 1 + 40
    shown = CliRunner().invoke(cli, ["show", seen.run.id], env={
        "GPU_PANEL_HOME": str(seen.run.path.parents[1])}).output
    assert "value39 39" in shown
    assert "… 14 values under other names (--json has all)" in shown  # of 44
