"""Which interpreter the ranks of a task run in, and why; and what to type where none has torch.

`run.python`, if it is set: it is never replaced. Else the first that has torch of
`choose.in_order`. A command to type names only what can be had: gpu-panel itself is on no
index, the packages that it needs are.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

from gpu_engine.common import floors, paths
from gpu_engine.common.errors import Problem
from gpu_engine.interpreters import inspection
from gpu_engine.interpreters.inspection import Seen
from gpu_engine.plan.own_command import behind_plain_wrappers, is_python, python_of_text
from gpu_engine.plan.records import Interpreter
from gpu_engine.spec.schema import RunSpec

_KEY = "run.python"
_NAMED = 4
"""Interpreters without torch that a sentence names."""


@dataclass(frozen=True, slots=True)
class Passed:
    """An interpreter that was passed over."""

    place: Place
    why: str

    def sentence(self) -> str:
        """For people: "$VIRTUAL_ENV (/home/me/env) has no torch"."""
        return f"{_called(self.place)} {self.why}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The interpreter of the ranks."""

    seen: Seen | None
    """None: none that was found has torch."""
    why: str
    """For people: "run.python", "$VIRTUAL_ENV", "the .venv of /home/me/project"."""
    passed: tuple[Passed, ...] = ()
    """Those before it that can't be used."""
    problem: Problem | None = None
    """Why nothing can be trained with it."""
    doubt: str | None = None
    """What is not certain about it."""
    folder: Path | None = None
    """The folder from which virtual environments were looked for; None: nothing was."""

    @property
    def python(self) -> str | None:
        """Its path, or as run.python names it; None: there is none."""
        return self.seen.path if self.seen is not None else None

    def record(self) -> Interpreter | None:
        """As a plan tells of it; None: there is none."""
        seen = self.seen
        if seen is None:
            return None
        build = seen.build
        return Interpreter(
            seen.path, self.sentence(), ".".join(map(str, seen.version)) if seen.version else None,
            build.version if build else None, build.cuda if build else None,
            build.hip if build else None, str(self.folder) if self.folder is not None else None)

    def sentence(self) -> str:
        """For people: "the .venv of /home/me/project, as $VIRTUAL_ENV (/x) has no torch"."""
        named = [p for p in self.passed if p.place.why.startswith("$") or p.place.stranger]
        return self.why + (f"; {', '.join(p.sentence() for p in named)}" if named else "")


def of_ranks(python: str | None, folder: Path, environ: Mapping[str, str] = os.environ) -> Chosen:
    """The interpreter for the ranks of a task that run in `folder`, an absolute path. Starts
    nothing.

    python: `run.python`. Where no interpreter is known to have torch, it is the first that may.
    """
    if python is not None:
        return _as_set(python, folder)
    passed: list[Passed] = []
    unread: tuple[Place, Seen] | None = None
    for place in in_order(folder, environ):
        if place.stranger:
            passed.append(Passed(place, "belongs to another user; name it in run.python to use it"))
            continue
        seen = inspection.inspect(place.path)
        if seen.has_torch and _too_old(seen) is None:
            return Chosen(seen, place.why, tuple(passed), folder=folder)
        if seen.unread and unread is None:
            unread = place, seen
        else:
            passed.append(Passed(place, _why_not(seen)))
    if unread is not None:
        place, seen = unread
        return Chosen(seen, place.why, tuple(passed), doubt=_doubt(seen), folder=folder)
    return Chosen(None, "", tuple(passed), Problem(_KEY, None, _nothing(passed)))


def of_spec(spec: RunSpec, folder: Path | None = None) -> Chosen | None:
    """What the ranks of a run in `folder` (None: this process's) run in; None for a person's own
    command, which names its interpreter itself."""
    return None if spec.task.use is None else of_ranks(spec.run.python, paths.folder(folder))


def current(folder: Path | None = None) -> Chosen:
    """What a task would run in whose run.python is not set, in `folder`; None: where this process
    is."""
    return of_ranks(None, paths.folder(folder))


def without_torch(command: Sequence[str], python: str, folder: Path) -> str | None:
    """That `python`, in which a person's command would run in `folder`, has no torch, or does not
    say so, as pyenv's, though an environment near by has it, with what to type; None: it has, or
    nothing near by has."""
    seen = inspection.inspect(python)
    if seen.has_torch or (seen.problem is not None and not seen.unread):
        return None
    near = of_ranks(None, paths.folder(folder))
    if near.python is None or inspection.ours(near.python):
        return None
    lacks = "does not say whether it has torch" if seen.unread else "has no torch"
    return f"{python} {lacks}, and {near.why} has it: if the command needs it, type " \
           f"{shlex.join(_with_python(command, near.python, folder))}"


