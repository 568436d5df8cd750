"""What gpu-engine on another machine asks of this one, and nobody types: port and receive."""

from __future__ import annotations

import click

from gpu_engine.cli.output import echo, in_json, lines

_json = click.option("--json", is_flag=True, expose_value=False, hidden=True)


@click.command(hidden=True)
@_json
@click.argument("number", type=click.IntRange(0, 65535))
@click.argument("addresses", nargs=-1)
def port(number: int, addresses: tuple[str, ...]) -> None:
    """Listen on the TCP port NUMBER for some seconds, so that others can try it; or try it at
    ADDRESSES."""
    from gpu_engine.remote.there import machine

    if addresses:
        echo(in_json({"tried": machine.reach(addresses, number)}))
    else:
        lines(machine.listen(number))


@click.command(hidden=True)
@_json
@click.argument("name")
@click.argument("listed", type=click.IntRange(0))
def receive(name: str, listed: int) -> None:
    """Keep the code that comes on standard input: the list of its files, which has LISTED bytes,
    and their contents."""
    from gpu_engine.code import listing, store
    from gpu_engine.common.errors import UserError
    from gpu_engine.remote.there import wire

    data = wire.content(listing.LONGEST_LIST + listing.LARGEST)
    at, contents = listed, []
    try:
        for entry in listing.unpacked(data[:listed]):
            contents.append(data[at:at + entry.size])
            at += entry.size
    except listing.BadList as err:
        raise UserError(f"the list of the code can't be used: {err}") from None
    if listing.name_of(data[:listed]) != name:
        raise UserError("the list of the code was changed on its way here; try again")
    echo(in_json({"path": str(store.save(data[:listed], contents))}))
