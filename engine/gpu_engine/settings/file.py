"""Reading and beginning settings.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import open_file, reason, write_atomic
from gpu_engine.common.values import convert, in_toml
from gpu_engine.settings import own_commands
from gpu_engine.settings.schema import SECTIONS, Setting, Settings, every

_LONGEST = 1 << 20
_KEYS, _COMMANDS = "keys", "commands"


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
    commands, problems = own_commands.read(data.pop(_COMMANDS, {}))
    keys = data.pop(_KEYS, {})
    if not isinstance(keys, dict):
        problems.append((_KEYS, keys, f"expected a table, [{_KEYS}]"))
        keys = {}
    keys = dict(_flat(keys))
    problems += [(f"{_KEYS}.{action}", typed, 'expected a key, or several with commas, as "ctrl+t"')
                 for action, typed in keys.items()
                 if not isinstance(typed, str) or not typed.strip()]
    given: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, table in data.items():
        if section not in SECTIONS:
            problems.append((section, table, "no such table; "
                             + meant(section, [*SECTIONS, _KEYS, _COMMANDS])))
            continue
        if not isinstance(table, dict):
            problems.append((section, table, f"expected a table, [{section}]"))
            continue
        for key, value in table.items():
            name = f"{section}.{key}"
            setting = every().get(name)
            try:
                if setting is None:
                    own = [n.partition(".")[2] for n in every() if n.startswith(f"{section}.")]
                    problems.append((name, value, "no such setting; " + meant(key, own)))
                else:
                    given[section][key] = convert(value, setting.kind)
            except ValueError as err:
                problems.append((name, value, str(err)))
    if problems:
        raise SettingsError("\n".join(
            f"{where}: {clean(name, 80)} = {clean(in_toml(value), 80)}: {why}"
            for name, value, why in problems))
    parts = {section: cls(**given[section]) for section, cls in SECTIONS.items()}
    return Settings(**parts, keys={a: k.strip() for a, k in keys.items()}, commands=tuple(commands),
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
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(where, beginning())
    return where
