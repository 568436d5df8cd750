"""The help of all commands: no summary is cut, at the width of a terminal."""

from __future__ import annotations

import click
import pytest

from gpu_engine.cli import cli


def groups(command: click.Command, name: str = "gpu-engine") -> list[tuple[str, click.Group]]:
    """The command and those in it that have commands themselves."""
    if not isinstance(command, click.Group):
        return []
    ctx = click.Context(command, info_name=name)
    return [(name, command), *(each for one in command.list_commands(ctx)
                               for each in groups(command.get_command(ctx, one), f"{name} {one}"))]


@pytest.mark.parametrize(("name", "group"), groups(cli), ids=[name for name, _ in groups(cli)])
@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_summary_is_cut(name, group, width):
    ctx = click.Context(group, info_name=name, terminal_width=width, max_content_width=width)
    shown = "".join(group.get_help(ctx).split())
    for one in group.list_commands(ctx):
        command = group.get_command(ctx, one)
        if command.hidden:
            continue
        said = (command.help or "").replace("\n", " ")
        first = "".join(said.partition(". ")[0].split()).rstrip(".")
        assert f"{one}{first}" in shown
    assert max(map(len, group.get_help(ctx).splitlines())) <= max(width, 60)
