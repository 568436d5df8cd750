"""Three machines on one, for the tests that want several."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import Rig, why_not


@pytest.fixture(scope="session")
def _rig() -> Iterator[Rig]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # A short path: a socket's may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="rig-") as folder:
        rig = Rig(3, Path(folder))
        try:
            yield rig
        finally:
            rig.close()


@pytest.fixture
def rig(_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Three nodes as new, and their names on the PATH's `ssh`."""
    _rig.fresh()
    for name, value in _rig.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return _rig


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one, for the home below it: beyond 49 characters connections would not be shared."""
    with tempfile.TemporaryDirectory(prefix="n-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
