from __future__ import annotations

import pytest

from gpu_engine.diagnose import hangs, steps, verdicts

from .. import golden


@pytest.fixture(autouse=True)
def _kept(request, monkeypatch):
    yield from golden.kept(
        request, monkeypatch, (verdicts, "of"), (verdicts, "to_dict"), (hangs, "find_hang"),
        (hangs, "another_size"), (hangs, "describe"), (hangs, "stalled"), (steps, "of_run"),
        (steps, "of_last"))
