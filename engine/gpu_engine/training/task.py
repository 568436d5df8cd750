"""Task: the class that a person writes to have a model trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    The engine takes care of devices, wrapping, shuffling, precision, accumulation, evaluation,
    checkpoints and resuming. `model` is called after seeding, so every rank starts from the same
    weights.

    Datasets are map-style (`__len__`, `__getitem__`) or iterable. A map-style dataset may have a
    method `get_batch(indices)`, which takes a 1-d int64 tensor on the CPU and returns a whole
    batch; it is then used instead of `__getitem__` and `collate`. If a dataset has
    `set_epoch(epoch)`, that is called before each epoch.

    Each example of an iterable dataset is used once in an epoch, whether the dataset divides
    itself over ranks and loader workers or not: see docs/training.md. It has an attribute
    `divided_by`, which says what it divides itself by: "nothing", "workers", "ranks" or "both".
    """

    divided_by: ClassVar[str | None] = None
    """What its iterable datasets divide themselves by that have no such attribute of their own."""

    eval_batch: ClassVar[int] = 64
    """Examples in one forward pass of an evaluation, at most the global batch. It does not depend
    on the number of ranks, so that results are the same to the last bit at any world size."""

    schedule_metric: ClassVar[str | None] = None
    """Which value of the evaluation a schedule such as ReduceLROnPlateau steps on. None means
    "loss"; a schedule in mode "max" needs a name here."""

    def check(self) -> Iterable[tuple[str, str]]:
        """What is wrong with the parameters that their types can't say: a parameter's name and
        what is wrong or would be right, each. Called before the model is made, and when a run is
        put into the queue:

            def check(self):
                if self.width > 64 and not self.deep:
                    yield "width", "more than 64 needs deep = true"
        """
        return ()

    def model(self) -> nn.Module:
        """The model, on the CPU, freshly initialised."""
        raise NotImplementedError(f"{type(self).__name__} needs a method model(self)")

    def train_data(self) -> Dataset:
        """The training examples."""
        raise NotImplementedError(f"{type(self).__name__} needs a method train_data(self)")

    def eval_data(self) -> Dataset | None:
        """The held-out examples; None for no evaluation."""
        return None

    def loss(self, model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Tensor | float]:
        """The mean loss over the batch's examples, a tensor of shape (). `batch` is on the
        model's device, with B examples along each tensor's first dimension.

        The loss may be a mean over items, such as words, whose number differs between batches of
        B examples. Then return the sum over the items and their number, each of shape ():

            return F.cross_entropy(logits, target, ignore_index=0, reduction="sum"), \\
                (target != 0).sum()

        The gradient of a step is then that of the mean over all items on all devices and in all
        backward passes. This takes one more small reduction in each step.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method loss(self, model, batch)")

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor | float]:
        """SUMS over the batch's examples, and under "count" the number of examples.

        They are added up over all batches and ranks. Each sum divided by the count is reported,
        which is the exact mean over all examples:

            {"loss": loss_sum, "accuracy": (logits.argmax(1) == y).sum(), "count": len(y)}

        The names must be the same in every call. By default the only metric is `loss`.
        """
        loss = self.loss(model, batch)
        if isinstance(loss, (tuple, list)):
            return {"loss": loss[0], "count": loss[1]}
        count = batch_size(batch)
        return {"loss": loss * count, "count": count}

    def optimizer(self, model: nn.Module, lr: float) -> Optimizer:
        """The optimizer; by default AdamW with PyTorch's defaults. `lr` is already scaled by
        `train.lr_scale`."""
        import torch

        return torch.optim.AdamW(model.parameters(), lr=lr, fused=fusable(model))

    def schedule(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler | None:
        """The learning rate schedule, advanced after each optimizer step; None for a constant rate.

        `total_steps` is the number of optimizer steps in the whole run, or None if the data's
        length is unknown. The schedule should depend on the step alone: in a resume it is stepped
        from the beginning, as if the run had had its length and learning rate from the first step.
        ReduceLROnPlateau is advanced after each evaluation instead, by `schedule_metric`.
        """
        return None

    def collate(self, examples: list[Any]) -> Any:
        """Make a batch from a list of examples; by default with PyTorch's default_collate."""
        from torch.utils.data import default_collate

        return default_collate(examples)

    def data_parallel(self, model: nn.Module, devices: list[torch.device]) -> nn.Module:
        """In mode "dp", spread the model over `devices`. It already lies on the first one.

        By default this is nn.DataParallel over the whole model. Override it to spread only parts,
        as the built-in `vgg` does. Gradients must arrive in the parameters of `model` itself.
        """
        from torch import nn

        return nn.DataParallel(model, device_ids=devices)


def batch_size(batch: Any) -> int:
    """The number of examples in a batch: the first dimension of the first tensor in it.

    Raises TypeError if there is no such tensor.
    """
    if hasattr(batch, "shape") and len(batch.shape) > 0:
        return int(batch.shape[0])
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, (dict, list, tuple)):
        for part in parts:
            try:
                return batch_size(part)
            except TypeError:
                continue
    raise TypeError(f"no tensor with a first dimension in a batch of type {type(batch).__name__}; "
                    "override Task.metrics")


def fusable(model: nn.Module) -> bool:
    """Whether AdamW's fused kernel (one launch instead of hundreds) takes all parameters."""

    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda")
               for p in model.parameters())
