"""`--version`: gpu-panel's, and the torch that ranks would get here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gpu_engine import __version__
from gpu_engine.cli.output import echo
from gpu_engine.common.clean import clean


def version_option(program: str) -> Callable[[Any], Any]:
    """The option `--version` of this program."""
    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            echo(f"{program}, version {__version__}\n{_torch()}")
            ctx.exit()

    return click.option("--version", is_flag=True, expose_value=False, is_eager=True,
                        callback=show, help="Show the version, and the torch that is found.")


def _torch() -> str:
    from gpu_engine.interpreters import choose
    from gpu_engine.launching import interpreter

    taken = choose.current()
    told = interpreter.record(taken)
    return clean(told.sentence() if told is not None else
                 taken.problem.message if taken.problem is not None else "no torch")
