"""Builds of torch: what a torch/version.py says of one, and which one a machine's GPUs can use.

version.py holds plain assignments (`cuda: Optional[str] = None`, written by PyTorch's
tools/generate_torch_version.py), so the file is read and nothing is executed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gpu_engine.common.torch_words import torch_words

ROCM = "rocm6.4"
"""PyTorch's wheels for AMD: they bring ROCm along, and need no more than the kernel's driver."""
_CUDA = ((13, "cu130"), (12, "cu126"), (11, "cu118"))
"""The driver's CUDA, major version, and PyTorch's wheels that any such driver runs: CUDA's minor
versions are compatible within a major one."""


@dataclass(frozen=True, slots=True)
class Build:
    """What torch/version.py says."""

    version: str
    cuda: str | None
    """The CUDA that it was built for, "13.0"; None: none."""
    hip: str | None
    """The same of AMD's ROCm."""

    def sentence(self) -> str:
        """For people: "torch 2.13.0+cu130 for CUDA 13.0"."""
        return torch_words(self.version, self.cuda, self.hip)


def read(text: bytes | str) -> Build | None:
    """What a torch/version.py says, by its assignments; None where it says nothing of CUDA."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: dict[str, object] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else \
            [node.target] if isinstance(node, ast.AnnAssign) else []
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            found |= {t.id: value.value for t in targets if isinstance(t, ast.Name)}
    if "cuda" not in found:
        return None
    return Build(str(found.get("__version__", "?")), _text(found["cuda"]),
                 _text(found.get("hip")))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def index(build: str) -> str:
    """The address of PyTorch's wheels of one build, "cpu" or "cu130"."""
    return f"https://download.pytorch.org/whl/{build}"


def for_cuda(newest: str | None) -> str:
    """The build that fits an NVIDIA driver. `newest`: the newest CUDA that it takes, "12.4"; None:
    that is not known."""
    major = (newest or "").partition(".")[0]
    return next((w for m, w in _CUDA if major.isdecimal() and int(major) >= m), "cu126")
