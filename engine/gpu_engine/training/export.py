"""A checkpoint's weights as a safetensors file, for `gpu-engine export`.

The format is small enough to
write here, so that a rank's environment needs no more than torch: a little-endian length, that
many bytes of JSON (name → dtype, shape, place), then the tensors' bytes
(github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_engine.common.errors import UserError
from gpu_engine.training import checkpoint

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def export(folder: Path, out: Path, name: str | None = None) -> dict[str, Any]:
    """Write a checkpoint of `folder` to `out`: the one called `name`, else the newest that
    verifies; its step and what was passed over.

    Raises UserError where there is none or `name` is damaged, OSError where `out` can't be
    written."""
    passed: list[str] = []
    path = checkpoint.newest(folder, passed.append) if name is None else _sound(folder / name)
    if path is None:
        raise UserError(f"{folder}: there is no checkpoint that can be loaded"
                        + "".join(f"\n{text}" for text in passed))
    state = checkpoint.load(path)
    save(state["model"], out, {"step": str(state["step"]), "format": "pt"})
    return {"step": state["step"], "checkpoint": str(path), "tensors": len(state["model"]),
            "bytes": out.stat().st_size, "warnings": passed}


def _sound(path: Path) -> Path:
    try:
        checkpoint.verify(path)
    except checkpoint.Damaged as err:
        raise UserError(f"checkpoint {err}; --from takes another") from err
    return path


def save(tensors: Mapping[str, Tensor], out: Path, about: Mapping[str, str]) -> None:
    """Write named tensors to `out`, in place of what was there, in one step.

    Raises UserError for a tensor whose type the format does not have.
    """
    header: dict[str, Any] = {"__metadata__": dict(about)}
    at, flat = 0, []
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            continue  # a module's extra state: not weights
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
            raise UserError(f"{name}: {tensor.dtype} ({tensor.layout}) has no place in safetensors")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        flat.append(tensor)
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins aligned
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in flat:
                file.write(_bytes(tensor))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def _bytes(tensor: Tensor) -> bytes:
    """A tensor's values as they lie in memory, row by row. numpy may not be there."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())

