"""What a rank imports keeps to Python 3.9: in its syntax, and in what it takes from the standard
library. Whether it also runs there is what `make matrix` finds out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpu_engine.common import floors, hints

from .matrix import combinations, table
from .test_walls import ENGINE, TORCH, imported_modules, our_modules

NEWER = {
    "tomllib": "", "annotationlib": "", "compression": "", "string.templatelib": "",
    "asyncio": "timeout TaskGroup Runner", "collections.abc": "Buffer",
    "contextlib": "aclosing chdir", "copy": "replace", "datetime": "UTC",
    "enum": "StrEnum verify member nonmember", "functools": "Placeholder",
    "hashlib": "file_digest", "inspect": "get_annotations markcoroutinefunction",
    "itertools": "pairwise batched", "math": "cbrt exp2 sumprod fma", "operator": "call is_none",
    "os": "eventfd splice process_cpu_count", "statistics": "correlation covariance",
    "sys": "orig_argv exception monitoring stdlib_module_names",
    "types": "UnionType NoneType EllipsisType get_original_bases",
    "typing": "TypeGuard ParamSpec Concatenate TypeAlias Self Never LiteralString Required Unpack "
              "NotRequired TypeVarTuple assert_never assert_type reveal_type override TypeIs "
              "ReadOnly dataclass_transform get_overloads is_typeddict"}
"""Module → what came to it after Python 3.9, of what we might use; "": all of it."""
NAMES = {"ExceptionGroup", "BaseExceptionGroup", "EncodingWarning", "aiter", "anext"}
KEYWORDS = {"zip": {"strict"}, "dataclass": {"slots", "kw_only", "match_args", "weakref_slot"},
            "rmtree": {"onexc"}, "Popen": {"process_group"}, "run": {"process_group"},
            "glob": {"case_sensitive", "recurse_symlinks"}, "rglob": {"case_sensitive"},
            "NamedTemporaryFile": {"delete_on_close"}, "bisect_left": {"key"},
            "bisect_right": {"key"}, "bisect": {"key"}, "insort": {"key"}, "map": {"strict"}}
METHODS = {"add_note", "bit_count", "hardlink_to", "walk_up", "is_junction", "shutdown_queue"}
BUILTIN = {"int", "float", "str", "bool", "bytes", "list", "tuple", "dict", "set", "type", "object",
           "None"}
NOT_THE_RANKS = ("gpu_engine.worker.without_supervisor", "gpu_engine.worker.restarts")
"""Of a rank that reads a preset itself, for which all of gpu-panel is installed beside it."""


def rank_modules() -> dict[str, Path]:
    """Every module that a rank, an observed script or a question to the ranks' interpreter loads,
    by late imports too."""
    known = our_modules()
    ahead = [name for name in known if name.split(".")[1:2] and name.split(".")[1] in TORCH
             and name not in NOT_THE_RANKS]
    found: dict[str, Path] = {"gpu_engine": known["gpu_engine"]}
    while ahead:
        name = ahead.pop()
        found[name] = known[name]
        ahead += [m for m in imported_modules(name, known[name], known)
                  if m not in found and m not in NOT_THE_RANKS]
    return found


def newer(text: str) -> list[str]:
    """What in a module's source Python 3.9 does not have, each with its line."""
    try:
        tree = ast.parse(text, feature_version=(3, 9))
    except SyntaxError as err:
        return [f"{err.lineno}: {err.msg}"]
    annotations = {id(inner) for node in ast.walk(tree) for one in (
        getattr(node, "annotation", None), getattr(node, "returns", None)) if one is not None
        for inner in ast.walk(one)}
    guarded = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If)
               and ("TYPE_CHECKING" in (asked := ast.unparse(node.test))
                    or asked.startswith("sys.version_info >="))
               for part in node.body for inner in ast.walk(part)}
    guarded |= {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try)
                and any("ImportError" in ast.unparse(h.type or node) for h in node.handlers)
                for part in node.body for inner in ast.walk(part)}
    return [f"{node.lineno}: {ast.unparse(node)[:60]}" for node in ast.walk(tree)
            if id(node) not in annotations and id(node) not in guarded and _is_newer(node)]


