"""A run goes on with another first host: the checkpoint is brought there, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.launching.launcher import launch, resume
from gpu_engine.remote.reach import protocol as messages
from gpu_engine.remote.reach.channel import Refused, open_channel
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.run import parts, queries
from gpu_engine.remote.run.removal import Removal
from gpu_engine.remote.there import incoming
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from .kit import DIGITS, ended, losses, losses_here, make_hosts, there


def on(devices: dict[str, list[str]], steps: int) -> dict[str, object]:
    return DIGITS | {"devices": devices,
                     "train": {"steps": steps, "workers": 0, "checkpoint_every": 3}}


def moved(run: Run, host: str, steps: int) -> None:
    before = run.state().attempt
    resume(run, [f"devices.hosts={host}:cpu:0", f"train.steps={steps}"])
    assert ended(run).state == "completed", run.state()
    assert run.state().attempt == before + 1


def forget_path(run: Run, host: str) -> None:
    """As if no other host saw the disk of `host`."""
    file = run.path / f"hosts/{host}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"path": "/nowhere"}))


def test_a_run_moves_to_another_host_and_back(home, tmp_path, monkeypatch):
    """Once from a host that is gone. To the bit the losses of a run that never moved."""
    make_hosts(home, "a", "b", script='[ -e "$GPU_PANEL_HOME.cut" ] && exit 255; exec "$@"')
    sent: list[str] = []
    real = messages.SendCheckpoint.of
    monkeypatch.setattr(messages.SendCheckpoint, "of",
                        lambda key, name, *rest: sent.append(name) or real(key, name, *rest))
    run = launch(from_dict(on({"hosts": ["a:cpu:0"]}, 6)))
    assert ended(run).state == "completed", run.state()
    stays, = losses_here(tmp_path / "stays", on({"ids": ["cpu:0"]}, 12))
    own = there(run, "a")
    forget_path(run, "a")
    (tmp_path / "a.cut").touch()
    with pytest.raises(UserError, match="the checkpoints are on a, which can't be reached"):
        moved(run, "b", 9)
    (tmp_path / "a.cut").unlink()
    queries.fetch(run, "newest", None, sent.append)
    sent.clear()
    (tmp_path / "a.cut").touch()
    shutil.rmtree(own / "checkpoints")
    moved(run, "b", 9)  # from the copy here
    (tmp_path / "a.cut").unlink()
    assert set(sent) == {"step-00000006/state.pt", "step-00000006/rank-00000.pt"}
    assert not list((tmp_path / "b/incoming").iterdir())
    assert losses(run.path, 0) == stays[:9]

    shutil.copytree(there(run, "b"), tmp_path / "b/parts/0123")  # a run that is not removed
    sent.clear()
    forget_path(run, "b")
    moved(run, "a", 12)
    assert set(sent) == {"step-00000009/state.pt", "step-00000009/rank-00000.pt"}
    assert there(run, "a") == own
    assert losses(run.path, 0) == stays
    assert [p.host for p in parts.former(run.path)] == ["b"]

    with Removal() as removal:
        outcome = removal.remove(run)
    assert sorted(text.partition(":")[0] for text in outcome.gone) == ["a", "b"]
    assert not list((tmp_path / "a/parts").iterdir())
    assert [p.name for p in (tmp_path / "b/parts").iterdir()] == ["0123"]


@pytest.fixture
def offered(home, tmp_path: Path):
    """A way to this machine as a host, and the key of a checkpoint that was offered to it."""
    content, key = b"state", secrets.token_hex(16)
    manifest = {"step": 7, "files": {"state.pt": {
        "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}}}
    with open_channel(Host("local")) as way:
        lacking = way.ask(messages.OfferCheckpoint(
            key, "step-00000007", "/nowhere", json.dumps(manifest).encode()))
        assert lacking == messages.LackingFiles(("state.pt",))
        yield way, key


def test_what_is_no_part_of_the_checkpoint_is_refused(offered, tmp_path):
    way, key = offered
    for word, name, offset, data in (
            (key, "step-00000007/state.pt", 1, b"state"), (key, "step-00000007/other.pt", 0, b"x"),
            (key, "step-00000007/manifest.json", 0, b"{}"), (key, "../x/state.pt", 0, b"x"),
            ("../" + key[3:], "step-00000007/state.pt", 0, b"state")):
        with pytest.raises(Refused):
            way.ask(messages.SendCheckpoint.of(word, name, offset, data))
    for manifest in (b"{}", b'{"step": 1, "files": {"state.pt": {"size": 1, "sha256": "a"}, '
                            b'"../x.pt": {"size": 1, "sha256": "a"}}}'):
        with pytest.raises(Refused, match="its manifest can't be used"):
            way.ask(messages.OfferCheckpoint(key, "step-00000007", "/nowhere", manifest))
    assert [p.name for p in tmp_path.iterdir()] == ["home"]


def test_what_is_on_the_same_disk_is_not_sent(offered, tmp_path):
    way, _ = offered
    name, key = "step-00000007", "c" * 32
    there = tmp_path / "run/checkpoints" / name
    there.mkdir(parents=True)
    content = {"state.pt": b"state", "rank-00000.pt": b"own"}
    for file, data in content.items():
        (there / file).write_bytes(data)
    (there / "rank-00000.pt").write_bytes(b"odd")
    manifest = json.dumps({"step": 7, "files": {file: {
        "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for file, data in content.items()}}).encode()
    offer = messages.OfferCheckpoint(key, name, str(tmp_path / "run"), manifest)
    assert way.ask(offer) == messages.LackingFiles(("rank-00000.pt",))
    way.ask(messages.SendCheckpoint.of(key, f"{name}/rank-00000.pt", 0, b"own"))
    run = Run(tmp_path / "new")
    run.path.mkdir()
    incoming.put(key, name, run)
    assert {file: (run.checkpoints / name / file).read_bytes() for file in content} == content
    assert (there / "rank-00000.pt").read_bytes() == b"odd"


def test_no_run_begins_with_a_checkpoint_that_was_changed_on_its_way(offered, tmp_path):
    way, key = offered
    name, run = "step-00000007", Run(tmp_path / "run")
    (run.checkpoints / name).mkdir(parents=True)
    (run.checkpoints / name / "state.pt").write_bytes(b"older")
    way.ask(messages.SendCheckpoint.of(key, f"{name}/state.pt", 0, b"stale"))
    with pytest.raises(UserError, match="changed on its way here"):
        incoming.put(key, name, run)
    assert (run.checkpoints / name / "state.pt").read_bytes() == b"older"
    way.ask(messages.SendCheckpoint.of(key, f"{name}/state.pt", 0, b"state"))
    incoming.put(key, name, run)
    assert (run.checkpoints / name / "state.pt").read_bytes() == b"state"
    aside, = run.checkpoints.glob(f"before-*/{name}/state.pt")
    assert aside.read_bytes() == b"older"
