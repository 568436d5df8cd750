"""Real ranks that wait for each other, and what is told of them: who, in which operation, where."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common import procs
from gpu_engine.common.files import read_json
from gpu_engine.diagnose import hangs
from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.view import RunView
from gpu_engine.runs import folder as runs
from gpu_engine.runs.follow import Follower
from gpu_engine.supervisor.attempt import Attempt
from gpu_engine.supervisor.cause import Failure
from gpu_engine.supervisor.ranks import RankState

from ..conftest import over, wait_for
from ..observe.kit import PYTHON, SCRIPTS, engine_run

TWO = ("--mode", "ddp", "--devices", "cpu:0,cpu:1", "--set", "parallel.launcher=direct")
ENV = {"OMP_NUM_THREADS": "1"}


def begin(fault: str, *more: str) -> runs.Run:
    done = CliRunner().invoke(cli, ["run", "--detach", *TWO, "--", PYTHON,
                                    str(SCRIPTS / "hang.py"), fault, *more], env=ENV)
    assert done.exit_code == 0, done.output
    return runs.find(done.stdout.strip())


def told(run: runs.Run) -> hangs.Hang | None:
    """What is told of ranks that have both said where they are; None before that."""
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    assert follower.state.live, run.log(0).read_text() + run.log(1).read_text()
    views = follower.ranks.values()
    if not all(v.step_times and v.stands is not None for v in views):
        return None
    return hangs.find_hang(views, time.time(), at_least=8.0)


LOCKED = "tests/scripts/hang.py:" + str(1 + (SCRIPTS / "hang.py").read_text().splitlines().index(
    "    taken.acquire()")) + " in locked"
SIZE = f"{SCRIPTS / 'hang.py'}:" + str(1 + (SCRIPTS / "hang.py").read_text().splitlines().index(
    "    dist.all_reduce(torch.ones(3))"))
STEP = "hang.py:" + str(1 + (SCRIPTS / "hang.py").read_text().splitlines().index(
    "    model(torch.randn(8, 64), both).backward()")) + " in step"
HANGS = {
    "loop": (1, True, ("rank 0 waits for rank 1 in all_reduce #", "in step",
                       "rank 1 works at ", "in spin")),
    "barrier": (0, False, ("rank 0 in barrier #", "in checkpoint", "rank 1 in all_reduce #",
                           "in step", "if rank == 0:")),
    "lock": (1, False, ("rank 0 waits for rank 1", f"rank 1 stands still at {LOCKED}")),
    "recv": (1, False, ("rank 0 waits for rank 1", "rank 1 waits in recv at ", "hang.py:")),
    "read": (1, False, ("rank 0 waits for rank 1", "rank 1 stands still at ", "in read")),
    "loader": (1, False, ("rank 0 waits for rank 1",
                          "rank 1 stands still, waiting for its DataLoader, whose worker is at ",
                          " in __getitem__, at ")),
}
"""Rank, whether it works, and parts of the sentence."""


def test_who_waits_for_whom_is_told_with_the_line_of_each(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = {fault: begin(fault) for fault in HANGS}
    try:
        for fault, (rank, works, parts) in HANGS.items():
            hang = wait_for(lambda run=started[fault]: told(run))
            assert (hang.rank, hang.works) == (rank, works), (fault, hang)
            assert all(part in hang.text for part in parts), (fault, hang.text)
            assert len(hang.where) == 2
            assert not any(line.endswith(",") for line in hang.where), hang.where
            if works:  # the others need the cores
                started[fault].stop(now=True)
        shown = CliRunner().invoke(cli, ["stacks", started["loader"].id, "--rank", "1"]).output
        assert "--- rank 1, process " in shown
        assert "in __getitem__" in shown
        pid = started["read"].state().processes[1].pid
        assert procs.read_stat(pid).state == "D"
        shown = CliRunner().invoke(cli, ["show", started["barrier"].id, "--json"])
        assert json.loads(shown.stdout)["ranks"][0]["stands"]["collectives"]
    finally:
        for run in started.values():
            if run.state().live:
                run.stop(now=True)
        for run in started.values():
            over(run)


@pytest.mark.parametrize(("fault", "parts"), [
    ("left", ("rank 0 waits for rank 1 in all_reduce #", "rank 1 has ended after step 20")),
    ("gone", ("rank 0 waits for rank 1 in all_reduce #",
              "rank 1 has exited with 0 after step 20")),
    ("aborted", ("rank 0 waits for rank 1 in all_reduce #", "rank 1 has ended after step 40")),
    ("size", ("collective operations of different sizes met: ", f"rank 0 in one at {SIZE}", STEP,
              "if rank ==")),
    ("unused", ("parameters that were not used in producing loss",))])
def test_a_rank_that_left_is_the_cause_of_the_failure(home, fault, parts):
    run, state = engine_run(*TWO, "--", PYTHON, str(SCRIPTS / "hang.py"), fault, env=ENV)
    assert state["state"] == "failed"
    assert all(part in state["cause"]["message"] for part in parts), state["cause"]["message"]
    assert read_json(run.path / "state.json")["cause"]["message"] == state["cause"]["message"]
    assert all(word not in state["cause"]["message"] for word in ("?.", "for 0 s"))


def test_a_timeout_that_ends_a_run_says_who_did_not_come(home):
    _, state = engine_run(*TWO, "--", PYTHON, str(SCRIPTS / "hang.py"), "lock", "24", env=ENV)
    assert state["state"] == "failed"
    text = state["cause"]["message"]
    assert text.startswith("rank 0 waits for rank 1 in all_reduce #"), text
    assert f"rank 1 stands still at {LOCKED}" in text


# --- the rules, with ranks made up ----------------------------------------------------------------

NOW = 1000.0


def rank(number: int, *operations: tuple, step: int = 30, works: bool = False, still: float = 60.0,
         stands: bool = True, silent: float = 0.5, place: str = "train.py:7 in main",
         waits: str | None = None, **fields):
    """A rank that made its last step `still` seconds ago. An operation is (group, number, name,
    size, done), begun then, or as many seconds ago as come after that."""
    view = RankView(number, step=step, at_step=step, phase="running", phase_since=NOW - still,
                    beat=NOW - silent, **fields)
    view.step_times = [(NOW - still - i, step - i) for i in range(9)][::-1]
    begun = {i: schema.Collective(group, n, name, size, NOW - (ago or [still])[0], done)
             for i, (group, n, name, size, done, *ago) in enumerate(operations)}
    if stands:
        view.stands = schema.Stands(step, "running", NOW - still, works, place, (place,),
                                    begun or None, waits=waits)
    return view


WAITS, DONE = ("0", 8, "all_reduce", "9 float", False), ("0", 7, "all_reduce", "9 float", True)


def test_ranks_that_have_all_come_blame_none_of_them():
    hang = hangs.find_hang([rank(0, WAITS), rank(1, WAITS)], NOW)
    assert "all have come" in hang.text
    assert not hang.works


def test_the_one_who_did_not_come_is_told_among_many():
    views = [rank(r, WAITS) for r in range(63)] + [rank(63, DONE, works=True)]
    hang = hangs.find_hang(views, NOW)
    assert (hang.rank, hang.works) == (63, True)
    assert hang.text.startswith("63 ranks wait for rank 63 in all_reduce #8 (9 float) at ")


@pytest.mark.parametrize(("other", "text", "works"), [
    (rank(1, DONE, silent=50), "rank 1 gives no sign of life for 50 s", False),
    (rank(1, DONE, outcome="completed", ended=True), "rank 1 has ended after step 30", False),
    (rank(1, ("1", 3, "broadcast", "", False)), "rank 1 in broadcast #3 of group 1", False),
    (rank(1, stands=False, silent=50), "rank 1 gives no sign of life for 50 s", False),
    (rank(1, stands=False, still=2), "rank 1 has got to step 30", True),
    (rank(1, DONE, error=schema.Error("E", "m", None, None, None)), "rank 1 has failed", False)])
def test_what_became_of_who_did_not_come(other, text, works):
    hang = hangs.find_hang([rank(0, WAITS), other], NOW)
    assert hang.text.endswith(text) or f"{text} at" in hang.text, hang.text
    assert hang.works is works


def test_ranks_in_different_groups_blame_neither_one_of_them_nor_the_network():
    """Where each waits for another there is no first, and a group's other ranks are not known."""
    in_group = [("0", 7, "all_reduce", "9 float", True)]
    for begun in ([("1", 1), ("2", 1)], [("1", 2), ("2", 2), ("3", 2)]):
        views = [rank(r, *in_group, *((g, n - 1, "all_reduce", "5 float", True)
                                      for g, n in begun if n > 1),
                      (group, number, "all_reduce", "5 float", False))
                 for r, (group, number) in enumerate(begun)]
        hang = hangs.find_hang(views, NOW)
        assert hang.text.startswith("ranks wait in different operations: rank 0 in all_reduce #")
        assert f"rank 1 in all_reduce #{begun[1][1]} of group 2" in hang.text
        assert not hang.works
    alone = hangs.find_hang([rank(0, ("1", 1, "all_reduce", "5 float", False)), rank(1)], NOW)
    assert alone.text == "rank 0 waits in all_reduce #1 of group 1 (5 float) at train.py:7 in " \
                         "main for 60 s"


