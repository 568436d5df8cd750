"""From a command line to an exit code: what surrounds the training of one rank."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.events.paths import events_path, log_path
from gpu_engine.worker.rank import current
from gpu_engine.worker.rank.job import Job, read
from gpu_engine.worker.rank.output import forgive_full_disk
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.signals import Signals, die_with_parent

if TYPE_CHECKING:
    from gpu_engine.worker.rank.process_group import Group

_INIT_GRACE = 1.0


def main(argv: list[str], env: MutableMapping[str, str]) -> int:
    """Run one rank. 0: completed, or stopped below a supervisor; 1: failed; 2: what was asked for
    does not fit; 75: stopped, to be started again, where no supervisor is there to tell."""
    args = _arguments(argv)
    signals = Signals()
    signals.install()
    if args.run is None:
        return _plain(args, env, signals)
    die_with_parent()
    if "TORCHELASTIC_RUN_ID" in env:
        _own_log(args.run, env)
    forgive_full_disk()
    try:
        job = read(args.run, env)
    except UserError as err:
        sys.stderr.write(f"{err}\n")
        return 1
    return _rank(job, signals, args.check)


def _plain(args: argparse.Namespace, env: MutableMapping[str, str], signals: Signals) -> int:
    """Without a run folder made by somebody else: see `plain`."""
    warm = warm_up()
    with imports():
        from gpu_engine.worker.plain import EXIT_STOPPED, Plain, Stopped

    met = threading.Event()
    threading.Thread(target=_leave_if_asked, args=(signals, met, EXIT_STOPPED), daemon=True).start()
    try:
        plain = Plain(args, env)
    except Stopped:
        sys.stdout.write("stopped in the attempt before: not started again\n")
        return EXIT_STOPPED
    except UserError as err:
        sys.stderr.write(f"{err}\n")
        return 2
    finally:
        met.set()
    return _rank(plain.job, signals, args.check, plain.group, warm, plain.ended, EXIT_STOPPED)


def _leave_if_asked(signals: Signals, met: threading.Event, code: int) -> None:
    """End a rank that is asked to stop while it waits for others that don't come."""
    while not met.wait(0.2):
        if signals.arrived():
            if not met.wait(_INIT_GRACE):
                os._exit(code)
            return


def _rank(job: Job, signals: Signals, check: bool, group: Group | None = None,
          warm: threading.Thread | None = None,
          ended: Callable[[str, bool], None] = lambda outcome, trained: None,
          stopped: int = 0) -> int:
    """Train or check as `job` says, and leave nothing open. `stopped`: the exit status of a rank
    that was asked to stop."""
    rec = begin(job, signals, lambda: ended("stopped", False), stopped)
    began = time.monotonic()
    try:
        with imports():
            from gpu_engine.worker import with_torch

        if warm is None and not check:
            warm = warm_up()
        with_torch.prepare(job, rec)
        group = group or with_torch.join_ranks(job, check=check)
        if check:
            outcome = with_torch.check_ranks(job, group, rec)
        else:
            outcome = with_torch.train(job, group, rec, signals, warm)
    except BaseException as err:  # noqa: BLE001 - the last thing a rank does is say why
        early = signals.stop_requested and not rec.training
        # Asked to stop before training began, the ranks leave one by one.
        outcome = "stopped" if early else fail(err, rec, group)
    rec.phase = "done"
    rec.write("end", outcome=outcome, steps=rec.step_now,
              seconds=round(time.monotonic() - began, 3))
    rec.close()
    ended(outcome, rec.training)
    status = {"failed": 1, "stopped": stopped}.get(outcome, 0)
    sys.stdout.write(f"{outcome} after step {rec.step_now}\n")
    sys.stdout.flush()
    if outcome == "failed" or not rec.training:
        # Peers may wait in a collective, and leaving the group in good order would join them.
        sys.stderr.flush()
        os._exit(status)
    if group is not None:
        group.close()
    return status


