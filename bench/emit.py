"""A rank that only records losses, without torch: python -S -E bench/emit.py RATE [noisy]

Its losses are 5001, 5002, … so that each can be told apart on a screen; noisy ones fall slowly, as
those of a training do."""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from gpu_engine.common import procs
from gpu_engine.events import schema
from gpu_engine.events.paths import events_path
from gpu_engine.events.writer import EventWriter, encode

run, rank = Path(os.environ["GPU_PANEL_RUN"]), int(os.environ.get("RANK", "0"))
pause = 1.0 / float(sys.argv[1])
noisy, noise = sys.argv[2:] == ["noisy"], random.Random(rank)
asked: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
out = EventWriter(events_path(run, rank))
out.write(encode(schema.Start(
    rank=rank, local_rank=int(os.environ.get("LOCAL_RANK", "0")), node=None, pid=os.getpid(),
    started=procs.start_ticks(os.getpid()), world_size=int(os.environ.get("WORLD_SIZE", "1")))))
step, due = 0, time.monotonic()
while not asked:
    step += 1
    loss = 1.7 + 3.8 * 0.9998 ** step + noise.gauss(0, 0.05) if noisy else 5000.0 + step % 1000
    out.write(encode(schema.Step(step=step, lr=0.1, skipped=0, loss=loss, losses=(loss,))))
    due += pause
    time.sleep(max(0.0, due - time.monotonic()))
out.write(encode(schema.End(outcome="stopped", steps=step, seconds=None)))
