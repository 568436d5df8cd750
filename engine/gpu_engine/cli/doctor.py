"""gpu-engine doctor: what is installed, found, missing and broken, with what to type about it."""

from __future__ import annotations

import sys

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.common.clean import clean
from gpu_engine.doctor.records import Examined


@click.command()
@click.option("--hosts", is_flag=True, help="Also ask the hosts of hosts.toml, over ssh.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(hosts: bool, as_json: bool) -> None:
    """Say what is installed, found, missing and broken on this machine, and what to type about it.

    Each line is ok, a note or a problem; what to type stands below it. Ends with 1 where there is a
    problem. Changes nothing. Each check has a time limit, so that a driver or a file system that
    hangs is a finding.
    """
    from gpu_engine.doctor.checks import every
    from gpu_engine.doctor.examine import examine

    found: list[Examined] = []
    for one in examine(every(hosts=hosts)):
        found.append(one)
        if not as_json:
            _show(one)
    count = sum(f.level == "problem" for one in found for f in one.findings)
    if as_json:
        echo(in_json({"ok": not count, "findings": [
            {"check": one.name, "level": f.level, "text": f.text, "cure": f.cure}
            for one in found for f in one.findings]}))
    else:
        echo("" if count else "\nnothing is wrong")
        if count:
            echo(f"{count} problem{'s' if count > 1 else ''}", err=True)
    sys.stdout.flush()
    sys.exit(1 if count else 0)


_LOOKS = {"ok": ("ok     ", "green"), "note": ("note   ", "yellow"), "problem": ("PROBLEM", "red")}


def _show(one: Examined) -> None:
    for number, finding in enumerate(one.findings):
        word, colour = _LOOKS[finding.level]
        name = one.name if number == 0 else ""
        echo(f"{name:<10} ", (word, colour), f" {clean(finding.text)}")
        if finding.cure:
            echo(f"{'':<18} → {clean(finding.cure)}")
