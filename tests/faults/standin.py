"""A rank without torch, started in the worker's place. It writes events as the worker does, and
then runs what a case wants: the Python text in the file that FAULT_BODY names."""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "engine"))

from gpu_engine.common import procs  # noqa: E402
from gpu_engine.events.paths import events_path  # noqa: E402
from gpu_engine.events.writer import EventWriter  # noqa: E402

run = Path(os.environ["GPU_PANEL_RUN"])
rank = int(os.environ.get("RANK", 0))
world = int(os.environ.get("WORLD_SIZE", 1))
attempt = int(os.environ["GPU_PANEL_ATTEMPT"])
asked = []
out = EventWriter(events_path(run, rank))


def tell(kind, **fields):
    """The line of an event. It is made here, as a case may leave out fields or invent some."""
    line = {"t": round(time.time(), 3), "kind": kind} | fields
    out.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def start():
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    tell("start", rank=rank, local_rank=rank, node=0, pid=os.getpid(),
         started=procs.start_ticks(os.getpid()), device=[f"CPU {rank}"], world_size=world,
         attempt=attempt)
    for path in (run / "checkpoints").glob(".writing-*") if rank == 0 else ():  # as the worker does
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def meet():
    """Wait until every rank has begun."""
    files = [events_path(run, r) for r in range(world)]
    while not all(f.exists() and f.stat().st_size for f in files):
        time.sleep(0.01)


def step(n, loss=1.0, **more):
    tell("step", step=n, n=1, epoch=0, loss=loss, losses=[loss], lr=0.1, samples_per_s=10.0,
         data_wait=0.0, skipped=0, **more)


def beat(phase="forward", step=0, since=None):
    tell("phase", phase=phase, since=since or time.time(), step=step)


def save(n):
    """Make a checkpoint like the engine's, with a few bytes in place of tensors."""
    import hashlib  # here, as many ranks save nothing and it takes a tenth of their start

    folder = run / "checkpoints"
    folder.mkdir(mode=0o700, exist_ok=True)
    temporary = folder / f".writing-step-{n:08d}-{os.getpid()}"
    temporary.mkdir(mode=0o700)
    data = os.urandom(50_000)
    (temporary / "state.pt").write_bytes(data)
    (temporary / "manifest.json").write_text(json.dumps({"version": 1, "step": n, "files": {
        "state.pt": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}}))
    final = folder / f"step-{n:08d}"
    if not final.exists():
        temporary.rename(final)
        tell("checkpoint", step=n, path=f"checkpoints/{final.name}", seconds=0.1, bytes=len(data))


def train(steps=10**9, pause=0.01, every=0, first=0):
    """Step until done or asked to stop, then write the end event."""
    n = first
    while n < steps and not asked:
        n += 1
        step(n)
        beat(step=n)
        if every and n % every == 0 and rank == 0:
            save(n)
        time.sleep(pause)
    if asked and rank == 0:
        save(n)
    finish("stopped" if asked else "completed", n)


def finish(outcome="completed", n=0):
    tell("end", outcome=outcome, steps=n, seconds=1.0)
    sys.exit(1 if outcome == "failed" else 0)


os.umask(0o077)
body = Path(os.environ["FAULT_BODY"])
exec(compile(body.read_text(), str(body), "exec"))
