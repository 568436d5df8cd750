"""The same global batch and seed train the same model in every mode."""

from . import ranks


def test_saved_under_each_mode_loads_under_each_other(make):
    """DataParallel is one process: here it runs on the CPU, in tests/gpu on GPUs."""
    shapes = {"single": {"world": 1}, "ddp": {"world": 2}, "dp": {"world": 1, "mode": "dp"}}
    way = ("single", "ddp", "dp", "single", "dp", "ddp", "single")  # each pair, in both orders
    for attempt, mode in enumerate(way, 1):
        # The same run folder with a new plan in another mode.
        run = make(size=24, train={"steps": 4 + 2 * attempt}, **shapes[mode])
        ranks.train(run, attempt=attempt)
        state = ranks.last(run)
        assert state["step"] == 4 + 2 * attempt
        assert set(state["model"]) == {"0.weight", "0.bias", "3.weight", "3.bias"}
        assert ranks.read(run, 0, "schedule")[-1]["first_step"] == (
            state["step"] - 2 if attempt > 1 else 0)
