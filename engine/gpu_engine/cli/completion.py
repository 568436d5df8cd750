"""gpu-engine completion: completing commands, runs and settings with tab."""

from __future__ import annotations

import os

import click

from gpu_engine.cli.output import echo


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
@click.option("--install", is_flag=True, help="Write it where the shell finds it, and say where.")
def command(shell: str | None, install: bool) -> None:
    """Print the script by which SHELL (bash, zsh or fish; yours, unless named) completes gpu-engine
    and gpu-panel: commands, options, presets, runs, hosts, devices, and keys of the spec with their
    values.

    For this terminal alone: source <(gpu-engine completion bash); in fish: gpu-engine completion
    fish | source.
    """
    from gpu_engine.completion import install as place
    from gpu_engine.completion import scripts

    name = shell or place.shell_of(os.environ)
    if name is None:
        raise click.UsageError(f"name your shell, one of {', '.join(scripts.SHELLS)}: yours is "
                               f"{place.own_shell(os.environ) or 'unknown'}")
    if not install:
        echo(scripts.text(name), nl=False)
        return
    done = place.install(name, os.environ)
    for file in done.written:
        echo(f"{file}")
    if done.begun_in is not None:
        echo(f"loaded from {done.begun_in}" + (
            ", where that was written already" if done.was_there else ""))
    elif done.was_there:
        echo("it was there already")
    echo("a new terminal has it", err=True)
