"""A shared folder, and two users of the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gpu_engine.devices import leases

from .users import ALICE, BOB, Shared, User, users


@pytest.fixture
def place():
    """A folder in which only root can make anything, and which all users can read."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users and to set up a folder for all")
    path = Path(tempfile.mkdtemp(prefix="gpu-panel-box-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def box(place: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """A shared folder that root has set up."""
    box = Shared(place / "shared")
    monkeypatch.setenv(leases.VARIABLE, str(box.path))
    box.path.mkdir(mode=0o755)
    for folder in (box.claims, box.line):
        folder.mkdir()
        folder.chmod(0o1777)
    return box


@pytest.fixture(scope="module")
def _processes():
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    with users(ALICE, BOB) as there:
        yield there


def _at(user: User, box: Shared) -> User:
    user.do(f"""
for kept in [v for v in globals().values() if isinstance(v, leases.Leases)]:
    kept.close()
os.environ[{leases.VARIABLE!r}] = {str(box.path)!r}
assert leases.why_not() is None
box = Shared(pathlib.Path({str(box.path)!r}))
claims_at, line_at = os.fspath(box.claims), os.fspath(box.line)
""")
    return user


@pytest.fixture
def alice(box: Shared, _processes: list[User]) -> User:
    """A process of one user; it knows the folder as `box`."""
    return _at(_processes[0], box)


@pytest.fixture
def bob(box: Shared, _processes: list[User]) -> User:
    """A process of another."""
    return _at(_processes[1], box)
