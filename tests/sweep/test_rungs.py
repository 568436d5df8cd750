"""Members of a sweep that are stopped before their end, as others do better (run.stop_worse), or
rest until the best go on (run.halving)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError
from gpu_engine.common.files import locked
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import attempts
from gpu_engine.queue import serve
from gpu_engine.remote.run import parts
from gpu_engine.runs import sweep, trust, waiting
from gpu_engine.runs.folder import Run, Rung, State
from gpu_engine.supervisor.supervise import Supervisor
from gpu_engine.sweep import group
from gpu_engine.sweep.rungs import Rungs, due, worse_than

from .. import event_lines
from ..command_line import called
from ..conftest import wait_for
from ..queue import kit
from ..remote.run.kit import make_hosts, pids
from .made import ended, nobody_starts, submitted


@pytest.mark.parametrize(("best", "others", "largest", "worse"), [
    (1.1, [1.0, 1.0], False, None),  # the third
    (1.5, [1.0, 2.0, 3.0], False, None),
    (2.0, [1.0, 2.0, 3.0], False, None),  # the median itself
    (2.1, [1.0, 2.0, 3.0], False, 2),
    (2.6, [1.0, 2.0, 3.0, 4.0], False, 2),  # the median is 2.5
    (2.4, [1.0, 2.0, 3.0, 4.0], False, None),
    (0.5, [0.9, 0.6, 0.1], True, 2),
    (0.7, [0.9, 0.6, 0.1], True, None),
    (None, [1.0, 2.0, 3.0], False, 3),  # nan is worse than all
    (None, [1.0, None, None], False, None),
    (9.0, [1.0, None, None], False, None),  # and stops nobody
    (9.0, [1.0, 2.0, None, 3.0], False, 3)])
def test_the_median_rule(best, others, largest, worse):
    assert worse_than(best, others, largest=largest) == worse


def at(state: str, *bests: float | None, attempt: int | None = None) -> State:
    """A member that has got to these rungs, each in an attempt of its own."""
    rungs = tuple(Rung(0.1, 1.0, 1, best, number) for number, best in enumerate(bests, 1))
    return State(state, "x", "x", 1.0, attempt=attempt or max(len(bests), 1), rungs=rungs)


@pytest.mark.parametrize(("members", "on"), [
    # Three went on from the first rung, of which one failed: it is not made up for.
    ([at("stopped", b) for b in (5.0, 6.0, 9.0, 8.0, 7.0, 4.0)]
     + [at("stopped", 3.0, 2.5), at("failed", 2.0, attempt=2), at("stopped", 1.0, 0.9)], [8]),
    # The best has completed; a person has stopped the others that went on.
    ([at("stopped", 5.0)] * 6 + [at("completed", 1.0, 1.0, attempt=3)]
     + [at("stopped", 1.0, attempt=2)] * 2, []),
    ([at("failed"), at("lost"), *[at("stopped", 1.0)] * 2, *[at("stopped", None)] * 5], [2, 3]),
    # Nobody has a value at the first rung, or at the second.
    ([at("failed"), *[at("stopped", None)] * 8], [1, 2, 3, 4, 5, 6, 7, 8]),
    ([at("stopped", None), *[at("stopped", None, None)] * 2, at("stopped", None, 2.0)], [0, 3]),
    ([at("stopped", 5.0)] * 6 + [at("stopped", 1.0, None)] * 2 + [at("failed", 2.0, attempt=2)],
     [6, 7])])
def test_nine_three_one(members, on):
    named = {str(number): state for number, state in enumerate(members)}
    turned = {name: replace(state, rungs=tuple(
        replace(rung, best=rung.best and -rung.best) for rung in state.rungs))
        for name, state in named.items()}
    for all_of_them, largest in ((named, False), (turned, True)):
        assert due(all_of_them, 9, 3, largest=largest) == list(map(str, on))


@given(st.permutations(range(30)), st.integers(1, 30), st.integers(2, 6), st.booleans())
def test_the_best_go_on_until_the_last_rung_and_each_rests_once_at_each(order, of, factor, largest):
    """Whoever is live meanwhile has nobody go on."""
    values = {str(at): float(-value if largest else value) for at, value in enumerate(order[:of])}
    states = {name: at("stopped") for name in values}
    going, passed = list(values), []
    while going:
        for name in going:
            states[name] = at("stopped", *[values[name]] * (len(states[name].rungs) + 1))
        going = due(states, of, factor, largest=largest)
        passed.append(going)
        for name in going[:1]:
            assert due(states | {name: at("queued", values[name])}, of, factor,
                       largest=largest) == []
    best = sorted(values, key=values.__getitem__, reverse=largest)
    assert passed == [best[:of // factor ** level] for level in range(1, len(passed))] + [[]]
    assert of // factor ** len(passed) == 0


@pytest.mark.parametrize(("members", "on"), [
    ([at("stopped", 5.0), at("running"), at("queued")], []),
    ([at("stopped", 5.0), at("stopped", 6.0), at("running"), at("stopped", 7.0)], [0]),
    # The one that went on is not of the best two of six any more, and is not taken back.
    ([at("queued", 5.0, attempt=2), *[at("stopped", b) for b in (6.0, 7.0, 4.0, 3.0, 8.0)],
      at("running")], [3, 4]),
    # The failed one got there, too. At the second rung three have been.
    ([at("failed", 1.0), at("stopped", 2.0), at("stopped", 3.0), at("running", 2.5, 2.5, attempt=3),
      at("stopped", 2.6, 2.6), at("stopped", 2.7, 2.4)], [1, 5]),
    ([at("stopped", None), at("stopped", None), at("stopped", None), at("running")], []),
    ([at("stopped", 1.0), at("running", 1.0, attempt=2), at("stopped", 1.0), at("queued")], [])])
def test_with_asha_whoever_is_in_the_best_third_so_far(members, on):
    named = {str(number): state for number, state in enumerate(members)}
    assert sorted(due(named, 9, 3, largest=False, asha=True)) == list(map(str, on))


def rung_of(run: Run, step: int | None = 10**6, **state) -> Rung | None:
    rungs = Rungs.of(run)
    return rungs and rungs(replace(run.state(), **state), [RankView(0, at_step=step)])


def keep(run: Run, rung: Rung, state: str = "completed") -> None:
    run.write_state(replace(run.state(), state=state, rungs=(rung,)))


def test_what_counts_is_what_was_known_at_the_rung_and_of_whom(monkeypatch, home):
    nobody_starts(monkeypatch)
    grid = "train.lr=1,2,3,4,5,6,7,8,9,10"
    runs = submitted(grid, train={"steps": 8}, run={"stop_worse": True}).runs
    losses = [[9.0, 1.0, 0.1], [9.0, 2.0], [9.0, float("nan")], [5.0, 4.0], [0.1, 0.1], [],
              [float("nan")] * 2, [0.1, 0.1], [0.1, 0.1], [9.0, 9.0, 0.01]]
    # One has failed; of the other nothing is left but its state, so it is lost.
    over = {runs[4]: "failed", runs[8]: "running"}
    [stranger] = submitted("train.lr=1").runs
    keep(stranger, Rung(0.25, 1.0, 2, 0.0))
    for run, each in zip(runs, losses, strict=True):
        ended(run, each)
    assert rung_of(runs[0], step=2) is None  # what follows step 2, as its evaluation, is to come
    told = []
    for run in runs:
        if (found := rung_of(run, step=3)) is None:
            told.append(None)
            keep(run, Rung(0.25, time.time() + 1000, 2, 0.0))  # later than the others
            continue
        keep(run, found, over.get(run, "completed"))
        told.append((found.share, found.step, found.best, found.why))
        if run == runs[7]:  # not one that this home has started
            trust.forget_started(run.path)
    assert told == [
        (0.25, 2, 1.0, None), (0.25, 2, 2.0, None), (0.25, 2, None, None),  # NaN by now
        (0.25, 2, 4.0, "worse than 2 of 3 at step 2"), (0.25, 2, 0.1, None), None,
        (0.25, 2, None, "worse than 3 of 4 at step 2"), (0.25, 2, 0.1, None),
        (0.25, 2, 0.1, None), (0.25, 2, 9.0, "worse than 3 of 5 at step 2")]
    # One that is resumed is not judged again where it was.
    assert rung_of(runs[0], step=4) is None
    judge = Rungs.of(runs[0])
    shares = [judge(runs[0].state(), [RankView(0, at_step=step)]) for step in (5, 6, 7, 9)]
    assert [found and found.share for found in shares] == [0.5, None, 0.75, None]
    (runs[1].path / sweep.FILE).unlink()
    assert Rungs.of(runs[1]) is None


def test_a_limit_is_a_budget_too_and_values_count_as_they_were_then(monkeypatch, home):
    nobody_starts(monkeypatch)
    [run, other, _] = submitted("train.lr=1,2,3", train={"best": "max:acc"},
                                run={"halving": 3, "limit": 90.0}).runs
    ended(run, [])
    now = time.time()
    event_lines.append(run.events(0), *(
        event_lines.line("metric", {"step": None, "acc": acc}, t=now + t)
        for t, acc in ((-31.0, 0.5), (-1.0, 0.4), (-0.5, 0.3), (0.5, 0.9))))
    assert rung_of(run, until=None) is None
    assert rung_of(run, until=now + 61) is None  # the first rung is at a third: in a second
    rung = rung_of(run, until=now + 60)
    assert (rung.share, rung.best) == (1 / 3, 0.5)
    assert rung.why == "rests after 00:30 for the best 1 of 3 to go on"
    ended(other, [])
    lacks = rung_of(other, until=now)
    assert lacks.best is None
    assert lacks.why.endswith("for the best 1 of 3 to go on; it has no acc yet")
    event_lines.append(run.events(0), event_lines.line(
        "metric", {"step": None, "acc": "NaN"}, t=now - 0.1))
    nan = rung_of(run, until=now + 60)
    assert nan.best is None
    assert nan.why == "rests after 00:30 for the best 1 of 3 to go on; its acc is nan"
    keep(run, rung, "stopped")
    assert Supervisor(run, 0o22).limit == pytest.approx(60.0)  # the rest of its time


PRINTS = """
import os, signal, sys, time
lr, at, own = float(sys.argv[1][5:]), sys.argv[2].split(","), os.environ["GPU_PANEL_RUN"] + "/own"
done = int(open(own).read()) if os.path.exists(own) else 0
try:
    while os.path.exists(f"hold{lr}"):
        time.sleep(0.05)
    for step in range(done + 1, 91):
        print(f"step {step} val: {lr + 1 / step}", flush=True)
        if str(step) in at and (lr > 4 or at[1:]):
            signal.pause()
