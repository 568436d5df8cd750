"""A folder that one is in may say in `.git/config` what git starts when it looks at the files: to
look at what would be sent to a host starts nothing. A launch may."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpu_engine.code import snapshot, submitted
from gpu_engine.common.errors import SpecError
from gpu_engine.spec.read import from_dict

from .watching import limits


def _git(*words: str):
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words],
                   check=True, capture_output=True)


@pytest.fixture
def folder(world):
    """The present one: a repository."""
    Path("a.py").write_text("pass\n")
    Path(".gitignore").write_text("*.log\n")
    _git("init", "-q", ".")
    _git("add", ".")
    _git("commit", "-q", "-m", "x")
    Path("a.py").write_text("print()\n")
    Path("b.py").write_text("")
    # A partial clone: what git misses, it would fetch with the program of core.sshCommand.
    blob = subprocess.check_output(["git", "rev-parse", ":.gitignore"], text=True).strip()
    _git("update-index", "--skip-worktree", ".gitignore")
    for path in (Path(".gitignore"), Path(".git/objects", blob[:2], blob[2:])):
        path.unlink()
    program = str(world.outside / "program")
    for key, value in (("core.repositoryformatversion", "1"), ("extensions.partialClone", "origin"),
                       ("remote.origin.url", "ssh://x/y"), ("remote.origin.promisor", "true"),
                       *((name, program) for name in (
                           "core.fsmonitor", "core.pager", "core.sshCommand", "diff.external",
                           "filter.x.clean", "filter.x.process"))):
        _git("config", key, value)
    Path(".git/info/attributes").parent.mkdir(exist_ok=True)
    Path(".git/info/attributes").write_text("* filter=x\n")
    return Path.cwd()


def test_it_is_looked_at_to_be_sent(folder, world):
    assert snapshot.describe(folder).files == len(snapshot.take(folder).entries) == 2
    assert not world.marker.exists()


def test_a_file_that_git_waits_for(monkeypatch, folder):
    os.mkfifo(".gitignore")
    monkeypatch.setattr(snapshot, "_TIMEOUT", 0.5)
    with pytest.raises(SpecError, match="git has not said"):
        snapshot.describe(folder)


def _paths(folder: Path) -> list[str]:
    return [os.fsdecode(entry.path) for entry in snapshot.take(folder).entries]


def test_nothing_is_taken_from_outside_the_folder(folder, world, tmp_path):
    """Neither behind a link that git ignores, where a tracked folder was, nor from the folder that
    its configuration names as the one with its files."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    for name in ("a.py", "secret.py"):
        (outside / name).write_text("secret")
    os.renames(".git/info/attributes", "gone")
    Path("sub/deep").mkdir(parents=True)
    Path("sub/deep/a.py").touch()
    _git("add", "sub")
    Path("sub/deep/a.py").unlink()
    Path("sub/deep").rmdir()
    Path("sub/deep").symlink_to(outside)
    world.marker.unlink(missing_ok=True)  # adding it by git alone asks the folder's file monitor
    Path(".git/info").mkdir(exist_ok=True)
    Path(".git/info/exclude").write_text("sub/deep\ngone\n")
    assert _paths(folder) == ["a.py", "b.py"]
    _git("config", "core.worktree", str(outside))
    command = from_dict({"task": {"command": ["true"]}})
    assert submitted.keep(command, folder).root == str(folder)
    assert _paths(folder) == ["a.py", "b.py"]
    assert not world.marker.exists()


def test_many_links_cost_little(folder):
    for number in range(16_000):
        Path(f"link{number}").symlink_to("nowhere")
    with limits():
        assert len(_paths(folder)) == 16_002
