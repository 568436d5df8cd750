"""A run here that another machine asks for, and that is its alone (`gpu-engine run --part`)."""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import msgspec

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.launching import launcher
from gpu_engine.plan.records import PartOf, ResumeFrom
from gpu_engine.remote.run.parts import Part
from gpu_engine.remote.there.wire import enter
from gpu_engine.runs.folder import Run, all_parts, find, private_folder
from gpu_engine.spec.schema import RunSpec

_PATIENCE = 20.0
_LOOKED_AT = 100
"""Runs, from the newest, among which one that was asked for already is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Part):
    """What is asked for: that machine's record of the part, and of what it is one."""

    of: str
    """The id of the run that it is part of."""
    machine: str
    """The name of the machine that has that run."""
    only_ask: bool
    """Start nothing: tell of the run that was started by this key."""


def started_by(key: str) -> Run | None:
    """The run that was asked for by this key; None if none of the newest was."""
    return next((run for run in all_parts()[:_LOOKED_AT]
                 if (plan := run.plan()) is not None and plan.origin == key), None)


def begin(spec: RunSpec, told: str) -> Run:
    """The run that `told`, an order as JSON, asks for. Said twice, as after a connection that
    broke, it starts one run, and one attempt of it. Raises UserError."""
    order = msgspec.json.decode(told, type=Order)
    with _alone(order.key):
        if order.run is not None and order.resume:
            run = find(order.run)
            if run.state().attempt < order.attempt:
                _go_on(run, spec, order)
            return run
        run = started_by(order.key)
        if run is None and order.only_ask:
            raise UserError("it has not begun there")
        return run or _start(spec, order)


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """Nobody else starts a run by this key meanwhile. A command whose connection was cut goes on,
    and the next one must find the run that it has made."""
    private_folder(paths.parts_folder())
    # A byte for each key, locked for this process and not for those that it starts (fcntl).
    lock = os.open(paths.home() / "starting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, zlib.crc32(key.encode()))
        yield
    finally:
        os.close(lock)


def _start(spec: RunSpec, order: Order) -> Run:
    prepared = launcher.prepare(spec)
    if order.trying:
        prepared = launcher.only_trying(prepared)
    plan = replace(prepared.plan, origin=order.key, part_of=PartOf(order.of, order.machine))
    if order.checkpoint is not None:
        plan = replace(plan, resume_from=ResumeFrom(order.checkpoint, order.attempt))
    return launcher.start(replace(prepared, plan=plan), attempt=order.attempt)


def _go_on(run: Run, spec: RunSpec, order: Order) -> None:
    if run.state().live:  # cut off when the others failed: it is of no use to anybody
        run.stop(now=True)
        end = time.monotonic() + _PATIENCE
        while run.state().live and time.monotonic() < end:
            time.sleep(0.05)
    for rank in order.fresh:
        for path in (run.events(rank), run.log(rank)):
            with suppress(FileNotFoundError):
                path.rename(path.with_name(f"{path.name}.before-{order.attempt}"))
    enter((run.cwd(),))
    launcher.start_again(run, spec, order.checkpoint, order.attempt)
