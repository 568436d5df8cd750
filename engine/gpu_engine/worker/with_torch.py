"""The part of a rank that needs torch: joining the other ranks, training, checking."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from gpu_engine.events import schema
from gpu_engine.training.session import Session
from gpu_engine.worker.check import WAIT
from gpu_engine.worker.check import check as try_out
from gpu_engine.worker.rank import gpu_memory, patient_barrier
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.joining import join
from gpu_engine.worker.rank.leaving import exit_at_once
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.signals import Signals

_PEER_GRACE = 10.0
"""Seconds that a rank may stay in a collective after another rank has announced its failure."""


def prepare(job: Job, rec: Recorder) -> None:
    """Have torch use the rank's cores and devices, and `rec` record the memory of these devices."""
    if job.cores and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(job.cores))
    if job.spec.run.oom_snapshot:
        gpu_memory.record_from_start()
    devices = [torch.device(d) for d in job.devices]
    use(devices[0])
    rec.attach(devices)


def use(device: torch.device) -> None:
    """Make it the device that this process works on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def join_ranks(job: Job, *, check: bool) -> Group:
    """The group of all ranks, which the caller closes. `check`: wait for them no longer than
    `check.WAIT` seconds. Raises CannotMeet."""
    timeout = job.plan.spec.parallel.timeout
    return join(job.who, job.backend, min(timeout, WAIT) if check else timeout,
                nodes=job.plan.nodes, device=torch.device(job.devices[0]))


def check_ranks(job: Job, group: Group, rec: Recorder) -> str:
    """Try the connection between the ranks. Returns the outcome, "completed"."""
    rec.training = True  # a check ends in seconds: a stop need not interrupt it
    try_out(job, group, rec)
    return "completed"


def train(job: Job, group: Group, rec: Recorder, signals: Signals) -> str:
    """Train as `job` says. Returns the outcome, "completed" or "stopped"."""
    rec.watch = _Peers(rec, group, rec.watch)
    group.report_waits_to(rec)
    return Session(job, group, rec, signals).run()


class _Peers:
    """Looks at each tick whether the ranks are to end. Once a second, sends this rank's heartbeat
    and checks whether another rank has announced its failure. If one has, and this rank does not
    end by itself, it ends the process: a collective of NCCL may never return when a rank is
    gone."""

    def __init__(self, rec: Recorder, group: Group, then: Callable[[], None] | None) -> None:
        self._rec, self._then = rec, then
        self._others = group.beside()
        self._due = 0.0
        self._since: float | None = None

    def __call__(self) -> None:
        if self._then is not None:
            self._then()
        others = self._others
        if others is None or self._rec.phase == "done":
            return
        others.look_for_end()
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + patient_barrier.INTERVAL
        others.beat(patient_barrier.activity(self._rec))
        word = others.failure()
        if word is None or self._rec.writing is not None:  # a checkpoint is finished first
            return
        self._since = self._since or now
        if now - self._since > _PEER_GRACE:
            step = self._rec.step_now
            self._rec.write(schema.Error("PeerLost", f"{word} (this rank waited for it)", "",
                                         self._rec.phase, step))
            self._rec.write(schema.End("failed", step, None))
            exit_at_once(1)
