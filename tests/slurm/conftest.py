"""A real Slurm for the tests that want one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, why_not


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def cluster(_cluster: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch,
            tmp_path: Path) -> Iterator[Cluster]:
    """Slurm with idle nodes, its commands on the PATH."""
    monkeypatch.setenv("PATH", f"{_cluster.bin}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    yield _cluster
    _cluster.cancel_all()
