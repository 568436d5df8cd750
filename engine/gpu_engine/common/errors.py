"""Errors that a person can correct. They are raised with their facts and shown in one place."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common.files import reason
from gpu_engine.common.values import in_toml


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a spec: where, what was given and what would be right."""

    key: str
    """Dotted key of the spec ("batch.size"), or "" if no single key is to blame."""
    value: object
    """The value that was given."""
    message: str
    """What is wrong and what would be right, in one sentence without a full stop."""
    remedy: str | None = None
    """What would do, to be typed: "amp.dtype=bf16", "--queue". None: no such word is known."""

    def to_dict(self) -> dict[str, object]:
        """As a program gets it: what, value, why and remedy."""
        return {"what": self.key or None, "value": self.value, "why": self.message,
                "remedy": self.remedy}

    def __str__(self) -> str:
        if not self.key:
            return self.message
        if self.value is None:
            return f"{self.key}: {self.message}"
        return f"{self.key} = {in_toml(self.value)}: {self.message}"


class UserError(Exception):
    """An error that the person can correct. Shown as text, without a traceback; exit code 2."""

    title = "That can't be done"

    def __init__(self, message: str = "", what: str = "", value: object = None,
                 remedy: str | None = None) -> None:
        super().__init__(message)
        self.problems: tuple[Problem, ...] = (Problem(what, value, message, remedy),)


class SpecError(UserError):
    """The spec is wrong. Carries every problem that was found."""

    title = "This run can't be launched"

    def __init__(self, problems: list[Problem] | tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class HostProblem(SpecError):
    """What keeps a run from being started on a host, before anything of it has begun there: another
    host may do."""

    def of(self, host: str) -> str:
        """For a line that begins with the host's name."""
        return "; ".join(p.message if p.value == host else str(
            replace(p, message=p.message.removeprefix(f"{host}: "))) for p in self.problems)


class TooFew(UserError):
    """Fewer devices are free at the moment than are needed. Says who holds the others."""


def meant(given: str, there: Collection[str], there_are: str = "there are") -> str:
    """What to say of a word that is none of these: which it may mean, or which there are."""
    import difflib

    near = difflib.get_close_matches(given, there, n=1)
    return f"did you mean {near[0]}?" if near else f"{there_are} {', '.join(there) or 'none'}"


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Where the system refuses something inside: UserError, "WHAT: permission denied"."""
    try:
        yield
    except OSError as err:
        raise UserError(f"{what}: {reason(err)}") from None


def require_replaceable(path: Path, *signs: bytes) -> None:
    """That what is written to `path` replaces nothing but what was written before: a file that has
    one of `signs` in its first 256 bytes, or is empty. Raises UserError, OSError."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(256)
        if head and not any(sign in head for sign in signs):
            raise UserError(f"{path} is there, and is not such a file: name another, or remove it")


def with_type(kind: str | None, message: str) -> str:
    """An exception as it is shown, "ValueError: …". The sentence of an error that the person can
    correct says all; the name of its class does not help."""
    if kind in (None, message, UserError.__name__, SpecError.__name__, "TaskError"):
        return message
    return f"{kind}: {message}"


def own_fault(message: str) -> bool:
    """Whether this rank itself is to blame for an error of NCCL's, though it looks like one of the
    connection to a peer."""
    signs = ("ncclinvalid", "invalid usage", "duplicate gpu", "ncclunhandledcuda", "cuda error",
             "out of memory")
    return any(sign in message.lower() for sign in signs)
