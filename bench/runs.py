"""How long a list of a thousand runs takes, and what it costs then: python -m bench runs

Makes a folder of finished runs of two ranks each and opens the launch screen on it. Prints the time
until every run has a row, until every row has its last figures, and what a repaint costs then. Then
the same for a thousand runs that wait in the queue, and the share of a core that the open panel
takes while nothing happens.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

RUNS, STEPS, FRAMES = 1000, 1500, 30
IDLE = 20.0
"""Seconds over which the panel's processor time is measured."""


def make(home: Path, count: int = RUNS, steps: int = STEPS) -> None:
    """`count` finished runs in the folder `home`, which GPU_PANEL_HOME names."""
    from gpu_engine.devices.records import Device, Inventory
    from gpu_engine.places.verbs import prepare
    from gpu_engine.runs.create import create_run
    from gpu_engine.runs.folder import AttemptRecord, Cause, State
    from gpu_engine.spec.read import from_dict
    from gpu_engine.spec.write import to_toml

    devices = Inventory(tuple(Device(f"cpu:{i}", "cpu", f"CPU core {i}", i, cores=(i,))
                              for i in (0, 1)), "cpu")
    made = prepare(from_dict({
        "name": "digits-ddp", "task": {"use": "gpu_engine.tasks.digits:Digits"},
        "devices": {"ids": ["cpu:0", "cpu:1"]}, "parallel": {"mode": "ddp"},
        "train": {"steps": steps}}), inventory=devices)
    spec = to_toml(made.spec)
    now = time.time()
    events = [_events(rank, steps, now - 600) for rank in (0, 1)]
    for i in range(count):
        began = now - 600.0 * (count - i)
        run, lock = create_run("digits-ddp", spec, made.plan)
        os.close(lock)
        for rank, data in enumerate(events):
            run.events(rank).write_bytes(data)
        failed = i % 7 == 3
        cause = Cause("CUDA out of memory. Tried to allocate 2.00 GiB", 1, "OutOfMemoryError")
        state, ended = "failed" if failed else "completed", began + 300 + i % 200
        run.write_state(State(state, run.id, "digits-ddp", began, began, ended,
                              exit_code=int(failed), cause=cause if failed else None,
                              reason=cause.line if failed else None,
                              attempts=(AttemptRecord(1, began, ended, state),)))


def _events(rank: int, steps: int, t: float) -> bytes:
    lines: list[dict[str, object]] = [
        {"t": t, "kind": "start", "rank": rank, "local_rank": rank, "node": 0, "pid": 100 + rank,
         "device": [f"CPU {rank}"], "world_size": 2, "attempt": 1, "started": None},
        {"t": t, "kind": "schedule", "total_steps": steps, "steps_per_epoch": 100, "epochs": None,
         "examples": 1437, "dropped": 0, "batch": 64, "first_step": 0}]
    for step in range(5, steps + 1, 5):
        losses = [round(2.3 * math.exp(-s / 300) + 0.01 * rank, 4)
                  for s in range(step - 4, step + 1)]
        lines += [{"t": t + step / 5, "kind": "step", "step": step, "n": 5, "epoch": step // 100,
                   "loss": sum(losses) / 5, "losses": losses, "lr": 1e-3, "skipped": 0,
                   "samples_per_s": 3000.0, "data_wait": 0.02},
                  {"t": t + step / 5, "kind": "memory", "rss": 400 << 20},
                  {"t": t + step / 5, "kind": "phase", "phase": "forward", "since": t + step / 5,
                   "step": step}]
    lines.append({"t": t + steps / 5, "kind": "end", "outcome": "completed", "steps": steps,
                  "seconds": steps / 5})
    return b"".join(json.dumps(x, separators=(",", ":")).encode() + b"\n" for x in lines)


