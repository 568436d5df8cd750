"""How long a finished run of ten million points takes to open: python -m bench big

Eight ranks with 1,250,000 steps each, whose losses are written one by one as the recorder does (20
in an event), 280 MB in all. The panel runs on a terminal of 120×36. Printed are the seconds from
enter to the run's screen and to the whole curve, the seconds from a key to its effect meanwhile,
the processor seconds, and the memory that the panel has then. Then what `gpu-engine show` takes.

BENCH_POINTS: how many points instead.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.line import Terminal

RANKS = 8
POINTS = int(os.environ.get("BENCH_POINTS", "10000000"))
EACH, EVERY = 20, 0.1
"""Steps in an event, and seconds between two."""
ROUNDS = int(os.environ.get("BENCH_RUNS", "3"))


def make(home: Path) -> int:
    """A finished run in the folder `home`, which GPU_PANEL_HOME names. Returns its bytes."""
    from gpu_engine.devices.records import Device, Inventory
    from gpu_engine.places.verbs import prepare
    from gpu_engine.runs.create import create_run
    from gpu_engine.runs.folder import AttemptRecord, State
    from gpu_engine.spec.read import from_dict
    from gpu_engine.spec.write import to_toml

    os.environ["GPU_PANEL_HOME"] = str(home)
    ids = [f"cpu:{i}" for i in range(RANKS)]
    devices = Inventory(tuple(Device(name, "cpu", f"CPU core {i}", i, cores=(i,))
                              for i, name in enumerate(ids)), "cpu")
    steps = POINTS // RANKS // EACH * EACH
    made = prepare(from_dict({
        "name": "big", "task": {"use": "gpu_engine.tasks.digits:Digits"},
        "devices": {"ids": ids}, "parallel": {"mode": "ddp"}, "batch": {"size": 64},
        "train": {"steps": steps}}), inventory=devices)
    run, lock = create_run("big", to_toml(made.spec), made.plan)
    os.close(lock)
    began = time.time() - steps / EACH * EVERY
    for rank in range(RANKS):
        write(run.events(rank), rank, steps, began)
    run.write_state(State("completed", run.id, "big", began, began, time.time(), exit_code=0,
                          attempts=(AttemptRecord(1, began, time.time(), "completed"),)))
    return sum(run.events(rank).stat().st_size for rank in range(RANKS))


def write(path: Path, rank: int, steps: int, began: float) -> None:
    """The events of one rank."""
    from gpu_engine.events import schema
    from gpu_engine.events.writer import encode

    def line(event: schema.Event, t: float) -> bytes:
        object.__setattr__(event, "t", t)
        return encode(event)

    rng, t = random.Random(rank), began
    with path.open("wb") as file:
        file.write(line(schema.Start(rank, rank, 0, 100 + rank, 1, RANKS), t))
        file.write(line(schema.Schedule(steps, 1000, None, 64_000, 0, 64), t))
        for step in range(EACH, steps + 1, EACH):
            t += EVERY
            # The loss of a model is a 32-bit float.
            losses = struct.unpack(f"{EACH}f", struct.pack(f"{EACH}f", *(
                1.7 + 3.8 * math.exp(-6 * s / steps) + rng.gauss(0, 0.05)
                for s in range(step - EACH, step))))
            file.write(line(schema.Step(
                step, 1e-3, 0, n=EACH, epoch=step // 1000, loss=sum(losses) / EACH, losses=losses,
                samples_per_s=round(rng.uniform(3000, 3100), 1),
                data_wait=round(rng.uniform(0, 0.1), 4)), t))
            if step % (10 * EACH) == 0:
                file.write(line(schema.Phase("forward", round(t, 3), step), t))
                file.write(line(schema.Memory(400 << 20), t))
        file.write(line(schema.End("completed", steps, t - began), t))


def opened() -> tuple[float, float, list[float], float, float]:
    """Seconds until the screen and until the whole curve are there, seconds of each key meanwhile,
    processor seconds, MiB."""
    terminal = Terminal([sys.executable, "-m", "gpu_panel"], dict(os.environ), None)
    try:
        terminal.read(300.0, until=r"completed")
        terminal.read(5.0)
        terminal.key(b"4", "open", 300.0)
        cpu, began = terminal.cpu(), time.monotonic()
        screen = terminal.key(b"\r", "log . rank 0", 300.0)
        took, rank = [], 0
        while "reading what" in (shown := "\n".join(terminal.screen.display)) \
                or f"step {POINTS // RANKS // EACH * EACH:,}" not in shown:
            rank = (rank + 1) % RANKS
            took.append(terminal.key(b"r", f"log . rank {rank}", 300.0))
            terminal.read(0.05)
        whole = time.monotonic() - began
        resident = psutil.Process(terminal.process.pid).memory_info().rss / (1 << 20)
        return screen, whole, took, terminal.cpu() - cpu, resident
    finally:
        terminal.end()


def measure() -> None:
    """Open the run, and print what it took."""
    screen, whole, took, cpu, resident = opened()
    took.sort()
    keys = f"{statistics.median(took) * 1e3:.0f} ms, worst {took[-1] * 1e3:.0f} ms" \
        if took else "none"
    sys.stdout.write(
        f"screen after {screen:.2f} s   whole curve after {whole:.2f} s   keys "
        f"meanwhile {keys}   {cpu:.2f} s of a core   {resident:.0f} MiB\n")
    sys.stdout.flush()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="big-") as home:
        size = make(Path(home))
        sys.stdout.write(f"{POINTS:,} points, {size / 1e6:,.0f} MB\n")
        for _ in range(ROUNDS):
            measure()
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "gpu_engine", "show", "last"], check=True,
                       stdout=subprocess.DEVNULL)
        sys.stdout.write(f"gpu-engine show: {time.monotonic() - began:.2f} s\n")


if __name__ == "__main__":
    main()
