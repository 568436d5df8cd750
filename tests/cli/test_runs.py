"""`gpu-engine runs`: what it tells of each run, and in which order."""

from __future__ import annotations

import json
import os
import time

import pytest

from gpu_engine.common import units
from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run
from gpu_engine.runs.state import MADE_ROOM, AttemptRecord

from .. import odd_runs
from ..command_line import called
from ..event_lines import line
from ..plans import plan


def run(age: float, *losses: float, accuracy: float | None = None) -> str:
    """The id of a run that ended `age` seconds ago with these losses."""
    made = odd_runs.ended(age=age)
    (made.path / "ranks").mkdir(exist_ok=True)
    text = line("start", {"rank": 0, "world_size": 1, "pid": 1, "mode": "ddp"})
    for step, loss in enumerate(losses, 1):
        text += line("step", {"step": step, "n": 1, "loss": loss, "losses": [loss]})
    if accuracy is not None:
        text += line("eval", {"step": len(losses), "accuracy": accuracy})
    made.events(0).write_bytes(text)
    return made.id


@pytest.fixture
def three():
    """Three runs, the newest first: one that has recorded nothing, a good one, a bad one."""
    return {"bad": run(30, 5.0, 4.0, 3.0, accuracy=0.3), "good": run(20, 2.0, 1.0, accuracy=0.9),
            "none": run(10)}


def listed(*words: str) -> list[str]:
    out = called("runs", *words)
    assert out.returncode == 0, out.stderr
    return [text.split()[0] for text in out.stdout.splitlines()[1:]]


def test_what_hangs_stands_at_the_end_of_its_line():
    one, lock = create_run("toy", "", plan())
    now = time.time()
    one.write_state(runs.State("running", one.id, "toy", now, pid=os.getpid(), started=now - 99))
    begun = {"group": "0", "number": 8, "operation": "all_reduce", "size": "9 float",
             "began": now - 60, "done": False}
    for rank, collectives in ((0, {"0": begun}), (1, {"0": begun | {"number": 7, "done": True}})):
        one.events(rank).write_bytes(b"".join([
            line("start", {"rank": rank, "world_size": 2, "pid": 1, "attempt": 1}, t=now - 99),
            *(line("step", {"step": n, "n": 1, "loss": 1.0}, t=now - 70 + n) for n in range(1, 9)),
            line("stands", {"step": 8, "phase": "backward", "since": now - 60, "works": False,
                            "place": "train.py:7 in main", "stack": [],
                            "collectives": collectives}),
            line("phase", {"phase": "backward", "since": now - 60, "step": 8})]))
    try:
        said = called("runs").stdout
    finally:
        os.close(lock)
    assert "rank 0 waits for rank 1 in all_reduce #8 (9 float) at train.py:7 in main for " \
        in said
    assert said.rstrip().endswith("rank 1 stands still at train.py:7 in main")


def test_for_whom_a_run_made_room_stands_in_the_list_and_where_it_is_shown():
    one, lock = create_run("toy", "", plan())
    now = time.time()
    attempts = (AttemptRecord(1, now - 90, now - 60, MADE_ROOM, "made room for run 3f2a of ann"),
                AttemptRecord(2, now - 30, first_step=8120))
    one.write_state(runs.State("running", one.id, "toy", now, pid=os.getpid(), attempt=2,
                               attempts=attempts))
    try:
        said, shown = called("runs").stdout, called("show", one.id).stderr
    finally:
        os.close(lock)
    words = f"made room for run 3f2a of ann at {units.time_of_day(now - 60, now)}, resumed " \
        f"{units.time_of_day(now - 30, now)} at step 8,120"
    assert words in said
    assert shown.startswith(words)


def test_steps_loss_and_best_value_stand_in_the_list(three):
    head, _, good, bad = called("runs").stdout.splitlines()
    assert head.split() == ["id", "state", "name", "mode", "steps", "loss", "best", "took",
                            "created"]
    assert good.split()[5:9] == ["2", "1.000", "loss", "1.000"]
    assert bad.split()[5:9] == ["3", "3.000", "loss", "3.000"]
    assert max(map(len, (head, good, bad))) <= 80
    told = {one["id"]: (one["steps"], one["loss"], one["best"])
            for one in json.loads(called("runs", "--json").stdout)}
    assert told == {three["none"]: (None, None, None),
                    three["good"]: (2, 1.0, {"name": "loss", "value": 1.0}),
                    three["bad"]: (3, 3.0, {"name": "loss", "value": 3.0})}


@pytest.mark.parametrize(("words", "order"), [
    ((), ["none", "good", "bad"]), (("--reverse",), ["bad", "good", "none"]),
    (("--sort", "loss"), ["good", "bad", "none"]),
    (("--sort", "loss", "--reverse"), ["bad", "good", "none"]),
    (("--sort", "best"), ["good", "bad", "none"]), (("--sort", "steps"), ["bad", "good", "none"]),
    (("--sort", "best", "--reverse"), ["bad", "good", "none"]),
    (("--sort", "loss", "-n", "1"), ["good"])])
def test_they_stand_in_the_order_asked_for(three, words, order):
    assert listed(*words) == [three[name] for name in order]


def test_the_best_by_a_value_that_is_named_and_only_of_late(three):
    printed = line("metric", {"step": 2, "bpb": 0.9}) + line("metric", {"step": 3, "bpb": 1.1})
    for name in ("bad", "none"):
        with runs.find(three[name]).events(0).open("ab") as file:
            file.write(printed if name == "bad" else printed.replace(b"0.9", b"0.8"))
    assert listed("--best", "min:bpb") == [three["none"], three["bad"], three["good"]]
    assert listed("--best", "max:accuracy", "-n", "2") == [three["good"], three["bad"]]
    assert listed("--best", "bpb", "--sort", "loss")[0] == three["good"]
    told = json.loads(called("runs", "--best", "bpb", "--json", "--since", "25s").stdout)
    assert [(one["id"], one["best"]) for one in told] == [
        (three["none"], {"name": "bpb", "value": 0.8}), (three["good"], None)]
    assert "'bpd'; did you mean bpb?" in called("runs", "--best", "bpd").stderr
    for words, says in ((("--best", "mix:bpb"), "expected the name of a value, min:name"),
                        (("--since", "soon"), "--since soon: no length of time")):
        out = called("runs", *words)
        assert (out.returncode, says in out.stderr) == (2, True)


def test_a_loss_that_is_no_number_comes_last(three):
    bad = run(5, 1.0, float("nan"))
    assert listed("--sort", "loss")[-2:] == [bad, three["none"]]
    assert "NaN" in called("runs").stdout
    assert '"loss": "NaN"' in called("runs", "--json").stdout


def test_a_field_that_does_not_exist_is_a_mistake(three):
    out = called("runs", "--filter", "sate:failed")
    assert out.returncode == 2
    assert "'sate' is no field; there are id, name" in out.stderr
    assert called("runs", "--filter", '"sate:failed"').returncode == 0
    assert called("runs", "--filter", "state:completed").returncode == 0
