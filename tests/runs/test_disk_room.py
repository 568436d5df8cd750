"""A full disk is named: before a run is begun on one, and where a rank died of it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.events.schema import Error
from gpu_engine.places import verbs as launch
from gpu_engine.runs import disk_room
from gpu_engine.runs import folder as runs
from gpu_engine.runs.disk_room import Room
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor.cause import Failure, first_cause

from ..conftest import slots

EMPTY, FULL = Room("/home/me/runs", 900 << 30), Room("/home/me/runs", 3 << 20)


def disk(free: int, inodes: int = 10**6) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_files=10**6, f_favail=inodes,
                           f_blocks=10**9)


def test_the_room_of_a_folder_that_is_still_to_be_made(tmp_path):
    info = os.statvfs(tmp_path)
    found = disk_room.of(tmp_path / "a" / "b").free
    assert abs(found - info.f_bavail * info.f_frsize) < 1 << 30
    assert disk_room.problem(tmp_path / "a") is None


@pytest.mark.parametrize("seen", [disk(0), disk(63 << 20), disk(900 << 30, inodes=0)])
def test_a_run_is_not_begun_where_there_is_no_room(monkeypatch, seen):
    inventory = slots(1)
    prepared = launch.prepare(from_dict({"task": {"use": "gpu_engine.tasks.digits:Digits"},
                                         "devices": {"ids": ["cpu:0"]}}), inventory=inventory)
    monkeypatch.setattr(os, "statvfs", lambda _: seen)
    with pytest.raises(UserError, match=r"no space left in .*/runs: .* free, and a run needs at "
                                        r"least 64"):
        launch.start(prepared)
    assert runs.all_runs() == []


def test_where_nothing_can_be_told_a_run_may_try(monkeypatch, tmp_path):
    def refuse(_: object):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refuse)
    assert disk_room.of(tmp_path) == Room(str(tmp_path), None)
    assert disk_room.problem(tmp_path) is None


@pytest.mark.parametrize(("seen", "silent"), [(disk(0), True), (disk(900 << 20), False),
                                              (disk(900 << 30, inodes=0), True)])
def test_ranks_are_not_heard_of_where_their_disk_is_full(monkeypatch, tmp_path, seen, silent):
    monkeypatch.setattr(os, "statvfs", lambda _: seen)
    told = disk_room.silence(tmp_path)
    assert (told is not None) == silent
    assert not silent or (told.startswith("no space left") and told.endswith(f"in {tmp_path}"))


def os_error(path: str | None) -> str:
    """What Python says of a full disk; /dev/full is one."""
    try:
        with open("/dev/full", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(b"x")
    except OSError as err:
        if path is not None:
            err.filename = path
        return str(err)
    raise AssertionError


@pytest.mark.parametrize(("message", "disk", "lead"), [
    (os_error(None), EMPTY, "no space left on a disk that it wrote to"),
    (os_error(None), FULL, "no space left in /home/me/runs (3.0 MiB free)"),
    (os_error("/scratch/out.bin"), FULL, "no space left on the disk of /scratch/out.bin"),
    ("[Errno 122] Disk quota exceeded: '/home/me/a'", EMPTY,
     "no space left on the disk of /home/me/a"),
    ("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/0: "
     "file write failed", FULL, "no space left in /home/me/runs (3.0 MiB free)"),
    ("Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: unable to allocate shared "
     "memory(shm) for file </torch_69_47_0>: No space left on device (28)", FULL,
     "no space left in /dev/shm (shared memory, "),
    ("DataLoader worker (pid 8) is killed by signal: Bus error. It is possible that dataloader's "
     "workers are out of shared memory.", EMPTY, "no space left in /dev/shm (shared memory, "),
])
def test_a_rank_that_died_of_a_full_disk(message, disk, lead):
    error = Error("RuntimeError", message, None, None, None)
    cause = first_cause([Failure(1, 1, 2.0, error)], disks=(EMPTY, disk))
    assert cause.line.startswith(f"rank 1: {lead}")
    assert message in cause.message  # its own words stand below
    assert cause.type == "RuntimeError"


def test_a_rank_whose_last_words_found_no_room_either():
    assert first_cause([Failure(0, 1, 2.0)], disks=(FULL,)).line == \
        "rank 0: no space left in /home/me/runs (3.0 MiB free): make room there"


@pytest.mark.parametrize("message", ["file write failed", "'x'", "no room for it"])
def test_other_failures_are_told_as_they_are(message):
    error = Error("RuntimeError", message, None, None, None)
    assert first_cause([Failure(0, 1, 2.0, error)], disks=(EMPTY,)).message == message
    assert first_cause([Failure(0, 1, 2.0)], disks=(EMPTY,)).message == "exited with 1"
    assert "no space" not in first_cause([Failure(0, -9, 2.0)], disks=(FULL,)).message
