"""Whom to tell: `notify.toml`, a list of entries, beside hosts.toml. `_BEGINNING` shows one of each
kind.

Whoever knows an address may write to it, so addresses are secrets: the file must be the user's own
and closed to others. No message of an error here has an address, a token or a command in it.
"""

from __future__ import annotations

import os
import secrets
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import open_file, reason, write_atomic
from gpu_engine.notify import exists, path
from gpu_engine.notify.messages import EVENTS, USUAL

Kind = Literal["ntfy", "slack", "discord", "json", "command"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KEYS = ("name", "kind", "url", "command", "token", "on", "min_seconds")
_LONGEST_FILE = 64 << 10
_MOST = 32
_LONGEST = {"name": 40, "url": 2048, "token": 1024}
_MOST_WORDS = 64


@dataclass(frozen=True, slots=True)
class To:
    """One entry: where messages go, and which."""

    name: str
    kind: Kind
    url: str = field(default="", repr=False)
    """Of every kind but "command"."""
    command: tuple[str, ...] = field(default=(), repr=False)
    """The words of a command, of that kind alone."""
    token: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer TOKEN`."""
    on: tuple[str, ...] = USUAL
    min_seconds: float = 0.0
    """Nothing is sent of runs that took less."""

    @property
    def where(self) -> str:
        """The part of the address that is no secret: "https://ntfy.sh"; "a command"."""
        if self.kind == "command":
            return "a command"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def read() -> list[To]:
    """The entries, in the file's order; none where there is no file. Raises UserError, also where
    other users could read the file."""
    try:
        with open_file(path()) as file:
            _require_private(os.fstat(file.fileno()))
            text = file.read(_LONGEST_FILE + 1)
    except FileNotFoundError:
        return []
    except OSError as err:
        raise UserError(f"{path()}: can't be read: {reason(err)}") from None
    if len(text) > _LONGEST_FILE:
        raise UserError(f"{path()}: more than {_LONGEST_FILE:,} bytes: too large for a list of "
                        "notifications")
    try:
        data = tomllib.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{path()}: not valid TOML: it is not UTF-8") from None
    except ValueError as err:
        # The parser's words may quote the file: only the place is safe to show.
        raise UserError(f"{path()}: not valid TOML{_place(str(err))}") from None
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
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(where, text)
    return where


def _require_private(seen: os.stat_result) -> None:
    if seen.st_uid != os.geteuid():
        raise UserError(f"{path()} belongs to another user, who could have messages sent anywhere; "
                        "make a file of your own")
    if seen.st_mode & 0o077:
        mode = stat.S_IMODE(seen.st_mode)
        raise UserError(f"{path()}: other users can reach it (mode {mode:04o}), and it holds "
                        f"secrets: chmod 600 {path()}")


def _entries(data: dict[str, Any]) -> list[To]:
    unknown = next((k for k in data if k != "to"), None)
    if unknown is not None:
        raise UserError(f"{path()}: {clean(unknown, 80)}: no such key; every entry begins with "
                        "[[to]]")
    entries = data.get("to", [])
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise UserError(f"{path()}: to: expected a list of entries, each begun with [[to]]")
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
    given = entry.get("name")
    called = f'"{clean(given, 40)}"' if isinstance(given, str) and given else f"number {number}"

    def wrong(key: str, message: str) -> UserError:
        return UserError(f"{path()}: entry {called}: {clean(key, 80)}: {message}")

    kind = entry.get("kind")
    if kind not in KINDS:
        said = "is missing" if kind is None else "no such kind"
        raise wrong("kind", f"{said}; there are {', '.join(KINDS)}")
    for key, value in entry.items():
        if key not in _KEYS:
            raise wrong(key, "no such key; " + meant(key, _KEYS))
        if key in (("url", "token") if kind == "command" else ("command",)):
            raise wrong(key, f'an entry of kind "{kind}" has none')
        if key in _LONGEST:
            if not isinstance(value, str) or not value.strip():
                raise wrong(key, "expected a text in quotes")
            if len(value) > _LONGEST[key]:
                raise wrong(key, f"at most {_LONGEST[key]:,} characters")
            if not value.isprintable() or (key != "name" and not value.isascii()):
                raise wrong(key, "control characters, and others that no address has, can't be in "
                                 "it")
    min_seconds, on = entry.get("min_seconds", 0), entry.get("on", list(USUAL))
    if type(min_seconds) not in (int, float) or not 0 <= min_seconds < 1e9:
        raise wrong("min_seconds", "expected a number of seconds, 0 or more")
    if not _are_texts(on):
        raise wrong("on", f"expected a list of {', '.join(EVENTS)}")
    if (unknown := next((v for v in on if v not in EVENTS), None)) is not None:
        raise wrong("on", f"{clean(unknown, 40)}: no such event; {meant(unknown, EVENTS)}")
    command, url, token = entry.get("command", []), entry.get("url", ""), entry.get("token")
    if kind == "command":
        if not _are_texts(command) or not 0 < len(command) <= _MOST_WORDS or not command[0] \
                or any("\0" in word for word in command):
            raise wrong("command",
                        'expected the words of a command, as in ["notify-send", "a run"]')
    elif not url:
        raise wrong("url", "is missing")
    else:
        _check_url(kind, url, wrong)
    if token is not None and " " in token:
        raise wrong("token", "has a blank in it")
    return To(entry.get("name", kind), kind, url, tuple(command), token, tuple(dict.fromkeys(on)),
              float(min_seconds))


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _check_url(kind: str, url: str, wrong: Any) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong("url", "no address") from None
    if parts.scheme not in ("https", "http") or not host or " " in url:
        raise wrong("url", "expected an address that begins with https:// or http://")
    if "@" in parts.netloc:
        raise wrong("url", "a user name and password can't be in it; use token")
    if parts.fragment:
        raise wrong("url", "what stands behind # is never sent; leave it out")
    if kind == "ntfy" and (not parts.path.strip("/") or parts.query):
        raise wrong("url", "expected the address of a topic, as https://ntfy.sh/TOPIC")


def _place(said: str) -> str:
    """" (at line 3, column 7)" from the parser's words."""
    _, found, place = said.rpartition("(at ")
    return f" (at {clean(place, 60)}" if found else ""


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
# on = ["finished", "failed", "stalled", "lost"]   # and "stopped", "slow"
# min_seconds = 300                                # nothing of runs that took less

# [[to]]
# name = "team"
# kind = "slack"             # api.slack.com/messaging/webhooks
# url = "https://hooks.slack.com/services/…"

# [[to]]
# name = "chat"
# kind = "discord"           # a channel's settings: Integrations, Webhooks
# url = "https://discord.com/api/webhooks/…"

# [[to]]
# name = "ours"
# kind = "json"              # everything as one JSON object, to any address
# url = "https://example.org/hook"
# token = "…"                # sent as Authorization: Bearer …

# For e-mail, Telegram, Teams and others, docs/notifications.md has a command.
# [[to]]
# name = "desk"
# kind = "command"           # gets the message as JSON on its input, and in its environment
# command = ["sh", "-c", 'notify-send "$GPU_PANEL_NOTIFY_TITLE" "$GPU_PANEL_NOTIFY_TEXT"']
"""
