"""The table of all keys of both screens: bindings, help, footer and palette come from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

from textual.binding import Binding, BindingType
from textual.keys import Keys as TextualKeys

from gpu_engine.common.errors import UserError
from gpu_engine.settings.schema import OwnCommand


@dataclass(frozen=True, slots=True)
class Key:
    """One thing a person can do, and the keys for it."""

    id: str
    """Stable name, for keymaps."""
    scope: str
    """Whose key it is: a pane's or a screen's name, "app", or "own" for the person's own."""
    keys: str
    """Textual's names, separated by commas: "ctrl+o,p"."""
    action: str
    """The Textual action in the pane or screen that `scope` names: "move(1)" calls
    `action_move`."""
    label: str
    """One or two words, for the footer and the palette."""
    tooltip: str
    """One sentence, for the help, the palette and the mouse pointer."""
    footer: bool = False
    """Whether the footer shows it."""
    everywhere: bool = False
    """For a pane's key: whether it works on the whole screen, wherever the focus is."""
    priority: bool = False
    """Whether it takes precedence over the keys of the focused field."""
    palette: bool = True
    """Whether the palette offers it. The palette lists only keys that work on the whole screen."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    keys: tuple[Key, ...]


KEYS: tuple[Key, ...] = (
    Key("devices.tick", "devices", "space", "tick", "tick",
        "Tick or untick the device under the cursor", footer=True),
    Key("devices.all", "devices", "a", "tick_all", "all free",
        "Tick all free devices, or none if all of them are ticked"),
    Key("devices.free", "devices", "f", "tick_free", "freest",
        "Tick the freest devices: as many as are ticked", footer=True),
    Key("devices.earlier", "devices", "less_than_sign", "move_rank(-1)", "earlier rank",
        "Move the device under the cursor one rank forward"),
    Key("devices.later", "devices", "greater_than_sign", "move_rank(1)", "later rank",
        "Move the device under the cursor one rank back"),
    Key("devices.details", "devices", "i", "screen.details(False)", "details",
        "Show or hide everything about the device under the cursor", footer=True),
    Key("devices.enter", "devices", "enter", "screen.details(True)", "processes",
        "Open the details and go to the processes on the device"),
    Key("devices.wait", "devices", "w", "wait", "notify when free",
        "Notify you when the device under the cursor is free; press again to cancel"),
    Key("devices.wait-any", "devices", "W", "wait_any", "any free",
        "Notify you when any device is free; press again to cancel"),
    Key("devices.other", "devices", "c", "other_kind", "CPU/GPU",
        "Offer the machine's CPU slots in place of its GPUs, or look for its GPUs again"),
    Key("devices.hold", "devices", "h", "hold", "hold",
        "Hold the device under the cursor for a time, so that no run takes it"),
    Key("devices.release", "devices", "r", "release", "release",
        "End your hold of the device under the cursor"),
    Key("devices.usage", "devices", "U", "usage", "usage",
        "Show the device-hours of users, runs and devices"),
    Key("detail.before", "detail", "left,h", "screen.other_device(-1)", "previous",
        "Show the previous device"),
    Key("detail.after", "detail", "right,l", "screen.other_device(1)", "next",
        "Show the next device"),
    Key("detail.close", "detail", "i,escape", "screen.details(False)", "close",
        "Back to the table", footer=True),
    Key("form.previous", "form", "up", "focus_previous", "up", "Go to the previous field"),
    Key("form.next", "form", "down", "focus_next", "down", "Go to the next field"),
    Key("form.page-up", "form", "pageup", "page(-1)", "page up", "Scroll the form up"),
    Key("form.page-down", "form", "pagedown", "page(1)", "page down", "Scroll the form down"),
    Key("form.fit", "form", "ctrl+t", "fit", "what fits",
        "Try what batch size fits, by real steps on the ticked devices, and propose one",
        footer=True),
    Key("form.leave", "form", "escape", "leave", "leave field",
        "Leave the field, so that digits and letters are keys again", footer=True,
        palette=False),
    Key("preset.save", "form", "ctrl+s", "save", "save", "Save the form as a preset",
        footer=True, everywhere=True, priority=True),
    Key("preset.open", "form", "ctrl+o,p", "presets", "presets",
        "Load another preset into the form", footer=True, everywhere=True),
    Key("plan.unfold", "plan", "enter", "screen.pane('form')", "form", "Open the form"),
    Key("plan.copy", "plan", "y,ctrl+y", "copy", "copy line",
        "Copy the command that starts this run", everywhere=True),
    Key("plan.processes", "plan", "v,ctrl+e", "processes", "processes",
        "Show every process that will start, with its arguments and environment",
        everywhere=True),
    Key("runs.open", "runs", "enter", "open", "open", "Watch this run", footer=True),
    Key("runs.stop", "runs", "s", "stop", "stop",
        "Ask this run, or the marked runs, to save and end", footer=True),
    Key("runs.resume", "runs", "u", "resume", "resume",
        "Resume this run from its last checkpoint", footer=True),
    Key("runs.again", "runs", "e", "again", "again",
        "Load this run's settings into the form"),
    Key("runs.remove", "runs", "x", "remove", "remove",
        "Remove this finished run, or the marked runs; asks, and says what goes"),
    Key("runs.filter", "runs", "slash", "filter", "filter",
        "Show only runs that match what you type, as in state:failed tag:lr"),
    Key("runs.sooner", "runs", "left_square_bracket", "move('first')", "first",
        "Move this waiting run to the first place in the queue"),
    Key("runs.later", "runs", "right_square_bracket", "move('last')", "last",
        "Move this waiting run to the last place in the queue"),
    Key("runs.unfold", "runs", "right,l", "fold(True)", "unfold",
        "Show the runs of this sweep in the list"),
    Key("runs.fold", "runs", "left,h", "fold(False)", "fold",
        "Show the runs of this sweep as one line"),
    Key("runs.mark", "runs", "m,space", "mark", "mark",
        "Mark this run, to stop, remove, tag or compare several at once"),
    Key("runs.mark-all", "runs", "M", "mark_all", "mark all",
        "Mark all runs that are shown, or none if all of them are marked"),
    Key("runs.note", "runs", "n", "note", "name", "Give this run a name"),
    Key("runs.tags", "runs", "t", "tags", "tags", "Give this run, or the marked runs, tags"),
    Key("runs.keep", "runs", "K", "judge('keep')", "keep",
        "Say that this run's result is worth keeping; again: take it back"),
    Key("runs.discard", "runs", "D", "judge('discard')", "discard",
        "Say that this run's result is not worth keeping; again: take it back"),
    Key("runs.export", "runs", "E", "export", "export",
        "Write a report of this run or the marked runs, or export their figures"),
    Key("runs.code", "runs", "d", "code", "code",
        "Show what was changed since in the code of this run"),
    Key("runs.order", "runs", "o", "order", "sort", "Sort by the next column"),
    Key("runs.turn", "runs", "O", "turn", "reverse", "Reverse the sort order"),
    Key("runs.columns", "runs", "C", "columns", "columns",
        "Choose the columns of the list, also keys of the spec"),
    Key("runs.clear", "runs", "escape", "clear", "clear",
        "Clear the marks, then the filter"),
    Key("filter.keep", "filter", "enter,down", "keep", "keep",
        "Back to the list, which stays filtered"),
    Key("filter.leave", "filter", "escape", "leave", "leave", "Back to the list of all runs"),
    Key("runs.compare", "runs", "c", "compare", "compare",
        "Compare the marked runs: curves, figures and settings", footer=True),
    Key("runs.best", "runs", "b", "best", "best first",
        "Go to the run with the best value, sorting by it; again: live ones first",
        everywhere=True),
    Key("launch.jump", "launch", "g,ctrl+g", "jump", "go to a field",
        "Go to a field of the form; type a part of its name"),
    Key("launch.start", "launch", "ctrl+l", "launch", "launch",
        "Start the run that is shown under What will run", footer=True, priority=True),
    Key("launch.queue", "launch", "Q", "queue", "queue",
        "Put the run into the queue: it starts when its devices are free"),
    Key("launch.vary", "launch", "V", "queue(True)", "sweep",
        "Queue the run with several values of a key, or of an option of your command"),
    Key("pane.leave", "launch", "escape", "leave", "leave",
        "Leave the field, so that letters are keys again", palette=False),
    Key("several.back", "several", "escape", "back", "back", "Back to the list of runs",
        footer=True, palette=False),
    Key("several.copy", "several", "y", "copy", "copy table",
        "Copy the table as Markdown, of chosen runs with their differences"),
    Key("several.open", "several-table", "enter", "open", "open",
        "Watch the run under the cursor, or show or hide the runs of this line", footer=True),
    Key("several.left", "several-table", "left", "scroll(-1)", "left",
        "Show the columns further to the left"),
    Key("several.right", "several-table", "right", "scroll(1)", "right",
        "Show the columns further to the right"),
    Key("sweep.compare", "several-table", "c", "compare", "compare",
        "Compare the runs of this line of a sweep, or the best ones if it has one", footer=True),
    Key("sweep.value", "several-table", "b", "value", "value",
        "Choose the value by which a sweep ranks; type a part of its name"),
    Key("sweep.turn", "several-table", "O", "turn", "least/greatest",
        "Rank by the greatest value, or by the least"),
    Key("sweep.matters", "several-table", "w", "matters", "what matters",
        "Ask Optuna which values of a search matter how much"),
    Key("sweep.stop", "several-table", "s", "stop", "stop all",
        "Remove a sweep's waiting runs from the queue, and ask running ones to save and end",
        footer=True),
    Key("sweep.retry", "several-table", "u", "retry", "retry failed",
        "Queue a sweep's failed runs for another attempt; without any, those that were stopped",
        footer=True),
    Key("curves.axis", "curves", "x", "axis", "axis",
        "Draw the curves over steps or over time", footer=True, everywhere=True),
    Key("curves.value", "curves", "c", "value", "curve",
        "Choose another value, such as an evaluation; type a part of its name", footer=True,
        everywhere=True),
    Key("curves.log-scale", "curves", "l", "log_scale", "log scale",
        "Draw the value on a logarithmic or a linear scale", everywhere=True),
    Key("curves.smooth", "curves", "m", "smooth", "smooth",
        "Smooth the curves: 0.6, 0.9, off, or where they are noisy", everywhere=True),
    Key("run.back", "run", "escape", "back", "back", "Back to the launch screen; the run goes on",
        footer=True, palette=False),
    Key("run.stop", "run", "s", "stop", "stop",
        "Ask the run to save and end; a second time ends it now", footer=True),
    Key("run.resume", "run", "u", "resume", "resume",
        "Resume a run that has ended, from its last checkpoint", footer=True),
    Key("run.again", "run", "e", "again", "again",
        "Load this run's settings into the form"),
    Key("run.copy", "run", "Y", "copy_command", "copy command",
        "Copy the command that starts this run"),
    Key("run.export", "run", "E", "export", "export",
        "Write a report of this run, or export its figures"),
    Key("run.about", "run", "i", "about", "about",
        "Show why attempts ended, all warnings, the command and the folder", footer=True),
    Key("run.code", "run", "C", "printed('run.code')", "code",
        "Show what was changed since in the code that the run was started with"),
    Key("run.usage", "run", "U", "printed('run.usage')", "usage",
        "Show the device-hours of this run beside those of the last seven days"),
    Key("run.curve", "run", "c", "curve", "curve",
        "Choose what the chart shows; type a part of the value's name", footer=True),
    Key("run.trace", "run", "T", "trace", "trace",
        "Trace the next 3 steps of each rank with torch's profiler, and show what takes the time"),
    Key("run.maximize", "run", "z", "maximize", "maximize",
        "Show only the focused pane; z or esc brings the others back"),
    Key("chart.earlier", "chart", "left", "cross(-1)", "earlier",
        "Move the crosshair a little to the left"),
    Key("chart.later", "chart", "right", "cross(1)", "later",
        "Move the crosshair a little to the right"),
    Key("chart.much-earlier", "chart", "shift+left", "cross(-20)", "much earlier",
        "Move the crosshair far to the left"),
    Key("chart.much-later", "chart", "shift+right", "cross(20)", "much later",
        "Move the crosshair far to the right"),
    Key("chart.zoom-in", "chart", "plus,equals_sign", "zoom(0.5)", "zoom in",
        "Show half as many steps"),
    Key("chart.zoom-out", "chart", "minus", "zoom(2)", "zoom out", "Show twice as many steps"),
    Key("chart.whole", "chart", "0", "whole", "whole run",
        "Show the whole run and hide the crosshair"),
    Key("loss.log-scale", "loss", "l", "log_scale", "log scale",
        "Draw the first chart on a logarithmic or a linear scale", everywhere=True),
    Key("loss.smooth", "loss", "m", "smooth", "smooth",
        "Smooth the first chart: 0.6, 0.9, off, or where it is noisy", everywhere=True),
    Key("ranks.sort", "ranks", "o", "sort", "sort",
        "Sort by rank, the slowest first, by loss, or by memory"),
    Key("ranks.log", "ranks", "enter", "choose", "its log",
        "Show the log of the rank under the cursor"),
    Key("log.next-rank", "log", "r", "next_rank", "rank", "Show the next rank's log",
        everywhere=True),
    Key("log.find", "log", "slash", "find", "find",
        "Find text in the log; n goes to the next match, N to the previous one", footer=True,
        everywhere=True),
    Key("log.find-next", "log", "n", "find_next(1)", "next match", "Go to the next match",
        everywhere=True),
    Key("log.find-previous", "log", "N", "find_next(-1)", "previous match",
        "Go to the previous match", everywhere=True),
    Key("log.filter", "log", "F", "filter", "only matches",
        "Show only the log lines with a match, or all of them again", everywhere=True),
    Key("log.copy", "log", "y", "copy", "copy",
        "Copy what is marked, the whole traceback, the line that was found, or the last one",
        everywhere=True),
    Key("log.pager", "log", "v", "pager", "pager",
        "Read the whole log in $PAGER; in less, / searches and s saves it", everywhere=True),
    Key("log.stacks", "log", "d", "stacks", "stacks",
        "Print every thread's stack of the chosen rank into its log", everywhere=True),
    Key("log.next", "log", "right_square_bracket", "source(1)", "next log",
        "Show the next log: ranks, traceback, supervisor", everywhere=True),
    Key("log.previous", "log", "left_square_bracket", "source(-1)", "previous log",
        "Show the previous log", everywhere=True),
    Key("log.up", "log", "k", "scroll_up", "up", "Scroll up"),
    Key("log.down", "log", "j", "scroll_down", "down", "Scroll down"),
    Key("log.first", "log", "g", "scroll_home", "first line", "Go to the first line"),
    Key("log.last", "log", "G", "scroll_end", "follow the end",
        "Go to the last line and follow what is added"),
    Key("find.leave", "find", "escape", "leave", "leave",
        "Search for nothing, and show all lines"),
    Key("help", "app", "question_mark,f1", "help", "keys", "Show every key and what the pane does",
        footer=True),
    Key("palette", "app", "ctrl+p", "command_palette", "palette", "Find any action by its name",
        palette=False),
    Key("suspend", "app", "ctrl+z", "suspend_process", "suspend",
        "Suspend the panel; the shell's fg brings it back", palette=False, priority=True),
    Key("tell", "app", "f8", "tell", "bell on/off",
        "Turn bell and notifications on or off: a run ends or stalls, a device is free",
        palette=False),
    Key("redraw", "app", "f12", "redraw", "redraw",
        "Redraw the screen after another program wrote over it", palette=False),
    Key("quit", "app", "ctrl+q", "quit", "quit", "Close the panel; runs go on", footer=True,
        priority=True, palette=False),
)


SCREENS: tuple[frozenset[str], ...] = (
    frozenset({"launch", "devices", "detail", "form", "plan", "runs", "filter"}),
    frozenset({"run", "chart", "loss", "ranks", "log", "find"}),
    frozenset({"several", "curves", "chart", "several-table"}))
"""The scopes on each screen."""
_OF_SCREENS = frozenset({"app", "launch", "run", "several"})
RENAMED: Mapping[str, str] = MappingProxyType({
    "compare.back": "several.back", "sweep.back": "several.back",
    "compare.copy": "several.copy", "sweep.copy": "several.copy",
    "compare-runs.open": "several.open", "sweep.open": "several.open",
    "compare-table.left": "several.left", "compare-table.right": "several.right"})
"""What actions of the two screens that are one by now were called."""


COMMANDS: Mapping[str, str] = MappingProxyType({
    "devices.details": "gpu-engine devices", "devices.hold": "gpu-engine hold --for 4h",
    "devices.release": "gpu-engine release", "devices.usage": "gpu-engine usage",
    "preset.save": "gpu-engine presets NAME",
    "preset.open": "gpu-engine presets", "plan.processes": "gpu-engine plan",
    "form.fit": "gpu-engine fit PRESET",
    "launch.start": "gpu-engine run PRESET", "launch.queue": "gpu-engine run PRESET --queue",
    "runs.open": "gpu-engine show {run.id}", "runs.stop": "gpu-engine stop {run.id}",
    "runs.resume": "gpu-engine resume {run.id}", "runs.remove": "gpu-engine runs rm {run.id}",
    "runs.filter": "gpu-engine runs --filter WORDS", "runs.order": "gpu-engine runs --sort loss",
    "runs.sooner": "gpu-engine queue move {run.id} first",
    "runs.later": "gpu-engine queue move {run.id} last",
    "runs.note": "gpu-engine note {run.id}", "runs.tags": "gpu-engine note {run.id} --tag TAG",
    "runs.code": "gpu-engine code {run.id}", "runs.best": "gpu-engine runs --sort best",
    "runs.export": "gpu-engine report {run.id}", "runs.compare": "gpu-engine compare {run.id} RUN",
    "sweep.matters": "gpu-engine sweep SWEEP",
    "sweep.stop": "gpu-engine sweep stop SWEEP", "sweep.retry": "gpu-engine sweep retry SWEEP",
    "run.stop": "gpu-engine stop {run.id}", "run.resume": "gpu-engine resume {run.id}",
    "run.export": "gpu-engine report {run.id}", "run.about": "gpu-engine show {run.id}",
    "run.code": "gpu-engine code {run.id}", "run.usage": "gpu-engine usage --by run",
    "run.trace": "gpu-engine trace {run.id}", "log.find": "gpu-engine logs {run.id}",
    "log.stacks": "gpu-engine stacks {run.id}",
})
"""The commands that do the same as an action, by its id; `?` shows them with the run at hand."""


class KeysError(UserError):
    title = "These keys can't be used"


def use(wanted: Mapping[str, str], commands: Iterable[OwnCommand] = ()) -> None:
    """Use these keys for all screens, and those of the person's own commands. Call it before any
    other module of the panel is imported, as their classes take their bindings from the table.
    Raises KeysError."""
    global KEYS
    KEYS = with_commands(remapped(KEYS, wanted), commands)


def remapped(table: Sequence[Key], wanted: Mapping[str, str]) -> tuple[Key, ...]:
    """`table` with other keys for some actions: id → keys with commas between. Raises KeysError,
    which names what is unknown, and each key that two actions would have where both can be meant.
    """
    keys, problems = {key.id: key for key in table}, list[str]()
    for id, typed in wanted.items():
        if id not in keys:
            near = get_close_matches(id, list(keys), n=1)
            hint = f"it is called {RENAMED[id]} now" if id in RENAMED else \
                f"did you mean {near[0]}?" if near else "gpu-panel --keys lists them"
            problems.append(f"keys.{id} = \"{typed}\": there is no such action; {hint}")
        elif (names := _named(typed)) is None:
            problems.append(f"keys.{id} = \"{typed}\": {_NO_KEY}")
        else:
            keys[id] = replace(keys[id], keys=",".join(names))
    before = {key.id: set(key.keys.split(",")) for key in table}
    for key in (keys[id] for id in wanted if id in keys):
        for other in keys.values():
            both = set(key.keys.split(",")) & set(other.keys.split(","))
            both -= before[key.id] & before[other.id]  # as it ships: the focus decides
            if other is not key and both and _clash(key, other) \
                    and (other.id not in wanted or other.id > key.id):
                problems.append(
                    f"keys.{key.id} = \"{wanted[key.id]}\": {display(min(both))} is the key of "
                    f"{other.id} ({other.label}) too; give one of them another")
    if problems:
        raise KeysError("\n".join(problems))
    return tuple(keys.values())


def with_commands(table: Sequence[Key], commands: Iterable[OwnCommand]) -> tuple[Key, ...]:
    """`table` and a key for each of the person's own commands, which work everywhere. Raises
    KeysError where a key is another action's."""
    keys, problems = list(table), list[str]()
    for command in commands:
        names = _named(command.key)
        said = f"commands.{command.name}.key = \"{command.key}\""
        if names is None:
            problems.append(f"{said}: {_NO_KEY}")
        for name in names or ():
            other = next((k for k in keys if name in k.keys.split(",")), None)
            whose = f"is the key of {other.id} ({other.label})" if other is not None else \
                "goes to a pane, or moves in a list or field" if name in _TAKEN else None
            if whose is not None:
                problems.append(f"{said}: {display(name)} {whose}; give the command another")
        tooltip = (command.help or command.run) + "; asks first" * command.confirm
        keys.append(Key(f"commands.{command.name}", "own", ",".join(names or ()),
                        f"own_command({command.name!r})", command.name, tooltip))
    if problems:
        raise KeysError("\n".join(problems))
    return tuple(keys)


