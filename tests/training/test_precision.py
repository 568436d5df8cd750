"""Mixed precision, clipping and accumulation on the CPU; the rest is in tests/gpu."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_engine.training.precision import Autocast, Precision

from . import ranks
from .conftest import own_task
from .whole import WHOLE

TF32 = """\
own: bool = False
def told(self):
    b = torch.backends
    return str([b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision,
                b.cudnn.rnn.fp32_precision, b.cuda.matmul.allow_tf32, b.cudnn.allow_tf32,
                torch.get_float32_matmul_precision()])
def __post_init__(self):
    super().__post_init__()
    Path(self.record, "found").write_text(self.told())
    if self.own:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
def loss(self, model, batch):
    Path(self.record, "trained").write_text(self.told())
    return super().loss(model, batch)
"""
AS_IT_IS = str(["none", "tf32", "tf32", False, True, "highest"])  # PyTorch's own
ON = str(["tf32", "tf32", "tf32", True, True, "high"])
OFF = str(["ieee", "none", "none", False, False, "highest"])


@pytest.mark.parametrize(("asked", "own", "found", "trained"), [
    (False, False, AS_IT_IS, AS_IT_IS), (False, True, AS_IT_IS, OFF),
    (True, False, ON, ON), (True, True, ON, OFF)])
def test_tf32_is_left_alone_unless_asked_for(tmp_path, asked, own, found, trained):
    """A task's own settings hold. The old and the new settings agree: otherwise PyTorch raises when
    an old one is read."""
    ranks.train(own_task(tmp_path / "run", TF32, params={"own": own, "record": str(tmp_path)},
                         train={"steps": 1}, amp={"tf32": asked}))
    assert (tmp_path / "found").read_text() == found
    assert (tmp_path / "trained").read_text() == trained


def test_bf16_computes_in_bf16_and_keeps_weights_in_float32():
    model, precision = nn.Linear(4, 4), Precision("bf16", "cpu")
    with precision.autocast():
        assert model(torch.randn(2, 4)).dtype == torch.bfloat16
    # The wrapper enters autocast by itself, as a replica of DataParallel must.
    assert Autocast(model, "cpu", torch.bfloat16)(torch.randn(2, 4)).dtype == torch.bfloat16
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize("check", [False, True])
def test_clipping_limits_the_norm(check):
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision = Precision("off", "cpu", leave_out_nonfinite=check)
    precision.backward((weight * 100).sum())
    assert precision.step(optimizer, 2.0, WHOLE)
    assert weight.norm().item() == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [0.0, 100.0])
def test_a_scaler_skips_steps_that_are_not_finite(clip, fused):
    """GradScaler starts at a scale of 65536 and halves it at each skipped step. The caller sees
    the skip, and a checkpoint the scale. A fused optimizer unscales and skips by itself."""
    def adam(weight: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.AdamW([weight], lr=0.1, fused=fused)

    weight, ours = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    precision, plain, optimizer = Precision("fp16", "cpu"), adam(weight), adam(ours)

    def step(factor: float) -> bool:
        optimizer.zero_grad()
        precision.backward(factor * ours.square().sum())
        return precision.step(optimizer, clip, WHOLE)

    # The first step is skipped: 65536 · 2 · 1e36 is above the largest float32.
    assert [step(1e36), step(float("nan")), step(1.0)] == [False, False, True]
    weight.grad = 2 * weight.detach()
    plain.step()
    assert torch.allclose(ours, weight, rtol=1e-6)
    assert not torch.equal(ours, torch.tensor([1.0, -2.0]))
    state = precision.state_dict()
    assert state["scale"] == 65536 / 4

    precision = Precision("fp16", "cpu")
    precision.load_state_dict(state)
    assert not step(float("inf"))
    assert precision.state_dict()["scale"] == 65536 / 8
    assert Precision("bf16", "cpu").state_dict() is None


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_bad_loss_leaves_weights_and_optimizer_as_they_were(clip):
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    precision = Precision("off", "cpu", leave_out_nonfinite=True)
    precision.backward(weight.square().sum())
    assert precision.step(optimizer, clip, WHOLE)
    before = weight.detach().clone()
    moments = {k: v.clone() for k, v in optimizer.state[weight].items()}
    optimizer.zero_grad()
    # A loss that is not finite, with gradients that are.
    precision.backward(weight.sum() + torch.tensor(float("inf")))
    assert not precision.step(optimizer, clip, WHOLE)
    assert torch.equal(weight, before)
    assert all(torch.equal(v, moments[k]) for k, v in optimizer.state[weight].items())


def test_inner_accumulation_steps_do_not_sync(tmp_path):
    """DDP itself knows whether the next pass will average gradients."""
    ranks.train(own_task(tmp_path / "run", """\
def loss(self, model, batch):
    with Path(self.record, 'syncs.txt').open('a') as file:
        file.write(f'{int(model.require_backward_grad_sync)}')
    assert model.bucket_bytes_cap == 3 << 20, 'parallel.bucket_cap_mb'
    return super().loss(model, batch)
""", mode="ddp", size=24, accumulate=4, params={"record": str(tmp_path)}, train={"steps": 3},
                         parallel={"bucket_cap_mb": 3}))
    assert (tmp_path / "syncs.txt").read_text() == "0001" * 3
