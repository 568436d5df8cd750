"""Training that fails by itself: bad losses, memory, imports, failing ranks."""

from __future__ import annotations

from .kit import Box, case, checkpoints, events, logs, steps, verified


@case("A real rank kills itself mid-epoch; the run restarts by itself",
      "attempt 2 goes on from the checkpoint and completes, no step left out")
def a_real_rank_dies_and_the_run_restarts(box: Box) -> None:
    run = box.toy(params={"die_at": 8, "pause": 0.01},
                  train={"steps": 12, "checkpoint_every": 5, "restarts": 1,
                         "checkpoint_async": False})  # an unfinished save would be lost
    state = box.ended(run)
    assert (state.state, state.attempt) == ("completed", 2), logs(run)
    assert [e["first_step"] for e in events(run, 0, "schedule")] == [0, 5]
    assert steps(run) == 12


@case("Stopped at a random step, a real run of two ranks, and resumed",
      "the checkpoint is of the step at which it ended; the next attempt goes on there")
def stopped_and_resumed(box: Box) -> None:
    run = box.toy(ranks=2, params={"pause": 0.05, "examples": 48_000}, train={"steps": 100_000})
    box.stepping(run, 5)
    run.stop()
    state = box.ended(run)
    assert state.state == "stopped", logs(run)
    last = [events(run, r)[-1] for r in (0, 1)]
    assert [e["outcome"] for e in last] == ["stopped", "stopped"]
    ends = [e["steps"] for e in last]
    assert ends[0] == ends[1]
    assert checkpoints(run)[-1].name == f"step-{ends[0]:08d}"
    assert verified(checkpoints(run)[-1])
    more = ends[0] + 3
    assert box.cli("resume", run.id, "--set", f"train.steps={more}").returncode == 0
    assert [e["first_step"] for e in events(run, 0, "schedule")] == [0, ends[0]]
    assert [events(run, r, "end")[-1]["steps"] for r in (0, 1)] == [more, more]
