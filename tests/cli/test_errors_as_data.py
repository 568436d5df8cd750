"""With --json a command that fails prints its errors as one document, and exits as it does
without."""

from __future__ import annotations

import json

import pytest

from gpu_engine import cli
from gpu_engine.common.errors import Problem, SpecError

from ..command_line import called


@pytest.mark.parametrize(("words", "what", "value", "remedy"), [
    ("show nope --json", "run", "nope", "gpu-engine runs"),
    ("plan nope --json", "preset", "nope", "gpu-engine presets"),
    ("plan default --json --set amp.dtype=fp16 --devices cpu:0", "amp.dtype", "fp16",
     "amp.dtype=bf16"),
    ("plan default --json -n 99", "devices.pick", 99, "devices.pick="),
    ("plan default --json --set train.lrr=1", "train.lrr", "1", "train.lr"),
    ("runs --json -n 0", "-n", None, None), ("runs --json --nope", "--nope", None, None),
    ("nope --json", None, None, None), ("logs --json", "--json", None, None)])
def test_what_was_wrong_its_value_and_what_would_do(words, what, value, remedy):
    done, plain = called(*words.split()), called(*words.replace(" --json", "").split())
    if words != "logs --json":  # which needs no option to be wrong
        assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
        assert plain.stdout == ""
    [error] = json.loads(done.stdout)["errors"]
    assert done.returncode == 2
    assert (error["what"], error["value"]) == (what, value)
    assert error["why"] in done.stderr
    assert (error["remedy"] or "").startswith(remedy or "")
    assert bool(error["remedy"]) == bool(remedy)


def test_all_problems_of_a_spec_and_only_for_the_command_itself():
    done = called("plan", "ddp", "--json", "--devices", "cpu:0,cpu:1", "--set", "amp.dtype=fp16",
                  "--set", "batch.size=7")
    assert [(e["what"], e["remedy"]) for e in json.loads(done.stdout)["errors"]] == [
        ("amp.dtype", "amp.dtype=bf16"), ("batch.size", "batch.size=6 or batch.size=8")]
    assert called("run", "--", "nope", "--json").stdout == ""


@pytest.mark.parametrize(("err", "code", "why"), [
    (ValueError("odd"), 1, "a fault of gpu-engine: ValueError: odd"),
    (SpecError([Problem("a.b", {1, 2}, "is wrong")]), 2, "is wrong")])
def test_a_fault_of_ours_and_a_value_that_json_lacks(monkeypatch, err, code, why):
    def broken(**_: object) -> None:
        raise err

    monkeypatch.setattr(cli.cli, "main", broken)
    done = called("runs", "--json")
    assert done.returncode == code
    assert json.loads(done.stdout)["errors"][0]["why"] == why
