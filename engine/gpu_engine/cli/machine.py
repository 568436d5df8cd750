"""This machine: gpu-engine devices, doctor and completion."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo, fields, for_scripts, in_json, lines, table
from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.records import Device, Sample
    from gpu_engine.remote.reach.watcher import HostSeen

@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts: bytes, shares 0 to 1, null = "
                                                      "unknown.")
@click.option("--hosts", "over_hosts", is_flag=True,
              help="Those of all hosts of hosts.toml and of this machine, and which is the freest.")
@click.option("--watch", type=click.FloatRange(0), metavar="SECONDS",
              help="With --json: at once a line about this machine, then one for each look at its "
                   "devices, so often.")
@click.option("--slots", is_flag=True, hidden=True)
@click.option("--code", hidden=True)
def devices(as_json: bool, over_hosts: bool, watch: float | None, slots: bool, code: str | None
            ) -> None:
    """List the devices: the GPUs, or CPU slots if no GPU can be used."""
    if watch is not None:
        if over_hosts or not as_json:
            raise click.UsageError("--watch goes with --json, and not with --hosts")
        from gpu_engine.remote.there import machine

        lines(machine.looks(watch, slots=slots, code=code))
        return
    if over_hosts:
        _over_hosts(as_json)
        return
    from gpu_engine.devices import availability, leases, sampler
    from gpu_engine.devices.discover import discover

    inventory = discover()
    snapshots = sampler.take_several(inventory)
    snapshot = snapshots[-1]
    states = availability.judge_all(snapshots, leases.holders(paths.leases_folder()))
    if as_json:
        found = [fields(s.device) | fields(s, "device") | fields(states[s.device.id])
                 for s in snapshot.samples]
        echo(in_json(fields(inventory, "visible_variable", "hidden", devices=found,
                            host=snapshot.host)))
        return
    for note in (inventory.problem, leases.why_not()):
        if note:
            echo(f"note: {note}", err=True)
    if inventory.inherited_visible is not None and not inventory.is_cpu:
        echo(f"note: {inventory.visible_variable}={inventory.inherited_visible} is set: "
             "only those devices are offered; →0 marks the first of them", err=True)
    for line in table([[_numbered(s.device), *_told(s, states[s.device.id])]
                       for s in snapshot.samples]):
        echo(line)


def _told(sample: Sample, judged: Availability) -> list[str]:
    """A device as a row of the table: its name, its figures, who uses it."""
    from gpu_engine.devices.columns import IN_TABLE

    why = "" if judged.reason == judged.state else f": {judged.reason}"
    return [sample.device.name, *(column.of(sample) for column in IN_TABLE), judged.state + why]


def _over_hosts(as_json: bool) -> None:
    """The devices of all machines that answer, and the freest of these."""
    from gpu_engine.devices.availability import judge, usable_word
    from gpu_engine.remote.reach.hosts import ANY, meant_by
    from gpu_engine.remote.run import freest

    rows: list[list[str]] = []

    def show(machines: Sequence[HostSeen]) -> None:
        """The lines of those that have just answered."""
        before = len(rows)
        for m in machines:
            rows.extend(["" if n else m.host.name, s.device.id,
                         *_told(s, m.freedom.get(s.device.id, unknown))]
                        for n, s in enumerate(m.snapshot.samples if m.snapshot else ()))
        for line in table(rows)[before:]:
            echo(clean(line, None))
        sys.stdout.flush()

    unknown = judge(())  # a host may leave a device out
    seen = freest.look(meant_by([ANY]), len if as_json else show)
    first = freest.with_most_free(seen)
    if as_json:
        machines = [{
            "host": m.host.name, "state": m.state, "reason": m.reason or freest.silence(m),
            "waiting": m.waiting, "free": len(freest.free_on(m)), "freest": m is first,
            "devices": [fields(s.device) | fields(s, "device")
                        | fields(m.freedom.get(s.device.id, unknown))
                        for s in (m.snapshot.samples if m.snapshot else ())]} for m in seen]
        echo(in_json(machines))
        return
    for m in seen:
        if silent := freest.silence(m):
            echo(silent, err=True)
        elif m.waiting:
            echo(f"{m.host.name}: {m.waiting} waiting for devices", err=True)
    if first is not None and len(seen) > 1:
        free, word = len(freest.free_on(first)), usable_word(first.freedom)
        echo(f"\nfreest: {first.host.name}, {free} of {len(first.freedom)} {word}; "
             f"gpu-engine run PRESET -n {min(free, 2)} --set devices.hosts=any takes them",
             err=True)


def _numbered(device: Device) -> str:
    """A device's id, with its position in the inherited CUDA_VISIBLE_DEVICES: "3→0"."""
    return device.id + ("" if device.visible_index is None else f"→{device.visible_index}")


@click.command()
@for_scripts
def doctor(as_json: bool) -> None:
    """Say what is installed, found, missing and broken on this machine, and what to type about it.

    Each line is ok, a note or a problem; what to type stands below it. Ends with 1 where there is a
    problem. Changes nothing. Each check has a time limit, so that a driver or a file system that
    hangs is a finding.
    """
    from gpu_engine.doctor import checks

    told: list[dict[str, object]] = []
    for name, findings in checks.examine(checks.every()):
        for number, f in enumerate(findings):
            told.append(fields(f, check=name))
            if not as_json:
                word = "PROBLEM" if f.level == "problem" else f.level
                echo(f"{'' if number else name:<10} {word:<7} {clean(f.text)}")
                if f.cure:
                    echo(f"{'':<18} → {clean(f.cure)}")
    count = sum(one["level"] == "problem" for one in told)
    if as_json:
        echo(in_json({"ok": not count, "findings": told}))
    else:
        echo("" if count else "\nnothing is wrong")
        if count:
            echo(units.counted(count, "problem"), err=True)
    sys.stdout.flush()
    sys.exit(1 if count else 0)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes gpu-engine and gpu-panel.

    \b
    ~/.bashrc: eval "$(gpu-engine completion bash)"
    ~/.zshrc, behind compinit: eval "$(gpu-engine completion zsh)"
    ~/.config/fish/config.fish: gpu-engine completion fish | source
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    for name in "gpu-engine", "gpu-panel":
        variable = f"_{name.replace('-', '_')}_COMPLETE".upper()
        echo(script(ctx.command, {}, name, variable).source())
