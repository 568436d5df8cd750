"""What an interpreter has: its Python, and the torch that it would import.

Its files say so, and it is never started for that: the folder, the preset or the agent that names
it may be somebody else's, and to look at a plan starts nothing. This repeats of `site` what most
installations need: virtual and conda environments, packages of the system and of the user,
PYTHONPATH, and .pth files that name folders. Code in .pth files only the interpreter itself could
execute; of an editable installation it is known that it is there. Of a script in place of an
interpreter, as pyenv's, or one that enters a container, nothing is known.

torch's version is read from the file torch/version.py. That holds plain assignments
(`cuda: Optional[str] = None`, written by PyTorch's tools/generate_torch_version.py), so nothing is
executed.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.common.files import open_file
from gpu_engine.common.floors import torch_words

_MOST = 1 << 16
"""Bytes of a file that are read."""
_MOST_NAMED = 1000
"""Folders that .pth files name."""
_LONGEST = 60
"""Characters of a version."""
_UNREAD = "its files do not tell what it has"


@dataclass(frozen=True, slots=True)
class Build:
    """What torch/version.py says."""

    version: str
    cuda: str | None
    """The CUDA that it was built for, "13.0"; None: none."""
    hip: str | None
    """The same of AMD's ROCm."""

    def sentence(self) -> str:
        """For people: "torch 2.13.0+cu130 for CUDA 13.0"."""
        return torch_words(self.version, self.cuda, self.hip)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of an interpreter."""

    path: str
    """Its absolute path."""
    version: tuple[int, ...] | None = None
    """Its Python's, (3, 12) or (3, 12, 4); None: it is not known."""
    torch: Path | None = None
    """torch/version.py, or what pip noted of an editable installation; None: it has no torch, or
    that is not known."""
    build: Build | None = None
    """What that file says; None: nothing, or nothing of CUDA."""
    problem: str | None = None
    """Why it can't be used or is not known, for people; None: what it has is known."""
    unread: bool = False
    """Whether it may have torch although no file says so."""

    @property
    def has_torch(self) -> bool:
        """Whether it would find a torch."""
        return self.torch is not None

    def sentence(self) -> str:
        """For people: "Python 3.12.4, torch 2.13.0+cu130 for CUDA 13.0"."""
        if self.problem is not None:
            return self.problem
        python = "Python " + ".".join(map(str, self.version or ("?",)))
        if not self.has_torch:
            return f"{python}, no torch"
        return f"{python}, {self.build.sentence() if self.build else 'a torch of unknown version'}"


def _missing(python: str) -> Seen:
    """What is said of an interpreter that is not `located`."""
    there = os.path.exists(python)  # noqa: PTH110 - Path's raises for a name that is too long
    return Seen(python, problem="can't be executed" if there else "there is no such interpreter")


def located(python: str) -> str | None:
    """The absolute path of an interpreter that is given by its path or its name; None if there is
    none that can be executed. Links are kept: a virtual environment's python is a link."""
    try:
        found = shutil.which(python)
    except ValueError:
        return None
    # A FIFO may be executable too.
    return os.path.abspath(found) if found and os.path.isfile(found) else None  # noqa: PTH100, PTH113


def ours(path: str) -> bool:
    """Whether this is the interpreter that runs here."""
    own = os.path.abspath(sys.executable)  # noqa: PTH100
    if path == own:
        return True
    # `python` and `python3` of one environment.
    return os.path.dirname(path) == os.path.dirname(own) \
        and os.path.realpath(path) == os.path.realpath(own)  # noqa: PTH120


def _ours(path: str) -> Seen:
    try:
        spec = importlib.util.find_spec("torch")  # of a top-level name: imports nothing
    except (ImportError, ValueError):
        spec = None
    # Of a folder without code, as an uninstallation may leave, there is no file.
    if spec is None or not (spec.origin or "").endswith("__init__.py"):
        return Seen(path, sys.version_info[:3])
    torch = Path(spec.origin or "").with_name("version.py")
    return Seen(path, sys.version_info[:3], torch, _build_of(torch))


