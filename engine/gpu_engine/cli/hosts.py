"""gpu-engine hosts: the other machines, which there are and how they are reached."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import agreed, echo, for_scripts, in_json
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import Host

if TYPE_CHECKING:
    from gpu_engine.remote.run.nodes import Checkup


@click.group(invoke_without_command=True)
@for_scripts
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the hosts of hosts.toml. What ssh knows by a name need not be among them."""
    if ctx.invoked_subcommand is not None:
        return
    there = hosts.read()
    if as_json:
        echo(in_json({"hosts": list(there.values()), "file": str(hosts.path())}))
        return
    width = max((len(name) for name in there), default=0)
    for host in there.values():
        echo(clean(f"{host.name:<{width}}  {_how(host)}".rstrip()))
    if not there:
        echo("no hosts yet; gpu-engine hosts add NAME takes one that ssh reaches, or an "
             "address", err=True)
    echo(f"\nKept in {hosts.path()}", err=True)


def _how(host: Host) -> str:
    """How it is reached and what is said of it, in a line."""
    parts = [" ".join(host.via)] if host.via else [f"ssh {host.destination}"]
    parts += [f"in {host.folder}"] if host.folder else []
    parts += [f"with {host.python}"] if host.python else []
    parts += [f"@{group}" for group in host.groups]
    return " · ".join(parts) + (f"  ({host.label})" if host.label else "")


@command.command()
@click.argument("name")
@click.option("--ssh", help="What ssh is given: [user@]host, an address, a name of ~/.ssh/config. "
                            "Without it: NAME.")
@click.option("--folder", help="Where runs start there.")
@click.option("--python", help="The interpreter there that has gpu-panel, as a whole path.")
@click.option("--label", help="More words for the tables.")
@click.option("--group", "groups", multiple=True, metavar="GROUP",
              help="A group that it is of, in place of those before; or several. "
                   "devices.hosts=@GROUP means its hosts.")
def add(name: str, ssh: str | None, folder: str | None, python: str | None, label: str | None,
        groups: tuple[str, ...]) -> None:
    """Write NAME into hosts.toml, or change what stands there of it."""
    there = hosts.read().get(name)
    old = there or Host(name)
    host = Host(name, ssh or old.ssh, folder or old.folder, python or old.python,
                label or old.label, groups or old.groups, old.via)
    path = hosts.add(host)
    echo(f"{name} {'changed' if there else 'added'} in {path}: {_how(host)}")
    echo(f"gpu-engine hosts check {name} tells whether it can be used", err=True)


@command.command()
@click.argument("name", nargs=-1, required=True, shell_complete=tab.hosts)
def remove(name: tuple[str, ...]) -> None:
    """Take NAMEs out of hosts.toml. Nothing is done on those machines."""
    path = hosts.remove(*name)
    for one in name:
        echo(f"{one} removed from {path}")


@command.command()
@click.argument("name", nargs=-1, shell_complete=tab.hosts)
@click.option("--json", "as_json", is_flag=True, help="For scripts: seconds, bytes, null = "
                                                      "unknown.")
def check(name: tuple[str, ...], as_json: bool) -> None:
    """Ask NAMEs, or all hosts, whether they can be used, and say what keeps them from it. Ends
    with 1 where one can't be."""
    from gpu_engine.remote.run import nodes

    asked = [hosts.find(one) for one in name] if name else list(hosts.read().values())
    if not asked:
        raise UserError("there are no hosts to check; gpu-engine hosts add NAME takes one")
    found: dict[str, Checkup] = {}
    width = max(len(host.name) for host in asked)
    for one in nodes.check(asked):
        found[one.host.name] = one
        for number, line in enumerate(() if as_json else _lines(one)):
            echo(clean(f"{one.host.name if number == 0 else '':<{width}}  {line}"))
        sys.stdout.flush()
    if as_json:
        echo(in_json([found[host.name].to_dict() for host in asked]))
    sys.exit(0 if all(one.ok for one in found.values()) else 1)


def _lines(one: Checkup) -> list[str]:
    """What a checkup found, in lines."""
    there = one.machine
    if there is None:
        return ["can't be used", *(f"! {problem}" for problem in one.problems)]
    welcome, free = there.welcome, there.welcome.disk_free
    return [
        f"{'ready' if one.ok else 'reached'} in {there.opened:.1f} s · clock {there.skew:+.1f} s",
        " · ".join([
            f"gpu-panel {welcome.version}", f"Python {welcome.python_version}",
            welcome.torch.sentence() if welcome.torch else "no torch",
            *([f"in {welcome.interpreter}"] if welcome.interpreter else []),
            *([f"{units.size(free)} of disk free"] if free is not None else [])]),
        (there.inventory.named() or "no devices")
        + (f" · driver {driver}" if (driver := there.inventory.driver) else ""),
        *(f"! {problem}" for problem in one.problems)]


@command.command()
@click.argument("name", shell_complete=tab.hosts)
@click.option("--yes", is_flag=True, help="Do it without asking.")
@click.option("--python", help="The interpreter there that ours is made from, and whose torch is "
                               "used. Without it: the first that has torch.")
def setup(name: str, yes: bool, python: str | None) -> None:
    """Bring gpu-panel to NAME over ssh, as it is here, into a folder of its own, and write NAME
    into hosts.toml. Says what it will do, and asks."""
    from gpu_engine.remote.reach import setup as bringing
    from gpu_engine.remote.run import nodes

    host = hosts.find(name)
    if host.is_local:
        raise UserError("local is this machine: gpu-panel is here already")
    echo(f"looking around on {name} …", err=True)
    plan = bringing.decide(host, bringing.inspect(host, python or host.python), python,
                           bringing.files())
    echo("gpu-panel will be set up")
    for sentence in plan.sentences():
        echo(clean(f"  {sentence}"))
    if not yes and not agreed("Do it?"):
        raise click.Abort
    echo("sending it …", err=True)
    bringing.bring(plan)
    host = replace(host, python=None)
    hosts.add(host)
    found, = nodes.check([host])
    for line in _lines(found):
        echo(clean(line))
    sys.exit(0 if found.machine is not None else 1)
