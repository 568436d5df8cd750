"""What loader workers put into the temporary folder goes with their rank."""

import sys
import tempfile
from pathlib import Path

import pytest

from . import ranks


@pytest.fixture
def place():
    """A temporary folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("params", "status"), [
    ({"stream": True}, 0), ({"raise_at": 8}, 1)], ids=["stream", "failed"])
def test_nothing_stays_in_the_temporary_folder(make, place, params, status):
    run = make("run", {"pause": 0.05, **params}, train={"steps": 10, "workers": 2})
    with ranks.started(run, python=sys.executable, env={"TMPDIR": str(place)}) as one:
        one.until(lambda: len(list(place.glob("*/listener-*"))) == 2)
        assert len(list(place.glob("pymp-*"))) == 1
        assert one.wait() == [status]
    assert not list(place.glob("pymp-*"))  # torch._dynamo's cache stays, as by hand
