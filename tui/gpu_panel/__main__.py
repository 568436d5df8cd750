"""`gpu-panel [PRESET]`: open the panel."""

from __future__ import annotations

import sys

import click

from gpu_engine import __version__


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("preset", required=False)
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True,
              help="Change a key of the preset, for example --set batch.size=512; repeatable.")
@click.version_option(__version__, prog_name="gpu-panel")
def main(preset: str | None, sets: tuple[str, ...]) -> None:
    """Pick devices, choose how to train, launch, and watch every rank.

    PRESET is a preset's name or a .toml file; without it the panel opens with "default".
    In the panel, ? shows every key.
    """
    if not sys.stdin.isatty():
        raise click.ClickException("the panel needs a terminal to read keys from; in a script "
                                   "take gpu-engine run")
    if not sys.__stderr__ or not sys.__stderr__.isatty():
        raise click.ClickException("the panel draws on standard error, which is not a terminal "
                                   "here; in a script take gpu-engine run")
    from gpu_panel.app import PanelApp

    app = PanelApp(preset, sets=sets)
    app.run()
    sys.exit(app.return_code or 0)


if __name__ == "__main__":
    main()
