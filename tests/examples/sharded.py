"""What examples/sharded.py has to compute, by a model of torch's own layers in one piece, and a few
ranks of it."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import torch
from torch import nn

from gpu_engine.common.ports import free_port

from ..observe.kit import FORKED
from ..training.ranks import zygote

SCRIPT = Path(__file__).parents[2] / "examples" / "sharded.py"
LAYERS, WIDTH, HEADS, CONTEXT, BATCH = 2, 18, 2, 12, 16
"""18 does not divide by 4: ranks have parts of different sizes."""
TINY = ["--layers", str(LAYERS), "--width", str(WIDTH), "--heads", str(HEADS), "--context",
        str(CONTEXT), "--batch", str(BATCH), "--lr", "3e-3", "--warmup", "4", "--print-every", "1"]
EXACT = 1e-6
"""How far a loss or a norm may be off, of its size. Seven digits are printed (5e-7), and `by_hand`
itself is off by 4e-7 in float32, measured by its float64 (12 steps, torch 2.13)."""


def write_text(folder: Path) -> Path:
    """A text with some order in it."""
    file = folder / "text"
    file.write_bytes(bytes((i * i // 7 + i) % 61 + 32 for i in range(5000)))
    return file


class Whole(nn.Module):
    """The same GPT, made of torch's own layers. Bytes (B, T) → logits (B, T, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.byte(x) + self.position.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=h.dtype)
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(self.norm(h))


@functools.cache
def by_hand(text: Path, steps: int, dtype: torch.dtype = torch.float32
            ) -> tuple[list[float], list[float]]:
    """(the loss of each step, the norm of its gradients), of whole batches in one process."""
    net = Whole()
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        matrices = [net.byte, net.position]
        for layer in net.layers:
            matrices += [layer.self_attn.in_proj_weight, layer.self_attn.out_proj, layer.linear1,
                         layer.linear2]
        for matrix in (*matrices, net.head):
            weight = matrix if isinstance(matrix, nn.Parameter) else matrix.weight
            weight.copy_(torch.randn(weight.shape, generator=draws) * 0.02)
        for module in net.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
    net.to(dtype)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1, foreach=False)
    data = list(text.read_bytes())
    losses, norms = [], []
    for step in range(1, steps + 1):
        draws = torch.Generator().manual_seed(step)
        begins = torch.randint(len(data) - CONTEXT, (BATCH, 1), generator=draws).flatten().tolist()
        rows = torch.tensor([data[b : b + CONTEXT + 1] for b in begins])
        logits = net(rows[:, :-1])
        loss = -logits.log_softmax(2).gather(2, rows[:, 1:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
        for p in net.parameters():
            p.grad.mul_((1 / (norm + 1e-6)).clamp(max=1))
        optimizer.param_groups[0]["lr"] = 3e-3 * min(step / 4, 1)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def train(world: int, log: Path, *more: str) -> tuple[list[float], list[float]]:
    """Ranks of the script: what they printed, as `by_hand` returns it."""
    return printed("".join(run(world, log, SCRIPT, *more)))


def run(world: int, log: Path, script: Path, *more: str) -> list[str]:
    """What ranks print that are started as torchrun does; one rank is started by hand. Fails if a
    rank fails."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    logs = [log.with_name(f"{log.name}-{rank}") for rank in range(world)]
    forked = [zygote().start([str(script), *TINY, *more], dict(os.environ) | (
        meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}), logs[rank],
        FORKED) for rank in range(world)]
    codes = [rank.wait() for rank in forked]
    said = [file.read_text() for file in logs]
    assert codes == [0] * world, said
    return said


def printed(log: str) -> tuple[list[float], list[float]]:
    """The losses and norms in a log."""
    found = re.findall(r"step \d+: loss (\S+), gradients (\S+)", log)
    return [float(loss) for loss, _ in found], [float(norm) for _, norm in found]
