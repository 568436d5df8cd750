"""The bin: removed runs come back as they were, for a week."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.cli import cli
from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.remote.run.removal import Removal
from gpu_engine.runs import bin, trust
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run, find

from ..command_line import called
from ..plans import plan
from ..trust.watching import tree


def ended(state: str = "completed") -> Run:
    run, lock = create_run("a run", 'name = "a run"\n', plan())
    run.write_state(replace(run.state(), state=state, ended=time.time()))
    os.close(lock)
    return run


def test_a_removed_run_comes_back_as_it_was(home: Path):
    run = ended()
    trust.note_started(run.path)
    before = tree(run.path)
    out = called("runs", "rm", run.id)
    assert out.returncode == 0
    assert f"{run.id} is in the bin for a week" in out.stdout
    assert re.search(r"its [\d.]+ KiB are free after that, or now by gpu-engine runs empty",
                     out.stdout)
    assert not run.path.exists()
    with pytest.raises(UserError):
        find(run.id)
    assert run.id not in called("runs").stdout
    listed = called("runs", "--removed").stdout
    assert run.id in listed
    assert "a run" in listed
    [one] = json.loads(called("runs", "--removed", "--json").stdout)
    assert (one["id"], one["name"]) == (run.id, "a run")
    assert called("runs", "restore", run.id[:3]).stdout == f"{run.id} is back\n"
    assert tree(run.path) == before
    assert trust.started_here(run.path), "it is resumed, and its hosts are asked, as before"
    assert not bin.listed()


def test_for_good_and_emptying_delete(home: Path):
    one, two = ended(), ended()
    assert f"{one.id} removed, " in called("runs", "rm", "--for-good", one.id).stdout
    assert not bin.listed()
    trust.note_started(two.path)
    called("runs", "prune", "--keep", "0")
    assert [r.id for r in bin.listed()] == [two.id]
    assert f"{two.id} removed, " in called("runs", "empty").stdout
    assert not bin.listed()
    assert not list((home / "removed").iterdir())
    assert not (home / "started" / two.id).exists()
    assert "the bin is empty" in called("runs", "--removed").stderr


def test_after_a_week_the_next_removal_deletes(home: Path, monkeypatch: pytest.MonkeyPatch):
    old, new, other = ended(), ended(), ended()
    with Removal(for_good=False) as removal:
        removal.remove(old)
        later = time.time() + bin.KEPT - 60
        monkeypatch.setattr(bin.time, "time", lambda: later)
        removal.remove(new)
    assert {one.id for one in bin.listed()} == {old.id, new.id}
    monkeypatch.setattr(bin.time, "time", lambda: later + 120)
    assert "until the next removal" in called("runs", "--removed").stdout
    with Removal(for_good=False) as removal:
        removal.remove(other)
    assert {one.id for one in bin.listed()} == {new.id, other.id}


@pytest.mark.parametrize(("number", "said"), [
    (errno.EXDEV, "it is on another disk"), (errno.ENOSPC, "no space left on device")])
def test_where_it_can_not_be_kept_nothing_is_lost(
        home: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str):
    run = ended()

    def refused(*given: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(bin.os, "rename", refused)
        with pytest.raises(UserError, match=f"{said}; gpu-engine runs rm --for-good deletes it"):
            bin.put(run)
    assert run.path.is_dir()


def test_a_run_elsewhere_or_live_is_not_moved(home: Path, tmp_path: Path):
    live, lock = create_run("x", "", plan())
    with pytest.raises(UserError, match="stop it first"):
        bin.put(live)
    os.close(lock)
    elsewhere = ended()
    moved = Run(tmp_path / "sent")
    elsewhere.path.rename(moved.path)
    with pytest.raises(UserError, match="not among the runs of this home"):
        bin.put(moved)
    assert moved.path.is_dir()


def test_another_run_with_its_id_is_not_replaced(home: Path):
    run = ended()
    bin.put(run)
    run.path.mkdir()
    with pytest.raises(UserError, match="there is another run"):
        bin.restore(bin.find(run.id))
    assert [one.id for one in bin.listed()] == [run.id]
    with pytest.raises(UserError, match="no removed run zzzz"):
        bin.find("zzzz")


def test_of_two_with_one_id_the_last_removed_comes_back(home: Path):
    for when in ("100", "300", "200"):
        (home / "removed" / f"3f2a.{when}").mkdir(parents=True)
    assert [one.removed for one in bin.listed()] == [300, 200, 100]
    assert bin.find("3f").removed == 300


def test_deleting_a_removed_run_forgets_nothing_of_another_with_its_id(home: Path):
    run = ended()
    bin.put(run)
    ended().path.rename(run.path)
    trust.note_started(run.path)
    bin.delete(bin.find(run.id))
    assert not bin.listed()
    assert trust.started_here(run.path)


def test_what_else_lies_in_the_bin_is_left_alone(home: Path, tmp_path: Path):
    (home / "removed").mkdir(parents=True)
    (home / "removed" / "notes").mkdir()
    (home / "removed" / "a.1").symlink_to(tmp_path)
    (home / "removed" / "b.2").write_text("")
    assert not bin.listed()
    cli.main(["runs", "empty"], standalone_mode=False)
    assert len(list((home / "removed").iterdir())) == 3
    assert paths.home() == home


@pytest.mark.parametrize(("words", "when"), [
    ((), ", free in a week, or now by gpu-engine runs empty"),
    (("--dry-run",), "; with --for-good they are free at once"), (("--for-good",), "")])
def test_pruning_says_when_the_room_is_free(home: Path, words: tuple[str, ...], when: str):
    ended()
    said = called("runs", "prune", "--keep", "0", *words).stderr
    assert re.fullmatch(rf"[\d.]+ KiB in all{when}\n", said), said
