"""Finding the old run folder when a launcher starts the same ranks once more.

torchrun restarts its ranks after a failure (`--max-restarts`), and Slurm requeues a job. No
supervisor remembers which run that was, so each machine keeps a note for every launcher next to
the run folders and reads it at the next start. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common import paths, procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, read_json, write_json
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as slurm_job
from gpu_engine.runs import leftovers
from gpu_engine.runs.create import create_run, reopen_run
from gpu_engine.runs.job import Job
from gpu_engine.runs.state import AttemptRecord

FOLDER = ".launchers"
_OLD = 90 * 86400.0
"""Seconds after which a note is deleted."""
_LOCK = 30.0
"""Seconds to wait for the processes of the previous attempt to end."""


@dataclass(frozen=True)
class Launcher:
    """What has started these ranks and may start them again."""

    agent: str | None
    """Names this torchrun, which starts nothing but these ranks; None if there is none."""
    job: str | None
    """Names this Slurm job, which may start other ranks too; None if there is none."""
    requeued: int
    """How often Slurm has requeued the job."""
    batch: Job | None = None
    """The Slurm job, if gpu-panel's batch script has started these ranks. Within an allocation of
    a person's own, which may hold other things, there is none: it would not be the run's to end."""

    @classmethod
    def of(cls, env: Mapping[str, str], spec_toml: str) -> Launcher:
        """The launcher of this process, from its environment. `spec_toml` is part of the names, as
        another spec is another run."""
        digest = hashlib.sha256(spec_toml.encode()).hexdigest()[:16]
        agent = job = None
        if "TORCHELASTIC_RUN_ID" in env:
            pid = os.getppid()
            agent = f"torchrun-{procs.boot_id()}-{pid}-{procs.start_ticks(pid)}-{digest}"
        if env.get("SLURM_JOB_ID"):
            cluster = re.sub(r"[^\w.-]", "_", env.get("SLURM_CLUSTER_NAME", ""))
            job = f"slurm-{cluster}-{env['SLURM_JOB_ID']}-{digest}"
        count = env.get("SLURM_RESTART_COUNT", "")
        requeued = int(count) if count.isdigit() else 0
        number = env.get("GPU_PANEL_SLURM_JOB", "")
        batch = Job(int(number), state="RUNNING", restarts=requeued,
                    nodes=env.get("SLURM_JOB_NODELIST")) \
            if number.isdigit() and number == env.get("SLURM_JOB_ID") else None
        return cls(agent, job, requeued, batch)

    def previous_run(self) -> Path | None:
        """The run folder of the previous start, if this launcher has started these ranks before;
        else None."""
        for name in (self.agent, self.job):
            note = read_json(_note(name)) if name else None
            if not isinstance(note, dict) or not isinstance(note.get("run"), str):
                continue
            if name == self.agent or self.requeued > int(note.get("requeued") or 0):
                path = Path(note["run"])
                if (path / "plan.json").exists():
                    return path
        return None

    def has_used(self, path: Path) -> bool:
        """Whether this very torchrun has used that run folder before."""
        note = read_json(_note(self.agent)) if self.agent else None
        return isinstance(note, dict) and note.get("run") == str(path)

    def remember(self, run: Path) -> None:
        """Note that this launcher uses the run folder `run`. If the note can't be written, a
        restart does not find the folder; nothing else is lost."""
        with contextlib.suppress(OSError):
            folder = paths.runs_folder() / FOLDER
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in filter(None, (self.agent, self.job)):
                write_json(_note(name), {"run": str(run), "requeued": self.requeued})
            for path in folder.iterdir():
                if time.time() - path.stat().st_mtime > _OLD:
                    path.unlink(missing_ok=True)


def _note(name: str) -> Path:
    return paths.runs_folder() / FOLDER / f"{name}.json"


def named(folder: str) -> Path:
    """The run folder that `--folder` means: a path, or the name of a run. Raises UserError."""
    if "/" in folder:
        return expanded(folder).absolute()
    if not re.fullmatch(r"[\w-][\w.-]{0,127}", folder):
        raise UserError(f"--folder {folder!r}: expected a name of letters, digits, - _ and ., or a "
                        "path with /")
    return paths.runs_folder() / folder


def newest_step(path: Path | None) -> int:
    """The step of the newest finished checkpoint in a run folder; -1 if there is none."""
    name = leftovers.last_checkpoint(path) if path is not None else None
    digits = (name or "").removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def open_run(path: Path | None, there: bool, name: str, spec_toml: str, plan: LaunchPlan,
             job: Job | None = None) -> tuple[runs.Run, int, int, tuple[AttemptRecord, ...]]:
    """Open the run folder `path`, or make a new one if it is None. `there`: it holds a run already.
    job: the Slurm job that the run is.

    Returns (run, the descriptor that holds its lock, number of this attempt, earlier attempts).
    Raises UserError if the folder can't be made or another process holds it.
    """
    number, before = 1, ()
    if path is None or not there:
        run, lock = create_run(name, spec_toml, plan, path=path)
    else:
        run, end = runs.Run(path), time.monotonic() + _LOCK
        while run.supervised() and time.monotonic() < end:
            time.sleep(0.2)  # a killed rank takes a moment to release the lock
        lock = reopen_run(run, spec_toml, plan, job.id if job is not None else None)
        state = run.state()
        number, before = state.attempt, state.attempts
    if job is not None and slurm_job.read(run.path) is None:
        try:
            slurm_job.write(run.path, job)
        except OSError as err:
            raise UserError(f"{run.path}: can't be written: {err.strerror}") from None
    return run, lock, number, before
