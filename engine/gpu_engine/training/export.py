"""A checkpoint's weights as a file of plain tensors, for `gpu-engine export`: safetensors, or what
`torch.load` reads, by the file's name.

The safetensors format is simple enough to be written here, so that nothing but torch is needed: a
little-endian length, that many bytes of JSON (name → dtype, shape, offsets), then the bytes of the
tensors (github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from gpu_engine.common.errors import UserError
from gpu_engine.runs.checkpoints import EXPORTED
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

    Raises UserError if there is none or `name` is damaged; OSError if `out` can't be written;
    KeyError if its name ends otherwise than `EXPORTED` says.
    """
    write = FORMATS[out.suffix]
    passed: list[str] = []
    path = checkpoint.newest(folder, passed.append) if name is None else _sound(folder / name)
    if path is None:
        raise UserError(f"{folder}: there is no checkpoint that can be loaded"
                        + "".join(f"\n{text}" for text in passed))
    state = checkpoint.load(path)
    # A module's extra state may be anything; it is no weight.
    weights = {n: t for n, t in state["model"].items() if isinstance(t, Tensor)}
    with _in_one_step(out) as file:
        write(weights, file, {"step": str(state["step"]), "format": "pt"})
    return {"step": state["step"], "checkpoint": str(path), "tensors": len(weights),
            "bytes": out.stat().st_size, "warnings": passed}


def _sound(path: Path) -> Path:
    try:
        checkpoint.verify(path)
    except checkpoint.Damaged as err:
        raise UserError(f"checkpoint {err}; choose another with --from") from err
    return path


@contextmanager
def _in_one_step(out: Path) -> Iterator[BinaryIO]:
    """A file that replaces `out` when it is complete, by a rename."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def _safetensors(tensors: Mapping[str, Tensor], file: BinaryIO, about: Mapping[str, str]) -> None:
    """Raises UserError for a tensor whose type the format does not have."""
    header: dict[str, Any] = {"__metadata__": dict(about)}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
            raise UserError(f"{name}: {tensor.dtype} ({tensor.layout}) has no place in "
                            "safetensors; a file whose name ends with .pt takes every tensor")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins at a multiple of 8 bytes
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(_bytes(tensor))


def _torch(tensors: Mapping[str, Tensor], file: BinaryIO, about: Mapping[str, str]) -> None:
    """What `torch.load(weights_only=True)` gives back as a dict of tensors."""
    # A copy of each, as torch would write the whole storage that a tensor is a part of.
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, file)


FORMATS: dict[str, Callable[[Mapping[str, Tensor], BinaryIO, Mapping[str, str]], None]] = dict(
    zip(EXPORTED, (_safetensors, _torch, _torch)))
"""The end of a file's name → what writes it."""


def _bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values, row by row, without numpy, which may not be installed."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())

