"""Many ranks in one process, which only record: python -S -E bench/ranks.py FOLDER RANKS RATE

Each writes RATE events a second into its file in the run folder: noisy losses that fall slowly,
and once a second its memory and what it does.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

GIB = 1 << 30


def line(**fields: object) -> bytes:
    return json.dumps({"t": time.time(), **fields}, separators=(",", ":")).encode() + b"\n"


folder, count, rate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
noise = random.Random(1)
files = [os.open(folder / "ranks" / f"{rank:05}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT,
                 0o600) for rank in range(count)]
for rank, file in enumerate(files):
    os.write(file, line(kind="start", rank=rank, local_rank=rank % 8, node=rank // 8,
                        pid=os.getpid(), started=None, world_size=count,
                        device=[f"GPU {rank % 8}"], attempt=1)
             + line(kind="schedule", total_steps=1_000_000, steps_per_epoch=10_000, epochs=100,
                    examples=None, dropped=0, batch=2048, first_step=0))
turn, step, due = 0, 0, time.monotonic()
while os.getppid() != 1:
    turn += 1
    step += turn % rate > 1
    for file in files:
        if turn % rate == 0:
            held = 30 * GIB + noise.randrange(GIB)
            text = line(kind="memory", rss=4 * GIB, gpu_allocated=[held],
                        gpu_reserved=[34 * GIB], gpu_peak=[held + GIB])
        elif turn % rate == 1:
            text = line(kind="phase", phase=noise.choice(("forward", "backward", "optimizer")),
                        since=time.time(), step=step)
        else:
            loss = 1.7 + 3.8 * 0.9998 ** step + noise.gauss(0, 0.05)
            text = line(kind="step", step=step, lr=0.1, skipped=0, epoch=0, loss=loss,
                        losses=[loss], samples_per_s=600 + noise.random(),
                        data_wait=0.02 * noise.random())
        os.write(file, text)
    due += 1 / rate
    time.sleep(max(0.0, due - time.monotonic()))
