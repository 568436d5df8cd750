"""A live run of many ranks in one process: python -m bench.peers.live HOME RANKS

Each rank records 20 steps a second. Says "ready" once the run can be seen, and goes on until it is
ended."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

RATE = 20


def main() -> None:
    home, ranks = sys.argv[1], int(sys.argv[2])
    os.environ["GPU_PANEL_HOME"] = home
    from gpu_engine.common import procs
    from gpu_engine.devices.records import Device, Inventory
    from gpu_engine.events import schema
    from gpu_engine.events.writer import EventWriter, encode
    from gpu_engine.places.verbs import prepare
    from gpu_engine.runs.create import create_run
    from gpu_engine.runs.folder import AttemptRecord, State
    from gpu_engine.spec.read import from_dict
    from gpu_engine.spec.write import to_toml

    ids = [f"cpu:{i}" for i in range(ranks)]
    devices = Inventory(tuple(Device(name, "cpu", f"CPU core {i}", i, cores=(i,))
                              for i, name in enumerate(ids)), "cpu")
    made = prepare(from_dict({
        "name": "live", "task": {"use": "gpu_engine.tasks.digits:Digits"},
        "devices": {"ids": ids}, "parallel": {"mode": "ddp" if ranks > 1 else "single"},
        "batch": {"size": 64}, "train": {"steps": 1_000_000}}), inventory=devices)
    run, _lock = create_run("live", to_toml(made.spec), made.plan)
    now, pid = time.time(), os.getpid()
    run.write_state(State("running", run.id, "live", now, now, pid=pid,
                          ticks=procs.start_ticks(pid), boot=procs.boot_id(),
                          attempts=(AttemptRecord(1, now),)))
    files = [EventWriter(Path(run.events(rank))) for rank in range(ranks)]
    for rank, file in enumerate(files):
        file.write(encode(schema.Start(rank, rank, 0, pid, 1, ranks)))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    noise, step, due = random.Random(0), 0, time.monotonic()
    while True:
        step += 1
        for file in files:
            loss = 1.7 + 3.8 * 0.9998 ** step + noise.gauss(0, 0.05)
            file.write(encode(schema.Step(step=step, lr=0.1, skipped=0, loss=loss, losses=(loss,))))
        due += 1 / RATE
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
