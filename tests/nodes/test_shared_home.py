"""Machines that share the home, as on most clusters: what each of them has of a run is the run's,
and no run of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpu_engine.runs.folder import Run

from ..command_line import called
from ..conftest import over, wait_for
from ..remote.run.kit import DIGITS, ENDLESS, losses_so_far, there
from .rig import Rig

pytestmark = pytest.mark.root
ON = ["--set", "devices.hosts=gpu1:cpu:0,gpu2:cpu:1"]


@pytest.fixture
def hosts(home: Path, rig: Rig) -> Rig:
    """Two of the nodes: their home is the one here, and their boot ids are their own."""
    home.mkdir(mode=0o700)
    home.joinpath("hosts.toml").write_text("".join(
        f"[hosts.{n.name}]\npython = \"{sys.executable}\"\n" for n in rig.nodes))
    for node in rig.nodes[:2]:
        node.run(["mkdir", "-p", f"{node.home}/.local/state/gpu-panel"])
        node.run(["mount", "--bind", str(home), f"{node.home}/.local/state/gpu-panel"])
    return rig


def preset(home: Path, name: str, spec: dict[str, object]) -> str:
    """A preset file for `gpu-engine run`."""
    from gpu_engine.spec.read import from_dict
    from gpu_engine.spec.write import to_toml

    path = home / f"{name}.toml"
    path.write_text(to_toml(from_dict(spec)))
    return str(path)


def done(*words: str) -> str:
    """What the command prints, once it has succeeded."""
    said = called(*words)
    assert said.returncode == 0, said
    return said.stdout


def listed(said: str) -> list[str]:
    return [row["id"] for row in json.loads(said)]


def test_parts_are_never_listed_named_resumed_pruned_or_removed(hosts: Rig, home: Path):
    boots = [hosts.ssh(n.name, "cat /proc/sys/kernel/random/boot_id").stdout for n in hosts.nodes]
    assert len(set(boots)) == 3
    assert Path("/proc/sys/kernel/random/boot_id").read_text() not in boots
    whole = Run(home / "runs" / done(
        "run", preset(home, "digits", DIGITS), *ON, "--detach").strip())
    assert over(whole).state == "completed", whole.state()
    parts = [there(whole, host).name for host in ("gpu1", "gpu2")]
    saved = home / "parts" / parts[0] / "checkpoints" / "step-00000006" / "state.pt"
    assert saved.is_file()

    listing = f"{sys.executable} -m gpu_engine runs --json"
    assert listed(done("runs", "--json")) == [whole.id]
    assert listed(hosts.ssh("gpu1", listing).stdout) == [whole.id]
    assert json.loads(done("show", "last", "--json"))["state"]["id"] == whole.id
    for part in parts:
        for words in (["show", part], ["runs", "rm", part], ["resume", part], ["stop", part],
                      ["logs", str(home / "parts" / part)]):
            said = called(*words)
            assert said.returncode == 2, said
            assert f"{part} is part of run {whole.id}" in said.stderr, said
    done("runs", "prune", "--keep", "1", "--yes")
    assert saved.is_file()
    assert listed(done("runs", "--json")) == [whole.id]

    # "last" is the run, so that both of its parts go on.
    done("resume", "last", "--set", "train.steps=9", "--detach")
    assert over(whole).state == "completed", whole.state()
    assert (saved.parents[1] / "step-00000009").is_dir()
    done("runs", "prune", "--keep", "0", "--yes")
    assert not list((home / "parts").iterdir())
    assert not list((home / "runs").iterdir())


def test_stop_last_stops_the_run_and_not_a_part(hosts: Rig, home: Path):
    whole = Run(home / "runs" / done(
        "run", preset(home, "endless", ENDLESS), *ON, "--detach").strip())
    for rank in (0, 1):
        wait_for(lambda rank=rank: whole.events(rank).exists()
                 and losses_so_far(whole.path, rank))
    assert f"{whole.id} stopped" in done("stop", "last")
    for host in ("gpu1", "gpu2"):
        assert Run(home / "parts" / there(whole, host).name).state().state == "stopped"
