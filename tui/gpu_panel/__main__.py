"""`gpu-panel [PRESET] [-- COMMAND …]`: open the panel."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from typing import Any

import click

from gpu_engine import __version__
from gpu_engine.cli import mistakes_shown, tab
from gpu_engine.cli.output import echo
from gpu_engine.cli.spec_options import WithCommand


class _Panel(WithCommand):
    def main(self, *args: Any, **more: Any) -> Any:
        """Run it; a mistake is shown without a traceback."""
        with mistakes_shown():
            return super().main(*args, **more | {"standalone_mode": False})


@click.command(cls=_Panel, context_settings={"help_option_names": ["-h", "--help"]},
               options_metavar="[OPTIONS]", epilog="Your own script, unchanged: "
               "gpu-panel -- python train.py --lr 1e-3")
@click.argument("preset", required=False, shell_complete=tab.presets)
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True,
              shell_complete=tab.sets,
              help="Change a key of the preset, for example --set batch.size=512; repeatable.")
@click.option("--keys", "list_keys", is_flag=True,
              help="List the actions with their keys, for [keys] of settings.toml.")
@click.option("--readonly", "only_show", is_flag=True,
              help="Only show: nothing is started, stopped, removed or written.")
@click.version_option(__version__, prog_name="gpu-panel")
@click.pass_context
def main(ctx: click.Context, preset: str | None, sets: tuple[str, ...], list_keys: bool,
         only_show: bool) -> None:
    """Pick devices, choose how to train, launch, and watch every rank.

    PRESET is a preset's name or a .toml file; without it the form comes back as you left it, the
    first time with the preset "default". Your own command goes after --: in the form it replaces
    the preset's task. In the panel, ? shows every key.
    """
    if not list_keys and (missing := _no_terminal()) is not None:
        raise click.ClickException(f"{missing}; in a script use gpu-engine run")
    from gpu_engine.settings import file
    from gpu_panel import keys, readonly

    readonly.on = only_show

    settings = file.read()
    try:
        keys.use(settings.keys, settings.commands)
    except keys.KeysError as err:
        raise keys.KeysError(file.placed(str(err))) from None
    if list_keys:
        for key in keys.KEYS:
            echo(f"{key.id:<24} {keys.display(key.keys):<16} {key.tooltip}")
        return
    from gpu_engine.common import paths

    for folder in (paths.runs_folder, paths.queue_folder, paths.leases_folder):
        folder()  # raises UserError if it can't be read
    from gpu_panel.app import PanelApp
    from gpu_panel.terminal import background
    from gpu_panel.theme import is_chosen

    if settings.panel.ascii != "auto":
        os.environ.setdefault("GPU_PANEL_ASCII", str(int(settings.panel.ascii == "always")))
    # A thread that reads a long run gives way to the event loop after this time. A key passes the
    # loop about ten times until it is shown, and would wait for 5 ms each time.
    sys.setswitchinterval(0.001)
    own = settings.panel.theme if "panel.theme" in settings.given else None
    light = not is_chosen(own) and background.light(os.environ, 0)
    app = PanelApp(preset, sets=sets, command=ctx.meta.get("command"), settings=settings,
                   light=light)
    theme, there = settings.panel.theme, ["auto", *sorted(app.available_themes)]
    if theme not in there:
        near = get_close_matches(theme, there, n=1)
        hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(there)
        raise click.UsageError(f'{file.path()}: panel.theme = "{theme}": no such theme; {hint}')
    app.run(mouse=settings.panel.mouse)
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
