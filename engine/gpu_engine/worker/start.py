"""From a command line to an exit code: everything around the training of one rank."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import floors, procs
from gpu_engine.common.errors import UserError
from gpu_engine.events import schema
from gpu_engine.events.paths import events_path, log_path, open_to_append
from gpu_engine.worker.rank import record_writer
from gpu_engine.worker.rank.job import Job, read
from gpu_engine.worker.rank.memory import error_event
from gpu_engine.worker.rank.process import Signals, die_with_parent, exit_at_once, forgive_full_disk
from gpu_engine.worker.rank.recorder import Recorder

if TYPE_CHECKING:
    from gpu_engine.worker.rank.group import Group

_INIT_GRACE = 1.0


def main(argv: list[str], env: MutableMapping[str, str]) -> int:
    """Run one rank. Returns its exit code: 0 for completed, or stopped under a supervisor; 1 for
    failed; 2 for a mistake in the arguments or the spec; 75 for stopped without a supervisor and
    without torchrun, so that the launcher may start it again."""
    args = _arguments(argv)
    signals = Signals()
    signals.install()
    if args.run is None:
        return _without_supervisor(args, env, signals)
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


def _without_supervisor(args: argparse.Namespace, env: MutableMapping[str, str],
                        signals: Signals) -> int:
    """A rank that no supervisor has started: see the module `without_supervisor`."""
    if sys.version_info < (3, 11):
        sys.stderr.write("a rank that no supervisor starts reads a preset, which takes all of "
                         "gpu-panel and with it Python 3.11 or newer; this is Python "
                         f"{'.'.join(map(str, sys.version_info[:3]))}\n")
        return 2
    try:
        with importing_torch():
            from gpu_engine.worker.without_supervisor import RankWithoutSupervisor
    except UserError as err:
        sys.stderr.write(f"{err}\n")
        return 2

    # 75: not finished, start it again later (sysexits.h). Torchrun would take that for a failure,
    # and do so at once.
    stopped = 0 if "TORCHELASTIC_RUN_ID" in env else os.EX_TEMPFAIL
    met = threading.Event()
    _leave_when_asked(signals, met.is_set, lambda: exit_at_once(stopped))
    try:
        rank = RankWithoutSupervisor(args, env)
    except UserError as err:
        sys.stderr.write(f"{err}\n")
        return 2
    finally:
        met.set()
    return _rank(rank.job, signals, args.check, rank.group, rank.record_end, stopped)


def _leave_when_asked(signals: Signals, over: Callable[[], bool], leave: Callable[[], None],
                      ) -> None:
    """In a thread, call `leave` if this rank is asked to stop before `over`, while its main thread
    is stuck in a call, such as waiting for ranks that don't come. There is nothing to save yet."""
    def watch() -> None:
        while not over():
            if signals.arrived():
                time.sleep(_INIT_GRACE)
                return None if over() else leave()
            time.sleep(0.2)
        return None

    threading.Thread(target=watch, daemon=True).start()


def _rank(job: Job, signals: Signals, checks: bool, group: Group | None = None,
          ended: Callable[[str, bool], None] = lambda outcome, trained: None,
          stopped: int = 0) -> int:
    """Train or check, as `job` says. Returns the exit status. `ended` is called with the outcome
    and whether training had begun; `stopped` is the exit status of a rank that was stopped."""
    rec = open_record(job)
    began = time.monotonic()

    def end(outcome: str) -> int:
        rec.phase = "done"
        rec.close()  # so that no heartbeat follows
        rec.write(schema.End(outcome, rec.step_now, round(time.monotonic() - began, 3)))
        ended(outcome, rec.training)
        return {"failed": 1, "stopped": stopped}.get(outcome, 0)

    rec.leave = lambda outcome: exit_at_once(end(outcome))
    rec.begin()
    _leave_when_asked(signals, lambda: rec.training or rec.phase == "done",
                      lambda: rec.leave("stopped"))
    fault: str | None = None
    try:
        with importing_torch():
            import torch

            from gpu_engine.training.session import Session
            from gpu_engine.worker import check
            from gpu_engine.worker.rank import memory
            from gpu_engine.worker.rank.group import join
        if job.mine.cores and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(len(job.mine.cores))
        if job.spec.run.oom_snapshot:
            memory.record_from_start()
        devices = [torch.device(d) for d in job.devices]
        if devices[0].type == "cuda":
            torch.cuda.set_device(devices[0])
        rec.attach(devices)
        if group is None:
            timeout = job.spec.parallel.timeout
            group = join(job.who, job.plan.backend, min(timeout, check.WAIT) if checks else timeout,
                         nodes=job.plan.nodes, device=devices[0])
        if checks:
            rec.training = True  # a check ends in seconds: a stop need not interrupt it
            check.check(job, group, rec)
            outcome = "completed"
        else:
            if (beside := group.beside(rec)) is not None:
                rec.watches.append(beside)
            outcome = Session(job, group, rec, signals).run()
    except BaseException as err:  # noqa: BLE001 - the last thing a rank does is say why
        # Ranks that are asked to stop before training begins exit one by one, so an error here
        # may come from another rank's exit.
        early = signals.arrived() and not rec.training
        outcome, fault = ("stopped", None) if early else ("failed", record_failure(err, rec, group))
    status = end(outcome)
    # Native code may end the process in here.
    if fault is not None and group is not None and group.peers is not None:
        group.peers.announce(fault)
    sys.stdout.write(f"{outcome} after step {rec.step_now}\n")
    sys.stdout.flush()
    # Where this rank has failed, others may be stuck in a collective. Closing would wait for them.
    if group is not None and outcome != "failed" and rec.training:
        group.close()
    return status


