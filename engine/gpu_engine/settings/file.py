"""Reading and beginning settings.toml."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import reason, write_atomic
from gpu_engine.common.values import Kind, convert, in_toml, kind_of
from gpu_engine.settings.schema import SECTIONS, OwnCommand, Setting, Settings, every

_LONGEST = 1 << 20
_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
_TEXT = kind_of(str)
_OF_COMMANDS = {name: kind_of(hint) for name, hint in get_type_hints(OwnCommand).items()
                if name != "name"}


class SettingsError(UserError):
    """settings.toml is wrong. Names file, key, value and what would do, for all that is."""

    title = "settings.toml is wrong"


def path() -> Path:
    """Where it is, whether it exists or not."""
    return paths.settings_folder() / "settings.toml"


def read() -> Settings:
    """The settings in force; the defaults where there is no file. Raises SettingsError."""
    where = path()
    try:
        text = paths.read_own(where, _LONGEST).decode("utf-8-sig")
    except FileNotFoundError:
        return Settings()
    except UserError as err:
        raise SettingsError(str(err), str(where), None, err.problems[0].remedy) from None
    except OSError as err:
        raise SettingsError(f"{where}: can't be read: {reason(err)}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{where}: not UTF-8") from None
    return parse(text, where)


def parse(text: str, where: Path) -> Settings:
    """The settings in `text`. Raises SettingsError, which names `where`."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as err:
        raise SettingsError(f"{where}: not valid TOML: {clean(str(err))}") from None
    problems: list[tuple[str, Any, str]] = []

    def checked(name: str, table: object, kinds: Mapping[str, Kind] | None) -> dict[str, Any]:
        """The right values of a table; the others are problems. `kinds`: of its keys; None: it may
        have any, with texts."""
        found: dict[str, Any] = {}
        if not isinstance(table, dict):
            problems.append((name, table, f"expected a table, [{name}]"))
            return found
        for key, value in table.items():
            try:
                if kinds is not None and key not in kinds:
                    raise ValueError("no such setting; " + meant(key, kinds))
                found[key] = convert(value, kinds[key] if kinds else _TEXT)
                if isinstance(found[key], str) and not found[key].strip():
                    raise ValueError("expected a text that is not empty")
            except ValueError as err:
                problems.append((f"{name}.{key}", value, str(err)))
        return found

    # These two have names of a person's own in them; all other tables have a schema.
    keys = data.pop("keys", {})
    keys = checked("keys", dict(_flat(keys)) if isinstance(keys, dict) else keys, None)
    tables, commands = data.pop("commands", {}), list[OwnCommand]()
    for name, table in tables.items() if isinstance(tables, dict) else [("", tables)]:
        values = checked(f"commands.{name}", table, _OF_COMMANDS)
        if not _NAME.fullmatch(name):
            problems.append((f"commands.{name}", table, "expected a name of small letters, digits "
                             "and -"))
        elif not {"key", "run"} <= values.keys():
            problems.append((f"commands.{name}", table, 'expected a key, as "f9" or "ctrl+t", and '
                             "in run a line for sh"))
        else:
            commands.append(OwnCommand(name, **values))
    given: dict[str, dict[str, Any]] = {}
    for section, table in data.items():
        if section in SECTIONS:
            given[section] = checked(section, table, {
                name.partition(".")[2]: setting.kind for name, setting in every().items()
                if name.startswith(f"{section}.")})
        else:
            problems.append((section, table, "no such table; "
                             + meant(section, [*SECTIONS, "keys", "commands"])))
    # All at once: who mends one mistake should not meet the next at the next start.
    if problems:
        raise SettingsError("\n".join(
            f"{where}: {clean(name, 80)} = {clean(in_toml(value), 80)}: {why}"
            for name, value, why in problems))
    parts = {section: cls(**given.get(section, {})) for section, cls in SECTIONS.items()}
    return Settings(**parts, keys=keys, commands=tuple(commands),
                    given=frozenset(f"{section}.{key}" for section, table in given.items()
                                    for key in table))


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """`devices.tick = "t"` makes a table in a table: (dotted name, value) of all."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def placed(problems: str) -> str:
    """The lines of a message, which begin with "NAME = ", each with the file that this is in."""
    return "\n".join(f"{path()}: {line}" for line in problems.split("\n"))


def source(setting: Setting, settings: Settings, env: Mapping[str, str]) -> str:
    """Where a setting's value comes from: "environment (NO_COLOR)", "file" or "default"."""
    for variable in filter(None, setting.env.split(", ")):
        if env.get(variable):
            return f"environment ({variable}={clean(env[variable], 40)})"
    return "file" if setting.name in settings.given else "default"


def beginning() -> str:
    """The file to start from: every setting with its default, as a comment."""
    out = ["# Settings of gpu-panel: docs/settings.md. Take the # away from a line to change it.",
           "# The environment outranks this file, and this file what the panel remembers."]
    section = ""
    for setting in every().values():
        table, _, key = setting.name.partition(".")
        if table != section:
            section = table
            out += ["", f"[{table}]"]
        choices = ", ".join(text for text, _ in setting.kind.choices)
        said = setting.help + (f"; one of {choices}" if choices else "")
        said += f". Outranked by {setting.env}" if setting.env else ""
        out += [f"# {said}.", f"# {key} = {in_toml(setting.default)}"]
    return "\n".join([*out, "", "# Keys of the panel: an action's name, as gpu-panel --keys lists "
                      "them, and its keys with", "# commas between.", "[keys]",
                      '# devices.tick = "space"', "",
                      "# A table [commands.NAME] puts a command of your own on a key: "
                      "docs/settings.md.", ""])


def begin() -> Path:
    """Write the file to start from. Raises UserError if there is one, or it can't be written."""
    where = path()
    if os.path.lexists(where):
        raise UserError(f"{where} is there already; gpu-engine settings shows what is in force")
    with telling(f"{where}: can't be written"):
        paths.private_folder(where.parent)
        write_atomic(where, beginning())
    return where
