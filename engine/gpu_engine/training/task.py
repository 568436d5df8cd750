"""Task: what a person writes to have a model trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset


class Task:
    """One training task. Subclass it as a dataclass: the fields are the task's parameters, and
    the text under a field is its help in the form.

        @dataclass
        class Tiny(Task):
            width: int = 64
            "Units in the hidden layer."

            def model(self):
                return nn.Sequential(nn.Linear(8, self.width), nn.ReLU(), nn.Linear(self.width, 2))

            def train_data(self):
                x = torch.randn(1000, 8)                      # (examples, features)
                return TensorDataset(x, (x.sum(1) > 0).long())

            def loss(self, model, batch):
                x, y = batch                                  # (B, 8), (B,)
                return F.cross_entropy(model(x), y)           # (): mean over the B examples

    Device, wrapping, shuffling, precision, accumulation, evaluation, checkpoints and resume are
    the engine's. `model` is called after seeding, so every rank starts from the same weights.

    Datasets are map-style (`__len__`, `__getitem__`) or iterable. A map-style dataset may offer
    `get_batch(indices)`, indices a 1-d int64 tensor on the CPU, returning a ready batch: it is
    then used in place of one `__getitem__` an example and `collate`. A dataset that
    has `set_epoch(epoch)` is told of each epoch before it's read.

    An iterable dataset's examples are each seen once an epoch, whether it divides itself over
    ranks and loader workers or not: see docs/training.md. It may offer `shard(index, count)`,
    returning the part of it that reader `index` of `count` reads, and say what it divides itself
    by in an attribute `divided_by`: "nothing", "worker", "rank" or "rank and worker".
    """

    eval_batch: ClassVar[int] = 64
    """Examples in a forward pass of evaluation (at most the global batch). It does not follow
    the number of ranks: equal chunks at any world size make equal results, to the last bit."""

    schedule_metric: ClassVar[str | None] = None
    """The evaluation's value that a schedule steps on which wants one, as ReduceLROnPlateau does:
    "loss" where it waits for the smallest and nothing is said here."""

    def model(self) -> nn.Module:
        """The model, on the CPU, freshly initialised."""
        raise NotImplementedError(f"{type(self).__name__} needs a method model(self)")

    def train_data(self) -> Dataset:
        """The training examples."""
        raise NotImplementedError(f"{type(self).__name__} needs a method train_data(self)")

    def eval_data(self) -> Dataset | None:
        """The held-out examples; None: no evaluation."""
        return None

    def loss(self, model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Tensor | float]:
        """The mean loss over the batch's examples, a tensor of shape (). `batch` is on the
        model's device, with B examples along each tensor's first dimension.

        Where batches of B examples hold different numbers of what the loss is a mean of (words,
        pixels that count), return the sum and the number, each of shape ():

            return F.cross_entropy(logits, target, ignore_index=0, reduction="sum"), \\
                (target != 0).sum()

        A step's gradient is then the sum over all devices and backward passes, divided by all
        that was counted: one more small reduction a step.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method loss(self, model, batch)")

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor | float]:
        """SUMS over the batch's examples, and "count", how many examples they are.

        Chunks and ranks are added up, and each name but "count" is reported divided by the
        count, which gives the exact mean over all examples:

            {"loss": loss_sum, "accuracy": (logits.argmax(1) == y).sum(), "count": len(y)}

        Keys must be the same in every call. By default: `loss`, times the number of examples
        where it is a mean.
        """
        loss = self.loss(model, batch)
        if isinstance(loss, tuple | list):
            return {"loss": loss[0], "count": loss[1]}
        count = batch_size(batch)
        return {"loss": loss * count, "count": count}

    def optimizer(self, model: nn.Module, lr: float) -> Optimizer:
        """AdamW, PyTorch's defaults. `lr` is already scaled as the spec asks."""
        import torch

        return torch.optim.AdamW(model.parameters(), lr=lr, fused=_fusable(model))

    def schedule(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler | None:
        """How the learning rate moves, advanced once an optimizer step; None: constant.

        `total_steps` counts optimizer steps of the whole run; None where the data's length is
        not known. Keep it a function of the step alone: resumed with another length or learning
        rate, the run goes on as if the schedule had been this one from the first step.
        ReduceLROnPlateau is advanced by each evaluation instead, with `schedule_metric`.
        """
        return None

    def collate(self, examples: list[Any]) -> Any:
        """A batch from a list of examples; by default PyTorch's default_collate."""
        from torch.utils.data import default_collate

        return default_collate(examples)

    def data_parallel(self, model: nn.Module, devices: list[torch.device]) -> nn.Module:
        """mode "dp": spread the model over `devices`; it already lies on the first.

        By default nn.DataParallel over the whole model. Override to spread a part of it, as the
        built-in `vgg` does. Gradients must end in `model`'s own parameters.
        """
        from torch import nn

        return nn.DataParallel(model, device_ids=devices)


def batch_size(batch: Any) -> int:
    """Examples in a batch: the first dimension of the first tensor found in it.

    Raises TypeError where there is none.
    """
    if hasattr(batch, "shape") and len(batch.shape) > 0:
        return int(batch.shape[0])
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, dict | list | tuple):
        for part in parts:
            try:
                return batch_size(part)
            except TypeError:
                continue
    raise TypeError(f"no tensor with a first dimension in a batch of type {type(batch).__name__}; "
                    "override Task.metrics")


def _fusable(model: nn.Module) -> bool:
    """Whether AdamW's fused kernel takes every parameter (one launch instead of hundreds)."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda")
               for p in model.parameters())
