"""`gpu-panel --readonly`: the panel shows, and changes nothing.

`PanelApp.run_action`, the way of every key, click and entry of the palette, refuses the actions
that a class names in CHANGES: those that start, stop, remove or write something. What the panel
does without being asked, such as remembering the form or having the queue go on, asks `on`.
"""

from __future__ import annotations

from textual import actions

READS = ("show", "logs", "runs", "compare", "sweep", "devices")
"""The commands of gpu-engine that only read, unless a command of theirs follows (runs rm). They
are started with the variable of `common.only_look`."""
on = False
"""Whether this panel only shows. Set before the app begins."""
SAID = "This panel was opened with --readonly: it starts, stops, removes and writes nothing"


def refuses(node: object, action: str | tuple[str, str, tuple[object, ...]]) -> bool:
    """Whether an action of `node`, a widget or the app, is off as it would change something."""
    if not on:
        return False
    _, name, given = action if isinstance(action, tuple) else actions.parse(action)
    if name == "on_pane":  # of the screen: an action of one of its panes
        pane, of_pane = map(str, given)
        return refuses(getattr(node, "pane")(pane), of_pane)  # noqa: B009
    if name == "gpu_engine" and only_reads(list(map(str, given[1]))):  # type: ignore[call-overload]
        return False
    return name in getattr(node, "CHANGES", ())


def only_reads(words: list[str]) -> bool:
    """Whether gpu-engine with these words is one of READS. A word that could be the name of a
    command within it is taken for that."""
    if not words or words[0] not in READS:
        return False
    from click import Context, Group

    from gpu_engine.cli import cli

    command = cli.get_command(Context(cli), words[0])
    return not isinstance(command, Group) or command.commands.keys().isdisjoint(words)
