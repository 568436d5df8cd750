"""Every kind of training loop, as a script that knows nothing of the panel: what is recorded of
it is what it printed, and it runs to the last bit as it does without."""

from __future__ import annotations

import pytest

from .kit import Ran, observe


def seen_of(script: tuple[str, ...], steps: int, *, name: str = "loss", **more) -> Ran:
    """A script's run, with what holds for each: output, exit status, losses, steps, life."""
    seen = observe(*script, **more)
    assert seen.state["state"] == "completed", seen.log()
    seen.same_as_without()
    assert len(seen.printed(name)) == steps
    assert seen.losses() == seen.printed(name)
    assert seen.of("step")[-1]["step"] == steps
    assert not seen.of("warning")
    kinds = [e["kind"] for e in seen.events()]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert {"phase", "memory"} <= set(kinds)
    assert seen.events()[-1]["outcome"] == "completed"
    assert not (seen.run.path / "observe-errors.log").exists()
    return seen


@pytest.mark.parametrize(("script", "steps"), [
    (("plain.py",), 12), (("autograd.py",), 9), (("lbfgs.py",), 6),
    (("with_lightning.py",), 6), (("with_lightning.py", "fabric"), 12),
    (("with_transformers.py", "{tmp}"), 6)],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_each_step_and_its_loss_are_seen(home, tmp_path, script, steps):
    seen_of(tuple(a.format(tmp=tmp_path) for a in script), steps)


def test_accelerate(home):
    seen_of(("with_accelerate.py",), 8, name="rank 0 loss")


def test_the_learning_rate_and_the_gradients_norm_are_seen(home):
    seen = seen_of(("accumulate.py",), 8, options=(
        "--devices", "cpu:0", "--set", "run.grad_norm=true"))
    assert seen.of("step")[-1]["lr"] == 0.01 * 0.5 ** 2  # of the last step, not the next
    assert all(0 < e["grad_norm"] <= 1.00001 for e in seen.of("step"))  # clipped to 1


def test_steps_that_a_scaler_leaves_out_are_counted(home):
    assert seen_of(("scaler.py",), 11).of("step")[-1]["skipped"] == 1


def test_each_of_two_optimizers_has_its_own_loss(home):
    seen = seen_of(("gan.py",), 10)
    others = seen.others()
    assert [x for o in others for x in o["losses"]] == seen.printed("second")
    assert (others[-1]["name"], others[-1]["step"]) == ("SGD", 5)
    assert not seen.others(2)  # it had no loss of its own


def test_a_compiled_step_is_seen_and_compiled_into_the_same_graphs(home):
    seen = observe("compiled.py")
    assert seen.losses() == seen.printed()
    assert len(seen.losses()) == 6
    assert without_times(seen.log()) == without_times(seen.bare.stdout.decode())


def without_times(log: str) -> list[str]:
    """Lines but for those that torch logs with a time."""
    return [line for line in log.splitlines() if not line.startswith(("W", "E"))
            or line.startswith("weights")]


def test_without_an_optimizer_each_backward_is_a_step_in_the_end(home):
    seen = observe("by_hand.py")
    seen.same_as_without()
    assert "100 calls of backward() and no step" in seen.of("warning")[0]["message"]
    assert seen.of("step")[-1]["step"] == 115
    assert seen.losses() == seen.printed()[99:]
