"""`gpu-panel --readonly`: the panel shows, and changes nothing.

`PanelApp.run_action`, the way of every key, click and entry of the palette, refuses the actions
that a class names in CHANGES: those that start, stop, remove or write something. What the panel
does without being asked, such as remembering the form or having the queue go on, asks `on`.
"""

from __future__ import annotations

from textual import actions

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
    return name in getattr(node, "CHANGES", ())