def begin(job: Job, signals: Signals, leaving: Callable[[], None] = lambda: None,
          stopped: int = 0) -> Recorder:
    """Keep to the rank's cores and open its record: before torch is imported, so that a rank is
    seen from its first moment."""
    if job.cores:
        try:
            os.sched_setaffinity(0, job.cores)
        except OSError as err:
            sys.stderr.write(f"can't keep to cores {job.cores}: {err}\n")
    who = job.who
    path = events_path(job.run, who.rank)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rec = Recorder(path, echo=who.rank == 0)
    current.recorder = rec
    rec.write("start", rank=who.rank, local_rank=who.local_rank, node=job.mine.node,
              pid=os.getpid(), started=procs.start_ticks(os.getpid()), device=tuple(job.labels),
              world_size=who.world_size, attempt=job.attempt)
    rec.watch = _Watch(rec, signals, leaving, stopped)
    rec.begin()
    return rec


class _Watch:
    """Sees a request to stop while the main thread waits inside a call, as when it waits for
    ranks that don't come: there's nothing to save yet, so the rank just ends."""

    def __init__(self, rec: Recorder, signals: Signals, leaving: Callable[[], None],
                 status: int) -> None:
        self._rec, self._signals = rec, signals
        self._leaving, self._status = leaving, status
        self._since: float | None = None
        self._began = time.monotonic()

    def __call__(self) -> None:
        if self._signals.arrived() and self._since is None:
            self._since = time.monotonic()
        if self._since is None or self._rec.training or self._rec.phase == "done":
            return
        if time.monotonic() - self._since > _INIT_GRACE:
            self._rec.phase = "done"
            self._rec.write("end", outcome="stopped", steps=self._rec.step_now,
                            seconds=round(time.monotonic() - self._began, 3))
            self._leaving()
            os._exit(self._status)


def fail(err: BaseException, rec: Recorder, group: Group | None) -> str:
    """Record why this rank failed, tell the others, and say "failed"."""
    if group is not None:
        from gpu_engine.worker.rank.failures import blame

        err = blame(err, group.failures)
    fields = {"type": type(err).__name__, "message": str(err) or type(err).__name__,
              "traceback": "", "phase": rec.phase, "step": rec.step_now}
    if not isinstance(err, UserError):
        fields["traceback"] = "".join(traceback.format_exception(err))
    from gpu_engine.worker.rank import memory

    fields |= memory.of_error(err)
    rec.write("error", **fields)
    sys.stderr.write((fields["traceback"] or f"{fields['type']}: {fields['message']}") + "\n")
    sys.stderr.flush()
    if group is not None and fields["type"] != "PeerLost":
        group.failures.announce(f"{fields['type']}: {fields['message']}")
    return "failed"


def leave(code: int) -> NoReturn:
    """End the process as Python would, but for taking torch's modules apart one by one: half a
    second in which a finished run looks like a running one."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Around the import of torch, before anything of a task's is there: its objects stay for good,
    and looking for garbage among them, now or at any later time, costs a tenth of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def warm_up() -> threading.Thread:
    """Import in the background what PyTorch imports at the first optimizer step or by wrapping a
    model in DDP, 0.8 s of it: meanwhile the ranks meet and the data is read."""
    def load() -> None:
        import torch._dynamo  # noqa: F401

    thread = threading.Thread(target=load, name="warm-up", daemon=True)
    thread.start()
    return thread


def _own_log(run: Path, env: MutableMapping[str, str]) -> None:
    """Under torchrun output would go through its agent: send it to this rank's own file."""
    path = log_path(run, int(env.get("RANK", 0)))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_engine.worker",
        description="One rank of a run. With --run, as gpu-panel starts it; with a preset, under "
                    "torchrun, srun, mpirun, or alone.")
    parser.add_argument("preset", nargs="?", help="a preset's name or file")
    parser.add_argument("--run", type=Path, help="a run folder with its plan.json")
    parser.add_argument("--check", action="store_true",
                        help="try the connection between the ranks instead of training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets",
                        help="change a key of the preset")
    parser.add_argument("--folder", metavar="NAME|PATH",
                        help="the run folder, to go on there from its newest checkpoint if there "
                             "is one: a name among the runs, or a path")
    parser.add_argument("--init-method", metavar="tcp://HOST:PORT",
                        help="where the ranks meet, with --rank and --world-size")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world-size", type=int)
    args = parser.parse_args(argv)
    if args.run is None and args.preset is None and not args.sets:
        parser.error("give --run RUN, or a preset, or --set KEY=VALUE")
    if args.run is not None and (args.preset or args.sets or args.folder):
        parser.error("a run folder's plan is final: --run goes without a preset, --set, --folder")
    return args
