"""`python -m tests.faults [-k …]`: run every case with all rounds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["GPU_PANEL_FAULTS"] = "all"
    sys.exit(pytest.main([str(Path(__file__).parent), "-v", "--no-header", "--durations=10",
                          "-p", "no:cacheprovider", *sys.argv[1:]]))
