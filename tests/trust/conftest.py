"""A home with one good run, and around it what no command may touch."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from gpu_engine.devices import sampler

from .hostile_runs import GOOD, T0, World, change, good
from .watching import Victim, Watch


@pytest.fixture(scope="session")
def victims():
    """The one that lives is the last."""
    made = [Victim()]
    yield made
    for victim in made:
        victim.close()


@pytest.fixture
def world(tmp_path, monkeypatch, victims):
    if any("ended" in word for word in victims[-1].signals()):
        victims.append(Victim())
    world = World(tmp_path, victims[-1].id)
    for name in ("home", "home/runs", "user", "work", "out"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "home" / "hosts.toml").write_text('[hosts.gpu9]\nlabel = "below the window"\n')
    world.make()
    good(world.runs / GOOD, world)
    change(world.runs / GOOD / "state.json", created=T0 + 1e9)  # the newest
    monkeypatch.setenv("GPU_PANEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path / "work")
    # What the devices do meanwhile, for which a page watches them for a second, is no matter here.
    monkeypatch.setattr(sampler, "take_several", partial(sampler.take_several, readings=0))
    yield world
    world.close()
    _remove(tmp_path)


def _remove(folder: Path):
    """pytest keeps the folders of three sessions; these would be many."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)  # noqa: PTH101
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def watch(world, victims):
    """Watches everything around the home, and the good run in it. To be called when the hostile
    folder has been made, as what it points at may have been made with it."""
    def begin() -> Watch:
        return Watch(world, victims[-1], world.outside, world.root / "user", world.root / "work",
                     world.runs / GOOD)

    return begin