def _is_newer(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(NEWER.get(a.name) == "" for a in node.names)
    if isinstance(node, ast.ImportFrom):
        found = NEWER.get(node.module or "") if not node.level else None
        return found == "" or bool(found and {a.name for a in node.names} & {*found.split()})
    if isinstance(node, ast.Attribute):
        of = ast.unparse(node.value)
        return node.attr in METHODS or node.attr in NEWER.get(of, "").split()
    if isinstance(node, ast.Name):
        return node.id in NAMES
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # a type, no number or set
        return any(ast.unparse(side) in BUILTIN for side in (node.left, node.right))
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("isinstance", "issubclass") and len(node.args) == 2:
            return isinstance(node.args[1], ast.BinOp)
        return any(k.arg in KEYWORDS.get(name, ()) for k in node.keywords)
    return False


def test_what_a_rank_imports_is_python_3_9():
    found = rank_modules()
    assert len(found) > 90
    wrong = {name: said for name, file in found.items() if (said := newer(file.read_text()))}
    # `read_toml` is called where presets are read, never by a rank with a plan.
    (allowed,) = wrong.pop("gpu_engine.spec.read")
    assert allowed.endswith(": import tomllib")
    assert wrong == {}


@pytest.mark.parametrize("text", [
    "match x:\n    case 1: pass", "try: pass\nexcept* E: pass", "type X = int",
    "zip(a, b, strict=True)", "@dataclass(frozen=True, slots=True)\nclass A: pass",
    "isinstance(x, int | float)", "isinstance(x, A | B)", "Alias = int | None",
    "from itertools import pairwise", "itertools.pairwise(a)", "import tomllib",
    "from datetime import UTC", "raise ExceptionGroup('', [])", "err.add_note('')",
    "sys.orig_argv", "def f():\n    import tomllib"])
def test_what_python_3_9_does_not_have_is_seen(text):
    assert newer(text)


@pytest.mark.parametrize("text", [
    "from __future__ import annotations\ndef f(x: int | None) -> str | None: y: int | None = 1",
    "if TYPE_CHECKING:\n    from typing import TypeGuard", "a = {'b': 1} | c", "a |= 1",
    "try:\n    import tomllib\nexcept ImportError:\n    pass",
    "flags = os.O_RDONLY | os.O_CLOEXEC"])
def test_what_python_3_9_has_is_not_refused(text):
    assert newer(text) == []


def test_the_rank_says_that_its_python_is_too_old():
    """Its file can be read by any Python, here one that says that it is 3.8."""
    file = ENGINE / "worker" / "__main__.py"
    code = textwrap.dedent(f"""
        import sys
        sys.version_info = (3, 8, 18)
        exec(compile(open({str(file)!r}).read(), "rank", "exec"))""")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 2
    assert done.stderr == f"{sys.executable} is Python 3.8.18, and ranks need Python 3.9 or newer\n"
    text = file.read_text()
    assert text.isascii()
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.JoinedStr)
                or (isinstance(n, ast.ImportFrom) and n.module == "__future__")]


def test_both_floors_are_the_same():
    assert f"sys.version_info < {floors.PYTHON}" in (ENGINE / "worker" / "__main__.py").read_text()


@pytest.mark.parametrize(("version", "said"), [
    ("2.1.2+cu121", "torch 2.1.2+cu121 is too old: ranks need torch 2.2 or newer"),
    ("1.13.1", "torch 1.13.1 is too old: ranks need torch 2.2 or newer"),
    ("2.2.0", None), ("2.13.0+cpu", None), ("3.0.0a0+git1", None), ("unknown", None)])
def test_a_torch_that_is_too_old(version, said):
    assert floors.torch_too_old(version) == said


@pytest.mark.parametrize(("version", "said"), [
    ((3, 8, 18), "is Python 3.8.18, and ranks need Python 3.9 or newer"), ((3, 9, 0), None),
    ((4, 0, 0), None)])
def test_a_python_that_is_too_old(version, said):
    assert floors.python_too_old(version) == said


def test_hints_are_the_same_without_the_help_of_typing():
    """What Python 3.9 evaluates by itself is what newer ones get from `get_type_hints`."""
    from gpu_engine.plan.records import LaunchPlan
    from gpu_engine.spec.schema import SECTIONS

    for cls in (LaunchPlan, *SECTIONS.values()):
        assert hints._each(cls, forgiving=False) == hints.hints_of(cls)


def test_the_workflow_and_the_page_have_every_combination():
    root = Path(__file__).parents[1]
    workflow = (root / ".github" / "workflows" / "matrix.yml").read_text()
    wanted = [*(f"ranks --only {python}x{torch}" for python, torch in combinations.RANKS),
              *(f"panel --only {python}" for python in combinations.PANEL)]
    assert re.findall(r'"((?:ranks|panel) --only [^"]+)"', workflow) == wanted
    page = table.DOC.read_text()
    assert page.partition(table.BEGIN)[2].partition(table.END)[0] == table.rendered(table.read())
