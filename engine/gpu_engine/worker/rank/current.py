"""The recorder of this process, where `gpu_engine.log` finds it."""

from typing import Any

recorder: Any = None
"""None if the process is not a rank, or not yet."""
