"""The list of mutations: deliberate faults in the code that decides what is trained.

For each mutation, `mutations.toml` names a function and a small change in it: a text that occurs in
that function exactly once, and the text to put in its place. It says what would go wrong, and which
tests must notice. Whatever changes elsewhere in the file, the mutation still fits.
"""

from __future__ import annotations

import ast
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

    at: str
    """Where: a module below gpu_engine and, after a colon, the qualified name of a function or
    class in it, as "training.loop:Loop.run". Without a name it is the whole module."""
    why: str
    """What goes wrong in training, in a few words."""
    before: str
    after: str
    tests: tuple[str, ...]
    """Files below tests/, or single tests as pytest names them; the quickest first."""
    survives: str = ""
    """Why no test can notice it; empty if a test must."""

    @property
    def module(self) -> str:
        """The module's name below gpu_engine."""
        return self.at.partition(":")[0]

    @property
    def file(self) -> Path:
        """The file's path below the root of a checkout."""
        return CODE / (self.module.replace(".", "/") + ".py")

    def apply(self, root: Path) -> str:
        """The whole text of the file, with the fault in it.

        Raises Stale if the text to replace does not occur exactly once in what `at` names.
        """
        path = root / self.file
        if not path.is_file():
            raise self._stale(f"there is no {self.file} any more; name the module that does this "
                              "now")
        text = path.read_text()
        begin, end = self._lines(text)
        lines = text.splitlines(keepends=True)
        inside = "".join(lines[begin:end])
        if (many := inside.count(self.before)) != 1:
            raise self._stale(f"its text occurs {many} times there, expected once; bring it up to "
                              f"date:\n{self.before}")
        return "".join((*lines[:begin], inside.replace(self.before, self.after), *lines[end:]))

    def _lines(self, text: str) -> tuple[int, int | None]:
        """Which lines of the file's `text` `at` names: from the first, from 0, to before the
        second."""
        found: ast.AST = ast.parse(text)
        begin, end = 0, None
        for name in filter(None, self.at.partition(":")[2].split(".")):
            inner = next((node for node in ast.iter_child_nodes(found)
                          if isinstance(node, ast.FunctionDef | ast.ClassDef)
                          and node.name == name), None)
            if inner is None:
                raise self._stale(f"there is no {name} in {self.file} any more; name the function "
                                  "that does this now")
            found, begin, end = inner, inner.lineno - 1, inner.end_lineno
        return begin, end

    def _stale(self, what: str) -> Stale:
        return Stale(f"{LIST.name}: {self.at}: {self.why!r}: {what}")


def read(path: Path = LIST) -> list[Mutation]:
    """All mutations. One that names no tests has the tests listed for its module."""
    data = tomllib.loads(path.read_text())
    default = {room["module"]: room["tests"] for room in data["room"]}
    return [Mutation(m["at"], m["why"], m["before"].strip("\n"), m["after"].strip("\n"),
                     tuple(m.get("tests", default.get(m["at"].partition(":")[0], ()))),
                     m.get("survives", ""))
            for m in data["mutation"]]
