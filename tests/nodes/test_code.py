"""Code that is sent to machines by the system's ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.code.snapshot import take
from gpu_engine.remote.reach import call, hosts, protocol
from gpu_engine.remote.run import nodes, prepare

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

    both = [hosts.find(name) for name in ("gpu1", "gpu2")]
    places = prepare.sent(both, snapshot)
    total = next(e.sha256 for e in snapshot.entries if e.path == b"large.bin")
    for host in both:
        folder, = places[host.name]
        script = f"cd '{folder}' && {sys.executable} 'train it.py' && sha256sum < large.bin\n"
        assert call.run(host, script.encode(), 60).out == f"trained\n{total}  -\n"
        assert Path(folder).name == snapshot.name[:12]
        state = nodes.meet(host, (), code=snapshot.name).welcome.code
        assert state == protocol.CodeState(folder, True)
