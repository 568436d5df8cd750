"""Leases reach all users of a machine that share a folder."""

from __future__ import annotations

import os
import shutil

import pytest

from gpu_engine.box import folder
from gpu_engine.common.errors import UserError
from gpu_engine.devices import leases
from gpu_engine.devices.records import Device

from ..command_line import called

A = Device("0", "gpu", "A100", index=0, uuid="GPU-aaaa")
B = Device("1", "gpu", "A100", index=1, uuid="GPU-bbbb")
SLOT = Device("cpu:0", "cpu", "CPU core 0", index=0)
TAKE = """
from gpu_engine.devices.records import Device
A = Device("0", "gpu", "A100", index=0, uuid="GPU-aaaa")
SLOT = Device("cpu:0", "cpu", "CPU core 0", index=0)
lease = leases.acquire(home, [A], "3f2a")
"""


@pytest.fixture
def homes(place, alice, bob):
    """A home folder for each user, which nobody else can enter."""
    for user in (alice, bob):
        home = place / f"home-{user.uid}"
        home.mkdir(mode=0o700)
        os.chown(home, user.uid, user.uid)
        user.do(f"home = pathlib.Path({str(home / 'leases')!r})")
    return place


def test_another_users_lease_is_seen_and_refuses(alice, bob, homes, tmp_path):
    alice.do(TAKE)
    mine = tmp_path / "leases"
    (holder,) = leases.holders(mine).values()
    assert str(holder).startswith(f"run 3f2a of uid {alice.uid} (pid {alice.pid}, since 20")
    with pytest.raises(UserError) as caught:
        leases.acquire(mine, [B, A], "mine")
    assert str(caught.value) == (f"GPU 0 is held by {holder}. Take other devices, wait until it "
                                 "ends, or share on purpose")
    assert f"GPU 0 is held by run 3f2a of uid {alice.uid}" in bob.refused(TAKE)
    assert bob.ask("os.listdir(home)") == ["GPU-aaaa.lock"]
    assert set(leases.holders(mine)) == {"GPU-aaaa"}, "neither B nor a lock of B is left"
    leases.acquire(mine, [B], "mine").close()
    with leases.acquire(mine, [A], "beside", share=True):
        first = leases.holders(mine)["GPU-aaaa"]
        assert (first.run, [h.run for h in first.others]) == ("3f2a", ["beside"])
        assert alice.ask("str(leases.holders(home)['GPU-aaaa'])").count(" and run ") == 1
    alice.do("lease.close()")
    assert leases.holders(mine) == {}
    bob.do(TAKE + "lease.close()")


def test_ones_own_lease_is_shown_once(alice, homes):
    alice.do(TAKE)
    assert " and " not in alice.ask("str(leases.holders(home)['GPU-aaaa'])")
    alice.do("lease.close()")


def test_two_homes_of_one_user_do_not_share_a_device(box, tmp_path):
    with leases.acquire(tmp_path / "one", [A], "first"), \
            pytest.raises(UserError, match="held by run first"):
        leases.acquire(tmp_path / "two", [A], "second")


def test_a_claim_that_ends_a_moment_after_its_lock_is_waited_for(box, tmp_path, monkeypatch):
    """As of a killed supervisor of one's own."""
    first = leases.acquire(tmp_path / "leases", [A], "first")
    assert first._claimed is not None
    claimed, first._claimed = first._claimed, None
    first.close()
    monkeypatch.setattr(leases.time, "sleep", lambda _: claimed.close())
    leases.acquire(tmp_path / "leases", [A], "second").close()


def test_slots_are_shared_between_users_too(alice, bob, homes, tmp_path):
    for user in (alice, bob):
        user.do(TAKE.replace("[A], \"3f2a\"", "[SLOT], \"slots\", share=True"))
    (holder,) = leases.holders(tmp_path / "leases").values()
    assert {h.user for h in (holder, *holder.others)} == {f"uid {u.uid}" for u in (alice, bob)}
    for user in (alice, bob):
        user.do("lease.close()")


def test_what_can_not_be_claimed_is_not_held(box, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(leases.claims.notices, "post", full)
    with pytest.raises(UserError, match=r"no space left on device.*GPU_PANEL_SHARED"):
        leases.acquire(tmp_path / "leases", [A], "one")
    monkeypatch.setenv(folder.VARIABLE, "")
    leases.acquire(tmp_path / "leases", [A], "one").close()


def test_a_folder_that_is_not_trusted_is_not_asked(box, tmp_path):
    with leases.acquire(tmp_path / "one", [A], "first"):
        box.claims.chmod(0o777)
        assert leases.holders(tmp_path / "two") == {}
        leases.acquire(tmp_path / "two", [A], "second").close()


def test_root_sets_it_up_by_a_command(place, home, monkeypatch):
    shared = place / "here"
    done = called("queue", "--set-up-shared", str(shared))
    assert done.returncode == 0, done
    assert f"{shared} is set up" in done.stdout
    assert f"GPU_PANEL_SHARED={shared}" in done.stdout
    monkeypatch.setenv(folder.VARIABLE, str(shared))
    assert folder.find()
    assert "/etc/environment" not in called("queue", "--set-up-shared").stdout
    assert called("queue", "--json", "--set-up-shared").returncode == 2
    shared.chmod(0o777)
    done = called("queue")
    assert done.returncode == 0
    assert "may replace what is in" in done.stderr
    shutil.rmtree(shared)
    shared.symlink_to(place)
    done = called("queue", "--set-up-shared")
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
