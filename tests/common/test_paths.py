"""Nobody knows the user's folder: HOME is not set and the uid has no name, as in a container that
was started with --user."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError

from .. import powers
from ..command_line import called

NAMELESS = """
import os, pwd, runpy, sys
def nobody(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = nobody
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
"""A uid without a name takes root's powers; a user database without this uid is the same."""

MODULE = {"gpu-engine": "gpu_engine", "gpu-panel": "gpu_panel"}


def nameless(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    program, *words = line.split()
    return subprocess.run([sys.executable, "-c", NAMELESS, MODULE[program], *words], text=True,
                          env={"PATH": os.environ["PATH"], **env}, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=600)


@pytest.mark.parametrize("line", [
    "gpu-engine run default --devices cpu:0", "gpu-engine settings", "gpu-panel --keys"])
def test_one_sentence_says_what_to_set(line, tmp_path):
    done = nameless(line)
    assert done.returncode == 2
    assert done.stdout == ""
    title, sentence = done.stderr.splitlines()
    assert title == "That can't be done:"
    assert "HOME is not set" in sentence
    assert "set GPU_PANEL_HOME to a folder of your own" in sentence


@pytest.mark.parametrize("line", [
    "runs", "show last", "logs", "stop last", "resume last", "queue", "sweep list", "devices",
    "report last", "runs prune --keep 1", "plan default --devices cpu:0",
    "run default --devices cpu:0"])
def test_a_folder_that_cannot_be_read_is_named_with_what_to_type(line, tmp_path, monkeypatch):
    """As after `sudo gpu-engine run`: nothing says that there are no runs yet."""
    monkeypatch.setenv("GPU_PANEL_HOME", str(tmp_path))
    for folder in ("runs", "leases", "queue")[:1 if line == "queue" else None]:
        (tmp_path / folder).mkdir(mode=0)
    with powers.root_powers_dropped():
        done = called(*line.split())
    assert done.returncode == 2
    assert re.fullmatch(rf"That can't be done:\n  {tmp_path}/(\w+): can't be read: permission "
                        rf"denied; type chmod u\+rwx {tmp_path}/\1, or set GPU_PANEL_HOME to a "
                        r"folder of your own\n", done.stderr)


def test_a_home_that_is_no_folder_is_named_too():
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "runs"], text=True, timeout=600,
                          env={"PATH": os.environ["PATH"], "HOME": "/dev/null"},
                          capture_output=True)
    assert done.stderr == ("That can't be done:\n  /dev/null/.config/gpu-panel: can't be read: not "
                           "a directory; set GPU_PANEL_HOME to a folder of your own\n")


@pytest.mark.parametrize("program", ["gpu-engine", "gpu-panel"])
def test_the_version_needs_no_folder(program):
    done = nameless(f"{program} --version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{program}, version ")
    assert done.stderr == ""


def test_doctor_says_it_too_and_goes_on():
    done = nameless("gpu-engine doctor")
    assert "set GPU_PANEL_HOME" in done.stdout
    assert "limits" in done.stdout
    assert "failed" not in done.stdout
    assert "Traceback" not in done.stderr


def test_a_folder_of_ones_own_is_enough(tmp_path):
    home = {"GPU_PANEL_HOME": str(tmp_path / "home")}
    for line in ("gpu-engine runs", "gpu-panel --keys"):
        done = nameless(line, **home)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    done = nameless("gpu-engine run --devices cpu:0 -- python -c pass", **home)
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout


def test_a_folder_that_platformdirs_could_not_find_is_never_taken(monkeypatch):
    """Older ones leave the ~ in it, which names a folder of the current folder."""
    import platformdirs

    monkeypatch.delenv("GPU_PANEL_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "user_state_path", lambda name: paths.Path("~/.local/state"))
    with pytest.raises(UserError, match="GPU_PANEL_HOME"):
        paths.home()


OWN = {"hosts.toml": (["hosts"], '[hosts.box]\nlabel = "mine"\n'),
       "settings.toml": (["settings"], "[panel]\n"),
       "notify.toml": (["notify"], '[[to]]\nname = "x"\nkind = "command"\ncommand = ["true"]\n'),
       "presets/mine.toml": (["plan", "mine", "--devices", "cpu:0"],
                             '[task]\ncommand = ["true"]\n')}
"""What is obeyed in the home: a command that reads it, and something that is right."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", OWN)
def test_what_others_may_have_written_is_not_obeyed(home, monkeypatch, name):
    words, text = OWN[name]
    path = home / name
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text(text)
    path.chmod(0o600)
    assert called(*words).returncode == 0
    for uid, mode, cure in ((61001, 0o600, f"sudo chown $(id -un) {path}"),
                            (0, 0o620, f"chmod {'600' if 'notify' in name else 'go-w'} {path}"),
                            (0, 0o602, f"chmod {'600' if 'notify' in name else 'go-w'} {path}")):
        os.chown(path, uid, uid)
        path.chmod(mode)
        path.parent.chmod(0o755)  # others can reach it
        refused = called(*words)
        assert refused.returncode == 2
        assert cure in " ".join(refused.stderr.split())
        assert "not obeyed" in called("doctor", "--json").stdout
    path.parent.chmod(0o700)
    path.chmod(0o664)
    assert called(*words).returncode == 0, "as an editor leaves it under umask 002"
    path.chmod(0o600)
    home.chmod(0o775)
    assert called(*words).returncode == 0
    assert home.stat().st_mode & 0o777 == 0o700, "it was closed"
    home.chmod(0o775)
    (home / "theirs").symlink_to(path)
    assert f"type chmod go-w {home}" in " ".join(called(*words).stderr.split()), \
        "it may be a folder of several, who could put another file in its place"
    home.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 61001)
    assert paths.read_own(path, 1 << 10) == text.encode(), "root's is obeyed"
