"""The classifier of `digits` on MNIST, read from IDX files in a folder. Nothing is downloaded."""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from gpu_engine.common.errors import UserError
from gpu_engine.common.values import Bounds, Existing
from gpu_engine.tasks.digits import Classifier

_FILES = {True: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
          False: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}


@dataclass
class Mnist(Classifier):
    """A two-layer perceptron on MNIST's pictures of 28×28 pixels.

    Shapes: pictures (B, 784) from 0 to 1, logits (B, 10).
    """

    folder: Annotated[str, Existing("folder")] = "data/mnist"
    "Folder with MNIST's four IDX files, unpacked or as .gz."
    hidden: Annotated[int, Bounds(ge=1)] = 256
    "Units in the hidden layer."

    def model(self) -> nn.Module:
        """The perceptron: (B, 784) → (B, 10)."""
        return nn.Sequential(nn.Linear(784, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 10))

    def train_data(self) -> TensorDataset:
        """The 60,000 training pictures. Raises UserError if files are missing or broken."""
        return read_mnist(Path(self.folder).expanduser(), train=True)

    def eval_data(self) -> TensorDataset:
        """The 10,000 test pictures. Raises UserError if files are missing or broken."""
        return read_mnist(Path(self.folder).expanduser(), train=False)


def read_mnist(folder: Path, *, train: bool) -> TensorDataset:
    """Pictures (N, 784), float32 from 0 to 1, and labels (N,), int64.

    Raises UserError, which names every missing file or says what is wrong with one.
    """
    files = {n: next((p for p in (folder / n, folder / f"{n}.gz") if p.is_file()), None)
             for n in (*_FILES[True], *_FILES[False])}
    missing = [name for name, path in files.items() if path is None]
    if missing:
        raise UserError(f"task.params.folder = {str(folder)!r}: not found in "
                        f"{folder.absolute()}: {', '.join(missing)} (or with .gz)")
    images, labels = (read_idx(path) for name in _FILES[train] if (path := files[name]))
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise UserError(f"{folder}: {tuple(images.shape)} pictures and {tuple(labels.shape)} "
                        "labels don't belong together")
    return TensorDataset(images.flatten(1).float() / 255, labels.long())


def read_idx(path: Path) -> Tensor:
    """The uint8 tensor in an IDX file: the bytes 0, 0, 8 and the number of dimensions, each
    dimension as big-endian 32 bit, then the data (yann.lecun.com/exdb/mnist). Raises UserError."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, dims = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{dims}I", data, 4)
    except (OSError, EOFError, struct.error) as err:
        raise UserError(f"{path}: can't be read: {err}") from None
    body = memoryview(data)[4 + 4 * dims:]
    if zero != 0 or kind != 8 or len(body) != math.prod(shape):
        raise UserError(f"{path}: not an IDX file of bytes, or cut short: {len(body)} bytes for "
                        f"shape {shape}")
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape)
