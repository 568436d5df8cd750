"""What waiting runs cost, and how soon a freed device is taken: python -m bench queue

On a machine whose driver is the stand-in, with 8 GPUs. A process of somebody else's is on each
GPU, so whoever is next has to look at the devices all the time. Prints the share of a core and the
memory of all processes of twenty runs that wait, over half a minute, the time to submit and to list
them, and the time from a device's release to the start of the run.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.monitor import builder

RUNS, SECONDS, ROUNDS = int(os.environ.get("BENCH_RUNS", "20")), 30.0, 5


def submit(count: int) -> None:
    """Have `count` runs wait for GPU 0, and then as many for any two."""
    from gpu_engine.queue import submit
    from gpu_engine.queue.submit import When
    from gpu_engine.spec.read import from_dict

    named = {"name": "waits", "task": {"command": ["sleep", "0.1"]}, "devices": {"ids": ["0"]}}
    any_two = named | {"devices": {"pick": 2}, "parallel": {"mode": "dp"}}
    prepared = submit.prepare(from_dict(named))
    for number in range(count):
        submit.submit(from_dict(any_two if number % 2 else named), When(), prepared)


def processes() -> list[psutil.Process]:
    """The supervisors of all waiting runs, their guards and their children."""
    from gpu_engine.queue import change

    found = []
    for one in change.line():
        guard = psutil.Process(one.state.pid).parent()
        assert guard is not None
        found += [guard, *guard.children(recursive=True)]
    return found


def cost() -> None:
    """Print what the waiting costs."""
    from gpu_engine.queue import change

    began = time.monotonic()
    submit(RUNS)
    took = time.monotonic() - began
    sys.stdout.write(f"submitted {RUNS} runs in {took:.1f} s, {took / RUNS * 1000:.1f} ms each\n")
    time.sleep(15)  # the first look
    found = processes()
    used = sum(sum(p.cpu_times()[:2]) for p in found)
    time.sleep(SECONDS)
    used = sum(sum(p.cpu_times()[:2]) for p in found) - used
    memory = sum(p.memory_full_info().pss for p in found)
    sys.stdout.write(f"waiting: {used / SECONDS:.2%} of a core, {memory / (1 << 20):.0f} MiB "
                     f"(PSS) in {len(found)} processes\n")
    began = time.monotonic()
    line = change.line()
    sys.stdout.write(f"listed {len(line)} in {time.monotonic() - began:.2f} s\n")
    for one in line:
        one.run.stop()


def latency() -> None:
    """Print how soon a device that a run has released is taken by the next."""
    from gpu_engine.common import paths
    from gpu_engine.devices import leases
    from gpu_engine.devices.discover import discover
    from gpu_engine.queue import submit
    from gpu_engine.queue.submit import When
    from gpu_engine.spec.read import from_dict

    device = discover().devices[1]
    took = []
    for _ in range(ROUNDS):
        held = leases.acquire(paths.leases_folder(), [device], "77aa")
        run = submit.submit(from_dict({"name": "next", "task": {"command": ["true"]},
                                       "devices": {"ids": ["1"]}}), When())
        while "77aa" not in (run.state().reason or ""):
            time.sleep(0.05)
        held.close()
        freed = time.time()
        while run.state().live:
            time.sleep(0.02)
        took.append((run.state().started or 0) - freed)
    sys.stdout.write(f"a freed GPU is taken after {statistics.median(took):.2f} s "
                     f"({min(took):.2f} to {max(took):.2f}, {ROUNDS} rounds)\n")


def main() -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = builder()
        machine_folder = folder / "machine"
        machine_folder.mkdir()
        machine = build.Standin(build.build(folder / "nvml"), machine_folder)
        free = ["count 8", "gpu * util 0"]
        machine.set(*free)
        home = folder / "home"
        os.environ |= {**machine.env(), "GPU_PANEL_HOME": str(home)}
        os.chdir(folder)
        with contextlib.redirect_stderr(io.StringIO()):
            parts = os.environ.get("BENCH_PARTS", "latency,cost").split(",")
            if "latency" in parts:
                latency()
            machine.set(*free, *(f"gpu {i} proc {os.getpid()} 30000000000 compute 50"
                                 for i in range(8)))
            if "cost" in parts:
                cost()


if __name__ == "__main__":
    main()