_NO_KEY = "that is no key; write it as \"t\", \"ctrl+t\", \"f5\" or \"shift+left\""
_TAKEN = frozenset({*"123456789jk", *(f"f{n}" for n in range(2, 8)), "tab", "shift+tab", "space",
                    "enter", "escape", "backspace", "delete", "ctrl+c"})
"""Keys that no action of the table has everywhere, and that no command can have."""


def _clash(one: Key, other: Key) -> bool:
    """Whether both can be meant by one key: in one pane, or on one screen if one of them works on
    all of it."""
    if one.scope == other.scope or "app" in (one.scope, other.scope):
        return True
    together = any({one.scope, other.scope} <= screen for screen in SCREENS)
    return together and any(k.everywhere or k.scope in _OF_SCREENS for k in (one, other))


def _named(typed: str) -> list[str] | None:
    """Textual's names of keys with commas between: "[" → "left_square_bracket", "ctrl+t" as it is;
    None if one of them is no key."""
    shown = {shown: name for name, shown in _NAMES.items()}
    known = {key.value for key in TextualKeys} | set(_NAMES)
    names: list[str] = []
    for each in typed.split(","):
        *held, key = each.strip().replace("++", "+plus").split("+") if each.strip() != "+" \
            else ["plus"]
        key = shown.get(key, key)
        if sign := len(key) == 1 and key.isascii() and not key.isalnum():
            key = next(iter(Binding.make_bindings([Binding(key, "")]))).key
        if not sign and not (len(key) == 1 and key.isascii()) and key not in known:
            return None
        if not set(held) <= {"ctrl", "shift", "alt", "super"}:
            return None
        names.append("+".join([*held, key]))
    return names


