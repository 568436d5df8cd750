"""A picture classifier: a small convolutional network that tells shapes apart.

    gpu-engine run --set task.use=examples/cnn.py:Shapes --set devices.pick=1 \\
        --set train.epochs=3 --set train.lr=3e-3

The pictures are drawn here, so nothing is downloaded. To use your own, let `train_data` return
any map-style dataset of (picture, class number).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from gpu_engine import Bounds, Task


@dataclass
class Shapes(Task):
    """Classifies squares, discs, crosses and stripes of any size and place, under noise.

    Shapes: pictures (B, 1, side, side), class numbers (B,), logits (B, 4).
    """

    channels: Annotated[int, Bounds(ge=1)] = 16
    "Channels of the first convolution; the second has twice as many."
    side: Annotated[int, Bounds(ge=4)] = 32
    "Height and width of a picture."
    examples: Annotated[int, Bounds(ge=1)] = 4096
    "Pictures to train on; 1,024 more are held out."
    noise: Annotated[float, Bounds(ge=0)] = 0.5
    "Strength of the noise; the shapes have strength 1."

    def model(self) -> nn.Module:
        c = self.channels
        return nn.Sequential(
            nn.Conv2d(1, c, 5, padding=2), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(c, 2 * c, 3, padding=1), nn.BatchNorm2d(2 * c), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * c, 4))

    def train_data(self):
        return draw(self.examples, self.side, self.noise, seed=1)

    def eval_data(self):
        return draw(1024, self.side, self.noise, seed=2)

    def loss(self, model, batch):
        pictures, classes = batch
        return F.cross_entropy(model(pictures).float(), classes)

    def metrics(self, model, batch):
        # Sums over the batch and the number of examples: the engine adds them up over all batches
        # and ranks, so that the mean is exact.
        pictures, classes = batch
        logits = model(pictures).float()
        return {"loss": F.cross_entropy(logits, classes, reduction="sum"),
                "accuracy": (logits.argmax(1) == classes).sum(),
                "count": len(classes)}


def draw(count: int, side: int, noise: float, seed: int) -> TensorDataset:
    """`count` pictures (count, 1, side, side) and their classes (count,)."""
    g = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count,), generator=g)
    centre = side * (0.3 + 0.4 * torch.rand(count, 2, 1, 1, generator=g))
    radius = side * (0.12 + 0.12 * torch.rand(count, 1, 1, generator=g))
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    dy, dx = (y - centre[:, 0]).abs(), (x - centre[:, 1]).abs()
    inside = torch.maximum(dy, dx) < radius
    shapes = torch.stack([
        inside,                                               # a square
        dy.square() + dx.square() < radius.square(),          # a disc
        inside & (torch.minimum(dy, dx) < radius / 4),        # a cross
        inside & ((x + y) % 4 < 2),                           # diagonal stripes
    ])
    pictures = shapes[classes, torch.arange(count)].float()
    pictures += noise * torch.randn(pictures.shape, generator=g)
    return TensorDataset(pictures[:, None], classes)
