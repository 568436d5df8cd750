"""Searches: the next values are asked for when a place has room, and the members' folders are the
study."""

# ruff: noqa: F811  fixtures of others

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.samplers import TPESampler

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked
from gpu_engine.queue import serve
from gpu_engine.queue.turns import When
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import Rung, all_runs
from gpu_engine.spec.read import from_dict
from gpu_engine.sweep import ask as asking
from gpu_engine.sweep import grid, group, search, study
from gpu_engine.sweep.kept import read

from ..command_line import called
from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..queue import kit
from ..queue.test_gpus import gpus  # noqa: F401
from .made import SPEC, ended, nobody_starts

SPACE = {"lr": "log:1e-5..1e-1", "width": "32..160:32", "opt": "sgd,adam"}


def loss(lr, width, opt):
    return (math.log10(float(lr)) + 2.7) ** 2 + abs(int(width) - 64) / 99 + (opt == "sgd")


def tried(values, at, **more):
    return {"values": list(values), "runs": [], "state": "COMPLETE", "step": 0, "begun": 2.0 * at,
            "ended": 2.0 * at + 1} | more


def question(tries, axes=SPACE, seed=3, **more):
    return {"axes": axes, "seed": seed, "largest": False, "tries": tries, "refused": []} | more


def asked(many, axes=SPACE, by=loss, **more):
    """What is asked for if one runs at a time; every question is to a study that is made anew."""
    tries = []
    while len(tries) < many and (
            values := asking.Search(question(tries, axes, **more)).next()) is not None:
        tries.append(tried(values, len(tries), value=by(*values)))
    return [tuple(one["values"]) for one in tries]


def test_one_at_a_time_it_asks_for_what_optunas_own_loop_asks_for():
    def own(trial):
        return loss(trial.suggest_float("lr", 1e-5, 1e-1, log=True),
                    trial.suggest_int("width", 32, 160, step=32),
                    trial.suggest_categorical("opt", ["sgd", "adam"]))

    loop = optuna.create_study(sampler=TPESampler(seed=3))
    loop.optimize(own, n_trials=25)
    assert asked(25) == [(f"{t.params['lr']:.4g}", str(t.params["width"]), t.params["opt"])
                         for t in loop.trials]


def test_what_was_tried_is_not_run_again_but_told_again():
    """As in Optuna's own loop, of whose points each is run once."""
    axes = {"width": "1..4", "opt": "sgd,adam"}

    def value(width, opt):
        return loss(1e-3, width, opt)

    loop = optuna.create_study(sampler=TPESampler(seed=3))
    loop.optimize(lambda t: value(t.suggest_int("width", 1, 4),
                                  t.suggest_categorical("opt", ["sgd", "adam"])), n_trials=40)
    points = list(dict.fromkeys((str(t.params["width"]), t.params["opt"]) for t in loop.trials))
    assert len(points) > 4
    found = asked(9, axes, value)
    assert found[:len(points)] == points
    assert sorted(found) == sorted((w, o) for w in "1234" for o in ("sgd", "adam"))  # no ninth


def test_several_at_a_time_removed_failed_and_pruned_ones_count_as_they_are():
    first = asked(12)
    tries = [tried(v, at, value=loss(*v)) for at, v in enumerate(first)]
    usual = asking.Search(question(tries)).next()
    live = [*tries[:10], *(one | {"state": "RUNNING", "value": None, "ended": None}
                           for one in tries[10:])]
    failed = [*tries[:11], tries[11] | {"state": "FAIL", "value": None}]
    pruned = [*tries[:11], tries[11] | {"state": "PRUNED", "step": 5}]
    for other in (live, failed, pruned, tries[:3] + tries[4:], tries[::-1]):
        found = asking.Search(question(other)).next()
        assert found == asking.Search(question(other)).next()
        assert found not in {tuple(one["values"]) for one in other}
    assert asking.Search(question(tries, refused=[usual])).next() not in (usual, None)
    states = {one.state.name for one in asking.Search(question(live + pruned)).frozen()}
    assert states == {"COMPLETE", "RUNNING", "PRUNED"}


