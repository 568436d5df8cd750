"""A torch in words."""

from __future__ import annotations


def torch_words(version: str, cuda: str | None, hip: str | None) -> str:
    """"torch 2.13.0+cu130 for CUDA 13.0", "torch 2.13.0+cpu for CPUs".

    cuda, hip: the CUDA or ROCm that it was built for; None: not for that.
    """
    what = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPUs"
    return f"torch {version} for {what}"
