"""gpu-engine notify: who is told what becomes of runs, and whether that works."""

from __future__ import annotations

import socket
import sys
import time

import click

from gpu_engine.cli.output import echo, for_scripts, in_json, table
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.notify import config
from gpu_engine.notify.config import To
from gpu_engine.notify.messages import Message

_ALL = "\0all"
"""What --test stands for without a name: no entry can be called so."""


@click.command()
@click.option("--test", "tested", metavar="[NAME]", is_flag=False, flag_value=_ALL,
              help="Send a message to all entries, or to NAME, and say how that went.")
@click.option("--init", "init", is_flag=True,
              help="Write a notify.toml to start from, closed to others.")
@for_scripts
def command(tested: str | None, init: bool, as_json: bool) -> None:
    """List who is told what becomes of runs: the entries of notify.toml, without their secrets.

    Exit code 1 if a message could not be delivered.
    """
    from gpu_engine.notify import messages

    if tested is not None and init:
        raise click.UsageError("--test and --init can't be used together")
    if init:
        echo(str(config.begin()))
        echo("Take the # away from an entry in it, then: gpu-engine notify --test", err=True)
        return
    entries = config.read()
    if tested is not None:
        _send(_chosen(entries, tested), messages.test(socket.gethostname(), time.time()), as_json)
    else:
        _list(entries, as_json)


def _chosen(entries: list[To], name: str) -> list[To]:
    if name == _ALL:
        return entries
    found = [to for to in entries if to.name == name]
    if not found:
        there = ", ".join(to.name for to in entries) or "none"
        raise UserError(f"{config.path()} has no entry {clean(name, 80)!r}; there are: {there}")
    return found


def _send(entries: list[To], message: Message, as_json: bool) -> None:
    from gpu_engine.notify import send

    if not entries:
        raise UserError(f"{config.path()}: lists nobody to notify: "
                        + ("it has no entries" if config.exists() else "there is no such file; "
                           "gpu-engine notify --init writes one to start from"))

    results: dict[str, str | None] = {}
    for to, result in send.deliver_all(entries, message):
        results[to.name] = result
        if not as_json:
            echo(f"{to.name} ({to.kind}): {result or 'sent'}")
    if as_json:
        echo(in_json([{"name": to.name, "kind": to.kind, "sent": results[to.name] is None,
                       "problem": results[to.name]} for to in entries]))
    sys.exit(1 if any(results.values()) else 0)


def _list(entries: list[To], as_json: bool) -> None:
    if as_json:
        echo(in_json({"file": str(config.path()), "to": [
            {"name": to.name, "kind": to.kind, "where": to.where, "on": list(to.on),
             "min_seconds": to.min_seconds} for to in entries]}))
        return
    if not entries:
        echo(f"No notifications are set up. Kept in {config.path()}; "
             + ("take the # away from one of its entries" if config.exists() else
                "gpu-engine notify --init writes one to start from"), err=True)
        return
    rows = [("name", "kind", "where", "told when"), *((to.name, to.kind, to.where, _when(to))
                                                      for to in entries)]
    for line in table(rows):
        echo(line)
    for to in entries:
        if to.where.startswith("http://"):
            echo(f"note: {to.name}: http:// is not encrypted: whoever sees the traffic can "
                 "read messages, address and token", err=True)
    echo(f"\nKept in {config.path()}; gpu-engine notify --test tries them", err=True)


def _when(to: To) -> str:
    text = ", ".join(to.on) or "never"
    return text + (f"; of runs above {units.clock(to.min_seconds)}" if to.min_seconds else "")
