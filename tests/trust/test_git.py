"""A folder that one is in may say in `.git/config` what git starts when it looks at the files: to
look at what would be sent to a host starts nothing. A launch may."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_engine.code import snapshot

from .hostile_runs import World


def _git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words],
                   check=True, capture_output=True)


@pytest.fixture
def folder(world: World) -> Path:
    """The present one: a repository."""
    Path("a.py").write_text("pass\n")
    _git("init", "-q", ".")
    _git("add", ".")
    _git("commit", "-q", "-m", "x")
    program = str(world.outside / "program")
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external",
                "filter.x.clean", "filter.x.process"):
        _git("config", key, program)
    Path(".git/info/attributes").parent.mkdir(exist_ok=True)
    Path(".git/info/attributes").write_text("* filter=x\n")
    Path("a.py").write_text("print()\n")
    return Path.cwd()


def test_it_is_looked_at_to_be_sent(folder: Path, world: World):
    assert snapshot.describe(folder).files == len(snapshot.take(folder).entries) == 1
    assert not world.marker.exists()
