"""gpu-engine page: devices and runs in a browser, to look at."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import click

from gpu_engine.cli.output import echo
from gpu_engine.common.errors import telling
from gpu_engine.common.files import write_atomic
from gpu_engine.common.programs import version


@click.command()
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False),
              default=Path("gpu-panel.html"), show_default=True, help="The file.")
@click.option("--every", type=click.IntRange(1, 86400), metavar="SECONDS",
              help="Write it again so often, until ctrl+c; a browser then loads it again itself.")
def command(out: Path, every: int | None) -> None:
    """Write devices, runs, curves and the ends of logs into one HTML file, to look at."""
    from gpu_engine.devices import sampler
    from gpu_engine.devices.discover import discover
    from gpu_engine.report import formats, page

    inventory, first = discover(), True
    while first or every:
        sections = page.of_all(sampler.take_several(inventory))
        made = f"Read on {time.strftime('%Y-%m-%d %H:%M:%S %Z')} by gpu-panel {version()}"
        with telling(f"{out}: can't be written"):
            write_atomic(out, formats.html(f"gpu-panel on {socket.gethostname()}", sections, made,
                                           every), mode=0o600)
        if first:
            echo(str(out))
        first = False
        time.sleep(every or 0)
