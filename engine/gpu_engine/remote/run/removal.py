"""Removing runs, with all that their hosts have of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpu_engine.code import store
from gpu_engine.common import paths, units
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach.call import HostError, Refused, Unreachable, ask, at_once
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run


@dataclass(frozen=True, slots=True)
class Gone:
    """What was deleted."""

    path: str = ""
    """The run's folder; "": there was none."""
    freed: int = 0
    """Bytes that it had."""
    code: str | None = None
    """The folder of the code that it was sent; None: it stays, or there was none."""
    kept: str | None = None
    """Why its code stays, in words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    here: Gone | None
    """None: the folder here stays."""
    gone: tuple[str, ...] = ()
    """A sentence for each host on which it was removed."""
    stays: tuple[str, ...] = ()
    """A sentence for each host that still has something of it."""


def what_goes(runs: Sequence[Run], *, only_here: bool = False) -> str:
    """What a person is told before these runs are removed: "2 runs with their checkpoints, 3.1 GiB
    here; their parts on a, b go too. Nothing brings them back."."""
    size = units.size(sum(run.size() for run in runs))
    hosts = sorted({part.host for run in runs if trust.started_here(run.path)
                    for part in _parts(run)})
    what, its, it = (f"{len(runs)} runs", "their", "them") if len(runs) > 1 \
        else ("1 run", "its", "it")
    there = f"; {its} parts on {', '.join(hosts)} {'stay' if only_here else 'go too'}"
    return f"{what} with {its} checkpoints, {size} here{there if hosts else ''}. " \
           f"Nothing brings {it} back."


class Removal:
    """Removes runs, one after another; a host that can't be reached is not asked again."""

    def __init__(self, *, only_here: bool = False) -> None:
        """`only_here`: leave what hosts have."""
        self._only_here = only_here
        self._away: dict[str, Unreachable] = {}

    def remove(self, run: Run) -> Outcome:
        """Remove `run`: what is here of it last, and only if no host has anything of it left, as
        nobody would know of that any more. Hosts are asked only about a run that was started from
        here. Raises UserError as `Run.remove`."""
        run.require_removable()
        found = _parts(run)
        if self._only_here or not trust.started_here(run.path):
            stays = tuple(f"{p.host}: {_what(p)} stays there" for p in found)
            return Outcome(_here(run), stays=stays)
        said = [s for s in at_once(lambda p: self._there(run, p), found) if isinstance(s, tuple)]
        gone = tuple(sentence for removed, sentence in said if removed)
        stays = tuple(sentence for removed, sentence in said if not removed)
        return Outcome(None if stays else _here(run), gone, stays)

    def _there(self, run: Run, part: Part) -> tuple[bool, str]:
        """Whether it is removed there, and that in words."""
        name = part.host
        try:
            if name in self._away:
                raise self._away[name]
            answer = there(parts.host_of(run.path, part), part)
        except UserError as err:
            if isinstance(err, Unreachable):
                self._away[name] = err
            why = err.reason if isinstance(err, HostError) else err
            return False, f"{name}: {_what(part)} stays there: {why}"
        with suppress(OSError):  # in case that the run stays, as another host has something of it
            parts.forget(run.path, part)
        if not answer.path:
            return True, f"{name}: nothing of it was there"
        text = f"{name}: {answer.path} removed, {units.size(answer.freed)} freed"
        if answer.code is not None:
            text += f"; its code too, {answer.code}"
        return True, text + (f"; {answer.kept}" if answer.kept is not None else "")


def there(host: Host, part: Part) -> Gone:
    """Have what `host` has of it removed. Raises Unreachable, Refused."""
    words = (part.run,) if part.run else ("--key", part.key)
    try:
        told = ask(host, list[Outcome], "runs", "rm", "--yes", *words)
    except Refused as err:
        if err.problems[0].key == "run":  # it is not there any more
            return Gone()
        raise
    return told[0].here or Gone() if told else Gone()


def _parts(run: Run) -> list[Part]:
    return [*parts.read(run.path), *parts.former(run.path)]


def _here(run: Run) -> Gone:
    size, folder = run.size(), run.cwd()
    run.remove()
    # Of runs of one's own it is kept for a day, or longer.
    return Gone(str(run.path), size, *(store.remove_unused(folder) if paths.serving else ()))


def _what(part: Part) -> str:
    if part.path is None:
        return "what may have begun of it"
    return part.path + (", with the checkpoints," if part.node == 0 else "")
