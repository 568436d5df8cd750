"""Every key of the panel's main screen, once: bindings, help, footer and palette come from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

Place = Literal["app", "launch", "devices", "detail", "form", "runs"]

PLACES: dict[Place, str] = {
    "devices": "Devices",
    "detail": "Details of a device",
    "form": "Form",
    "runs": "Runs",
    "launch": "Everywhere on this screen",
    "app": "Everywhere",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One thing a person can do, and how."""

    id: str
    """Stable name: what a keymap would refer to."""
    place: Place
    keys: str
    action: str
    label: str
    """One or two words, for the footer."""
    tooltip: str
    """One sentence, for help, palette and pointer."""
    shown: bool = False
    """Whether the footer has it."""
    priority: bool = False
    palette: bool = True


KEYS: tuple[Key, ...] = (
    Key("devices.tick", "devices", "space", "tick", "tick",
        "Tick or untick the device under the cursor", shown=True, palette=False),
    Key("devices.all", "devices", "a", "tick_all", "all/none",
        "Tick all devices, or none if all are ticked", palette=False),
    Key("devices.free", "devices", "f", "tick_free", "freest",
        "Tick the freest devices, as many as are ticked now or were asked for last", shown=True,
        palette=False),
    Key("devices.count", "devices", "F", "count_free", "N freest",
        "Ask how many, and tick so many of the freest; f repeats it", palette=False),
    Key("devices.earlier", "devices", "less_than_sign", "move_rank(-1)", "rank before",
        "Move the device under the cursor one rank forward", palette=False),
    Key("devices.later", "devices", "greater_than_sign", "move_rank(1)", "rank after",
        "Move the device under the cursor one rank back", palette=False),
    Key("devices.ranks", "devices", "r", "sort_ranks", "ranks",
        "Put the ranks in the order in which the machine numbers its devices", palette=False),
    Key("devices.details", "devices", "i", "details(False)", "details",
        "Show everything about the device under the cursor, or close that again", shown=True,
        palette=False),
    Key("devices.enter", "devices", "enter", "details(True)", "processes",
        "Go into the details: to the processes on the device", palette=False),
    Key("devices.order", "devices", "o", "order", "sort",
        "Sort by index, utilisation, memory, or free ones first", palette=False),
    Key("devices.other", "devices", "c", "other_kind", "CPU/GPU",
        "Offer the machine's CPU slots in place of its GPUs, or look for its GPUs again",
        palette=False),
    Key("detail.end", "detail", "x", "end", "end process",
        "End the process under the cursor, if it is yours, after a question", shown=True,
        palette=False),
    Key("detail.order", "detail", "o", "order", "sort",
        "Sort processes by GPU memory, SM, CPU or age", shown=True, palette=False),
    Key("detail.before", "detail", "left", "other('before')", "before", "The device before",
        palette=False),
    Key("detail.after", "detail", "right", "other('after')", "next", "The next device",
        palette=False),
    Key("detail.close", "detail", "i,escape", "close", "close", "Back to the table", shown=True,
        palette=False),
    Key("form.previous", "form", "up", "focus_previous", "up", "To the field before",
        palette=False),
    Key("form.next", "form", "down", "focus_next", "down", "To the next field", palette=False),
    Key("runs.open", "runs", "enter", "open", "open", "Watch this run", shown=True,
        palette=False),
    Key("runs.stop", "runs", "s", "stop", "stop",
        "Ask this run to finish its step, save and end", shown=True, palette=False),
    Key("runs.resume", "runs", "u", "resume", "resume",
        "Another attempt of this run, from its last checkpoint", shown=True, palette=False),
    Key("runs.remove", "runs", "x", "remove", "remove", "Delete this finished run's folder",
        shown=True, palette=False),
    Key("runs.prune", "runs", "X", "prune", "prune",
        "Delete all but the newest finished runs, after saying how much that is", palette=False),
    Key("launch.start", "launch", "ctrl+l", "launch", "launch",
        "Start the run that is shown under What will run", shown=True, priority=True),
    Key("preset.save", "launch", "ctrl+s", "save", "save",
        "Save what the form says as a preset", shown=True, priority=True),
    Key("preset.open", "launch", "ctrl+o,p", "presets", "presets",
        "Load another preset into the form", shown=True),
    Key("plan.copy", "launch", "y,ctrl+y", "copy", "copy line",
        "Copy the line that does the same without the panel"),
    Key("plan.processes", "launch", "v,ctrl+e", "processes", "processes",
        "Show every process that will be started, with its arguments and environment"),
    Key("pane.devices", "launch", "1,f2", "pane('devices')", "devices", "Go to the devices"),
    Key("pane.form", "launch", "2,f3", "pane('form')", "form", "Go to the launch form"),
    Key("pane.plan", "launch", "3,f4", "pane('plan')", "plan", "Go to what will run"),
    Key("pane.runs", "launch", "4,f5", "pane('runs')", "runs", "Go to the runs"),
    Key("pane.leave", "launch", "escape", "leave", "leave",
        "Out of a field, so that the letter keys work", palette=False),
    Key("help", "app", "question_mark,f1", "help", "keys", "Every key, and what the pane does",
        shown=True),
    Key("palette", "app", "ctrl+p", "command_palette", "palette", "Find any action by its name",
        palette=False),
    Key("suspend", "app", "ctrl+z", "suspend_process", "suspend",
        "Put the panel to sleep; the shell's fg brings it back", palette=False, priority=True),
    Key("quit", "app", "ctrl+q", "quit", "quit", "Close the panel; runs go on", shown=True,
        priority=True, palette=False),
)


def bindings(*places: Place) -> list[Binding]:
    """The bindings of `places`, for a BINDINGS list."""
    return [Binding(k.keys, k.action, k.label, show=k.shown, tooltip=k.tooltip, id=k.id,
                    priority=k.priority) for k in KEYS if k.place in places]


def of(place: Place) -> Iterable[Key]:
    return (k for k in KEYS if k.place == place)


def display(keys: str) -> str:
    """Keys for people: "ctrl+o,right_square_bracket" → "ctrl+o or ]". Keys that hardly a terminal
    can send (super) are left out where there is another."""
    each = keys.split(",")
    sent = [k for k in each if not k.startswith("super+")] or each
    return " or ".join("+".join(_NAMES.get(part, part) for part in k.split("+")) for k in sent)


_NAMES = {"question_mark": "?", "left_square_bracket": "[", "right_square_bracket": "]",
          "slash": "/", "plus": "+", "minus": "-", "equals_sign": "=", "full_stop": ".",
          "less_than_sign": "<", "greater_than_sign": ">",
          "left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc"}
