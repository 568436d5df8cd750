"""Removing what a host has of a run."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_engine.remote.reach.call import Refused, ask
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.run.parts import Part


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


def there(host: Host, part: Part) -> Gone:
    """Have what `host` has of it removed. Raises Unreachable, Refused."""
    try:
        told = ask(host, list[Outcome], "runs", "rm", "--yes",
                   *((part.run,) if part.run else ("--key", part.key)))
    except Refused as err:
        if err.problems[0].key != "run":
            raise
        told = []  # it is not there any more
    return told[0].here or Gone() if told else Gone()
