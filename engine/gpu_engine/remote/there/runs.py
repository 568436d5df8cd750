"""Starting runs here, as `gpu-engine run` and `gpu-engine resume` would, what that would fail at,
and what is asked of a run that is here."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from gpu_engine.code import listing, store
from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.values import show
from gpu_engine.diagnose import traces
from gpu_engine.launching import launcher
from gpu_engine.plan.records import PartOf, ResumeFrom
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.protocol import BadMessage, Wrong
from gpu_engine.remote.there.main import Out, enter
from gpu_engine.runs import checkpoints, disk_room
from gpu_engine.runs import stacks as asking
from gpu_engine.runs.folder import Run, all_parts, private_folder
from gpu_engine.spec.read import from_dict

_ID = re.compile(r"[0-9a-f]{2,32}")
_PATIENCE = 20.0
_LOOKED_AT = 100
"""Runs, from the newest, among which one that was asked for already is looked for."""


def run_of(name: str) -> Run:
    """What is here of a run, by the whole id that it has here. Raises UserError."""
    run = Run(paths.parts_folder() / name)
    if not _ID.fullmatch(name) or not run.path.is_dir():
        raise UserError(f"there is no run {name[:40]!r} there any more")
    return run


def _started_by(key: str) -> Run | None:
    """The run that was asked for by `Start` with this key; None if none of the newest was."""
    return next((run for run in all_parts()[:_LOOKED_AT]
                 if (plan := run.plan()) is not None and plan.origin == key), None)


def check(out: Out, request: protocol.Check) -> None:
    wrong: list[Wrong] = []
    warnings: tuple[str, ...] = ()
    folder = ""
    try:
        folder = str(enter(request.folders))
        warnings = launcher.prepare(from_dict(request.spec), cwd=enter((folder,))).plan.warnings
    except SpecError as err:
        wrong += [Wrong(p.key, "" if p.value is None else show(p.value), p.message)
                  for p in err.problems]
    except UserError as err:
        wrong.append(Wrong("", "", str(err)))
    full = disk_room.problem(paths.runs_folder())
    if full is not None:
        wrong.append(Wrong("", "", full.message))
    out.send(protocol.Checked(tuple(wrong), warnings, folder))


def start(out: Out, request: protocol.Start) -> None:
    """Once for a key, however often it is said: an answer may have been lost with its connection.
    """
    with _alone(request.key):
        run = _started_by(request.key)
        if run is None and request.only_ask:
            raise UserError("it has not begun there")
        out.send(_started(run or _start(request)))


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """Nobody else starts a run by this key meanwhile. An agent whose connection was cut goes on,
    and the next one must find the run that it has made."""
    private_folder(paths.parts_folder())
    # A byte for each key, locked for this process and not for those that it starts (fcntl).
    lock = os.open(paths.home() / "starting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, zlib.crc32(key.encode()))
        yield
    finally:
        os.close(lock)


def _start(request: protocol.Start) -> Run:
    folder = enter(request.folders)
    prepared = launcher.prepare(from_dict(request.spec), cwd=folder)
    if request.trying:
        prepared = launcher.only_trying(prepared)
    plan = replace(prepared.plan, origin=request.key,
                   part_of=PartOf(request.whole, request.machine))
    if request.checkpoint is not None:
        plan = replace(plan, resume_from=ResumeFrom(request.checkpoint, request.attempt))
    return launcher.start(replace(prepared, plan=plan), attempt=request.attempt)


def resume(out: Out, request: protocol.Resume) -> None:
    run = run_of(request.run)
    if run.state().attempt < request.attempt:
        if run.state().live:  # cut off when the others failed: it is of no use to anybody
            run.stop(now=True)
            end = time.monotonic() + _PATIENCE
            while run.state().live and time.monotonic() < end:
                time.sleep(0.05)
        for rank in request.fresh:  # what is here of ranks that have been on another host since
            for path in (run.events(rank), run.log(rank)):
                with suppress(FileNotFoundError):
                    path.rename(path.with_name(f"{path.name}.before-{request.attempt}"))
        enter((run.cwd(),))
        launcher.start_again(run, from_dict(request.spec), request.checkpoint, request.attempt)
    out.send(_started(run))


def _started(run: Run) -> protocol.Started:
    return protocol.Started(run.id, str(run.path), run.state().attempt)


def follow(out: Out, request: protocol.Follow) -> None:
    from gpu_engine.remote.there import follow as following

    following.follow(out, run_of(request.run), request)


def stop(out: Out, request: protocol.Stop) -> None:
    """Of a run that has ended there is nothing to do, nor of one that has heard it before: it is
    asked again when a connection was lost."""
    run = run_of(request.run)
    state = run.state()
    if (state.live and (request.now or state.state != "stopping")) or state.state == "lost":
        try:
            run.stop(now=request.now)
        except UserError:
            if run.state().live:
                raise
    out.send(protocol.Done())


def stacks(out: Out, request: protocol.Stacks) -> None:
    """Those who can't be asked (yet) are passed over: nothing comes from them."""
    run = run_of(request.run)
    for rank in request.ranks:
        asking.request(run, rank)
    out.send(protocol.Done())


def trace(out: Out, request: protocol.Trace) -> None:
    run = run_of(request.run)
    found = traces.trace(run, steps=request.steps, ranks=request.ranks,
                         wait=min(request.wait, traces.LONGEST))
    told = [(rank, *traces.describe(run, answer)) for rank, answer in found.items()]
    out.send(protocol.Traced(tuple(
        protocol.TraceOf(rank, path and str(path), problem) for rank, path, problem in told)))


def choose(out: Out, request: protocol.Choose) -> None:
    run = run_of(request.run)
    there = [path.name for path in checkpoints.listed(run.checkpoints)]
    if not there:
        raise UserError("there is no checkpoint there yet")
    out.send(protocol.Chosen(
        checkpoints.choose(run.checkpoints, request.which, request.best) or there[-1]))


def sendcode(out: Out, request: protocol.SendCode) -> None:
    data = sys.stdin.buffer.read(min(request.size, listing.LONGEST_LIST + listing.LARGEST))
    listed, at = data[:request.listed], request.listed
    contents = []
    try:
        for entry in listing.unpacked(listed):
            contents.append(data[at:at + entry.size])
            at += entry.size
    except listing.BadList as err:
        raise BadMessage(f"the list of the code can't be used: {err}") from None
    if listing.name_of(listed) != request.name:
        raise UserError("the list of the code was changed on its way here; try again")
    out.send(protocol.CodeKept(str(store.save(listed, contents))))


def remove(out: Out, request: protocol.Remove) -> None:
    """By the rules of `gpu-engine runs rm`, and the code that it was sent. A run that is not here
    any more is removed."""
    run = _started_by(request.key) if request.run is None else \
        run_of(request.run) if (paths.parts_folder() / request.run).is_dir() else None
    if run is None:
        out.send(protocol.Removed())
        return
    size, folder = run.size(), run.cwd()
    run.remove()
    gone, kept = store.remove_unused(folder)
    out.send(protocol.Removed(str(run.path), size, gone, kept))
