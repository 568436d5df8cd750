"""Whether to colour what is printed. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def wanted(env: Mapping[str, str], *, terminal: bool, setting: str = "auto") -> bool:
    """Whether output is coloured: NO_COLOR (no-color.org) forbids it, FORCE_COLOR and
    CLICOLOR_FORCE demand it, CLICOLOR=0 forbids it (bixense.com/clicolors). Without them `setting`
    decides ("always", "never"), else whether it goes to a terminal."""
    if env.get("NO_COLOR"):
        return False
    if any(env.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if env.get("CLICOLOR") == "0":
        return False
    return terminal if setting == "auto" else setting == "always"
