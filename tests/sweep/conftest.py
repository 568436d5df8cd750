from __future__ import annotations

import pytest

from gpu_engine.sweep import table

from .. import golden


@pytest.fixture(autouse=True)
def _kept(request, monkeypatch):
    yield from golden.kept(
        request, monkeypatch, *((table, name) for name in (
            "best_text", "cells", "heads", "named", "notes", "summary")), *(
            (request.module, name) for name in ("failures", "refused", "stat")))
