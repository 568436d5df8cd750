"""Code that is sent to machines by the system's ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.code.snapshot import take
from gpu_engine.remote.reach import file, shell
from gpu_engine.remote.reach.channel import open_channel
from gpu_engine.remote.run import code
from gpu_engine.remote.run.survey import at_once

from .rig import Rig

pytestmark = pytest.mark.root


def test_two_machines_are_sent_the_same_code(home: Path, rig: Rig, tmp_path: Path):
    """In a folder that has the same name on both; a script runs in it."""
    home.mkdir()
    home.joinpath("hosts.toml").write_text("".join(
        f"[hosts.{n.name}]\npython = \"{sys.executable}\"\n" for n in rig.nodes))
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / "train it.py").write_text("print('trained')\n")
    (project / "large.bin").write_bytes(os.urandom(3 << 20))
    snapshot = take(project)

    def bring(name: str) -> tuple[str, str]:
        host = file.find(name)
        with open_channel(host) as way:
            folder = code.bring(way, snapshot)
        script = f"cd '{folder}' && {sys.executable} 'train it.py' && sha256sum < large.bin\n"
        return folder, shell.run(host, script.encode(), 60).out

    total = next(e.sha256 for e in snapshot.entries if e.path == b"large.bin")
    for got in at_once(bring, ["gpu1", "gpu2"]):
        assert isinstance(got, tuple), got
        assert Path(got[0]).name == snapshot.name[:12]
        assert got[1] == f"trained\n{total}  -\n"
