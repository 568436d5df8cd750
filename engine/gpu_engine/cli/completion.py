"""gpu-engine completion: completing commands, runs and settings with tab."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpu_engine.cli.output import echo


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes gpu-engine and gpu-panel.

    \b
    ~/.bashrc: eval "$(gpu-engine completion bash)"
    ~/.zshrc, behind compinit: eval "$(gpu-engine completion zsh)"
    ~/.config/fish/config.fish: gpu-engine completion fish | source
    """
    script = get_completion_class(shell)
    assert script is not None
    for name in "gpu-engine", "gpu-panel":
        variable = f"_{name.replace('-', '_')}_COMPLETE".upper()
        echo(script(ctx.command, {}, name, variable).source())
