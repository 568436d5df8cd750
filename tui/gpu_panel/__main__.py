"""`gpu-panel [PRESET] [-- COMMAND …]`: open the panel."""

from __future__ import annotations

import sys

import click

from gpu_engine import __version__
from gpu_engine.cli.spec_options import WithCommand


@click.command(cls=WithCommand, context_settings={"help_option_names": ["-h", "--help"]},
               options_metavar="[OPTIONS]", epilog="Your own script, unchanged: "
               "gpu-panel -- python train.py --lr 1e-3")
@click.argument("preset", required=False)
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True,
              help="Change a key of the preset, for example --set batch.size=512; repeatable.")
@click.version_option(__version__, prog_name="gpu-panel")
@click.pass_context
def main(ctx: click.Context, preset: str | None, sets: tuple[str, ...]) -> None:
    """Pick devices, choose how to train, launch, and watch every rank.

    PRESET is a preset's name or a .toml file; without it the form comes back as you left it, the
    first time with the preset "default". Your own command goes after --: in the form it replaces
    the preset's task. In the panel, ? shows every key.
    """
    if (missing := _no_terminal()) is not None:
        raise click.ClickException(f"{missing}; in a script use gpu-engine run")
    from gpu_panel.app import PanelApp

    app = PanelApp(preset, sets=sets, command=ctx.meta.get("command"))
    app.run()
    sys.exit(app.return_code or 0)


def _no_terminal() -> str | None:
    """What is missing to run in a terminal; None if nothing is."""
    if not sys.stdin.isatty():
        return "the panel needs a terminal to read keys from"
    if not sys.__stderr__ or not sys.__stderr__.isatty():
        return "the panel draws on standard error, which is not a terminal here"
    return None


if __name__ == "__main__":
    main()
