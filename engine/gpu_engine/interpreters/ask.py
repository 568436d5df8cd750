"""What an interpreter has: its Python, and the torch that it would import.

`inspect` asks it. `environment` reads the files of a virtual environment that merely lies near
by, and that nobody has named: it may have come with somebody's repository, so it is started for a
launch and not for a look.

Where an interpreter looks for modules only the interpreter knows: .pth files with code in them,
editable installs, user site-packages, PYTHONPATH, Debian's own folders. So it is started once and
asked, with `find_spec`, which imports no torch. What it has answered holds for some seconds, as a
form asks at every key press.
torch's version is read from the file torch/version.py. That holds plain assignments
(`cuda: Optional[str] = None`, written by PyTorch's tools/generate_torch_version.py), so nothing is
executed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.common.files import open_file
from gpu_engine.common.floors import torch_words

_ASK = """
import sys
sys.path[:] = [p for p in sys.path if p]
import json
try:
    from importlib.util import find_spec
    found = find_spec("torch")
    origin = found.origin if found is not None else None
except Exception:
    origin = None
print("\\n" + json.dumps([list(sys.version_info[:3]), origin]))
"""
"""Finds torch and does not import it. An empty entry of the path would be the folder that it is
asked in, which a rank does not import from."""
_TIMEOUT = 20.0
"""Seconds: long, as a machine on which others train may be busy."""
_MOST = 1 << 16
"""Bytes of a file that are read."""
_EDITABLE = ("its torch is an editable installation, which only the interpreter itself finds: "
             "activate the environment, or name it in run.python")
_GOOD, _ASK_AGAIN = 10.0, 30.0
"""Seconds for which an answer is good, and after which one that did not answer in time is asked
again."""


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
    version: tuple[int, int, int] | None = None
    """Its Python's; None: it was not told."""
    torch: Path | None = None
    """torch/version.py; None: it has no torch, or that was not told."""
    build: Build | None = None
    """What that file says; None: nothing, or nothing of CUDA."""
    problem: str | None = None
    """Why it can't be used or did not answer, for people; None: it answered."""
    slow: bool = False
    """Whether it might have answered with more time."""

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


_known: dict[str, tuple[Seen, float]] = {}
"""What each has answered, and when; monotonic seconds."""


def inspect(python: str) -> Seen:
    """Ask an interpreter, by its path or its name on the PATH. Takes up to twenty seconds; for some
    seconds after that nothing."""
    path = located(python)
    if path is None:
        return _missing(python)
    seen, at = _known.get(path, (None, 0.0))
    if seen is None or time.monotonic() - at > (_ASK_AGAIN if seen.slow else _GOOD):
        seen = _ours(path) if ours(path) else _ask(path)
        _known[path] = seen, time.monotonic()
    return seen


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
    return os.path.abspath(found) if found else None  # noqa: PTH100


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
    return _with_torch(path, sys.version_info[:3], spec.origin if spec else None)


def _ask(path: str) -> Seen:
    try:
        done = subprocess.run([path, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {_TIMEOUT:.0f} s"
        return Seen(path, problem=why, slow=True)
    except OSError as err:
        return Seen(path, problem=f"can't be started: {err.strerror}")
    try:
        version, origin = json.loads(done.stdout.strip().rpartition("\n")[2])
        major, minor, patch = map(int, version)
        return _with_torch(path, (major, minor, patch), origin)
    except (ValueError, TypeError):
        last = clean(done.stderr.strip().rpartition("\n")[2], 200)
        why = "does not answer as a Python does" + (f": {last}" if last else "")
        return Seen(path, problem=why)


def _with_torch(path: str, version: tuple[int, int, int], origin: object) -> Seen:
    """`origin`: torch's own file; of a folder without code, as an uninstallation may leave, there
    is none."""
    if not isinstance(origin, str) or not origin.endswith("__init__.py"):
        return Seen(path, version)
    torch = Path(origin).with_name("version.py")
    return Seen(path, version, torch, _build_of(torch))


def _build_of(file: Path) -> Build | None:
    """What a torch/version.py says, by its assignments; None where it says nothing of CUDA or can't
    be read, as it is taken away meanwhile, or is within a container."""
    try:
        tree = ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError):
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
    cuda, hip = (v if isinstance(v := values.get(name), str) and v else None
                 for name in ("cuda", "hip"))
    return Build(str(values.get("__version__", "?")), cuda, hip)


def environment(python: str) -> Seen:
    """What the virtual environment with this `bin/python` has, by its files: nothing of it is
    executed. Takes less than a millisecond.

    This repeats of `site` what most environments need: .pth files that name folders, and packages
    of the system and of the user where the environment sees them. Code in .pth files, as of an
    editable installation, only the interpreter itself could execute.
    """
    path = located(python)
    if path is None:
        return _missing(python)
    prefix = Path(path).parent.parent
    pairs = (line.partition("=") for line in _text(prefix / "pyvenv.cfg").splitlines())
    settings = {key.strip().lower(): value.strip() for key, _, value in pairs}
    # As `venv` and `virtualenv` write it.
    written = settings.get("version") or settings.get("version_info") or ""
    found = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", written, re.ASCII)
    version = (int(found[1]), int(found[2]), int(found[3])) if found else None
    sites = list(_sites(prefix, settings, version))
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f.startswith("/")]
    named = [site / line.strip() for site in sites for file in sorted(site.glob("*.pth"))
             for line in _text(file).splitlines()
             if line.strip() and not line.startswith(("#", "import ", "import\t"))]
    for folder in (*map(Path, folders), *sites, *named):
        file = folder / "torch" / "version.py"
        if file.is_file() and file.with_name("__init__.py").is_file():
            return Seen(path, version, file, _build_of(file))
    editable = any(any(site.glob("torch-*.dist-info")) for site in sites)
    return Seen(path, version, problem=_EDITABLE if editable else None)


def _sites(prefix: Path, settings: Mapping[str, str], version: tuple[int, int, int] | None
           ) -> Iterator[Path]:
    """The folders with its packages, in the interpreter's order."""
    yield from _packages(prefix, version)
    if settings.get("include-system-site-packages", "").lower() != "true":
        return
    if not os.environ.get("PYTHONNOUSERSITE"):
        user = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")  # noqa: PTH111
        yield from _packages(Path(user), version)
    for root in ("/usr/local", Path(settings.get("home") or "/usr/bin").parent):
        yield from _packages(Path(root), version)


def _packages(root: Path, version: tuple[int, int, int] | None) -> Iterator[Path]:
    names = f"python{version[0]}.{version[1]}" if version else "python3.*"
    for pattern in (f"lib/{names}/site-packages", f"lib64/{names}/site-packages",
                    f"lib/{names}/dist-packages", "lib/python3/dist-packages"):  # Debian's
        yield from sorted(root.glob(pattern))


def _text(file: Path) -> str:
    try:
        with open_file(file) as opened:
            return opened.read(_MOST).decode("utf-8", "replace").replace("\0", "")
    except OSError:
        return ""