def instead(command: Sequence[str], folder: Path) -> str | None:
    """What to type in `folder` for a command whose program is not on the PATH but in an environment
    near by; None: in none."""
    near = of_ranks(None, paths.folder(folder)).python
    if near is None or inspection.ours(near) \
            or not (is_python(command[0]) or Path(near).with_name(command[0]).exists()):
        return None
    return shlex.join(_with_python(command, near, folder))


def _with_python(command: Sequence[str], python: str, folder: Path) -> list[str]:
    """The command in this Python, as one types it in `folder`."""
    words = behind_plain_wrappers(command)
    # Beside the interpreter lie the scripts that pip has made, such as torchrun.
    there = Path(python).with_name(Path(words[0]).name)
    script = not there.exists() and not is_python(words[0])
    there = there if there.exists() else Path(python)
    if there.is_relative_to(paths.folder(folder)):
        there = there.relative_to(paths.folder(folder))
    if inner := python_of_text(words):
        text = f"{words[2][:inner.start(1)]}{shlex.quote(str(there))}{words[2][inner.end(1):]}"
        return [*command[:len(command) - len(words) + 2], text, *words[3:]]
    return [*command[:len(command) - len(words)], str(there), *words[0 if script else 1:]]


def _as_set(python: str, folder: Path) -> Chosen:
    seen = inspection.inspect(paths.program(python, folder) or python)
    wrong = None if seen.unread else seen.problem
    if _too_old(seen) is not None:
        wrong = f"{_why_not(seen)}; name another interpreter, or install a newer one there"
    elif seen.problem is None and not seen.has_torch:
        into = "name the interpreter of an environment that has it" \
            if _managed(seen.path) else torch_into(seen.path)
        wrong = f"it has no torch: {into}; or leave run.python empty to take an interpreter near " \
                "by that has it"
    # As it was written: a relative path or a bare name is looked up where the ranks start.
    return Chosen(replace(seen, path=python), _KEY, doubt=_doubt(seen) if seen.unread else None,
                  problem=Problem(_KEY, python, wrong) if wrong else None)


def _doubt(seen: Seen) -> str:
    return f"{seen.path}: {seen.problem}: whether it has torch shows when a run starts it"


def _too_old(seen: Seen) -> str | None:
    """Why its Python or its torch is older than what ranks run with; None if neither is."""
    if seen.version is not None and (python := floors.python_too_old(seen.version)):
        return python
    torch = floors.torch_too_old(seen.build.version) if seen.build is not None else None
    return f"has an older torch: {torch}" if torch else None


def _why_not(seen: Seen) -> str:
    if seen.problem is not None:
        return f"can't be used: {seen.problem}"
    return _too_old(seen) or "has no torch"


def _called(place: Place) -> str:
    if place.why.startswith("$"):
        return f"{place.why} ({environment_of(place.path)})"
    if inspection.ours(place.path):
        return own().why
    return place.path if place.why.endswith("the PATH") else place.why


def _nothing(passed: list[Passed]) -> str:
    """What to do where no interpreter has torch."""
    into = next((p.place for p in passed if not p.place.stranger and Path(p.place.path).exists()
                 and not inspection.ours(p.place.path) and _is_environment(p.place.path)), None)
    what = f"{torch_into(into.path)} installs it into {_called(into)}" if into else \
        f"{_torch_here()} makes an environment here that has it"
    said = [p.sentence() for p in passed]
    if len(said) > _NAMED:
        said = [*said[:_NAMED], f"{len(said) - _NAMED} more have none either"]
    return (f"no interpreter near by has torch, which ranks need. {what}; or name one that has "
            f"it, as in --set run.python=/path/to/env/bin/python ({'; '.join(said)})")


# --- what to type ---------------------------------------------------------------------------------

def torch_into(python: str) -> str:
    """What to type so that this interpreter has torch. uv chooses the build that the driver runs;
    pip takes PyPI's."""
    if inspection.ours(python):
        return _torch_here()
    if _by_uv(python) or shutil.which("uv"):
        return f"uv pip install --python {shlex.quote(python)} torch --torch-backend=auto"
    return _install(python, "torch")


def _torch_here() -> str:
    """What to type so that the folder one is in has an environment with torch, which the runs of
    this folder then take."""
    if shutil.which("uv"):
        return "uv venv && uv pip install torch --torch-backend=auto"
    return "python3 -m venv .venv && .venv/bin/python -m pip install torch"


