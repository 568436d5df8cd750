"""A small GPT over bytes: a language model that needs no tokenizer and no download."""

from __future__ import annotations

import math
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpu_engine.common.errors import UserError
from gpu_engine.common.values import Bounds, Existing
from gpu_engine.training.task import Task, fusable

_VOCABULARY = 256
_HELD_OUT = 0.05
_MOST_HELD_OUT = 128 * 1024
_SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "turtledemo"}


@dataclass
class BytesGPT(Task):
    """Predicts each next byte of a text. The text is by default the source of Python's standard
    library; its last part is held out for evaluation.

    Shapes: B examples of T = `context` bytes; batch = (bytes (B, T), the bytes that follow
    (B, T)), both int64; logits (B, T, 256).
    """

    text: Annotated[str, Existing()] = ""
    "A file or folder to learn from; empty: the Python standard library's source."
    width: Annotated[int, Bounds(ge=1, multiple_of="heads")] = 128
    "Size of the vector that stands for each byte; a multiple of `heads`."
    layers: Annotated[int, Bounds(ge=1)] = 4
    "Transformer blocks."
    heads: Annotated[int, Bounds(ge=1)] = 4
    "Attention heads in a block."
    context: Annotated[int, Bounds(ge=1)] = 64
    "How many bytes the model looks back at most."
    megabytes: Annotated[float, Bounds(gt=0)] = 4.0
    "The largest amount of text to use."
    warmup: Annotated[int, Bounds(ge=0)] = 50
    "Steps over which the learning rate rises at the start; after that it falls along a cosine."

    def model(self) -> nn.Module:
        """The GPT of the task's size."""
        return GPT(self.width, self.layers, self.heads, self.context)

    def train_data(self) -> Windows:
        """The first part of the text. Raises UserError if it can't be read or is too short."""
        return Windows(self._halves[0], self.context)

    def eval_data(self) -> Windows | None:
        """The held-out part of the text; None if it is shorter than one example."""
        held_out = Windows(self._halves[1], self.context)
        return held_out if len(held_out) else None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The mean cross-entropy over all bytes of the batch, shape ()."""
        x, y = batch
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor | float]:
        """Sums of loss and correct predictions over the batch's bytes, and their number."""
        x, y = batch
        logits = model(x).flatten(0, 1).float()
        return {"loss": F.cross_entropy(logits, y.flatten(), reduction="sum"),
                "accuracy": (logits.argmax(-1) == y.flatten()).sum(), "count": y.numel()}

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """AdamW, with weight decay for matrices only, as has been usual since GPT-2."""
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                  {"params": vectors, "weight_decay": 0.0}],
                                 lr=lr, betas=(0.9, 0.95), fused=fusable(model))

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int | None
                 ) -> torch.optim.lr_scheduler.LRScheduler:
        """A linear rise over `warmup` steps (at most a tenth of the run), then a cosine down to a
        tenth of the rate; constant if the number of steps is unknown."""
        warmup = min(self.warmup, (total_steps or self.warmup * 10) // 10)

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / (warmup + 1)
            if total_steps is None:
                return 1.0
            done = min((step - warmup) / max(total_steps - warmup, 1), 1.0)
            return 0.1 + 0.45 * (1 + math.cos(math.pi * done))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    @cached_property
    def _halves(self) -> tuple[Tensor, Tensor]:
        """(bytes to train on, held-out bytes), uint8."""
        limit = int(self.megabytes * 1e6)
        data = read_text(Path(self.text).expanduser() if self.text else None, limit)
        if len(data) <= self.context + 1:
            raise UserError(f"task.params.text = {self.text!r}: has only {len(data)} bytes; "
                            f"one example takes {self.context + 1}")
        held_out = min(int(len(data) * _HELD_OUT), _MOST_HELD_OUT)
        split = len(data) - held_out
        whole = torch.frombuffer(data, dtype=torch.uint8)
        return whole[:split], whole[split:]


class Windows(torch.utils.data.Dataset):
    """Windows of `context` bytes next to each other, each with the bytes that follow: the same
    window, moved on by one byte."""

    def __init__(self, data: Tensor, context: int) -> None:
        self._data, self._context = data, context
        self._offsets = torch.arange(context + 1)

    def __len__(self) -> int:
        return max((len(self._data) - 1) // self._context, 0)

    def get_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The windows with these indices (int64, shape (B,)): two int64 tensors (B, context)."""
        windows = self._data[indices[:, None] * self._context + self._offsets].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class GPT(nn.Module):
    """Bytes (B, T) → logits (B, T, 256). Pre-norm blocks, learned positions, no dropout."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(_VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                # Layers that add to the residual stream start smaller, as in GPT-2.
                depth = math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(p, std=0.02 / depth)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        """Bytes (B, T), int64 → logits (B, T, 256)."""
        h = self.byte(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Block(nn.Module):
    """A transformer block: causal attention, then two layers at each position. The shape (B, T,
    width) stays the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        b, t, w = h.shape
        q, k, v = (part.view(b, t, self.heads, w // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(h)).chunk(3, dim=-1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(seen.transpose(1, 2).reshape(b, t, w))
        return h + self.down(F.gelu(self.up(self.norm2(h))))


def read_text(path: Path | None, limit: int) -> bytearray:
    """At most `limit` bytes of a file, of all files in a folder in the order of their paths, or,
    for None, of the standard library's source. Raises UserError if there is nothing to read."""
    root = path or Path(sysconfig.get_path("stdlib"))
    files = [root] if root.is_file() else sorted(
        file for file in root.rglob("*" if path else "*.py") if file.is_file() and not any(
            part.startswith(".") or (not path and part in _SKIPPED)
            for part in file.relative_to(root).parts))
    data = bytearray()
    for file in files:
        try:
            with file.open("rb") as source:
                data += source.read(limit - len(data))
        except OSError as err:
            raise UserError(f"{file}: cannot be read: {err.strerror}") from None
        if len(data) >= limit:
            break
    if not data:
        raise UserError(f"task.params.text = {str(root)!r}: no text found in it")
    return data
