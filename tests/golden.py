"""What functions return in the tests of a file, whole: in goldens/ beside it, a part for each test.
So a sentence is read there once, and a test says only what matters in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType

import pytest


def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
         *functions: tuple[ModuleType, str]) -> Iterator[None]:
    """For a fixture: compare all that these functions return during the test with its part. Those
    that the test's module does not have are left out; so are tests of real runs, whose times and
    names differ, and of made examples."""
    said: list[object] = []

    def noted(function: Callable[..., object], *args: object, **named: object) -> object:
        answer = function(*args, **named)
        said.append(answer)
        return answer

    if "home" in request.fixturenames or hasattr(request.function, "hypothesis"):
        yield
        return
    for module, name in functions:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, partial(noted, getattr(module, name)))
    yield
    same(request, said)


def same(request: pytest.FixtureRequest, said: Iterable[object]) -> None:
    """Compare `said` with the test's part of the file; GOLDENS=write writes it."""
    path = request.path.parent / "goldens" / f"{request.path.stem}.txt"
    text = path.read_text().removesuffix("\n") if path.exists() else ""
    parts = dict(part.split("\n", 1) for part in text[3:].split("\n## ") if part)
    # Pythons differ in the last digits of a sum.
    found = re.sub(r"\d+\.\d{7,}", lambda digits: f"{float(digits[0]):.6g}",
                   "\n".join(map(repr, said)))
    if os.environ.get("GOLDENS") == "write" and (found or parts):
        parts = dict(sorted({**parts, request.node.name: found}.items()))
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"## {name}\n{part}\n" for name, part in parts.items() if part))
    assert found == parts.get(request.node.name, ""), \
        f"differs from {path.name}; GOLDENS=write writes it again"