def test_only_the_child_imports_optuna():
    root = Path(__file__).parents[2]
    found = {file.name for folder in ("engine", "tui") for file in (root / folder).rglob("*.py")
             if re.search(r"^\s*(import|from) optuna|gpu_engine.sweep.ask import|import ask$",
                          file.read_text(), re.MULTILINE)}
    assert found == {"ask.py"}


# --- members on disk ------------------------------------------------------------------------------

def begun(monkeypatch, *texts, tries=9, repeat=1, **sections) -> group.Group:
    """A search of which the first members wait, and whose next ones nobody asks for."""
    nobody_starts(monkeypatch)
    spec = from_dict(SPEC | {"devices": {"ids": ["cpu:0"]}} | sections)
    made = search.made("tpe", spec, [grid.parse(t) for t in texts], tries, repeat)
    known, members = search.first(made, None)
    return group.find(group.submit(members, When(), "toy", None, ["night"], known).id)


def ask_again(found: group.Group) -> group.Group:
    asker = search.Asker(paths.queue_folder(), found.id)
    asker(room=True)
    assert not asker.gave_up
    return group.find(found.id)


def test_members_are_added_until_all_are_tried_and_a_stop_ends_it(home, monkeypatch):
    found = begun(monkeypatch, "train.lr=log:1e-4..1e-1", "task.params.width=8,16", repeat=2)
    (one, member), (other, _) = found.members
    assert (member.of, member.search, member.axes, found.of) == (18, "tpe", {
        "train.lr": "log:1e-4..1e-1", "task.params.width": "8,16"}, 2)
    ended(one, [3.0, 1.0])
    lease = kit.hold()
    assert ask_again(found) == found  # no place has room
    lease.close()
    (two,) = study.tries_of(found, group.read(found))
    assert (two["state"], two["value"], two["ended"]) == ("RUNNING", None, None)
    ended(other, [2.0])
    (two,) = study.tries_of(found, group.read(found))
    assert (two["state"], two["value"], two["runs"]) == ("COMPLETE", 1.5, [one.id, other.id])
    found = ask_again(found)
    assert [(m.index, m.repeat) for _, m in found.members] == [(1, 1), (2, 2), (3, 1), (4, 2)]
    assert len({r.state().name for r, _ in found.members}) == 4
    # Killed before the second seed was there.
    ended(found.members[3][0], [1.0])
    found.members[3][0].remove()
    again = ask_again(found)
    assert [m.values for _, m in again.members[2:]] == [found.members[2][1].values] * 2
    assert again.members[3][1].index == 4
    text = called("sweep", found.id).stdout
    assert "2 of 18 done, 2 waiting, 14 to come" in text
    assert "search tpe: 18 runs at most; it asks for nothing: its process was ended; gpu-engine " \
        "queue has it ask again" in text
    assert "best so far, and at which try: 1.500 (1)" in text
    said = f"{found.id} toy: search tpe: 18 runs at most; it asks for nothing: its process was"
    assert said in called("queue").stdout
    stopped = called("sweep", "stop", found.id).stdout
    assert stopped.startswith("2 runs stopped")
    assert stopped.endswith("the search asks for no more\n")
    assert said not in called("queue").stdout
    assert len(ask_again(found).members) == 4
    text = called("sweep", found.id).stdout
    assert "2 of 18 done, 2 stopped, 14 not tried" in text
    assert "asks for no more" in text
    assert f"have it go on: gpu-engine sweep retry {found.id} --stopped\n" in text
    # Between two tries, too: nobody is to be tried again then.
    for run, _ in group.find(found.id).members[2:]:
        run.remove()
    monkeypatch.setattr(serve, "start_sweep", lambda folder, sweep: started.append(sweep))
    started = list[str]()
    assert "with --stopped the search goes on" in called("sweep", "retry", found.id).stderr
    assert called("sweep", "retry", found.id, "--stopped").stdout == \
        "the search asks for more again\n"
    assert started == [found.id]
    assert len(ask_again(group.find(found.id)).members) == 4
    assert called("sweep", "stop", found.id).returncode == 0
    assert "or was stopped" not in called("sweep", "retry", found.id).stderr


