"""What is told of a script that trains less than it seems to; and that nothing is told of one that
does it in its own way."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common.ports import free_port
from gpu_engine.observe import findings
from gpu_engine.observe.findings import Findings
from gpu_engine.observe.optimizers import Unchanged

from .kit import SCRIPTS, Alone, Ran, observe

TWO = ("--mode", "ddp", "--devices", "cpu:0,cpu:1")


def ran(tmp_path, words: str, epochs: int = 4) -> Ran:
    return observe("apart.py", *words.split(), bare=False, options=TWO,
                   env={"OUT": str(tmp_path), "EPOCHS": str(epochs)})


@pytest.mark.parametrize(("words", "epochs", "codes"), [
    ("alone", 1, ["not-reduced"]),
    ("group", 150, ["not-reduced"]),
    ("group ddp", 1, ["data-not-divided"]),
    ("group ddp sampler", 4, ["set-epoch"]),
    ("group ddp sampler same set_epoch", 1, ["data-not-divided"]),
    ("group ddp module sampler set_epoch metric", 400, ["not-reduced"]),
])
def test_what_a_script_does_not_share_is_told(home, tmp_path, words, epochs, codes):
    seen = ran(tmp_path, words, epochs)
    assert (seen.state["state"], seen.state["exit_code"]) == ("completed", 0), seen.log()
    assert [n["code"] for n in seen.state["warnings"]] == codes, json.dumps(seen.state["warnings"])
    assert all(n["message"] and n["cure"] for n in seen.state["warnings"])
    assert not (seen.run.path / "observe-errors.log").exists()


def test_ranks_that_are_looked_at_compute_the_same_numbers(home, tmp_path):
    words, port = ["group", "ddp", "sampler", "set_epoch", "save"], free_port()
    alone = [Alone(str(SCRIPTS / "apart.py"), *words, env={
        "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OUT": str(tmp_path), "EPOCHS": "4"}) for rank in (0, 1)]
    outputs = [one.done().stdout.decode() for one in alone]
    weights = (tmp_path / "weights.pt").read_bytes()
    seen = ran(tmp_path, " ".join(words))
    assert [seen.log(rank) for rank in (0, 1)] == outputs
    assert "loss" in outputs[0]
    assert not seen.state["warnings"]
    assert (tmp_path / "weights.pt").read_bytes() == weights


@pytest.mark.parametrize("words", [
    "group by_hand shard", "group ddp validate sampler set_epoch first", "group fsdp shard",
    "group average sampler set_epoch"])
def test_nothing_is_told_of_a_script_that_shares_its_work(home, tmp_path, words):
    seen = ran(tmp_path, words, 8)
    assert seen.state["state"] == "completed", seen.log()
    assert not seen.state["warnings"]
    assert not seen.of("warning")
    assert not (seen.run.path / "observe-errors.log").exists()


def test_the_first_step_without_a_finite_loss_is_named_and_the_run_completes(home, tmp_path):
    seen = observe("nonfinite.py", "321", bare=False)
    (told,) = seen.state["warnings"]
    assert (seen.state["state"], seen.state["exit_code"]) == ("completed", 0), seen.log()
    assert (told["code"], told["rank"], told["step"]) == ("nonfinite", 0, 321)
    assert "step 321" in told["message"]
    assert sum(e["n"] for e in seen.of("step")) == 399
    command = ["show", seen.run.id]
    assert told["message"] in CliRunner().invoke(cli, command).output
    assert told["message"] in CliRunner().invoke(cli, ["runs"]).output
    listed = json.loads(CliRunner().invoke(cli, ["runs", "--json"]).output)
    assert listed[0]["warnings"] == [told]
    page = tmp_path / "page.html"
    CliRunner().invoke(cli, ["report", seen.run.id, "-o", str(page)])
    assert told["message"] in page.read_text()


@pytest.mark.parametrize(("devices", "used", "told"), [
    (("GPU 0", "GPU 1"), [0], ["one-device"]), (("GPU 0", "GPU 1"), [0, 1], []),
    (("GPU 0", "GPU 1"), [], []), (("GPU 0",), [0], [])])
def test_a_process_that_uses_one_of_its_gpus_is_told(tmp_path, devices, used, told):
    found = Findings(tmp_path, 0, 1, devices)
    assert found.check(0, lambda: used, losses=True, over=False) == []
    seen = [found.check(step, lambda: used, losses=True, over=False) for step in (3, 4)]
    assert [w.code for each in seen for w in each] == told


def test_one_of_several_ranks_that_a_script_starts_itself_is_not(tmp_path, monkeypatch):
    found = Findings(tmp_path, 0, 1, ("GPU 0", "GPU 1"))
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.is_initialized", lambda: True)
        found.begins(lambda: 9)
    assert found.check(3, lambda: [0], losses=True, over=False) == []


@pytest.mark.parametrize(("rates", "gradients", "steps", "over", "says"), [
    ([0.0], [1], 200, False, "the learning rate of SGD is 0"), ([0.0], [1], 199, False, None),
    ([0.0], [1], 30, True, "in 30 steps: the learning rate"), ([0.0], [1], 19, True, None),
    ([0.1], [0], 200, False, "none of the 1 that SGD holds has a gradient"),
    ([0.0, 0.1], [1, 0], 200, False, None), ([0.0, 0.1], [0, 1], 200, False, None)])
def test_optimizers_that_change_nothing_are_told(rates, gradients, steps, over, says):
    """A warm-up begins with a rate of 0, and a part may be frozen by it."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates]
    for group, there in zip(groups, gradients, strict=True):
        group["params"][0].grad = torch.ones(2) if there else None
    optimizer, unchanged = torch.optim.SGD(groups), Unchanged()
    told = [unchanged.stepped(optimizer) for _ in range(steps) if not unchanged.settled]
    told += [unchanged.over()] * over
    (found,) = filter(None, told) if says else (None,)
    assert found is None or says in found.message
    assert found is told[-1]


def test_batches_are_told_apart_by_what_is_in_them():
    x, y = torch.arange(6000.0).view(1000, 6), torch.arange(1000)
    made = ([x, y], {"x": x, "y": y + 1}, {"text": ["a", "b"], "more": (x + 1, [y])}, x.numpy(),
            x[:-1], {"text": ["a", "c"]}, 3, torch.zeros(0, 3))
    seen = [repr(list(findings.contents(one))) for one in made]
    again = [repr(list(findings.contents(copy.deepcopy(one)))) for one in made]
    assert seen == again
    assert len(set(seen)) == len(seen)
    assert max(map(len, seen)) < 30_000
    assert not list(findings.contents([object(), None, torch.zeros(3, device="meta")]))
