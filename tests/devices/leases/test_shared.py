"""The shared folder is trusted only if nobody but root could put something else in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.devices.leases import held, shared

from .users import ALICE


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_root_sets_it_up_once_and_again(box):
    assert shared.find() == box
    assert shared.why_not() is None
    assert [mode(p) for p in (box.path, box.claims, box.line)] == [0o755, 0o1777, 0o1777]
    assert not any(box.claims.iterdir()), "the trial has left nothing"
    assert mode(box.lock) == 0o666
    (box.claims / "kept").write_text("kept")
    for path, wrong in ((box.claims, 0o700), (box.line, 0o777), (box.path, 0o777)):
        path.chmod(wrong)
        assert shared.find() is None
        os.chown(path, ALICE, ALICE)
    assert shared.set_up(box.path) == box
    assert [mode(p) for p in (box.path, box.claims, box.line)] == [0o755, 0o1777, 0o1777]
    assert (box.claims / "kept").read_text() == "kept"


def test_none_is_asked_for_or_there(monkeypatch, tmp_path):
    monkeypatch.setenv(shared.VARIABLE, "")
    assert (shared.where(), shared.find(), shared.why_not()) == (None, None, None)
    with pytest.raises(UserError, match="is empty"):
        shared.set_up()
    monkeypatch.delenv(shared.VARIABLE)
    monkeypatch.setattr(shared, "DEFAULT", tmp_path / "nowhere")
    assert (shared.find(), shared.why_not()) == (None, None), "a machine of one user"
    monkeypatch.setenv(shared.VARIABLE, str(tmp_path / "nowhere"))
    assert shared.find() is None


def a_link_to_it(box):
    (box.path.parent / "link").symlink_to(box.path)
    return box.path.parent / "link"


def a_link_above_it(box):
    (box.path.parent / "link").symlink_to(box.path.parent)
    return box.path.parent / "link" / "shared"


def of_another_owner(box):
    os.chown(box.path, ALICE, ALICE)


def claims_of_another_owner(box):
    os.chown(box.claims, ALICE, ALICE)


def open_to_all_above(box):
    box.path.parent.chmod(0o777)


def open_to_all(box):
    box.path.chmod(0o777)


def not_sticky(box):
    box.line.chmod(0o777)


def made_unreadable(box):
    box.claims.chmod(0)


def a_link_in_it(box):
    box.line.rmdir()
    box.line.symlink_to("/tmp")


def a_file_in_it(box):
    box.line.rmdir()
    box.line.write_text("")


def without_the_line(box):
    box.line.rmdir()


def without_the_lock(box):
    box.lock.unlink()


@pytest.mark.parametrize(("spoil", "said"), [
    (a_link_to_it, "is a symlink"), (a_link_above_it, "is a symlink"),
    (of_another_owner, f"belongs to uid {ALICE}"), (open_to_all_above, "may replace"),
    (claims_of_another_owner, f"belongs to uid {ALICE}"), (open_to_all, "may replace"),
    (not_sticky, "may replace what is in"), (made_unreadable, "mode 0000, not 1777"),
    (a_link_in_it, "is a symlink"), (a_file_in_it, "not a folder"),
    (without_the_line, "no such file"), (without_the_lock, "is not there")])
def test_it_is_not_trusted(box, monkeypatch, spoil, said):
    path = spoil(box)
    if path is not None:
        monkeypatch.setenv(shared.VARIABLE, str(path))
    assert shared.find() is None
    why = shared.why_not() or ""
    assert said in why
    assert "gpu-engine queue --set-up-shared" in why


def test_root_is_told_what_is_in_the_way(box, place):
    (place / "link").symlink_to(box.path)
    with pytest.raises(UserError, match="is not a folder"):
        shared.set_up(place / "link")
    with pytest.raises(UserError, match="is a symlink"):
        shared.set_up(place / "link" / "deeper")
    with pytest.raises(UserError, match="no such file"):
        shared.set_up(place / "not" / "there")
    with pytest.raises(UserError, match="whole path"):
        shared.set_up(Path("here"))
    box.line.rmdir()
    box.line.write_text("something of value")
    with pytest.raises(UserError, match="line is not a folder"):
        shared.set_up()
    place.chmod(0o777)
    with pytest.raises(UserError, match="may replace"):
        shared.set_up()


def test_a_file_system_that_can_not_is_refused(box, monkeypatch):
    monkeypatch.setattr(held, "held", lambda fd: False)
    with pytest.raises(UserError, match="a local disk"):
        shared.set_up()

    def flock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(held.fcntl, "flock", flock)
    with pytest.raises(UserError, match="shared: operation not supported"):
        shared.set_up()


def test_only_root_sets_it_up(alice):
    said = alice.refused("shared.set_up(pathlib.Path('/var/lib/gpu-panel'))")
    assert said == ("UserError: only root can set up a folder that all users trust: "
                    "sudo gpu-engine queue --set-up-shared")
    assert "shared" in alice.refused("shared.set_up()")
