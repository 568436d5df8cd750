"""The list of mutations: deliberate faults in the code that decides what is trained.

For each mutation, `mutations.toml` has a file below engine/gpu_engine, a text that occurs in it
exactly once, the text to put in its place, what would go wrong, and the tests that must notice.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIST = HERE / "mutations.toml"
CODE = Path("engine/gpu_engine")


class Stale(Exception):
    """A mutation that no longer fits the code."""


@dataclass(frozen=True)
class Mutation:
    """One deliberate fault."""

    file: str
    """The file's path below engine/gpu_engine."""
    why: str
    """What goes wrong in training, in a few words."""
    before: str
    after: str
    tests: tuple[str, ...]
    """Files below tests/, or single tests as pytest names them; the quickest first."""
    survives: str = ""
    """Why no test can notice it; empty if a test must."""

    def apply(self, root: Path) -> str:
        """The whole text of the file, with the fault in it.

        Raises Stale if the text to replace does not occur exactly once.
        """
        path = root / CODE / self.file
        if not path.is_file():
            raise Stale(f"{LIST.name}: {self.why!r}: there is no {CODE / self.file} any more; name "
                        "the file that does this now")
        text = path.read_text()
        if (many := text.count(self.before)) != 1:
            raise Stale(f"{LIST.name}: {self.why!r}: its text occurs {many} times in "
                        f"{CODE / self.file}, expected once; bring it up to date:\n{self.before}")
        return text.replace(self.before, self.after)


def read(path: Path = LIST) -> list[Mutation]:
    """All mutations. One that names no tests has the tests listed for its file."""
    data = tomllib.loads(path.read_text())
    default = {room["file"]: room["tests"] for room in data["room"]}
    return [Mutation(m["file"], m["why"], m["before"].strip("\n"), m["after"].strip("\n"),
                     tuple(m.get("tests", default.get(m["file"], ()))), m.get("survives", ""))
            for m in data["mutation"]]
