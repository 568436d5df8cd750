"""Whom to tell: `notify.toml`, a list of entries, beside hosts.toml. `_BEGINNING` shows one of each
kind.

Whoever knows an address may write to it, so addresses are secrets: the file must be the user's own
and closed to others. No message of an error here has an address, a token or a command in it.
"""

from __future__ import annotations

import re
import secrets
import tomllib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import reason, write_atomic
from gpu_engine.common.paths import private_folder, read_own
from gpu_engine.interpreters import choose
from gpu_engine.notify import exists, path
from gpu_engine.notify.messages import EVENTS, USUAL, Told

Kind = Literal["ntfy", "apprise", "json", "command"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_BY_APPRISE = ("slack", "discord")
"""Kinds of earlier files, whose addresses Apprise knows as they stand there."""
_LONGEST_FILE = 64 << 10
_MOST = 32


@dataclass(frozen=True, slots=True)
class To:
    """One entry: where messages go, and which."""

    name: Annotated[str, Meta(min_length=1, max_length=40)]
    kind: Kind
    url: Annotated[str, Meta(max_length=2048)] = field(default="", repr=False)
    """Of every kind but "command"."""
    command: Annotated[tuple[str, ...], Meta(max_length=64)] = field(default=(), repr=False)
    """The words of a command, of that kind alone."""
    token: Annotated[str, Meta(max_length=1024)] | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer TOKEN`."""
    on: tuple[Told, ...] = USUAL
    min_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Nothing is sent of runs that took less."""

    @property
    def where(self) -> str:
        """The part of the address that is no secret: "https://ntfy.sh", "tgram://"; "a command"."""
        if self.kind == "command":
            return "a command"
        if self.kind == "apprise":  # its host may be a token
            return f"{self.url.partition(':')[0]}://"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def read() -> list[To]:
    """The entries, in the file's order; none where there is no file. Raises UserError, also where
    other users could read the file."""
    try:
        text = read_own(path(), _LONGEST_FILE, secret=True)
    except FileNotFoundError:
        return []
    except OSError as err:
        raise UserError(f"{path()}: can't be read: {reason(err)}") from None
    try:
        data = tomllib.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{path()}: not valid TOML: it is not UTF-8") from None
    except ValueError as err:
        # The parser's words may quote the file: only the place is safe, "(at line 3, column 7)".
        _, found, place = str(err).rpartition("(at ")
        raise UserError(f"{path()}: not valid TOML"
                        + (f" (at {clean(place, 60)}" if found else "")) from None
    except RecursionError:
        raise UserError(f"{path()}: nested too deeply") from None
    return _entries(data)


def problem() -> str | None:
    """Why nobody will be told although there is a file; None if there is none, or it is right."""
    if not exists():
        return None
    try:
        read()
    except UserError as err:
        return str(err)
    return None


def begin() -> Path:
    """Write a file to start from, with an example of each kind. Returns its path. Raises UserError
    where there is one, or it can't be written."""
    where, text = path(), _BEGINNING.replace("TOPIC", f"gpu-panel-{secrets.token_hex(8)}")
    if exists():
        raise UserError(f"{where} exists; it is left as it is")
    with telling(f"{where}: can't be written"):
        private_folder(where.parent)
        write_atomic(where, text)
    return where


def _entries(data: dict[str, Any]) -> list[To]:
    entries = data.get("to", [])
    if data.keys() - {"to"} or not isinstance(entries, list) \
            or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path()}: expected a list of entries, each begun with [[to]], and "
                        "nothing else")
    if len(entries) > _MOST:
        raise UserError(f"{path()}: {len(entries)} entries; at most {_MOST} are allowed")
    found: list[To] = []
    for number, entry in enumerate(entries, 1):
        one = _entry(number, entry)
        if any(other.name == one.name for other in found):
            raise UserError(f'{path()}: two entries are called "{one.name}"')
        found.append(one)
    return found


def _entry(number: int, entry: dict[str, Any]) -> To:
    """Raises UserError, which names the entry and the key and never the value of a secret."""
    name, kind, keys = entry.get("name"), entry.get("kind"), To.__dataclass_fields__
    if kind in _BY_APPRISE:
        entry, kind = {"name": kind} | entry | {"kind": "apprise"}, "apprise"
    unknown = next((key for key in entry if key not in keys), None)
    to = None
    if unknown is not None:
        problem = f"{unknown}: no such key; {meant(unknown, tuple(keys))}"
    elif kind not in KINDS:
        problem = f"kind: expected one of {', '.join(KINDS)}"
    elif not isinstance(on := entry.get("on", []), list) or any(e not in EVENTS for e in on):
        problem = f"on: expected a list of {', '.join(EVENTS)}"
    else:
        try:
            to = msgspec.convert({"name": kind} | entry, To)
            problem = _problem(to)
        except msgspec.ValidationError as err:
            problem = str(err)  # the key and its type, never the value
    if to is None or problem is not None:
        called = f'"{name}"' if isinstance(name, str) and name else f"number {number}"
        raise UserError(f"{path()}: {clean(f'entry {called}: {problem}', 300)}")
    return to


def _problem(to: To) -> str | None:
    """What is wrong with an entry whose values have the right types."""
    if not all(map(str.isprintable, (to.name, to.url, to.token or ""))):
        return "control characters can't be in name, url and token"
    if to.kind == "command":
        if not to.command or not to.command[0] or any("\0" in word for word in to.command):
            return 'command: expected its words, as in ["notify-send", "a run"]'
        return "a command has neither url nor token" if to.url or to.token else None
    if to.kind == "apprise":
        if not re.fullmatch(r"[a-z][a-z0-9]*://[^\s#]+", to.url, re.ASCII) \
                or to.command or to.token:
            return "url: expected an address as Apprise writes it, such as tgram://BOT/CHAT, and " \
                "neither a command nor a token"
        return None if find_spec("apprise") else \
            f"it goes through Apprise, which is not installed: {choose.extra('apprise>=2.2')}"
    try:
        parts = urlsplit(to.url)
        known = parts.hostname and parts.port != 0
    except ValueError:
        parts, known = urlsplit(""), False
    if not known or parts.scheme not in ("https", "http") or not to.url.isascii() \
            or " " in to.url or to.command:
        return "url: expected an address that begins with https:// or http://, and no command"
    if "@" in parts.netloc or parts.fragment or (to.token and (
            " " in to.token or not to.token.isascii())):
        return "url: a password or #… can't be in it; token takes a secret in ASCII without blanks"
    if to.kind == "ntfy" and (not parts.path.strip("/") or parts.query):
        return "url: expected the address of a topic, as https://ntfy.sh/TOPIC"
    return None


_BEGINNING = """\
# Whom to tell what becomes of a run: docs/notifications.md. Take the # away from one of the
# entries, then try it with: gpu-engine notify --test
# Addresses are secrets, as whoever knows one may write to it: this file must stay closed to
# others (chmod 600).

# ntfy: install the app on your phone and subscribe to this topic, which was made up just now. The
# topic is the password.
# [[to]]
# name = "phone"
# kind = "ntfy"
# url = "https://ntfy.sh/TOPIC"
# on = ["finished", "failed", "stalled", "lost", "made_room"]   # and "stopped"
# min_seconds = 300                                # nothing of runs that took less

# [[to]]
# name = "team"
# kind = "apprise"           # Slack, Discord, Telegram, Teams, e-mail and others: appriseit.com
# url = "slack://…"

# [[to]]
# name = "ours"
# kind = "json"              # everything as one JSON object, to any address
# url = "https://example.org/hook"
# token = "…"                # sent as Authorization: Bearer …

# [[to]]
# name = "desk"
# kind = "command"           # gets the message as JSON on its input, and in its environment
# command = ["sh", "-c", 'notify-send "$GPU_PANEL_NOTIFY_TITLE" "$GPU_PANEL_NOTIFY_TEXT"']
"""
