"""What is shown in place of a secret: of a variable whose name looks like one. Pure; a rank imports
it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIALS?"
                     r"|(?<![A-Z])(PAT|PASS|AUTH))(?![A-Z])", re.IGNORECASE)


def shown(name: str, value: str) -> str:
    """The value of a variable for people: HF_TOKEN's and WANDB_API_KEY's are not."""
    return MASK if _SECRET.search(name) else value


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables for people."""
    return {name: shown(name, value) for name, value in env.items()}


def shown_words(words: Sequence[str]) -> list[str]:
    """A command for people: the words `HF_TOKEN=…` before its program are masked."""
    return [f"{found[1]}={shown(found[1], found[2])}"
            if (found := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL)) else word
            for word in words]


def shown_set(assignment: str) -> str:
    """A `key=value` of a spec for people."""
    key, _, value = assignment.partition("=")
    env = key.startswith("run.env.")
    return f"{key}={shown(key.removeprefix('run.env.'), value)}" if env else assignment