def _build_of(file: Path) -> Build | None:
    """What a torch/version.py says, by its assignments; None where it says nothing of CUDA or can't
    be read, as it is taken away meanwhile, or is within a container."""
    try:
        tree = ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    values: dict[str, object] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else \
            [node.target] if isinstance(node, ast.AnnAssign) else []
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            values |= {t.id: value.value for t in targets if isinstance(t, ast.Name)}
    if "cuda" not in values:
        return None
    cuda, hip = (clean(v, _LONGEST) if isinstance(v := values.get(name), str) and v else None
                 for name in ("cuda", "hip"))
    return Build(clean(str(values.get("__version__", "?")), _LONGEST), cuda, hip)


def inspect(python: str) -> Seen:
    """What an interpreter has, by its path or its name on the PATH, in about a millisecond."""
    path = located(python)
    if path is None:
        return _missing(python)
    if ours(path):
        return _ours(path)
    prefix = Path(path).parent.parent
    pairs = (line.partition("=") for line in _text(prefix / "pyvenv.cfg").splitlines())
    settings = {key.strip().lower(): value.strip() for key, _, value in pairs}
    real = os.path.realpath(path)
    named = re.fullmatch(r"python(\d)\.(\d{1,3})t?", os.path.basename(real), re.ASCII)  # noqa: PTH119
    # As `venv` and `virtualenv` write it.
    written = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", settings.get("version")
                       or settings.get("version_info") or "", re.ASCII)
    match = written or named
    version = tuple(map(int, match.groups())) if match else None
    if not settings:
        # Without an environment, its packages are where the program itself is.
        if named is None or _head(real) != b"\x7fELF":
            return Seen(path, problem=_UNREAD, unread=True)
        prefix = Path(real).parent.parent
    sites = list(_sites(prefix, settings, version))
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f.startswith("/")]
    more = (os.path.join(site, line.strip())  # noqa: PTH118
            for site in sites for file in sorted(site.glob("*.pth"))
            for line in _text(file).splitlines()
            if line.strip() and not line.startswith(("#", "import ", "import\t")))
    for folder in (*folders, *sites, *islice(more, _MOST_NAMED)):
        file = Path(folder, "torch", "version.py")
        # Path's raise where a name is too long, or a folder is another user's.
        if os.path.isfile(file) and os.path.isfile(file.with_name("__init__.py")):  # noqa: PTH113
            return Seen(path, version, file, _build_of(file))
    editable = [noted for site in sites for noted in site.glob("torch-*.dist-info")]
    return Seen(path, version, editable[0] if editable else None)


def _sites(prefix: Path, settings: Mapping[str, str], version: tuple[int, ...] | None
           ) -> Iterator[Path]:
    """The folders with its packages, in the interpreter's order. `settings`: those of a virtual
    environment, or none."""
    if settings:
        yield from _packages(prefix, version)
        if settings.get("include-system-site-packages", "").lower() != "true":
            return
        prefix = Path(settings.get("home") or "/usr/bin").parent
    if not os.environ.get("PYTHONNOUSERSITE"):
        user = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")  # noqa: PTH111
        yield from _packages(Path(user), version)
    if prefix == Path("/usr"):  # Debian's
        yield from _packages(Path("/usr/local"), version)
    yield from _packages(prefix, version)


def _packages(root: Path, version: tuple[int, ...] | None) -> Iterator[Path]:
    names = f"python{version[0]}.{version[1]}" if version else "python3.*"
    for pattern in (f"lib/{names}/site-packages", f"lib64/{names}/site-packages",
                    f"lib/{names}/dist-packages", "lib/python3/dist-packages"):  # Debian's
        with suppress(OSError):  # a name is too long
            yield from sorted(root.glob(pattern))


def _head(file: str) -> bytes:
    try:
        with open_file(Path(file)) as opened:
            return opened.read(4)
    except OSError:
        return b""


def _text(file: Path) -> str:
    try:
        with open_file(file) as opened:
            return opened.read(_MOST).decode("utf-8", "replace").replace("\0", "")
    except OSError:
        return ""
