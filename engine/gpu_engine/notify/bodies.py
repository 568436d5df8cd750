"""What each service wants to be sent. Pure. Sources:

- ntfy, "Publish as JSON" (docs.ntfy.sh/publish): the topic is in the body and the request goes to
  the server's root; `priority` 1 to 5, 3 is usual; `tags` that are names of emoji are shown as
  those; a message above 4,096 bytes becomes an attachment; an access token goes into
  `Authorization: Bearer`.
- Slack, "Sending messages using incoming webhooks" and "Formatting text for app surfaces":
  `{"text": …}`, in which &, < and > are written as entities, as `<!channel>` would call everybody.
- Discord, "Execute Webhook" and "Allowed Mentions": `content` of at most 2,000 characters;
  `allowed_mentions.parse` empty, so that no text calls anybody; a line of Markdown, so its
  marks are escaped. Answers 204.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from gpu_engine.notify.config import To
from gpu_engine.notify.messages import Message

_DISCORD_MOST = 2000
_NTFY_MOST = 4000
"""Bytes; below its limit, as the text is cut between characters."""
_PRIORITY = {"failed": 4, "lost": 4, "stalled": 4}
_TAG = {"finished": "white_check_mark", "failed": "x", "lost": "x", "stalled": "warning",
        "stopped": "stop_button", "slow": "turtle"}
_MARKDOWN = re.compile(r"([\\*_~`|>#\[\]()<-])")


@dataclass(frozen=True, slots=True)
class Post:
    """One request."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    body: bytes


def post(to: To, message: Message) -> Post:
    """The request that tells `to` of `message`. `to` is of any kind but "command"."""
    url, value = to.url, message.to_dict()
    if to.kind == "ntfy":
        url, topic = _ntfy(to.url)
        value = {"topic": topic, "title": message.title, "message": _cut(message.text, _NTFY_MOST),
                 "priority": _PRIORITY.get(message.event, 3),
                 "tags": [_TAG[message.event]] if message.event in _TAG else []}
    elif to.kind == "slack":
        value = {"text": _slack(f"{message.title}\n{message.text}")}
    elif to.kind == "discord":
        text = _MARKDOWN.sub(r"\\\1", message.text)
        if len(text) > _DISCORD_MOST:
            text = text[:_DISCORD_MOST - 1].rstrip("\\") + "…"
        value = {"content": text, "allowed_mentions": {"parse": []}}
    headers = {"Content-Type": "application/json"}
    if to.token is not None:
        headers["Authorization"] = f"Bearer {to.token}"
    return Post(url, headers, json.dumps(value, allow_nan=False).encode())


def _ntfy(url: str) -> tuple[str, str]:
    """The server's root and the topic, from a topic's address."""
    parts = urlsplit(url)
    root, _, topic = parts.path.rstrip("/").rpartition("/")
    return urlunsplit((parts.scheme, parts.netloc, root + "/", "", "")), unquote(topic)


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, most: int) -> str:
    """`text`, in UTF-8 at most `most` bytes."""
    data = text.encode()
    return text if len(data) <= most else data[:most - 3].decode(errors="ignore") + "…"