async def measure(size: tuple[int, int]) -> str:
    from gpu_engine.devices.records import Inventory
    from gpu_panel.app import PanelApp

    app = PanelApp(inventory=Inventory((), "cpu"))
    async with app.run_test(size=size) as pilot:
        from gpu_panel.launch.screen import LaunchScreen

        screen = app.screen_stack[0]
        assert isinstance(screen, LaunchScreen)
        pane = screen.runs
        opened = time.perf_counter()
        while pane.lines is None or len(pane.lines) < RUNS:
            await asyncio.sleep(0.005)
        listed = time.perf_counter()
        while any(line.loss is None for line in pane.lines):
            await asyncio.sleep(0.02)
        known = time.perf_counter()
        await pilot.pause()
        await pilot.press("4")
        took, moves = [], []
        for _ in range(FRAMES):
            t = time.perf_counter()
            pane.repaint()
            took.append((time.perf_counter() - t) * 1e3)
            t = time.perf_counter()
            pane.action_page_down()
            for y in range(pane.size.height):
                pane.render_line(y)
            moves.append((time.perf_counter() - t) * 1e3)
        t = time.perf_counter()
        pane.on_resize()
        anew = (time.perf_counter() - t) * 1e3
    return (f"{size[0]:>3}×{size[1]:<3} {RUNS:,} runs   listed after {listed - opened:5.2f} s   "
            f"with figures after {known - opened:5.2f} s   repaint "
            f"{statistics.median(took):5.2f} ms   page {statistics.median(moves):5.2f} ms   "
            f"all rows anew {anew:5.1f} ms")


def make_queue(count: int, stack: ExitStack) -> None:
    """`count` runs in the queue, of which each waits and has its lock held, as by a supervisor."""
    import socket
    from dataclasses import replace

    from gpu_engine.common import paths
    from gpu_engine.plan.records import LaunchPlan
    from gpu_engine.runs import waiting
    from gpu_engine.runs.create import create_run
    from gpu_engine.runs.folder import private_folder

    private_folder(paths.queue_folder())
    plan = LaunchPlan.from_dict(json.loads(next(
        paths.runs_folder().glob("*/plan.json")).read_text()))
    assert plan is not None
    for number in range(count):
        run, fd = create_run("digits-ddp", "", plan)
        waiting.enter(run.path)
        waiting.write(run.path, waiting.Entry(submitted=time.time(), number=number,
                                              host=socket.gethostname(), count=2))
        stack.callback(os.close, fd)
        run.write_state(replace(run.state(), reason="waits for runs ahead of it" if number else
                                "waits for any 2 GPUs: 1 of 8 now"))


async def measure_queue(size: tuple[int, int], count: int) -> str:
    from gpu_engine.devices.records import Inventory
    from gpu_panel.app import PanelApp
    from gpu_panel.launch.screen import LaunchScreen

    app = PanelApp(inventory=Inventory((), "cpu"))
    async with app.run_test(size=size):
        screen = app.screen_stack[0]
        assert isinstance(screen, LaunchScreen)
        opened = time.perf_counter()
        while screen.runs.waiting < count:
            await asyncio.sleep(0.005)
        listed = time.perf_counter() - opened
        await asyncio.sleep(3.0)
        before, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(IDLE)
        share = (time.process_time() - before) / (time.perf_counter() - began)
    return (f"{size[0]:>3}×{size[1]:<3} {count:,} waiting   listed after {listed:5.2f} s   "
            f"then {share * 100:4.2f} % of a core")


def main() -> None:
    for count in (0, RUNS):
        with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
            os.environ["GPU_PANEL_HOME"] = home
            make(Path(home), 1)
            make_queue(count, stack)
            sys.stdout.write(asyncio.run(measure_queue((160, 48), count)) + "\n")
    with tempfile.TemporaryDirectory() as home:
        os.environ["GPU_PANEL_HOME"] = home
        make(Path(home))
        for size in ((160, 48), (80, 24)):
            sys.stdout.write(asyncio.run(measure(size)) + "\n")


if __name__ == "__main__":
    main()