def test_one_that_waits_for_a_third_is_not_the_one_who_did_not_come():
    what = ("all_reduce", "5 float")
    views = [rank(0, DONE, ("1", 3, *what, False), still=70),
             rank(1, ("1", 2, *what, True), ("2", 3, *what, False)),
             rank(2, ("2", 2, *what, True), works=True)]
    hang = hangs.find_hang(views, NOW)
    assert hang.text.startswith("rank 1 waits for rank 2 in all_reduce #3 of group 2 (5 float) at")
    views[0] = rank(0, WAITS, still=70)
    hang = hangs.find_hang(views, NOW)
    assert hang.text.startswith("rank 0 waits for rank 2 in all_reduce #8 (9 float) at")
    assert hang.works


def test_once_a_rank_has_ended_well_others_may_do_what_they_like_but_within_a_step():
    ended = rank(1, stands=False, silent=50)
    ended.phase, ended.ended = "done", True
    assert hangs.find_hang([rank(0, stands=False, still=25), ended], NOW) is None
    uploads = rank(0, DONE)
    assert hangs.find_hang([uploads, ended], NOW) is None
    uploads.phase = "backward"
    assert "rank 0 stands still at" in hangs.find_hang([uploads, ended], NOW).text


def test_sizes_that_differ_are_told_by_side_the_fewest_first():
    failed = schema.Error("E", "m", None, None, None)
    odd = ("0", 8, "all_reduce", "100 float", False)
    views = [rank(0, WAITS, error=failed), rank(1, stands=False),
             rank(2, odd, place="train.py:3 in main", error=failed)]
    for line, sides in (
            ("/here/train.py:7 in main",
             "rank 2 in all_reduce #8 (100 float) at train.py:3 in main, "
             "ranks 0, 1 in all_reduce #8 (9 float) at train.py:7 in main"),
            (None, "rank 0 in all_reduce #8 (9 float) at train.py:7 in main, "
             "rank 2 in all_reduce #8 (100 float) at train.py:3 in main, "
             "rank 1 in one that is not known, as it was ended before it could say")):
        assert f"met: {sides}. Is" in hangs.another_size(views, {1: line})


