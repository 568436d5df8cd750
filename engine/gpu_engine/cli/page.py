"""gpu-engine page: devices and runs in a browser, to look at."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import write_atomic

if TYPE_CHECKING:
    from gpu_engine.report.content import Section

_PORT = 8765


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True,
              help="The port on 127.0.0.1; 0 takes any that is free.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False),
              help="Write all of it into one HTML file and end, for a cron job.")
def command(port: int, out: Path | None) -> None:
    """Show devices, runs, curves and logs in a browser, read-only, until ctrl+c.

    Only this machine is answered, and only who knows the token in the address. From another one:
    ssh -L 8765:127.0.0.1:8765 THIS-MACHINE, and there the same address.
    """
    from gpu_engine.devices import sampler
    from gpu_engine.devices.discover import discover
    from gpu_engine.page import pages as content

    inventory = discover()
    title = f"gpu-panel on {socket.gethostname()}"
    if out is not None:
        text = _page(title, content.in_one(sampler.take_several(inventory)))
        with telling(f"{out}: can't be written"):
            write_atomic(out, text, mode=0o600)
        echo(str(out))
        return
    from gpu_engine.page.pages import EVERY, HOST, Server

    with sampler.Sampler(inventory, interval=2.0) as devices:
        def page(path: str) -> str | None:
            if not path:
                return _page(title, content.overview(devices.recent, "run/{id}"), EVERY)
            run = content.known(path.removeprefix("run/"))
            if run is None:
                return None
            state = run.state()
            return _page(f"{run.id} {state.name}", content.of_run(run),
                         EVERY if state.live else None, back="../")

        try:
            server = Server(port, page)
        except OSError as err:
            raise UserError(f"port {port} of {HOST}: {err.strerror}; --port 0 takes any that is "
                            "free") from None
        with server:
            echo(server.address)
            server.serve_forever()


def _page(title: str, sections: list[Section], every: int | None = None,
          back: str | None = None) -> str:
    from gpu_engine.common.programs import version
    from gpu_engine.report import formats

    made = f"Read on {time.strftime('%Y-%m-%d %H:%M:%S %Z')} by gpu-panel {version()}"
    return formats.html(title, sections, made, every, back)
