"""PyTorch's builds: which of them the GPUs of a machine can use."""

from __future__ import annotations

ROCM = "rocm6.4"
"""PyTorch's wheels for AMD: they bring ROCm along, and need no more than the kernel's driver."""
_CUDA = ((13, "cu130"), (12, "cu126"), (11, "cu118"))
"""The driver's CUDA, major version, and PyTorch's wheels that any such driver runs: CUDA's minor
versions are compatible within a major one."""


def index(build: str) -> str:
    """The address of PyTorch's wheels of one build, "cpu" or "cu130"."""
    return f"https://download.pytorch.org/whl/{build}"


def for_cuda(newest: str | None) -> str:
    """The build that fits an NVIDIA driver. `newest`: the newest CUDA that it takes, "12.4"; None:
    that is not known."""
    major = (newest or "").partition(".")[0]
    return next((w for m, w in _CUDA if major.isdecimal() and int(major) >= m), "cu126")
