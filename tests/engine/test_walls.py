"""The walls: who may import what. Held by a subprocess that looks at what came in."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE, PANEL = ROOT / "engine" / "gpu_engine", ROOT / "tui" / "gpu_panel"


def modules_after(code: str) -> set[str]:
    out = subprocess.run([sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
                         capture_output=True, text=True, check=True, timeout=150)
    return {name.partition(".")[0] for name in out.stdout.split()}


def imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return found | {"gpu_engine" if n.level else n.module for n in ast.walk(tree)
                    if isinstance(n, ast.ImportFrom) and (n.level or n.module)}


@pytest.mark.parametrize("code", [
    "import gpu_engine", "import gpu_engine.cli", "import gpu_panel.app",
    "import gpu_engine.launch.launcher, gpu_engine.plan.build, gpu_engine.runs.folder",
    "import gpu_engine.events.view",
    "import gpu_engine.supervisor.supervise",
    "import gpu_engine.cli as c\n[c.cli.get_command(None, v) for v in c.cli.list_commands(None)]",
    "from gpu_engine.spec.catalog import builtin\nbuiltin()",
    "from gpu_engine import RunSpec, launch"])
def test_neither_panel_nor_command_line_imports_torch(code):
    assert not modules_after(code) & {"torch", "numpy", "scipy", "sklearn"}


@pytest.mark.parametrize("code", ["import gpu_engine.cli",
                                  "import gpu_engine.supervisor.supervise"])
def test_the_engine_imports_no_screen(code):
    assert not modules_after(code) & {"textual", "rich", "gpu_panel"}


@pytest.mark.parametrize("before", [
    "", "gpu_engine.launch", "import gpu_engine.cli.run", "import gpu_engine.launch.launcher",
    "from gpu_engine.launch import prepare", "from gpu_engine.launch.launcher import prepare",
    "from gpu_engine import launch"])
def test_launch_can_be_called_from_the_package_whatever_was_imported(before):
    """The second use, too: a module of that name takes the place of the function."""
    out = subprocess.run([sys.executable, "-c", f"""
import gpu_engine
from gpu_engine.spec import from_dict
{before}
for _ in range(2):
    try:
        gpu_engine.launch(from_dict({{"task": {{"use": "nowhere:Nothing"}}}}))
    except gpu_engine.common.errors.SpecError as err:
        print(err)
"""], capture_output=True, text=True, timeout=150)
    assert out.stdout.count("nowhere") >= 2, out.stderr


def test_importing_the_package_costs_nothing():
    bare = modules_after("pass")
    assert modules_after("import gpu_engine\ngpu_engine.log(x=1)") - bare <= {
        "gpu_engine", "__future__"}


TORCH = ("worker", "rank", "training", "observe", "tasks")
"""The rooms that may import torch, and never at the import of somebody else."""


def test_only_what_a_rank_executes_names_torch():
    outside = [f for root in (ENGINE, PANEL) for f in root.rglob("*.py")
               if f.relative_to(root).parts[0] not in TORCH]
    assert outside
    assert not [f for f in outside if any(m.partition(".")[0] == "torch" for m in imports(f))]


def test_the_engine_never_names_the_panel():
    assert not [f for f in ENGINE.rglob("*.py")
                if any(m.partition(".")[0] == "gpu_panel" for m in imports(f))]


def test_a_rank_needs_torch_and_the_standard_library_only():
    """What those rooms import, at any depth, is torch, the standard library, or those of our
    modules that hold to the same. The plain command line form may need the whole package."""
    allowed = {"torch", "gpu_engine", "sitecustomize", *sys.stdlib_module_names}
    for folder in TORCH:
        for file in (ENGINE / folder).rglob("*.py"):
            foreign = {m.partition(".")[0] for m in imports(file)} - allowed
            assert not foreign, (file, foreign)
    for name in ("events/schema.py", "common/procs.py", "common/files.py", "__init__.py"):
        foreign = {m.partition(".")[0] for m in imports(ENGINE / name)} - allowed - {"torch"}
        assert not foreign, (name, foreign)


def circles() -> list[set[str]]:
    """Modules of the engine and the panel that import each other, however late and for whatever
    reason: each a set of names."""
    files = {name_of(f): f for root in (ENGINE, PANEL) for f in root.rglob("*.py")}
    graph = {name: set(imported(name, file)) & set(files) - {name}
             for name, file in files.items()}
    reach = {name: after(graph, name) for name in graph}
    found = {frozenset({other for other in reach[name] if name in reach[other]} | {name})
             for name in graph if name in reach[name]}
    return [set(one) for one in found]


def name_of(file: Path) -> str:
    root = ENGINE if ENGINE in file.parents else PANEL
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, file: Path) -> set[str]:
    """What a module may import: of `from a import b`, b where that is a module, else a."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[:len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for a in node.names:
                inner = Path(ENGINE.parent if base.startswith("gpu_engine") else PANEL.parent,
                             *base.split("."), a.name)
                whole = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
                found.add(f"{base}.{a.name}" if whole else base)
    return found


def after(graph: dict[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    queue = [name]
    while queue:
        for other in graph[queue.pop()] - found:
            found.add(other)
            queue.append(other)
    return found


@pytest.mark.parametrize("room", ["common", "events", "plan", "rank", "runs", "spec", "tasks",
                                  "training", "worker"])
def test_no_file_of_a_room_is_part_of_an_import_circle(room):
    assert not [one for one in circles()
                if any(name.startswith(f"gpu_engine.{room}.") for name in one)]