def of(*scopes: str) -> tuple[Key, ...]:
    return tuple(k for k in KEYS if k.scope in scopes)


def bindings(found: Iterable[Key]) -> list[BindingType]:
    return [Binding(k.keys, k.action, k.label, show=k.footer, tooltip=k.tooltip, id=k.id,
                    priority=k.priority) for k in found]


def of_focus(found: Iterable[Key]) -> list[BindingType]:
    """Bindings for those of a pane's keys that work only while the focus is in the pane."""
    return bindings(k for k in found if not k.everywhere)


def display(keys: str) -> str:
    """Key names for people: "ctrl+o,right_square_bracket" → "ctrl+o or ]". Few terminals can send
    `super`, so such a key is left out if there is another. Most terminals send ctrl+underscore
    for ctrl+/."""
    each = keys.split(",")
    usual = [k for k in each if not k.startswith("super+") and k != "ctrl+underscore"] or each
    return " or ".join("+".join(_NAMES.get(part, part) for part in k.split("+")) for k in usual)


_NAMES = {"question_mark": "?", "left_square_bracket": "[", "right_square_bracket": "]",
          "left_curly_bracket": "{", "right_curly_bracket": "}",
          "underscore": "_", "slash": "/", "plus": "+", "minus": "-", "equals_sign": "=",
          "full_stop": ".", "comma": ",", "colon": ":", "number_sign": "#",
          "less_than_sign": "<", "greater_than_sign": ">",
          "left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc"}
