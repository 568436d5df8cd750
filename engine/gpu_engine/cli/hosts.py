"""gpu-engine hosts: the other machines, which there are and how they are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.hosts.records import Host


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the hosts: those of hosts.toml, and names that ssh has for others."""
    if ctx.invoked_subcommand is not None:
        return
    from gpu_engine.common.clean import clean
    from gpu_engine.hosts import file, ssh_config
    from gpu_engine.runs.folder import dumps

    hosts = file.read()
    reached = {host.destination for host in hosts.values()}
    others = [name for name in ssh_config.names() if name not in hosts and name not in reached]
    if as_json:
        from dataclasses import asdict

        click.echo(dumps({"hosts": [asdict(h) for h in hosts.values()], "ssh_config": others,
                          "file": str(file.path())}))
        return
    width = max((len(name) for name in hosts), default=0)
    for host in hosts.values():
        click.echo(clean(f"{host.name:<{width}}  {_how(host)}".rstrip()))
    if not hosts:
        click.echo("no hosts yet; gpu-engine hosts add NAME takes one that ssh reaches, or an "
                   "address", err=True)
    if others:
        shown = ", ".join(others[:20]) + (f" and {len(others) - 20} more" * (len(others) > 20))
        click.echo(clean(f"ssh also knows {shown}"), err=True)
    click.echo(f"\nKept in {file.path()}", err=True)


def _how(host: Host) -> str:
    """How it is reached and what is said of it, in a line."""
    parts = [" ".join(host.via)] if host.via else [f"ssh {host.destination}"]
    parts += [f"in {host.folder}"] if host.folder else []
    parts += [f"with {host.python}"] if host.python else []
    return " · ".join(parts) + (f"  ({host.label})" if host.label else "")


@command.command()
@click.argument("name")
@click.option("--ssh", help="What ssh is given: [user@]host, an address, a name of ~/.ssh/config. "
                            "Without it: NAME.")
@click.option("--folder", help="Where runs start there.")
@click.option("--python", help="The interpreter there that has gpu-panel, as a whole path.")
@click.option("--label", help="More words for the tables.")
def add(name: str, ssh: str | None, folder: str | None, python: str | None, label: str | None
        ) -> None:
    """Write NAME into hosts.toml, or change what stands there of it."""
    from gpu_engine.hosts import file
    from gpu_engine.hosts.records import Host

    there = file.read().get(name)
    old = there or Host(name)
    host = Host(name, ssh or old.ssh, folder or old.folder, python or old.python,
                label or old.label, old.via)
    path = file.add(host)
    click.echo(f"{name} {'changed' if there else 'added'} in {path}: {_how(host)}")
    click.echo(f"gpu-engine hosts check {name} tells whether it can be used", err=True)


@command.command()
@click.argument("name", nargs=-1, required=True)
def remove(name: tuple[str, ...]) -> None:
    """Take NAMEs out of hosts.toml. Nothing is done on those machines."""
    from gpu_engine.hosts import file

    absent = [one for one in name if one not in file.read()]
    if absent:
        file.remove(absent[0])
        raise UserError(f"no host {absent[0]}")  # gone just now
    for one in name:
        click.echo(f"{one} removed from {file.remove(one)}")
