"""Judging what a person and their runs have left in the folders: presets, settings, runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_engine.doctor.records import Finding, note, ok, problem


@dataclass(frozen=True, slots=True)
class Files:
    """What could be read of the files that a person writes."""

    presets: int
    broken: tuple[tuple[str, str], ...]
    """(file, why) of the presets that can't be read."""
    others: tuple[tuple[str, str | None], ...]
    """(what it holds, why it can't be read or None) of the other files that are there."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What became of the runs."""

    count: int
    live: int
    lost: tuple[str, ...]
    """Ids of runs whose supervisor died."""
    left: tuple[str, ...]
    """Those of them of which processes still run."""
    unreadable: tuple[tuple[str, str], ...]
    """(id, why)."""
    waiting: int
    waiter: bool
    """Whether the process runs that starts waiting runs."""


def judge_files(found: Files) -> list[Finding]:
    """Presets, hosts, whom to tell."""
    out = [problem(why, f"$EDITOR {path}") for path, why in found.broken]
    out += [problem(why) for _, why in found.others if why is not None]
    good = [f"{found.presets - len(found.broken)} presets",
            *(what for what, why in found.others if why is None)]
    return [*out, ok(f"can be read: {', '.join(good)}")]


def judge_runs(found: Runs) -> list[Finding]:
    """The runs folder and the queue."""
    if not found.count:
        return [ok("no runs yet")]
    out = [ok(f"{found.count:,} runs, {found.live:,} live, {found.waiting:,} waiting")]
    out += [problem(f"run {name} is lost: its supervisor died, and processes of it still run",
                    f"gpu-engine stop {name}") for name in found.left]
    gone = [name for name in found.lost if name not in found.left]
    out += [note(f"run {name} is lost: its supervisor died", f"gpu-engine resume {name}")
            for name in gone[:_MOST]]
    if len(gone) > _MOST:
        out.append(note(f"and {len(gone) - _MOST} more are lost",
                        "gpu-engine runs --filter state:lost"))
    out += [note(f"run {name} can't be read: {why}") for name, why in found.unreadable[:_MOST]]
    if found.waiting and not found.waiter:
        out.append(problem(f"{found.waiting} runs wait, and the process that starts them does not "
                           "run, as after a reboot", "gpu-engine queue"))
    return out


_MOST = 5
"""Lines about runs of one kind."""


def judge_hosts(found: Sequence[tuple[str, tuple[str, ...]]]) -> list[Finding]:
    """(name, problems) of each host that was asked."""
    if not found:
        return [note("no hosts in hosts.toml", "gpu-engine hosts add NAME --ssh user@host")]
    return [ok(f"{name} can be used") if not problems else
            problem(f"{name}: {'; '.join(problems)}", f"gpu-engine hosts check {name}")
            for name, problems in found]
