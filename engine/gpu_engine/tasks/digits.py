"""A small classifier on the handwritten digits that come with scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from gpu_engine.common.errors import UserError
from gpu_engine.common.values import Bounds
from gpu_engine.training.task import Task

_FILE = Path("datasets", "data", "digits.csv.gz")


class Classifier(Task):
    """The base of the classifiers: cross-entropy and accuracy.

    Shapes: batch = (inputs (B, …), class numbers (B,)); logits (B, classes).
    """

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        """The mean cross-entropy over the batch, shape ()."""
        x, y = batch
        return F.cross_entropy(model(x).float(), y)

    def metrics(self, model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor | float]:
        """Sums of loss and correct predictions over the batch, and the number of examples."""
        x, y = batch
        logits = model(x).float()
        return {"loss": F.cross_entropy(logits, y, reduction="sum"),
                "accuracy": (logits.argmax(1) == y).sum(), "count": len(y)}


@dataclass
class Digits(Classifier):
    """A two-layer perceptron on 1,797 pictures of 8×8 pixels. Every fifth picture is held out.

    Shapes: pictures (B, 64) from 0 to 1, logits (B, 10).
    """

    hidden: Annotated[int, Bounds(ge=1)] = 256
    "Units in the hidden layer."

    def model(self) -> nn.Module:
        """The perceptron: (B, 64) → (B, 10)."""
        return nn.Sequential(nn.Linear(64, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 10))

    def train_data(self) -> TensorDataset:
        """Four fifths of the pictures. Raises UserError if scikit-learn is not installed."""
        pictures, labels = read_digits()
        held_out = torch.arange(len(labels)) % 5 == 4
        return TensorDataset(pictures[~held_out], labels[~held_out])

    def eval_data(self) -> TensorDataset:
        """Every fifth picture."""
        pictures, labels = read_digits()
        held_out = torch.arange(len(labels)) % 5 == 4
        return TensorDataset(pictures[held_out], labels[held_out])


def read_digits() -> tuple[Tensor, Tensor]:
    """Pictures (1797, 64), float32 from 0 to 1, and labels (1797,), int64. They are read from
    scikit-learn's file without importing scikit-learn, which takes a second. Raises UserError if
    it isn't installed."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the digits come with scikit-learn, which is not installed here: "
                        "pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / _FILE
    try:
        with gzip.open(path, "rt") as file:
            rows = [[float(v) for v in line.split(",")] for line in file]
    except OSError as err:
        raise UserError(f"{path}: the digits can't be read: {err}") from None
    table = torch.tensor(rows)
    return table[:, :64] / 16, table[:, 64].long()