def extra(name: str) -> str:
    """What to type so that gpu-panel has the package `name` ("mcp>=2"), which an extra of it needs,
    however it was installed."""
    if Path(sys.prefix, "pipx_metadata.json").is_file():
        return f"pipx inject gpu-panel {shlex.quote(name)}"
    if Path(sys.prefix, "uv-receipt.toml").is_file():
        return f"uv tool install --force --with {shlex.quote(name)} {_came_from()}"
    return _install(sys.executable, name)


def _came_from() -> str:
    """Where gpu-panel was installed from, as `uv tool install` takes it: it is on no index."""
    try:
        told = json.loads(metadata.distribution("gpu-panel").read_text("direct_url.json") or "")
        url, git = str(told["url"]), "vcs_info" in told
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return "gpu-panel"
    editable = "--editable " if told.get("dir_info", {}).get("editable") else ""
    place = unquote(url.removeprefix("file://"))
    return editable + shlex.quote(f"git+{url}" if git else place)


def _is_environment(python: str) -> bool:
    """Whether the interpreter is that of a virtual or conda environment."""
    prefix = environment_of(python)
    return (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()


def _managed(python: str) -> bool:
    """Whether the interpreter is the system's, whose pip refuses to install into it (PEP 668)."""
    return not _is_environment(python) and any(
        environment_of(python).glob("lib/python3*/EXTERNALLY-MANAGED"))


def _by_uv(python: str) -> bool:
    """Whether uv has made the interpreter's environment."""
    try:
        return "\nuv =" in "\n" + (environment_of(python) / "pyvenv.cfg").read_text()
    except (OSError, ValueError):
        return False


def _install(python: str, *what: str) -> str:
    if _by_uv(python):  # it has no pip
        return f"uv pip install --python {shlex.quote(python)} {shlex.join(what)}"
    return f"{shlex.quote(python)} -m pip install {shlex.join(what)}"


# --- which there are near by ----------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Place:
    """An interpreter, and why it is considered."""

    path: str
    why: str
    """For people: "$VIRTUAL_ENV", "the .venv of /home/me/project"."""
    stranger: bool = False
    """Whether its environment was made by another user, who could put anything in it: it is not
    started unless a person chooses it."""


def in_order(folder: Path, environ: Mapping[str, str]) -> Iterator[Place]:
    """The interpreters that a run in `folder` is considered for, best first: the active
    environment, the nearest virtual environment upward, the PATH, gpu-panel's own. Those of
    variables are named even if there is nothing."""
    active = [Place(str(Path(prefix) / "bin" / "python"), f"${name}")
              for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
              if (prefix := environ.get(name)) and Path(prefix).is_absolute()]
    upward = (place for above in (folder, *folder.parents) for place in _venvs(above))
    return _each_once([*active, *upward, *_on_path(environ.get("PATH", "")), own()])


def own() -> Place:
    """The interpreter that runs here."""
    return Place(sys.executable, "gpu-panel's own")


def environment_of(python: str) -> Path:
    """The folder of an environment, or of an installation, by its `bin/python`."""
    return Path(python).parent.parent


def _venvs(folder: Path) -> Iterator[Place]:
    for name in (".venv", "venv"):
        if (place := _venv(folder / name)) is not None:
            yield place


def _venv(prefix: Path) -> Place | None:
    """The virtual environment in `prefix`; None if there is none."""
    python = prefix / "bin" / "python"
    try:
        if not python.is_file() or not (prefix / "pyvenv.cfg").is_file():
            return None
        # In a folder such as /tmp anybody may put a .venv above ours.
        owners = {prefix.stat().st_uid, python.parent.stat().st_uid, python.lstat().st_uid}
    except (OSError, ValueError):
        return None
    return Place(str(python), f"the {prefix.name} of {prefix.parent}",
                 stranger=bool(owners - {0, os.geteuid()}))


def _on_path(path: str) -> Iterator[Place]:
    for folder in path.split(os.pathsep):
        if not folder.startswith("/"):  # it would depend on where one is
            continue
        for name in ("python3", "python"):
            python = Path(folder, name)
            if os.access(python, os.X_OK) and python.is_file():
                yield Place(str(python), f"{name} on the PATH")
                break  # the other one is its second name


def _each_once(places: Iterable[Place]) -> Iterator[Place]:
    """Without a second name for an environment's interpreter. A link between environments is no
    second name: what a virtual environment's python links to has other packages."""
    seen: set[tuple[str, str]] = set()
    for place in places:
        folder, name = os.path.split(place.path)
        key = os.path.realpath(folder), os.path.realpath(place.path) or name
        if inspection.ours(place.path):
            key = "", ""
        if key not in seen:
            seen.add(key)
            yield place
