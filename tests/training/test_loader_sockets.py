"""What loader workers put into the temporary folder goes with their rank."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.worker.rank import process

from . import ranks


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("params", "status"), [
    ({}, 0), ({"stream": True}, 0), ({"raise_at": 8}, 1)], ids=["map", "stream", "failed"])
def test_nothing_stays_in_the_temporary_folder(make, place: Path, params: dict, status: int,
                                               ) -> None:
    run = make("run", {"pause": 0.05, **params}, train={"steps": 10, "workers": 2})
    with ranks.started(run, python=sys.executable, env={"TMPDIR": str(place)}) as one:
        one.until(lambda: len(list(place.glob("*/listener-*"))) == 2)
        assert len(list(place.glob("pymp-*"))) == 1
        assert one.wait() == [status]
    assert not list(place.glob("pymp-*"))  # torch._dynamo's cache stays, as by hand


def test_a_temporary_folder_whose_path_is_too_long_for_sockets(make, place: Path) -> None:
    """Data workers would print "AF_UNIX path too long", and the rank would wait for ever."""
    deep = place / ("x" * 90)
    deep.mkdir()
    run = make("run", train={"steps": 4, "workers": 2})
    ranks.train(run, python=sys.executable, env={"TMPDIR": str(deep)})
    assert ranks.read(run, 0, "end")[-1]["steps"] == 4


def test_where_no_folder_will_do(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    deep = place / ("x" * 90)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(process, "_SHORT", ())
    with pytest.raises(UserError, match=r"TMPDIR: .*/x+ has .* more than \d+ bytes; set TMPDIR to"):
        process._made_folder()
    monkeypatch.setattr(process, "_SHORT", (str(place / "none"),))
    with pytest.raises(UserError, match="No such file or directory; set TMPDIR to"):
        process._made_folder()