def test_the_size_of_a_rank_that_was_ended_is_told_by_its_share_of_the_others():
    views = [rank(0, WAITS, error=schema.Error("E", "m", None, None, None)), rank(1, stands=False)]
    place = "/here/train.py:7 in main"
    for shares, size in (({1: 2 / 3}, "about 6 float"), ({}, "another size")):
        assert "rank 0 in all_reduce #8 (9 float) at train.py:7 in main, rank 1 in one at " \
            f"{place} ({size})." in hangs.another_size(views, {1: place}, shares)


def test_one_that_was_ended_as_it_failed_is_told_with_the_line_of_its_error():
    """Torchrun ends the others at once, and they may not get to say where they were."""
    told, states = schema.Error("E", "reset by peer", 'Traceback (most recent call last):\n'
                                '  File "/a/train.py", line 7, in main\n    step()\n'
                                '  File "/v/site-packages/torch/x.py", line 2, in f\n', None,
                                None), {}
    for number in (0, 1):
        states[number] = RankState(number, None, 1, ours=True)
        states[number].fold(schema.Start(number, number, 0, 9, None, 2, ("CPU 0",), 1))
    states[1].fold(told)
    ended = [Failure(0, -6, NOW, None, "Received data size doesn't match expected size"),
             Failure(1, 1, NOW, states[1].view.error)]
    assert ("met: rank 1 in one at /a/train.py:7 in main, rank 0 in one that is not known, as it "
            "was ended before it could say. Is") in \
        Attempt(1, events=states)._who_did_not_come(ended)