def test_states_of_members_are_those_of_trials(home, monkeypatch):
    found = begun(monkeypatch, "train.lr=log:1e-4..1e-1", tries=5)
    for losses, more in (([1.0], {"state": "completed"}), ([math.nan], {"state": "completed"}),
                         ([2.0], {"state": "stopped"}), ([3.0], {"why": "boom"})):
        run = group.find(found.id).members[-1][0]
        ended(run, losses, **more)
        if more == {"state": "stopped"}:
            run.write_state(replace(run.state(), rungs=(Rung(0.5, 1.0, 1, 2.0, why="worse"),)))
        ask_again(found)
    found = group.find(found.id)
    told = study.tries_of(found, group.read(found))
    # What failed has a best value, too, but did not come to its end.
    assert [one["state"] for one in told] == ["COMPLETE", "FAIL", "PRUNED", "FAIL", "RUNNING"]
    ended(found.members[-1][0], [0.5])
    assert len(ask_again(found).members) == 5
    assert read(paths.queue_folder(), found.id) is None
    out = paths.home() / "study.db"
    said = called("export", found.id, "--to", "optuna", "--out", str(out)).stdout
    assert "5 combinations" in said
    kept = optuna.load_study(study_name=found.id, storage=f"sqlite:///{out}")
    assert kept.best_value == 0.5


def test_what_can_not_run_is_asked_for_again(home, monkeypatch):
    found = begun(monkeypatch, "batch.size=3..8", tries=3, parallel={"mode": "ddp"},
                  devices={"ids": ["cpu:0", "cpu:1"]})
    for _ in range(2):
        ended(group.find(found.id).members[-1][0], [1.0])
        ask_again(found)
    sizes = {int(m.values["batch.size"]) for _, m in group.find(found.id).members}
    assert sizes == {4, 6, 8}
    with pytest.raises(UserError, match="none of the combinations can run; the last: batch"):
        begun(monkeypatch, "batch.size=3..9:2", tries=3, parallel={"mode": "ddp"},
              devices={"ids": ["cpu:0", "cpu:1"]})


def test_where_it_can_not_ask_it_says_why_and_asks_again_later(home, monkeypatch):
    found = begun(monkeypatch, "train.lr=log:1e-4..1e-1")
    ended(found.members[0][0], [1.0])

    def ask(*_, **__):
        raise UserError("no Optuna")

    monkeypatch.setattr(study, "ask", ask)
    asker = search.Asker(paths.queue_folder(), found.id)
    assert [asker(room=True) for _ in range(3)] == [True, True, False]
    assert "it asks for nothing: no Optuna; gpu-engine queue has it ask again" in called(
        "sweep", found.id).stdout
    monkeypatch.undo()
    monkeypatch.setenv("GPU_PANEL_HOME", str(home))
    nobody_starts(monkeypatch)
    assert len(ask_again(found).members) == 2
    assert read(paths.queue_folder(), found.id).why is None


def test_where_what_decides_is_never_recorded_it_asks_for_no_more(home, monkeypatch):
    found = begun(monkeypatch, "train.lr=log:1e-4..1e-1", tries=40, train={"best": "max:acc"})
    asker = search.Asker(paths.queue_folder(), found.id)
    asks = []
    while asks[-3:] != [True, True, False]:
        ended(group.find(found.id).members[-1][0], [1.0])
        asks.append(asker(room=True))
    assert len(asks) == 4 + 3
    assert "all 5 tries are done and none has recorded acc" in called("sweep", found.id).stdout


