"""Files that a run writes get the mode of the umask of whoever launched; ours are private."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common import paths
from gpu_engine.queue import serve
from gpu_engine.runs import folder as runs

from ..command_line import called
from ..conftest import wait_for
from ..queue.kit import queue
from ..remote.run.kit import make_hosts

WRITES = "umask; echo x > \"written-$(ls | wc -l)\"; "
FAILS_ONCE = WRITES + "test -e written-1"


@pytest.fixture(params=[0o002, 0o022], ids="{:03o}".format)
def umask(request, tmp_path, monkeypatch):
    """The umask of the person, who is in an empty folder."""
    (tmp_path / "work").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "work")
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def engine(*words: str) -> runs.Run:
    subprocess.run([sys.executable, "-m", "gpu_engine", *words], check=True, capture_output=True,
                   stdin=subprocess.DEVNULL)
    return runs.all_runs()[0]


def ended(run: runs.Run, times: int = 1) -> runs.Run:
    """The run, once so many attempts have ended."""
    wait_for(lambda: not run.state().live and not run.supervised()
             and sum(a.ended is not None for a in run.state().attempts) == times)
    return run


def check(run: runs.Run, umask: int, files: int = 1) -> None:
    """What it has written, that it saw the umask, and that nobody else can read our files."""
    assert [stat.S_IMODE(path.stat().st_mode) for path in Path().iterdir()] \
        == [0o666 & ~umask] * files, "what the script has written"
    said = [line for line in run.output(0).read_text().split() if line.isdigit() and len(line) > 1]
    assert [int(line, 8) for line in said] == [umask] * files
    for path in (run.path, *run.path.rglob("*")):
        assert not path.lstat().st_mode & 0o077, path


def test_from_the_command_line_also_when_it_is_resumed(home, umask):
    run = ended(engine("run", "--devices", "cpu:0", "--", "sh", "-c", WRITES))
    check(run, umask)
    engine("resume", run.id)
    check(ended(run, 2), umask, files=2)


FIRST = {
    "hold": ["hold", "--devices", "cpu:0", "--", "true"],
    "hold for a time": ["hold", "--devices", "cpu:0", "--for", "1s"],
    "queue": ["run", "--queue", "--devices", "cpu:0", "--", "true"],
    "sweep": ["run", "--devices", "cpu:0", "--repeat", "1", "--", "true"],
    "run": ["run", "--devices", "cpu:0", "--detach", "--", "true"],
    "hosts": ["hosts", "add", "box", "--label", "a box"],
    "notify": ["notify", "--init"],
    "settings": ["settings", "--init"],
    "usage": ["usage"], "devices": ["devices"], "runs": ["runs"], "doctor": ["doctor"],
    "the lines": ["queue"]}
"""Commands that may be the first to make the home."""


@pytest.mark.parametrize("words", FIRST.values(), ids=FIRST)
def test_whatever_makes_the_home_closes_it(home, tmp_path, monkeypatch, words):
    monkeypatch.setenv("GPU_PANEL_HOME", str(home / "gp"))
    (tmp_path / "work" / "a" / "b").mkdir(parents=True)
    (tmp_path / "work" / "a" / "b" / "c.py").touch()
    monkeypatch.chdir(tmp_path / "work")
    subprocess.run(["git", "init", "-q"], check=True)
    before = os.umask(0)
    try:
        subprocess.run([sys.executable, "-m", "gpu_engine", *words], capture_output=True,
                       check=words != ["doctor"],  # that fails where it finds something
                       stdin=subprocess.DEVNULL)
    finally:
        os.umask(before)
    wait_for(lambda: not any(run.supervised() for run in runs.all_runs()))
    kept = home / "gp" / "code"  # its files have modes as git has them
    assert not home.exists() or not [path for path in (home, *home.rglob("*")) if path.lstat(
        ).st_mode & (0o022 if path.is_file() and path.is_relative_to(kept) else 0o077)]


def test_a_home_that_a_version_before_left_open_is_closed(home):
    """But not one in which other things are too, nor a sticky one, such as /tmp."""
    line = home / "queue" / "line"
    for folder, mode in ((home, 0o775), (home / "queue", 0o777), (line, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    found = called("doctor", "--json").stdout
    assert found.count("can be written by others") == 2 * 2, "as of state and of settings"
    assert called("hosts", "add", "box", "--label", "a box").returncode == 0
    assert [p.stat().st_mode & 0o777 for p in (home, line.parent, line)] == [0o700, 0o777, 0o755]
    paths.private_folder(line)
    assert [p.stat().st_mode & 0o777 for p in (home, line.parent, line)] == [0o700, 0o700, 0o755]
    home.chmod(0o1777)
    paths.private_folder(line)
    assert home.stat().st_mode & 0o7777 == 0o1777
    home.chmod(0o775)
    (home / "theirs").touch()
    paths.private_folder(line)
    assert home.stat().st_mode & 0o777 == 0o775


def test_out_of_the_queue(home, umask):
    check(ended(engine("run", "--queue", "--devices", "cpu:0", "--", "sh", "-c", WRITES)), umask)


def test_out_of_a_queue_that_goes_on_after_a_reboot(home, umask):
    """That of whoever has it go on."""
    before = os.umask(0o077)
    run = queue("sh", "-c", WRITES, begin=False)
    os.umask(before)
    assert serve.ensure() == 1
    check(ended(run), umask)


def test_on_a_host_it_is_that_of_the_account_there(home, umask):
    make_hosts(home, "box", script='umask 027; exec "$@"')
    run = engine("run", "--set", "devices.hosts=box:cpu:0", "--", "sh", "-c", WRITES)
    os.umask(umask)
    check(ended(run), 0o027)