def test_of_those_who_did_not_come_the_first_stands_still_but_is_no_alarm_while_another_works():
    """It may be waiting for that one, where nothing says so; and one that is known to wait is late
    only because of another."""
    views = [rank(0, WAITS), rank(1, DONE, works=True), rank(2, DONE, waits="recv"), rank(3, DONE)]
    hang = hangs.find_hang(views, NOW)
    assert (hang.rank, hang.works) == (3, True)
    assert hang.text.endswith("; rank 3 stands still at train.py:7 in main; rank 1 works at "
                              "train.py:7 in main; rank 2 waits in recv at train.py:7 in main")
    assert hangs.find_alarm(views, NOW) is None
    saved = hangs.find_hang([rank(0, works=True, waits="barrier"), rank(1, works=True)], NOW)
    assert "rank 0 has come to barrier at train.py:7 in main" in saved.text, "it worked before"
    assert hangs.find_alarm([views[0], *views[2:]], NOW).rank == 3
    assert hangs.find_hang([views[0], *views[1:3]], NOW).rank == 1


def test_nothing_is_told_of_unheard_ranks():
    views = [rank(0, DONE, still=1), rank(1, WAITS)]
    assert hangs.find_hang(views, NOW) is not None
    assert hangs.find_hang(views, NOW, unheard={1}) is None


def test_a_rank_that_is_in_no_group_with_them_is_not_missed():
    group = ("3", 5, "all_reduce", "9 float", False)
    views = [rank(0, group), rank(1, ("3", 4, "all_reduce", "9 float", True)),
             rank(2, DONE, works=True)]
    assert "for rank 1 in all_reduce #5 of group 3" in hangs.find_hang(views, NOW).text


def test_the_roots_other_size_is_no_difference():
    views = [rank(0, ("0", 8, "gather", "9 float", False)),
             rank(1, ("0", 8, "gather", "", False))]
    assert "different operations" not in hangs.find_hang(views, NOW).text
    views = [rank(0, ("0", 8, "all_reduce", "9 float", False)),
             rank(1, ("0", 8, "all_reduce", "1 int", False))]
    assert "different operations" in hangs.find_hang(views, NOW).text


@pytest.mark.parametrize("views", [
    [rank(0, WAITS, still=12), rank(1, DONE, works=True, still=12)],  # twelve seconds
    [rank(0, DONE, still=1, stands=False), rank(1, DONE, still=1, stands=False)],
    [rank(0, stands=False, still=25), rank(1, stands=False, still=25)],
    [RankView(0, phase="init", beat=NOW), RankView(1, phase="init", beat=NOW)]])
def test_nothing_is_told_of_ranks_that_go_on(views):
    assert hangs.find_hang(views, NOW) is None


def test_a_wait_is_told_once_it_has_taken_long():
    for still, told in ((hangs.SOON - 1, False), (hangs.SOON + 1, True)):
        found = hangs.find_hang([rank(0, WAITS, still=still), rank(1, still=still)], NOW)
        assert (found is not None) is told
    views = [rank(0, ("0", 8, "all_reduce", "9 float", False, 5)), rank(1, works=True)]
    assert hangs.find_hang(views, NOW).text.startswith("no step for 01:00: "), "no healthy wait"