except KeyboardInterrupt:
    open(own, "w").write(str(step))
"""


HERE = {"ids": ["cpu:0"]}
PLACES = pytest.mark.parametrize("devices", [
    HERE, {"hosts": ["a", "b"], "pick": 1}], ids=str)


def there(run: Run) -> Path:
    """Its folder where it trains."""
    return next((Path(part.path or "") for part in parts.read(run.path)), run.path)


@pytest.fixture
def hosts(home):
    make_hosts(home, "a", "b")


def printing(tmp_path, grid: str, at: str, devices: dict[str, object] = HERE, **run):
    """A sweep of scripts that print their steps and wait at some of them to be stopped."""
    (tmp_path / "prints.py").write_text(PRINTS)
    command = [sys.executable, "prints.py", "--lr=1", at, "{steps}"]
    return submitted(grid, task={"command": command}, train={"steps": 90},
                     devices=devices,
                     run={"metrics": {"val": r"val: (\S+)"}, "best": "val"} | run)


@PLACES
def test_what_loses_is_stopped_with_its_save_and_the_table_says_why(
        hosts, devices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = printing(tmp_path, "lr=1,3,2,8,1.5", "24", devices, stop_worse=True)
    kit.over(*made.runs)
    assert [r.state().state for r in made.runs] == ["completed"] * 3 + ["stopped", "completed"]
    loses = made.runs[3]
    assert loses.state().reason == "worse than 3 of 3 at step 22"
    assert (there(loses) / "own").read_text() == "24"
    table = called("sweep", made.id).stdout
    assert "4 of 5 done, 1 stopped" in table
    assert f"1 stopped ({loses.id}): worse than 3 of 3 at step 22" in table
    assert "worse than 3 of 3" in called("runs").stdout
    assert called("sweep", "retry", made.id).returncode == 2


def test_nine_runs_rest_and_the_best_go_on_from_where_they_were(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = printing(tmp_path, "lr=5,3,2,8,1.5,4,7,6,9", "11,31", halving=3)
    lock = waiting.sweep_lock(paths.queue_folder(), made.id)
    wait_for(lambda: not lock.exists())
    states = [run.state() for run in made.runs]
    assert [len(s.attempts) for s in states] == [1, 2, 2, 1, 3, 1, 1, 1, 1]
    assert [s.state for s in states].index("completed") == 4
    assert states[0].reason == "rests at step 10 for the best 3 of 9 to go on"
    assert states[1].reason == "rests at step 30 for the best 1 of 9 to go on"
    steps = [line.split()[1] for line in made.runs[4].log(0).read_text().splitlines()]
    assert [step for step in steps if step.isdigit()] == list(map(str, range(1, 91)))


@PLACES
def test_with_asha_the_best_so_far_go_on_while_others_have_not_begun(
        hosts, devices, tmp_path, monkeypatch):
    """Of the first two the better one, which is then no more the best of three."""
    monkeypatch.chdir(tmp_path)
    Path("hold1.0").touch()
    made = printing(tmp_path, "lr=2,3,1", "46,91", devices, halving=2, asha=True)
    wait_for(lambda: made.runs[0].state().attempt == 2)
    Path("hold1.0").unlink()
    lock = waiting.sweep_lock(paths.queue_folder(), made.id)
    wait_for(lambda: not lock.exists())
    assert [(s.state, s.attempt, s.reason) for s in (run.state() for run in made.runs)] == [
        ("completed", 2, None),
        ("stopped", 1, "rests at step 45 until it is in the best 1/2 of those that got there"),
        ("completed", 2, None)]


def test_in_a_search_those_go_on_that_the_rule_says_before_the_next_is_asked_for(
        home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prints.py").write_text(PRINTS)
    ident = json.loads(called(
        "run", "--devices", "cpu:0", "--metric", r"val: (\S+)", "--set", "run.best=min:val",
        "--set", "train.steps=90", "--grid", "lr=0.5..9", "--tries", "5", "--search", "tpe",
        "--asha", "2", "--json", "--", sys.executable, "prints.py", "--lr=1", "24,46", "{steps}",
        ).stdout)["id"]
    lock = waiting.sweep_lock(paths.queue_folder(), ident)
    wait_for(lambda: not lock.exists())
    found = [(run.id, run.state()) for run, _ in group.find(ident).members]
    assert len(found) == 5
    for level in range(2):
        came = sorted((s.rungs[level].t, s.rungs[level].best, name) for name, s in found
                      if len(s.rungs) > level)
        best = {name for many in range(1, len(came) + 1)
                for _, name in sorted(one[1:] for one in came[:many])[:many // 2]}
        assert best == {name for name, s in found if s.attempt > level + 1} != set()


def test_those_that_go_on_come_before_the_new_ones(home, monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1,2,3,4,5,6", train={"steps": 9}, run={"halving": 2, "asha": True})
    for run, value in zip(made.runs[:4], (3.0, 4.0, 2.0, 5.0), strict=True):
        ended(run, [], state="stopped")
        keep(run, Rung(0.25, 1.0, 2, value), "stopped")
    found = group.find(made.id)
    for _ in range(2):
        assert group.go_on(found, set(), {}, whole=False)
        line = [w.run.id for w in serve.line()]
        assert {*line[:2]} == {made.runs[0].id, made.runs[2].id}
        assert line[2:] == [run.id for run in made.runs[4:]]


def test_with_asha_too_one_comes_to_the_end_where_others_fail(home, monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1,2,3,4", train={"steps": 9}, run={"halving": 2, "asha": True})
    first, second, third, fourth = made.runs
    for run, *bests in ((first, 3.0, 3.0), (second, 4.0), (third, 2.0), (fourth,)):
        ended(run, [], state="stopped" if bests else "failed")
        run.write_state(replace(run.state(), rungs=tuple(
            Rung(share, 1.0, 2, best, 1)
            for share, best in zip((0.25, 0.5), bests, strict=False))))
    for goes_on in (third, first):  # the first of all only once the third has failed
        assert group.go_on(group.find(made.id), set(), {}, whole=True)
        assert [w.run for w in serve.line()] == [goes_on]
        ended(goes_on, [], state="failed")


def test_on_hosts_too_though_everybody_who_watches_is_killed(hosts, tmp_path, monkeypatch):
    """The best goes on where it was: the others' hosts have nothing of it."""
    monkeypatch.chdir(tmp_path)
    made = printing(tmp_path, "lr=3,2", "46,60", {"hosts": ["a", "b"], "pick": 1}, halving=2)
    first = made.runs[0]
    wait_for(lambda: first.log(0).exists() and "step 46" in first.log(0).read_text())
    os.kill(first.state().pid, signal.SIGKILL)
    lock, best = waiting.sweep_lock(paths.queue_folder(), made.id), made.runs[1]
    wait_for(lambda: best.state().attempt == 2 and best.state().state == "running")
    os.kill(best.state().pid, signal.SIGKILL)
    for pid in pids():
        with contextlib.suppress(OSError):
            if made.id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not locked(lock))
    assert called("sweep", made.id).returncode == 0
    assert best.supervised()
    assert locked(lock)
    wait_for(lambda: "step 60" in best.log(0).read_text())
    os.kill(Run(there(best)).state().processes[0].pid, signal.SIGINT)
    wait_for(lambda: not lock.exists())
    assert [(s.state, len(s.attempts), s.reason) for s in (run.state() for run in made.runs)] == [
        ("stopped", 1, "rests at step 45 for the best 1 of 2 to go on"), ("completed", 2, None)]
    steps = [line.split()[1] for line in best.log(0).read_text().splitlines()]
    assert [step for step in steps if step.isdigit()] == list(map(str, range(1, 61)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [HERE, {"hosts": ["a:cpu:0"]}], ids=str)
def test_a_task_goes_on_from_its_checkpoint(hosts, devices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = submitted("train.lr=1e-2,1e-6", task={"use": "gpu_engine.tasks.digits:Digits"},
                     devices=devices, run={"halving": 2},
                     train={"steps": 6000, "workers": 0})
    # In one look: between two, it has rested, and then waits for its second attempt.
    good = wait_for(lambda: (s := made.runs[0].state()).attempt == 2 and not s.live and s)
    bad = made.runs[1].state()
    assert (good.state, bad.state, bad.attempt) == ("completed", "stopped", 1)
    [_, (_, first)] = attempts(made.runs[0].events(0))
    assert 3000 < first < 6000


SAYS = """
echo "val: $2"
exec sleep 600
"""


def test_runs_whose_steps_nobody_sees_are_compared_too(home, tmp_path, monkeypatch):
    """Their time counts from their start. One is NaN, and another has no value yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "says.sh").write_text(SAYS)
    made = submitted("lr=nan,2,1", task={"command": ["sh", "says.sh", "--lr", "1"]},
                     devices={"ids": ["cpu:0"]},
                     run={"halving": 3, "limit": 3.0, "metrics": {"val": r"val: (\S+)"},
                          "best": "min:val"})
    lock = waiting.sweep_lock(paths.queue_folder(), made.id)
    wait_for(lambda: not lock.exists())
    states = [run.state() for run in made.runs]
    assert [(s.state, s.attempt) for s in states] == [("stopped", 1), ("stopped", 1),
                                                      ("completed", 2)]
    assert states[0].reason.endswith("to go on; its val is nan")
    assert states[2].reason.startswith("time was up after 00:03, counted from the start")


def test_where_nobody_has_a_value_all_go_on_and_it_is_said(home, monkeypatch):
    with monkeypatch.context() as patch:
        nobody_starts(patch)
        made = submitted("lr=1,2,3", devices={"ids": ["cpu:0"]}, run={"halving": 3, "limit": 9.0},
                         task={"command": ["true", "--lr", "1"]})
    for run in made.runs:
        ended(run, [], state="stopped")
        keep(run, Rung(1 / 3, 1.0, 3, None), "stopped")
    waiting.sweep_lock(paths.queue_folder(), made.id).write_text(socket.gethostname())
    assert called("queue").returncode == 0
    wait_for(lambda: all(run.state().state == "completed" for run in made.runs))
    assert "at 33 % of their time or steps no run had a value to be compared by: all of them go " \
        "on" in called("sweep", made.id).stdout


def test_a_stop_of_the_sweep_keeps_those_that_rest_where_they_are(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = printing(tmp_path, "lr=1,2,3,4,5,6,7,8,9", "11,31", halving=3)
    wait_for(lambda: made.runs[0].state().rests)
    assert called("sweep", "stop", made.id).returncode == 0
    log = waiting.sweep_lock(paths.queue_folder(), made.id).with_suffix(".log")
    wait_for(lambda: not log.exists())  # its process has ended
    assert {(run.state().state, run.state().attempt) for run in made.runs} == {("stopped", 1)}


def resting(monkeypatch) -> group.Sweep:
    """A sweep whose members all rest at their first rung, and whose process was killed."""
    with monkeypatch.context() as patch:
        nobody_starts(patch)
        made = submitted("lr=1,2,3", devices={"ids": ["cpu:0"]}, train={"steps": 9},
                         task={"command": ["sh", "-c", "echo {steps}", "--lr", "1"]},
                         run={"halving": 3})
    for best, run in enumerate(made.runs):
        ended(run, [], state="stopped")
        keep(run, Rung(1 / 3, 1.0, 3, -float(best)), "stopped")
    waiting.sweep_lock(paths.queue_folder(), made.id).write_text(socket.gethostname())
    return made


def test_a_sweep_that_was_stopped_does_not_go_on_nor_one_of_another_machine(home, monkeypatch):
    made, other = resting(monkeypatch), resting(monkeypatch)
    theirs = waiting.sweep_lock(paths.queue_folder(), other.id)
    theirs.write_text("elsewhere")
    assert called("sweep", "stop", made.id).returncode == 0
    serve.ensure()
    assert [run.state().attempt for run in made.runs] == [1, 1, 1]
    assert theirs.read_text() == "elsewhere"
    assert not serve.line()


@pytest.mark.parametrize(("run", "says"), [
    ({"stop_worse": True}, "run.stop_worse needs to know how long"),
    ({"stop_worse": True, "halving": 2, "limit": 9}, "choose one of them"),
    ({"halving": 5, "limit": 9}, "compares 5 runs or more, and here are 4"),
    ({"halving": 2, "limit": 9, "metrics": {"val": "val: (.*)"}}, "run.best=min:val, or max:val")])
def test_what_can_not_be_compared_is_refused(home, run, says):
    with pytest.raises(SpecError, match=says):
        submitted("lr=1,2,3,4", task={"command": ["true", "--lr", "1"]}, run=run)


def test_the_options_are_for_a_sweep(home):
    done = called("run", "--stop-worse", "--devices", "cpu:0", "--", "true")
    assert done.returncode == 2
    assert "go with --grid or --repeat" in done.stderr
    both = called("plan", "--halving", "2", "--asha", "2", "--grid", "lr=1,2", "--", "true")
    assert "give one of them" in both.stderr
    shown = called("plan", "--asha", "2", "--limit", "9s", "--devices", "cpu:0", "--grid",
                   "lr=1,2", "--json", "--", "true", "--lr", "1").stdout
    assert '"halving": 2' in shown
    assert '"asha": true' in shown
