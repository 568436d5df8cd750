"""The settings, a field for each: type, default, what it does, and the variable that outranks it.

To add one, add a field, and read it where it is needed. `gpu-engine settings --init` and the errors
follow from the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from gpu_engine.common.values import Bounds, Kind, kind_of


def _setting(default: Any, help: str, env: str = "") -> Any:
    return field(default=default, metadata={"help": help, "env": env})


@dataclass(frozen=True, slots=True)
class PanelSettings:
    """[panel]"""

    theme: str = _setting(
        "auto", "Colours: auto (by the terminal's background), or a name of ctrl+p, theme: "
        "textual-dark, colour-blind, ansi-light, …", "TEXTUAL_THEME")
    ascii: Literal["auto", "always", "never"] = _setting(
        "auto", "Frames and curves in plain characters; auto: where the terminal has no others",
        "GPU_PANEL_ASCII")
    mouse: bool = _setting(True, "Whether the mouse is used; without it the terminal selects text")
    footer: bool = _setting(True, "Whether the lowest line shows keys")
    tell: bool = _setting(True, "Ring and notify when a run ends or a device is free (f8)")
    refresh: Annotated[float, Bounds(ge=0.2, le=60)] = _setting(
        1.0, "Seconds between two readings of the devices")
    preset: str = _setting(
        "default", "The preset that the form begins with, where none is left from last time")
    confirm_quit: bool = _setting(
        True, "Ask before closing with unsaved changes, which come back all the same")


@dataclass(frozen=True, slots=True)
class RunsSettings:
    """[runs]"""

    listed: Annotated[int, Bounds(ge=1)] = _setting(
        20, "How many runs gpu-engine runs lists without -n")
    notify: bool = _setting(
        True, "Whether notify.toml is obeyed; false is --no-notify for every run")


VARIABLES: Mapping[str, str] = MappingProxyType({
    "GPU_PANEL_RUN_DIR": "the folder of the run under the cursor",
    "GPU_PANEL_RUN_ID": "the id of that run",
    "GPU_PANEL_PID": "the process under the cursor: a rank, a process on a GPU, or the run's "
                     "supervisor",
    "GPU_PANEL_HOST": "the machine on which that is"})
"""What a person's own command gets in its environment, as far as there is such a thing."""


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """A table [commands.NAME]: the person's own command on a key."""

    name: str
    key: str
    """As in [keys]: "f9", or several with commas."""
    run: str
    """A line for sh. What is under the cursor it gets as variables, never as a part of the line."""
    help: str = ""
    """A sentence for the help; "" for none."""
    confirm: bool = False
    """Whether it is dangerous, so that it is asked for each time."""
    where: Literal["pane", "terminal", "background"] = "pane"
    """Its output in a pane; or it gets the terminal until it ends; or neither."""

    @property
    def needs(self) -> list[str]:
        """The variables that stand in its line."""
        return [name for name in VARIABLES if re.search(rf"\b{name}\b", self.run)]


SECTIONS: Mapping[str, type] = MappingProxyType({
    "panel": PanelSettings, "runs": RunsSettings})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, read from its field."""

    name: str
    """"panel.theme"."""
    kind: Kind
    default: Any
    help: str
    env: str
    """The variables of the environment that outrank it; "" for none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force, from the file and the defaults."""

    panel: PanelSettings = PanelSettings()
    runs: RunsSettings = RunsSettings()
    keys: Mapping[str, str] = field(default_factory=dict)
    """Action of the panel → the keys for it, from the table [keys]."""
    commands: tuple[OwnCommand, ...] = ()
    """The person's own commands of the panel, from the tables [commands.NAME]."""
    given: frozenset[str] = frozenset()
    """The settings that the file has."""


@cache
def every() -> Mapping[str, Setting]:
    """All settings by name, in the order of the file."""
    found: dict[str, Setting] = {}
    for section, cls in SECTIONS.items():
        hints, empty = get_type_hints(cls, include_extras=True), cls()
        for f in fields(cls):
            name = f"{section}.{f.name}"
            found[name] = Setting(name, kind_of(hints[f.name]), getattr(empty, f.name),
                                  f.metadata["help"], f.metadata["env"])
    return MappingProxyType(found)
