"""A checkpoint's weights as a safetensors file, for `gpu-engine export`.

The format is simple enough to be written here, so that nothing but torch is needed: a
little-endian length, that many bytes of JSON (name → dtype, shape, offsets), then the bytes of the
tensors (github.com/huggingface/safetensors, "Format").
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
    """Write the weights of a checkpoint in `folder` to `out`: of the one called `name`, or else of
    the newest that passes `verify`. Returns its step, path and size, and warnings about newer ones
    that are damaged.

    Raises UserError if there is none or `name` is damaged, OSError if `out` can't be written.
    """
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
    """Write named tensors to `out`. An old file is replaced in one step, by a rename.

    Raises UserError for a tensor of a type that the format lacks.
    """
    header: dict[str, Any] = {"__metadata__": dict(about)}
    at, flat = 0, []
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            continue  # a module's extra state: not weights
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
            raise UserError(f"{name}: safetensors has no type for {tensor.dtype} "
                            f"({tensor.layout})")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        flat.append(tensor)
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins at a multiple of 8 bytes
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
    """The bytes of a tensor's values, row by row, without numpy, which may not be installed."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())

