"""Reading and beginning settings.toml."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import open_file, reason, write_atomic
from gpu_engine.common.values import convert, describe, in_toml
from gpu_engine.settings import own_commands
from gpu_engine.settings.schema import SECTIONS, Setting, Settings, every

_LONGEST = 1 << 20
_KEYS, _COMMANDS = "keys", "commands"


class SettingsError(UserError):
    """settings.toml is wrong. Names file, line, key, value and what would do, for all that is."""

    title = "settings.toml is wrong"


def path() -> Path:
    """Where it is, whether it exists or not."""
    return paths.settings_folder() / "settings.toml"


def read() -> Settings:
    """The settings in force; the defaults where there is no file. Raises SettingsError."""
    where = path()
    try:
        with open_file(where) as file:
            text = file.read(_LONGEST + 1).decode("utf-8-sig")
    except FileNotFoundError:
        return Settings()
    except OSError as err:
        raise SettingsError(f"{where}: can't be read: {reason(err)}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{where}: not UTF-8") from None
    if len(text) > _LONGEST:
        raise SettingsError(f"{where}: more than {_LONGEST:,} characters: these are no settings")
    return parse(text, where)


def parse(text: str, where: Path) -> Settings:
    """The settings in `text`. Raises SettingsError, which names `where`."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as err:
        raise SettingsError(f"{where}: not valid TOML: {clean(str(err))}") from None
    problems: list[str] = []

    def wrong(name: str, value: object, message: str) -> None:
        line = line_of(text, name)
        shown = f'"{value}"' if isinstance(value, str) else \
            str(value).lower() if isinstance(value, bool) else str(value)
        problems.append(f"{where}{f', line {line}' if line else ''}: {clean(name, 80)} = "
                        f"{clean(shown, 80)}: {message}")

    given: dict[str, Any] = {}
    for section, table in data.items():
        if section == _COMMANDS:
            continue
        if section not in (*SECTIONS, _KEYS):
            wrong(section, table,
                  "no such table; " + meant(section, [*SECTIONS, _KEYS, _COMMANDS]))
        elif not isinstance(table, dict):
            wrong(section, table, f"expected a table, [{section}]")
        elif section != _KEYS:
            for key, value in table.items():
                setting = every().get(f"{section}.{key}")
                if setting is None:
                    own = [n.partition(".")[2] for n in every() if n.startswith(f"{section}.")]
                    wrong(f"{section}.{key}", value, "no such setting; " + meant(key, own))
                    continue
                try:
                    given[setting.name] = convert(value, setting.kind)
                except ValueError:
                    wrong(setting.name, value, f"expected {describe(setting.kind)}")
    table = data.get(_KEYS, {})
    keys = dict(_flat(table)) if isinstance(table, dict) else {}
    for action, typed in keys.items():
        if not isinstance(typed, str) or not typed.strip():
            wrong(f"{_KEYS}.{action}", typed, 'expected a key, or several with commas, as "ctrl+t"')
    commands, bad = own_commands.read(data.get(_COMMANDS, {}))
    for name, value, why in bad:
        wrong(name, value, why)
    if problems:
        raise SettingsError("\n".join(problems))
    parts = {section: cls(**{n.partition(".")[2]: v for n, v in given.items()
                             if n.startswith(f"{section}.")}) for section, cls in SECTIONS.items()}
    return Settings(**parts, keys={a: k.strip() for a, k in keys.items()},
                    commands=tuple(commands), given=frozenset(given))


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """`devices.tick = "t"` makes a table in a table: (dotted name, value) of all."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def placed(problems: str) -> str:
    """The lines of a message, which begin with "NAME = ", each with the file and the line on which
    that stands."""
    where, text = path(), ""
    with contextlib.suppress(OSError), open_file(where) as file:
        text = file.read(_LONGEST).decode("utf-8-sig", errors="replace")
    lines = [(line_of(text, one.partition(" = ")[0]), one) for one in problems.split("\n")]
    return "\n".join(f"{where}{f', line {line}' if line else ''}: {one}" for line, one in lines)


def line_of(text: str, name: str) -> int | None:
    """The number of the line on which a key stands, by its dotted name; None if it is not found
    (in an inline table)."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            table = header[1].strip("\"'")
            if table == name:
                return number
            continue
        found = re.match(r"""\s*["']?([^=#"']+?)["']?\s*=""", line)
        if found and (f"{table}.{found[1]}" if table else found[1]) == name:
            return number
    return None


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
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(where, beginning())
    return where
