"""`import torch` below the hook: what it does, says and leaves behind is what it does by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.plan.own_command import HOOK

FAILS = "import sys\nimport torch\n"
CAUGHT = """
import importlib, traceback
try:
    importlib.import_module("torch")
except Exception:
    traceback.print_exc()
"""
WARNS = "import warnings\nwarnings.warn('old', UserWarning, stacklevel=2)\n"


@pytest.mark.parametrize(("script", "torch"), [
    (FAILS, "def load():\n    return 1 / 0\nload()\n"), (FAILS, WARNS),
    (CAUGHT, "raise KeyError('mine')\n")], ids=["raises", "warns", "is caught"])
def test_it_is_as_without_the_hook(tmp_path: Path, script: str, torch: str) -> None:
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "script.py").write_text(script)
    alone, observed = (subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"]} | more) for more in ({}, {
            "PYTHONPATH": HOOK, "GPU_PANEL_RUN": str(tmp_path), "GPU_PANEL_RANK": "0"}))
    assert (observed.stdout, observed.stderr) == (alone.stdout, alone.stderr)
    assert observed.returncode == alone.returncode
    assert observed.stdout or observed.stderr
