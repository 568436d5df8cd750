"""gpu-engine agent: answers another machine's panel on its standard streams."""

from __future__ import annotations

import sys

import click


@click.command(hidden=True)
@click.argument("word", default="hello")
def command(word: str) -> None:
    """Answer requests, a line of JSON each, until standard input ends. Started over ssh by a panel
    or `gpu-engine` on another machine; what it starts goes on without it."""
    from gpu_engine.remote.there.main import serve

    sys.exit(serve(word))