def test_a_standstill_that_has_ended_by_itself_is_usual_of_the_rank():
    """It waits for its environment, or for an answer over a socket, again and again."""
    for stood, still, told in ((0.0, 60, True), (35.0, 60, False), (35.0, 80, True),
                               (5000.0, 601, True)):
        view = rank(0, still=60 + still)
        object.__setattr__(step := schema.Step(31, 0.1, 0), "t", NOW - still)
        RunView({0: view}).fold(0, step)
        assert view.stood == 60, "it stood, and not at work"
        view = rank(0, still=still)
        view.stood = stood
        assert bool(hangs.find_alarm([view], NOW)) is told


def test_one_that_goes_from_operation_to_operation_waits_in_none_of_them():
    """In a validation, say; NCCL waits at full speed, and there it is the operation's age."""
    for took, works in ((2.0, True), (40.0, False)):
        goes_on = rank(1, ("0", 8, "all_reduce", "9 float", False, 30 + took), works=True)
        object.__setattr__(goes_on.stands, "t", NOW - 30)
        hang = hangs.find_hang([rank(0, WAITS), goes_on], NOW)
        assert hang.works is works
        assert hang.where[1].endswith(", works") is works


def test_one_that_sleeps_wakes_up_by_itself_and_is_an_alarm_only_after_long():
    """And one in a debugger has a person, who knows."""
    for waits, still, alarm in ((schema.SLEEP, 60.0, False), (schema.SLEEP, 100.0, True),
                                (schema.DEBUGGER, 1000.0, False)):
        views = [rank(0, WAITS, still=still), rank(1, DONE, waits=waits, still=still)]
        hang = hangs.find_hang(views, NOW)
        assert f"rank 1 waits in {waits} at train.py:7 in main" in hang.text
        assert hang.works is not alarm


def test_who_waits_for_others_in_the_engines_own_way_is_told_by_its_words_and_by_no_line():
    views = [rank(0, step=30, works=True, place="task.py:3 in evaluate"),
             rank(1, works=True, place="gpu_engine/worker/rank/peers.py:8 in _wait_for",
                  detail="waiting for rank 0: evaluating")]
    hang = hangs.find_hang(views, NOW)
    assert hang.text == "no step for 01:00: rank 0 works at task.py:3 in evaluate; " \
                        "rank 1 is waiting for rank 0: evaluating"
    assert hang.works
    object.__setattr__(views[0].stands, "works", False)
    hang = hangs.find_alarm(views, NOW)
    assert hang.rank == 0
    assert hang.where[1] == "rank 1 is waiting for rank 0: evaluating"


@pytest.mark.parametrize(("process", "text", "works"), [
    ("works", "rank 1 works, but says nothing for 50 s", True),
    ("suspended", "rank 1 is suspended for 50 s", False),
    ("sleeps", "rank 1 gives no sign of life for 50 s", False)])
def test_what_the_supervisor_sees_of_a_silent_rank_says_whether_it_is_an_alarm(
        process, text, works):
    run = RunView({1: rank(1, DONE, silent=50)})
    heard = run.ranks[1].beat
    run.fold(1, schema.Quiet(process))
    assert run.ranks[1].beat == heard, "it is no sign of life"
    hang = hangs.find_hang([rank(0, WAITS), run.ranks[1]], NOW)
    assert text in hang.text
    assert hang.works is works
    run.fold(1, schema.Phase("forward", NOW, 31))
    assert run.ranks[1].quiet is None


def test_slow_steps_are_no_standstill():
    views = [rank(0, WAITS), rank(1, DONE, works=True)]
    for view in views:  # a step a minute
        view.step_times = [(t - (30 - n) * 60, n) for t, n in view.step_times]
    assert hangs.find_hang(views, NOW) is None
    for view in views:  # the second, which takes as long as the first
        view.step_times, view.began = view.step_times[-1:], NOW - 60 - 40
    assert hangs.find_hang(views, NOW) is None
    for view in views:
        view.began = NOW - 60 - 20
    assert hangs.find_hang(views, NOW) is not None


def test_who_waits_before_the_first_step_is_told_but_only_in_an_operation():
    views = [rank(0, WAITS), rank(1, works=True)]
    for view in views:
        view.step_times = []
    assert hangs.find_hang(views, NOW).works
    assert hangs.find_hang(views[1:], NOW) is None


