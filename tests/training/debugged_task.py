"""A task whose rank 1 stops in the debugger, or fails."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from toy import Numbers, Toy


class Stops(Numbers):
    stopped = False

    def __getitem__(self, i: int):
        if not self.stopped:
            self.stopped = True
            breakpoint()
        return super().__getitem__(i)


@dataclass
class Debugged(Toy):
    at: str = ""
    calls: int = 0

    def train_data(self):
        if self.at == "worker" and dist.get_rank() == 1:
            return Stops(self.examples, 6, self.noise, self.dtype)
        return super().train_data()

    def loss(self, model, batch):
        self.calls += 1
        if self.calls == 3 and dist.get_rank() == 1:
            if self.at == "break":
                breakpoint()
            if self.at == "raise":
                raise RuntimeError("boom")
        return super().loss(model, batch)
