"""Which devices a run gets that names none, and what is said of it."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_panel.app import PanelApp

from ..command_line import called
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..panel.panel_kit import until

pytestmark = pytest.mark.usefixtures("home")
COMMAND = ("--", sys.executable, "-c", "print(1)")


@pytest.fixture
def eight(as_this_machine):  # noqa: F811
    """Eight GPUs, of which the first two and the last are taken."""
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    machine = as_this_machine("count 8", "gpu * util 0")
    devices = discover().devices
    held = leases.acquire(paths.leases_folder(), [devices[i] for i in (0, 1, 7)], "77aa")
    yield machine
    held.close()


def planned(*words: str) -> str:
    done = called("plan", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command_gets_the_freest_and_says_so(eight):
    said = planned(*COMMAND)
    assert "on GPU 2: the freest of 8" in said
    assert "GPU 2 → cuda:0 rank 0" in said


def test_ddp_gets_all_that_are_free(eight):
    said = planned("--mode", "ddp", *COMMAND)
    assert "world size 5" in said
    assert "on GPU 2, GPU 3, GPU 4, GPU 5, GPU 6: all that are free of 8" in said


def test_a_plan_of_a_device_in_use_is_shown_with_what_is_in_the_way(eight):
    said = planned("--mode", "ddp", "--devices", "0,2", *COMMAND)
    assert "warning: it can't start now: devices.ids = \"0\": GPU 0 is held by run 77aa" in said
    eight.add(f"gpu 2 proc {os.getpid()} {40 << 30}")
    said = planned("--devices", "2", *COMMAND)
    assert "warning: it can't start now: devices.ids = \"2\": GPU 2 is not free" in said
    done = called("run", "--devices", "2", *COMMAND)
    assert (done.returncode, "GPU 2 is not free" in done.stderr) == (2, True)


def test_where_none_is_free_it_is_said_what_holds_them(eight):
    devices = discover().devices
    held = leases.acquire(paths.leases_folder(), devices[2:7], "88bb")
    done = called("run", "--mode", "ddp", *COMMAND)
    plan = planned("--mode", "ddp", *COMMAND)
    held.close()
    assert done.returncode == 2
    for words in ("1 device is needed and none is free; GPU 0: held by run 77aa",
                  "; GPU 3: held by run 88bb"):
        assert words in done.stderr
        assert words in plan.partition("warning: it can't start now: ")[2]
    assert "GPU 0 → cuda:0" in plan


def test_a_list_that_names_none_by_mistake_is_refused(eight, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    done = called("plan", *COMMAND)
    assert done.returncode == 2
    assert 'no GPU can be used: CUDA_VISIBLE_DEVICES is "all" here' in done.stderr
    assert "as in 0,1" in done.stderr


def test_what_is_not_read_of_such_a_list_is_said(eight, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2-4")
    assert 'CUDA_VISIBLE_DEVICES is "2-4" here, and "-4" of it is not read' in planned(*COMMAND)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "GPU" not in planned(*COMMAND).partition("\n\n")[0]


def test_the_queue_must_be_told_how_many_of_them(eight):
    done = called("run", "--queue", "--mode", "ddp", *COMMAND)
    assert done.returncode == 2
    assert "how many to wait for (-n 2)" in done.stderr


@pytest.mark.parametrize("words", [("--mode", "ddp", "--devices", "0,1"), ("--devices", "0")])
def test_gpus_of_a_machine_that_has_none(words):
    if not discover().is_cpu:
        pytest.skip("this machine has GPUs")
    done = called("plan", *words, *COMMAND)
    assert done.returncode == 2
    assert "has no GPU that can be used" in done.stderr
    assert "--devices cpu:0" in done.stderr
    assert f"-n {len(words) // 2} " in done.stderr


async def test_a_script_opens_with_the_freest_ticked(eight):
    app = PanelApp(None, command=["python", "train.py"])
    async with app.run_test(size=(120, 40)) as pilot:
        screen = app.screen_stack[0]
        await until(pilot, lambda: screen.review is not None and screen.draft.ids == ["2"])
        assert not screen.draft.ids_by_hand
        assert not screen.draft.changed