def test_who_has_not_come_to_the_process_group_is_told_with_its_line():
    views = [rank(0, step=0, place="train.py:3 in main"), rank(1, step=0),
             rank(2, step=0, works=True)]
    for view in views:
        view.step_times = []
    object.__setattr__(views[0].stands, "stack", (
        "torch/distributed/distributed_c10d.py:9 in init_process_group", "train.py:3 in main"))
    hang = hangs.find_hang(views, NOW)
    assert hang.text == (
        "rank 0 waits for ranks 1, 2 in init_process_group at train.py:3 in main for 60 s; "
        "rank 1 stands still at train.py:7 in main; rank 2 works at train.py:7 in main")
    assert (hang.rank, hang.works) == (1, True)
    assert not hangs.find_hang(views[:2], NOW).works
    assert hangs.find_hang(views, NOW - 45) is None
    assert hangs.find_hang(views[:1], NOW) is None


def test_without_operations_the_lines_are_told():
    hang = hangs.find_hang([rank(0), rank(1, place="load.py:3 in read")], NOW)
    assert hang.text == ("no step for 01:00: rank 0 stands still at train.py:7 in main; "
                         "rank 1 stands still at load.py:3 in read")
    hang = hangs.find_hang([rank(0, works=True), rank(1, works=True)], NOW)
    assert hang.text == "no step for 01:00: ranks 0, 1 work at train.py:7 in main"
    assert hang.works


def at(view: RankView, **stands) -> RankView:
    """The rank where it stands otherwise."""
    view.stands = replace(view.stands, **stands)
    return view


def test_all_that_may_be_told_of_a_rank():
    loads = "torch/utils/data/dataloader.py:3 in f"
    joins = [at(rank(number), stack=("c10d.py:9 in init_process_group",)) for number in range(3)]
    for view in joins:
        view.step_times = []
    alone = rank(1, stands=False, silent=50)
    for views in (
            [rank(0, WAITS), *(rank(number, DONE) for number in range(1, 6))],
            [rank(0, WAITS), rank(1, DONE, outcome="failed")],
            *([rank(0, WAITS), rank(1, DONE, outcome="completed", ended=ended, exit=status)]
              for ended, status in ((True, 3), (False, None), (True, None))),
            [rank(0, WAITS), at(rank(1, DONE), stack=(loads,), worker="w.py:2 in g")],
            [rank(0, WAITS), at(rank(1, DONE), stack=(loads,))],
            [rank(0, WAITS), at(rank(1, DONE), worker="w.py:2 in g")],
            [at(rank(0), place=None, stack=("a.py:1 in b",)), at(rank(1), place=None, stack=())],
            [*joins[:2], RankView(3, beat=NOW)], [alone, rank(2)], [alone, rank(2, silent=40)],
            [rank(0, silent=40), alone], [rank(0, WAITS), rank(1, WAITS), rank(2)],
            [rank(0, WAITS, still=30), rank(1, DONE, stands=False, still=29)]):
        hangs.find_hang(views, NOW)
        hangs.find_hang(views, NOW, unheard={views[-1].rank})
    assert hangs.find_alarm([rank(0), rank(1, works=True)], NOW, unheard={1}).rank == 0
    for others in (8, 9):
        standing = [hangs.Standstill(number, None, None, 40.0, 0.0) for number in range(others)]
        hangs.describe([hangs.Standstill(others, 1, "data", 50.0, 20.0), *standing])
        hangs.describe([*standing, hangs.Standstill(others, 0, "x", 99.0, 0.0)])
    assert hangs.behind([rank(0, WAITS, still=0.5), rank(1, DONE)], NOW).text.startswith(
        "rank 0 waits for rank 1 in all_reduce #8 (9 float) at train.py:7 in main; ")
    for size in ("9 float", "1000", "9,9 float, 3 int"):
        one = rank(0, ("0", 8, "all_reduce", size, False))
        hangs.another_size([one], {1: "/here/train.py:7 in main"}, {1: 0.5})
