"""The same global batch and seed train the same model in every mode."""

from __future__ import annotations

from gpu_engine.training import checkpoint

from . import ranks


def test_saved_under_each_mode_loads_under_each_other(make):
    """DataParallel is one process: here it runs on the CPU, in tests/gpu on GPUs."""
    shapes = {"single": {"world": 1}, "ddp": {"world": 2}, "dp": {"world": 1, "mode": "dp"}}
    for name, shape in shapes.items():
        first = make(f"from-{name}", size=24, train={"steps": 6}, **shape)
        ranks.train(first)
        names = set(ranks.last(first)["model"])
        assert names == {"0.weight", "0.bias", "3.weight", "3.bias"}
        for other, there in shapes.items():
            if other == name:
                continue
            # The same run folder with a new plan in another mode.
            make(f"from-{name}", size=24, train={"steps": 8}, **there)
            state = ranks.last(first)
            ranks.train(first, attempt=2)
            assert ranks.read(first, 0, "schedule")[-1]["first_step"] == state["step"] == 6
            assert ranks.last(first)["step"] == 8
            for path in checkpoint.listed(first / "checkpoints")[1:]:
                checkpoint._remove(path)
