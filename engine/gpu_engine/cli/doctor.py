"""gpu-engine doctor: what is installed, found, missing and broken, with what to type about it."""

from __future__ import annotations

import sys

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.common.clean import clean

_LOOKS = {"ok": ("ok     ", "green"), "note": ("note   ", "yellow"), "problem": ("PROBLEM", "red")}


@click.command()
@click.option("--hosts", is_flag=True, help="Also ask the hosts of hosts.toml, over ssh.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(hosts: bool, as_json: bool) -> None:
    """Say what is installed, found, missing and broken on this machine, and what to type about it.

    Each line is ok, a note or a problem; what to type stands below it. Ends with 1 where there is a
    problem. Changes nothing. Each check has a time limit, so that a driver or a file system that
    hangs is a finding.
    """
    from gpu_engine.doctor import checks

    told: list[dict[str, str | None]] = []
    for name, findings in checks.examine(checks.every(hosts=hosts)):
        for number, f in enumerate(findings):
            told.append({"check": name, "level": f.level, "text": f.text, "cure": f.cure})
            if not as_json:
                word, colour = _LOOKS[f.level]
                echo(f"{'' if number else name:<10} ", (word, colour), f" {clean(f.text)}")
                if f.cure:
                    echo(f"{'':<18} → {clean(f.cure)}")
    count = sum(one["level"] == "problem" for one in told)
    if as_json:
        echo(in_json({"ok": not count, "findings": told}))
    else:
        echo("" if count else "\nnothing is wrong")
        if count:
            echo(f"{count} problem{'s' if count > 1 else ''}", err=True)
    sys.stdout.flush()
    sys.exit(1 if count else 0)
