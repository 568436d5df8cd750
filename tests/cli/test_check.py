"""gpu-engine check: what it says of GPUs that hang, which are tried again. How it starts ranks:
tests/e2e."""

import json

import pytest

from gpu_engine.cli import check
from gpu_engine.runs.folder import State

from ..command_line import called

P2P = {"NCCL_P2P_DISABLE": "1"}
SHM = P2P | {"NCCL_SHM_DISABLE": "1"}


@pytest.fixture
def works_with(monkeypatch):
    """GPUs whose first sum hangs, unless all of `env` is set; the variables of each try."""
    tries, needed = [], {}

    def once(spec, env):
        tries.append(dict(spec.run.env))
        works = needed.items() <= spec.run.env.items()
        lines = [{"check": "device", "rank": r, "host": "lab", "device": [f"GPU {r}"],
                  "backend": "nccl"} for r in (0, 1)]
        if works:
            lines += [{"check": "product", "rank": r, "host": "lab", "device": f"GPU {r}",
                       "model": "A100", "n": 8192, "dtype": "float16", "flops_per_s": 2e14}
                      for r in (0, 1)]
        state = State("completed" if works else "failed", "3f2a", "check", 0.0)
        return check._Found(state, lines, 2, env)

    monkeypatch.setattr(check, "_once", once)

    def needs(**env):
        needed.update(env)
        return tries
    return needs


def test_what_works_is_tried_once(works_with):
    tries = works_with()
    out = called("check", "ddp")
    assert out.returncode == 0, out
    assert tries == [{}]


@pytest.mark.parametrize(("needed", "tried"), [(P2P, [{}, P2P]), (SHM, [{}, P2P, SHM])])
def test_a_hang_is_tried_without_what_may_be_broken_and_the_cure_is_named(
        works_with, needed, tried):
    tries = works_with(**needed)
    out = called("check", "ddp", "--json", "--set", "run.env.MINE=x")
    assert out.returncode == 0
    assert tries == [{"MINE": "x"} | env for env in tried]
    told = json.loads(out.stdout)
    assert told["env"] == needed
    [doubt] = told["doubts"]
    assert all(f"--set run.env.{k}=1" in doubt for k in needed)


def test_what_no_way_cures_is_told_as_it_first_was(works_with):
    tries = works_with(NOTHING="helps")
    out = called("check", "ddp", "--json")
    assert out.returncode == 1
    assert len(tries) == 3
    assert json.loads(out.stdout)["env"] == {}


def test_what_fails_before_all_have_met_is_no_hang(works_with, monkeypatch):
    once, tries = check._once, works_with(NOTHING="helps")

    def alone(spec, env):
        found = once(spec, env)
        return check._Found(found.state, found.lines[:1], 2, env)
    monkeypatch.setattr(check, "_once", alone)
    assert called("check", "ddp").returncode == 1
    assert tries == [{}]
