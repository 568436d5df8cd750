"""Slurm's own commands, called as a person would type them: squeue, sacct, sbatch, scancel.

Each call is bounded in time. Settings in the environment that would change the output of a command
(`SQUEUE_FORMAT`), or have it ask something (`SCANCEL_INTERACTIVE`), are left out.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.runs.job import Job

LIMIT = 10.0
"""Seconds that a command may take."""
SUBMITTING = 60.0
"""Seconds that sbatch may take: where many submit at once, Slurm has it try again."""
_SILENT = 3.0
"""Seconds after which it is said that it has not answered."""
_COLUMNS = (("JobID", 20), ("State", 20), ("RestartCnt", 10), ("StartTime", 30), ("EndTime", 30),
            ("NodeList", 500), ("Reason", 200))
"""What squeue prints, and the width of each: it has no separator that could not occur."""


log = logging.getLogger(__name__)


class SlurmError(Exception):
    """A command is missing, has failed or has not answered; the text is one line of words."""


def jobs() -> dict[int, Job]:
    """This user's jobs by number: those that wait and run, and those that have ended a short time
    ago (Slurm's MinJobAge, 5 minutes by default). One call, however many runs ask. Raises
    SlurmError."""
    wanted = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
    text = call(["squeue", "--noheader", f"--user={os.getuid()}", "--states=all",
                 "--Format", wanted])
    return {job.id: job for line in text.splitlines() if (job := _queued(line)) is not None}


def _queued(line: str) -> Job | None:
    fields, at = {}, 0
    for name, width in _COLUMNS:
        fields[name] = line[at:at + width].strip()
        at += width
    if not fields["JobID"].isdigit():
        return None  # of an array, which we submit none of
    count = fields["RestartCnt"]
    return _job(fields["JobID"], fields["State"], _known(fields["Reason"]),
                fields["StartTime"], fields["EndTime"], fields["NodeList"],
                int(count) if count.isdigit() else 0)


def _job(number: str, state: str, reason: str | None, start: str, end: str, nodes: str,
         restarts: int = 0) -> Job:
    """`start`: when it began or, if it waits, will probably begin."""
    job = Job(int(number), state, reason, restarts, nodes=_known(nodes))
    return replace(job, expected=_time(start) if job.waits else None,
                   ended=_time(end) if job.over else None)


def finished(ids: Iterable[int]) -> dict[int, Job]:
    """What the accounting knows of these jobs; `reason`: by whom one was cancelled, "by anna".
    Raises SlurmError, also where Slurm keeps none."""
    text = call(["sacct", "--noheader", "--parsable2", "--allocations",
                 f"--jobs={','.join(map(str, ids))}", "--format=JobIDRaw,State,Start,End,NodeList"])
    found = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 5 and fields[0].isdigit():
            state, _, who = fields[1].partition(" by ")  # "CANCELLED by 1000", "CANCELLED+"
            start, end, nodes = fields[2:]
            found[int(fields[0])] = _job(fields[0], state, _user(who), start, end, nodes)
    return found


def submit(script: Path, folder: str, output: str, *, options: Sequence[str] = (),
           without: Iterable[str] = ()) -> int:
    """Submit the batch script `script`, in the working folder `folder`; the job's output goes to
    `output`, a file name with Slurm's placeholders. Returns the job's number.

    options: KEY=VALUE or KEY, beside those of the script. without: options whose settings in the
    environment (`SBATCH_PARTITION`), which for sbatch come before those in the script, are left
    out. Raises SlurmError with sbatch's own words.
    """
    names = {f"SBATCH_{name.upper().replace('-', '_')}" for name in without}
    env = {k: v for k, v in os.environ.items() if k not in names}
    said = threading.Timer(_SILENT, log.warning, [
        "sbatch has not answered yet; it is waited for up to %.0f s", SUBMITTING])
    said.start()
    try:
        text = call(["sbatch", "--parsable", f"--output={output}",
                     *(f"--{option}" for option in options), str(script)], limit=SUBMITTING,
                    cwd=folder, env=env)
    finally:
        said.cancel()
    said = re.search(r"^(\d+)(?:;\S+)?\s*$", text, re.MULTILINE)  # with the cluster's name
    if said is None:
        raise SlurmError(f"expected a job number, got {clean(text)[:200]!r}")
    return int(said[1])


def cancel(job: int | str, *options: str) -> None:
    """scancel, of a job or, as "41007.0", of a step. Raises SlurmError."""
    call(["scancel", *options, str(job)])


def call(argv: Sequence[str], *, limit: float = LIMIT, cwd: str | None = None,
         env: Mapping[str, str] | None = None) -> str:
    """The output of a command. Raises SlurmError."""
    name = argv[0]
    there = {k: v for k, v in (os.environ if env is None else env).items()
             if not k.startswith(("SQUEUE_", "SACCT_", "SCANCEL_"))}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=limit, cwd=cwd, check=False,
                              stdin=subprocess.DEVNULL, env=there | {"SLURM_TIME_FORMAT": "%s"})
    except FileNotFoundError as err:
        if err.filename == cwd:
            raise SlurmError(f"the folder {cwd} is missing") from None
        raise SlurmError(f"{name} is not installed on this machine") from None
    except OSError as err:
        raise SlurmError(f"{name} can't be started: {err.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{name} has not answered within {limit:.0f} seconds") from None
    if done.returncode:
        raise SlurmError(_words(name, done.stderr) or f"{name} ended with {done.returncode}")
    return done.stdout.decode(errors="replace")


def _words(name: str, stderr: bytes) -> str:
    """What the command said, in one line, without "sbatch: error:" before each sentence."""
    lines = [re.sub(rf"^(?:{name}|slurm_\w+):? (?:error: )?", "", clean(line)).strip()
             for line in stderr.decode(errors="replace").splitlines()]
    kept = list(dict.fromkeys(line for line in lines if line))
    return "; ".join(line.rstrip(".") for line in kept[-4:])[:1000]


def _known(text: str) -> str | None:
    return clean(text) if text and text not in (
        "(null)", "None", "None assigned", "N/A", "Unknown") else None


def _user(number: str) -> str | None:
    """"by anna"; None: nobody is named."""
    try:
        return f"by {clean(pwd.getpwuid(int(number)).pw_name)}"
    except (ValueError, KeyError, OverflowError):
        return f"by user {clean(number)}" if number else None


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() else None
