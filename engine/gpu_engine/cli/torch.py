"""gpu-engine torch: the torch that ranks would have here; where there is none, a place for one."""

from __future__ import annotations

import sys
import threading

import click

from gpu_engine.cli.output import echo
from gpu_engine.common.clean import clean


@click.command()
@click.option("--install", "wanted", is_flag=True,
              help="Install torch into an environment of its own, in gpu-panel's folder.")
def command(wanted: bool) -> None:
    """Say which torch the ranks would have here; where there is none, what would be installed.

    --install does that: torch as gpu-panel is tested with it, as the build that fits this machine,
    into an environment of its own that runs in all folders take where nothing nearer has torch.
    Ctrl-C ends it and takes away what has come of it.
    """
    from gpu_engine.devices.discover import discover
    from gpu_engine.interpreters import choose, own_torch

    found = choose.current()
    if found.seen is not None:
        seen = found.seen
        echo(clean(f"{seen.path}: {seen.sentence()} ({found.sentence()})"))
    if found.seen is not None and not wanted:
        return
    devices = discover()
    offer = own_torch.offer(devices.source, devices.cuda)
    for line in offer.lines():
        echo(clean(line))
    if not wanted:
        echo("\nNo interpreter near by has torch; --install installs it as said here.")
        return
    said = ""
    for progress in own_torch.install(offer, threading.Event()):
        if progress.line != said:
            said = progress.line
            echo(f"{progress.written / 1e9:5.1f} GB  {said}", err=True)
            sys.stderr.flush()
    echo(choose.current().sentence() if found.seen is None else clean(str(offer.folder)))
