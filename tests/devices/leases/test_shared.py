"""The shared folder is trusted only if nobody but root could put something else in its place."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from gpu_engine.devices import leases
from gpu_engine.devices.records import Device

from .users import ALICE


def test_root_makes_it_with_one_line(place, monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, str(place / "shared"))
    why = leases.why_not()
    line = why.partition("make it: ")[2]
    subprocess.run(shlex.split(line.removeprefix("sudo ")), check=True)
    assert leases.why_not() is None
    slot = Device("cpu:0", "cpu", "CPU")
    with leases.acquire(place / "one", [slot], "first"):
        assert len(list((place / "shared" / "claims").iterdir())) == 1
    with leases.wait(place / "one", {}, leases.new_name()):
        assert len(list((place / "shared" / "line").iterdir())) == 1


def test_none_is_asked_for_or_there(monkeypatch, tmp_path):
    monkeypatch.setenv(leases.VARIABLE, "")
    assert (leases.where(), leases.why_not()) == (None, None)
    monkeypatch.delenv(leases.VARIABLE)
    monkeypatch.setattr(leases, "DEFAULT", tmp_path / "nowhere")
    assert leases.why_not() is None, "a machine of one user"


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


@pytest.mark.parametrize(("spoil", "said"), [
    (a_link_to_it, "is a symlink"), (a_link_above_it, "is a symlink"),
    (of_another_owner, f"belongs to uid {ALICE}"), (open_to_all_above, "may replace"),
    (claims_of_another_owner, f"belongs to uid {ALICE}"), (open_to_all, "may replace"),
    (not_sticky, "may replace what is in"), (made_unreadable, "mode 0000, not 1777"),
    (a_link_in_it, "is a symlink"), (a_file_in_it, "is not a folder"),
    (without_the_line, "no such file")])
def test_it_is_not_trusted(box, monkeypatch, tmp_path, spoil, said):
    path = spoil(box)
    if path is not None:
        monkeypatch.setenv(leases.VARIABLE, str(path))
    assert said in (leases.why_not() or "")
    leases.acquire(tmp_path, [Device("cpu:0", "cpu", "CPU")], "runs without it").close()