def open_record(job: Job) -> Recorder:
    """Bind the process to the run's cores and open its record. This happens before torch is
    imported, so that a rank is visible from its first moment."""
    if job.cores:
        try:
            os.sched_setaffinity(0, job.cores)
        except OSError as err:
            sys.stderr.write(f"can't keep to cores {job.cores}: {err}\n")
    who = job.who
    path = events_path(job.run, who.rank)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    rec = Recorder(path, echo=who.rank == 0)
    record_writer.current = rec
    pid = os.getpid()
    rec.write(schema.Start(who.rank, who.local_rank, job.mine.node, pid, procs.start_ticks(pid),
                           who.world_size, tuple(job.labels), job.attempt))
    return rec


def record_failure(err: BaseException, rec: Recorder, group: Group | None) -> str | None:
    """Record why this rank failed. Returns what to tell the others of it; None if they know."""
    if group is not None and group.peers is not None:
        err = group.peers.blame(err)
    event = error_event(err, rec.phase, rec.step_now, held_by=rec.held_by(err),
                        traced=not isinstance(err, UserError))
    rec.write_failure(err)
    rec.write(event)
    what = f"{event.type}: {event.message}"
    sys.stderr.write((event.traceback or what) + "\n")
    sys.stderr.flush()
    return what if event.type != "PeerLost" else None


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """Wrap the import of torch in this, before any task is loaded. It keeps the garbage collector
    away from torch's objects, which live as long as the process; searching them for garbage takes
    a tenth of the time of a start. Raises UserError if torch is older than ranks need."""
    gc.disable()
    try:
        import torch

        too_old = floors.torch_too_old(torch.__version__)
        if too_old is not None:
            raise UserError(too_old)
        yield
    finally:
        gc.freeze()
        gc.enable()


def _own_log(run: Path, env: MutableMapping[str, str]) -> None:
    """Send this rank's output to its own log file, instead of through torchrun's agent."""
    fd = open_to_append(log_path(run, int(env.get("RANK", 0))))
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_engine.worker",
        description="One rank of a run. gpu-panel starts it with --run. With a preset it runs "
                    "under torchrun or srun, or alone.")
    parser.add_argument("preset", nargs="?", help="a preset's name or file")
    parser.add_argument("--run", type=Path, help="a run folder with its plan.json")
    parser.add_argument("--check", action="store_true",
                        help="try the connection between the ranks instead of training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets",
                        help="change a key of the preset")
    parser.add_argument("--folder", metavar="NAME|PATH",
                        help="the run folder: the name of a run, or a path; if it holds a "
                             "checkpoint, training goes on from the newest one")
    parser.add_argument("--init-method", metavar="tcp://HOST:PORT",
                        help="where the ranks meet, with --rank and --world-size")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world-size", type=int)
    args = parser.parse_args(argv)
    if args.run is None and args.preset is None and not args.sets:
        parser.error("give --run RUN, or a preset, or --set KEY=VALUE")
    if args.run is not None and (args.preset or args.sets or args.folder):
        parser.error("--run takes the plan from the run folder: leave out preset, --set and "
                     "--folder")
    return args
