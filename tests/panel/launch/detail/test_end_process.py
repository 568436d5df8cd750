"""Ending a process of one's own: the right one, after a question, and never another user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gpu_engine.common import procs
from gpu_engine.devices.records import DeviceProcess, Sample
from gpu_engine.runs.folder import Run
from gpu_panel.common.dialogs import Confirm, Message
from gpu_panel.launch import end_process
from gpu_panel.launch.end_process import (
    NotOurs,
    Target,
    examine,
    gone,
    is_of_another,
    send,
)
from gpu_panel.launch.run_feed import RunLine, RunsFeed

from ....conftest import gpus
from ...panel_kit import StillSampler, panel, screen_text, until

pytestmark = pytest.mark.usefixtures("home")
STUBBORN = ("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            "print('up', flush=True); time.sleep(60)")
NOBODY = 65534
POLITE = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def child():
    """Starts processes, and ends them after the test even if it fails."""
    started = []

    def start(code: str = POLITE, user: int | None = None) -> subprocess.Popen:
        python = "/usr/bin/env" if user is not None else sys.executable  # ours may be out of reach
        words = [python, "sh", "-c", "echo up; exec sleep 60"] if user is not None \
            else [python, "-c", code]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, user=user, cwd="/")
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def shown_as(pid: int, **more) -> DeviceProcess:
    return DeviceProcess(pid, 1 << 30, user="me", command="python train.py", **more)


def test_it_ends_the_one_that_is_meant(child):
    process = child()
    target = examine(shown_as(process.pid, started=time.time()))
    assert not gone(target)
    assert send(target)
    assert process.wait() == -signal.SIGTERM
    assert gone(target)
    assert not send(target)


def test_force_ends_one_that_does_not_listen(child):
    process = child(STUBBORN)
    target = examine(shown_as(process.pid))
    assert send(target)
    time.sleep(0.2)
    assert not gone(target)
    assert send(target, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_without_pidfds_too(child, monkeypatch):
    def none(pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", none)
    process = child()
    assert send(examine(shown_as(process.pid)))
    assert process.wait() == -signal.SIGTERM


def test_a_number_that_was_given_away_again_is_not_touched(child):
    process = child()
    with pytest.raises(NotOurs, match="another process now"):
        examine(shown_as(process.pid, started=time.time() - 3600))
    assert not send(Target(process.pid, 1))
    assert process.poll() is None


@pytest.mark.parametrize(("process", "said"), [
    (shown_as(4_000_000), "has ended already"),
    (DeviceProcess(7, visible=False), "not visible from here"),
    (DeviceProcess(os.getpid()), "the panel itself"),
    (DeviceProcess(os.getppid()), "the panel itself"),
])
def test_refusals(process, said):
    with pytest.raises(NotOurs, match=f"(?i){said}"):
        examine(process)


def test_another_user_s_is_never_touched(child, monkeypatch):
    process = child()
    target = Target(process.pid, procs.start_ticks(process.pid))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(NotOurs, match="belongs to another user, me;"):
        examine(shown_as(process.pid))
    with pytest.raises(NotOurs, match="belongs to another user;"):
        send(target)
    assert process.poll() is None


def test_root_may_end_another_user_s_and_is_told_whose(child, monkeypatch):
    process = child(user=NOBODY if os.getuid() == 0 else None)
    target = examine_as_root(monkeypatch, process)
    assert is_of_another(target)
    assert send(target, signal.SIGINT)
    assert process.wait() in (-signal.SIGINT, 1)


def examine_as_root(monkeypatch, process) -> Target:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    return examine(shown_as(process.pid))


# --- on the screen -------------------------------------------------------------------------------

def machine(*processes):
    one = gpus(1)
    sample = Sample(one.devices[0], 0.5, 1 << 30, 80 << 30, processes=processes)
    return one, StillSampler(one, (sample,))


async def asked(pilot, title: str) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                and title in screen_text(pilot.app))


async def test_a_question_first_then_it_ends(child):
    process = child()
    one, sampler = machine(shown_as(process.pid, started=time.time()))
    async with panel(one, sampler=sampler) as (pilot, screen):
        await pilot.press("enter", "x")
        await asked(pilot, f"End process {process.pid}")
        assert "python train.py" in screen_text(pilot.app)
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert process.poll() is None
        await pilot.press("x")
        await asked(pilot, "End process")
        await pilot.press("y")
        await until(pilot, lambda: process.poll() is not None)
        assert process.returncode == -signal.SIGTERM


async def test_one_that_does_not_listen_is_killed_after_another_question(child, monkeypatch):
    monkeypatch.setattr(end_process, "PATIENCE", 0.3)
    process = child(STUBBORN)
    one, sampler = machine(shown_as(process.pid))
    async with panel(one, sampler=sampler) as (pilot, _):
        await pilot.press("enter", "x")
        await asked(pilot, "End process")
        await pilot.press("y")
        await asked(pilot, "is still running")
        assert process.poll() is None
        await pilot.press("y")
        await until(pilot, lambda: process.poll() is not None)
        assert process.returncode == -signal.SIGKILL


async def test_others_are_refused_in_words(monkeypatch):
    one, sampler = machine(DeviceProcess(7, 1 << 30, visible=False))
    async with panel(one, sampler=sampler) as (pilot, _):
        await pilot.press("enter", "x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Message)
                    and "can't be seen" in screen_text(pilot.app))


async def test_a_hostile_name_in_the_question_is_harmless(child):
    process = child()
    evil = replace(shown_as(process.pid), command="[bold]x[/]\x1b]52;c;AAAA\x07")
    one, sampler = machine(evil)
    async with panel(one, sampler=sampler) as (pilot, _):
        await pilot.press("enter", "x")
        await asked(pilot, "[bold]x[/]")
        assert "\x1b" not in screen_text(pilot.app)


async def test_a_rank_of_ours_suggests_to_stop_the_run(child, monkeypatch, tmp_path):
    process = child()
    stopped = []
    run = Run(tmp_path / "3f2a")
    monkeypatch.setattr(Run, "stop", lambda self, now=False: stopped.append(self.id))
    line = RunLine(run, "gpt", "ddp", 2, "running", True, time.time(),
                   pids=((process.pid, 1),))
    monkeypatch.setattr(RunsFeed, "refresh", lambda self: ((line,), 0))
    one, sampler = machine(shown_as(process.pid))
    async with panel(one, sampler=sampler) as (pilot, screen):
        await until(pilot, lambda: screen.runs.lines)
        await pilot.press("enter")
        await until(pilot, lambda: "3f2a rank 1" in screen_text(pilot.app))
        await pilot.press("x")
        await asked(pilot, f"Process {process.pid} is rank 1 of run 3f2a")
        await pilot.press("y")
        await until(pilot, lambda: stopped == ["3f2a"])
    assert process.poll() is None
