"""Norm and clipping of gradients for a model that lies whole in this process."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from gpu_engine import Task
from gpu_engine.training.precision import Precision
from gpu_engine.training.strategies import Strategy

WHOLE = Strategy(Task(), nn.Linear(1, 1), SimpleNamespace(devices=("cpu",)),
                 Precision("off", "cpu"))