@pytest.mark.parametrize(("words", "says"), [
    (("--search", "cma", "--tries", "9"), "keeps a state of its own"),
    (("--search", "bohb", "--tries", "9"), "there is tpe"),
    (("--search", "tpe"), "--tries 40"),
    (("--search", "tpe", "--tries", "9"), "which value decides: --set run.best=min:acc"),
    (("--search", "tpe", "--tries", "9", "--grid", "devices.ids=cpu:0,cpu:1"),
     "can't be searched"),
    (("--search", "tpe", "--tries", "9", "--set", "run.best=max:acc", "--repeat", "3"),
     "launched:\n  train.seed: --repeat 3 has no effect, as the command python train.py --lr")])
def test_a_search_that_can_not_be_is_refused(words, says, home):
    done = called("run", "--devices", "cpu:0", "--metric", r"acc: (\S+)", "--grid", "lr=1..9",
                  *words, "--", "python", "train.py", "--lr", "1")
    assert done.returncode == 2
    assert says in done.stderr
    assert all_runs() == []


def test_without_optuna_it_says_what_to_type(home, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"(?s)needs Optuna.*optuna>=5,<6"):
        begun(monkeypatch, "train.lr=log:1e-4..1e-1")


SCRIPT = "import sys; lr, width = map(float, sys.argv[2::2]); print('loss:', (lr - 3) ** 2 + width)"


@pytest.mark.timeout(300)
def test_killed_at_any_point_it_goes_on_and_tries_the_same(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    done = called(
        "run", "--devices", "cpu:0", "--metric", r"loss: (\S+)", "--grid", "lr=0.5..9",
        "--grid", "width=1..8", "--tries", "6", "--search", "tpe", "--json", "--",
        sys.executable, "train.py", "--lr", "1", "--width", "1")
    ident = json.loads(done.stdout)["id"]
    lock = waiting.sweep_lock(paths.queue_folder(), ident)
    for many in (2, 3, 5):
        wait_for(lambda many=many: len(group.find(ident).members) >= many)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if ident in process.cmdline():  # and whom it is asking
                    child = [c for c in process.children() if "gpu_engine.sweep.ask" in c.cmdline()]
                    for one in (process, *child):
                        one.kill()
        wait_for(lambda: not locked(lock))
        serve.ensure()
    wait_for(lambda: read(paths.queue_folder(), ident) is None)
    found = group.find(ident)
    kit.over(*(run for run, _ in found.members))
    wait_for(lambda: not lock.exists())
    assert [tuple(m.values.values()) for _, m in found.members] == asked(
        6, {"lr": "0.5..9", "width": "1..8"}, lambda lr, w: (float(lr) - 3) ** 2 + int(w), seed=0)


@pytest.mark.timeout(300)
def test_each_card_that_is_free_has_one_asked_for(gpus, home, tmp_path, monkeypatch):
    gpus.set("count 2", "gpu * util 0")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        f"{SCRIPT}\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.05)")
    ident = json.loads(called(
        "run", "-n", "1", "--set", "run.best=min:loss", "--metric", r"loss: (\S+)", "--grid",
        "lr=0.5..9", "--tries", "4", "--search", "tpe", "--json", "--", sys.executable, "train.py",
        "--lr", "1", "--width", "1").stdout)["id"]

    def states():
        return [run.state() for run, _ in group.find(ident).members]

    wait_for(lambda: [state.state for state in states()] == ["running"] * 2)
    assert "it asks for the next values when a place has room" in called("sweep", ident).stdout
    assert {d.id for run, _ in group.find(ident).members
            for rank in run.require_plan().ranks for d in rank.devices} == {"0", "1"}
    Path("go").touch()
    wait_for(lambda: read(paths.queue_folder(), ident) is None)
    kit.over(*(run for run, _ in group.find(ident).members))
    one, two, three, _ = states()
    assert three.created >= min(one.ended, two.ended)  # not before a card was free
