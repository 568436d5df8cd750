"""The part of a rank that needs torch: threads, group, session."""

from __future__ import annotations

import os
import time

import torch

from gpu_engine.worker import process_group
from gpu_engine.worker.job import Job
from gpu_engine.worker.process_group import Group
from gpu_engine.worker.recorder import Recorder
from gpu_engine.worker.session import Session
from gpu_engine.worker.signals import Signals
from gpu_engine.worker.start import warm_up

_PEER_GRACE = 10.0


def run(job: Job, rec: Recorder, signals: Signals, check: bool) -> tuple[Group | None, str]:
    """Train (or check); the group, still open, and the outcome.

    What it raises carries the group as `gpu_panel_group`, so that others can be told.
    """
    warm = None if check else warm_up()
    if job.cores and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(job.cores))
    devices = [torch.device(d) for d in job.devices]
    if devices[0].type == "cuda":
        torch.cuda.set_device(devices[0])
    rec.attach(devices)
    group = process_group.join(job.who, job.backend, float(job.get("parallel.timeout", 300.0)),
                               nodes=job.nodes, device=devices[0])
    try:
        if check:
            from gpu_engine.worker.check import check as try_out

            try_out(job, group, rec)
            return group, "completed"
        rec.watch = _Peers(rec, group, rec.watch)
        return group, Session(job, group, rec, signals, warm).run()
    except BaseException as err:
        err.gpu_panel_group = group
        raise


class _Peers:
    """Looks once a second whether another rank announced its failure, and ends this one if it
    then stays inside a collective that can't end any more, as NCCL's don't."""

    def __init__(self, rec: Recorder, group: Group, then: object) -> None:
        self._rec, self._then = rec, then
        self._failure = group.watcher()
        self._due = 0.0
        self._since: float | None = None

    def __call__(self) -> None:
        if self._then is not None:
            self._then()
        now = time.monotonic()
        if now < self._due or self._rec.phase == "done":
            return
        self._due = now + 1.0
        word = self._failure()
        if word is None:
            return
        self._since = self._since or now
        if now - self._since > _PEER_GRACE:
            self._rec.write("error", type="PeerLost", traceback="", phase=self._rec.phase,
                            message=f"{word} (this rank waited for it)", step=self._rec.step_now)
            self._rec.write("end", outcome="failed", steps=self._rec.step_now, seconds=None)
            os._exit(1)
