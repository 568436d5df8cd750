"""The part of a rank that needs torch: threads, group, session."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import torch

from gpu_engine.rank.job import Job
from gpu_engine.rank.joining import join
from gpu_engine.rank.meeting import BEAT, doing
from gpu_engine.rank.process_group import Group
from gpu_engine.rank.recorder import Recorder
from gpu_engine.rank.signals import Signals
from gpu_engine.training.session import Session
from gpu_engine.worker.check import WAIT
from gpu_engine.worker.check import check as try_out
from gpu_engine.worker.start import Place, warm_up

_PEER_GRACE = 10.0


def run(job: Job, rec: Recorder, signals: Signals, check: bool, place: Place,
        warm: threading.Thread | None = None) -> str:
    """Train (or check); the outcome. The group of ranks is left open in `place`."""
    if warm is None and not check:
        warm = warm_up()
    if job.cores and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(job.cores))
    devices = [torch.device(d) for d in job.devices]
    if devices[0].type == "cuda":
        torch.cuda.set_device(devices[0])
    rec.attach(devices)
    if place.group is None:
        timeout = job.spec.parallel.timeout
        place.group = join(job.who, job.backend, min(timeout, WAIT) if check else timeout,
                           nodes=job.plan.nodes, device=devices[0])
    if check:
        rec.training = True  # a check is over in seconds: let it
        try_out(job, place.group, rec)
        return "completed"
    rec.watch = _Peers(rec, place.group, rec.watch)
    place.group.tell_waits(rec)
    return Session(job, place.group, rec, signals, warm).run()


class _Peers:
    """Tells the others once a second what this rank is doing, looks whether another announced its
    failure, and ends this one if it then stays inside a collective that can't end any more, as
    NCCL's don't."""

    def __init__(self, rec: Recorder, group: Group, then: Callable[[], None] | None) -> None:
        self._rec, self._then = rec, then
        self._failure, self._beat = group.failures.watcher()
        self._due = 0.0
        self._since: float | None = None

    def __call__(self) -> None:
        if self._then is not None:
            self._then()
        now = time.monotonic()
        if now < self._due or self._rec.phase == "done":
            return
        self._due = now + BEAT
        self._beat(doing(self._rec))
        word = self._failure()
        if word is None or self._rec.writing is not None:  # a checkpoint is finished first
            return
        self._since = self._since or now
        if now - self._since > _PEER_GRACE:
            self._rec.write("error", type="PeerLost", traceback="", phase=self._rec.phase,
                            message=f"{word} (this rank waited for it)", step=self._rec.step_now)
            self._rec.write("end", outcome="failed", steps=self._rec.step_now, seconds=None)
            os._exit(1)
