"""The walls: who may import what. Held by a subprocess that looks at what came in."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE, PANEL = ROOT / "engine" / "gpu_engine", ROOT / "tui" / "gpu_panel"


def modules_after(code: str) -> set[str]:
    out = subprocess.run([sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
                         capture_output=True, text=True, check=True, timeout=600)
    return {name.partition(".")[0] for name in out.stdout.split()}


def imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return found | {"gpu_engine" if n.level else n.module for n in ast.walk(tree)
                    if isinstance(n, ast.ImportFrom) and (n.level or n.module)}


@pytest.mark.parametrize("code", [
    "import gpu_engine", "import gpu_engine.cli", "import gpu_panel.app",
    "import gpu_engine.launching.launcher, gpu_engine.plan.build, gpu_engine.runs.folder",
    "import gpu_engine.events.view",
    "import gpu_engine.supervisor.supervise",
    "import gpu_engine.cli as c\n[c.cli.get_command(None, v) for v in c.cli.list_commands(None)]",
    "from gpu_engine.spec.catalog import builtin\nbuiltin()",
    "from gpu_engine import RunSpec, launch"])
def test_neither_panel_nor_command_line_imports_torch(code):
    assert not modules_after(code) & {"torch", "numpy", "scipy", "sklearn", "mcp", "pydantic"}


@pytest.mark.parametrize("code", ["import gpu_engine.cli",
                                  "import gpu_engine.supervisor.supervise"])
def test_the_engine_imports_no_screen(code):
    assert not modules_after(code) & {"textual", "rich", "gpu_panel"}


@pytest.mark.parametrize("before", [
    "", "import gpu_engine.launching", "import gpu_engine.cli.run",
    "import gpu_engine.launching.launcher", "from gpu_engine.launching.launcher import prepare",
    "from gpu_engine import launch"])
def test_launch_can_be_called_from_the_package_whatever_was_imported(before):
    """The second use, too: a module of that name takes the place of the function."""
    out = subprocess.run([sys.executable, "-c", f"""
import gpu_engine
from gpu_engine.spec import from_dict
{before}
for _ in range(2):
    try:
        gpu_engine.launch(from_dict({{"devices": {{"ids": ["nowhere"]}}}}))
    except gpu_engine.common.errors.SpecError as err:
        print(err)
"""], capture_output=True, text=True, timeout=600)
    assert out.stdout.count("nowhere") >= 2, out.stderr


def test_importing_the_package_costs_nothing():
    bare = modules_after("pass")
    assert modules_after("import gpu_engine\ngpu_engine.log(x=1)") - bare <= {
        "gpu_engine", "__future__"}


TORCH = ("worker", "training", "observe", "tasks")
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
    modules that hold to the same. The plain command line form may need the whole package. To write
    a file of safetensors, which no rank does, its library is asked for."""
    allowed = {"torch", "gpu_engine", "sitecustomize", *sys.stdlib_module_names}
    for folder in TORCH:
        for file in (ENGINE / folder).rglob("*.py"):
            foreign = {m.partition(".")[0] for m in imports(file)} - allowed
            assert foreign <= ({"safetensors"} if file.name == "export.py" else set()), file
    for name in ("events/schema.py", "common/procs.py", "common/files.py", "__init__.py"):
        foreign = {m.partition(".")[0] for m in imports(ENGINE / name)} - allowed - {"torch"}
        assert not foreign, (name, foreign)


def test_a_plan_is_made_without_a_look_at_the_machine():
    """Neither files, processes, sockets nor the clock: the interpreter itself says what was asked
    of the machine while a plan is made, and what of the rest could be is imported by no file."""
    looking = {"socket", "subprocess", "shutil", "time", "datetime", "threading", "psutil",
               "tempfile", "random", "glob", "io", "fcntl", "sys"}
    for file in (ENGINE / "plan").glob("*.py"):
        assert not {m.partition(".")[0] for m in imports(file)} & looking, file
        words = {n.attr for n in ast.walk(ast.parse(file.read_text()))
                 if isinstance(n, ast.Attribute)}
        assert not words & {"stat", "exists", "is_file", "is_dir", "getcwd", "environ", "resolve",
                            "iterdir", "read_text", "open", "home", "access"}, file
    done = subprocess.run([sys.executable, "-c", """
import sys
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan.build import plan
from gpu_engine.spec.read import from_dict

gpu = Device("0", "gpu", "A100", uuid="GPU-0", index=0, memory_total=1 << 36)
slot = Device("cpu:0", "cpu", "CPU 0", cores=(0, 1))
task, command = {"use": "gpu_engine.tasks.digits:Digits"}, {"command": ["python", "train.py"]}
where = {"mode": "multinode", "nodes": 2, "master_addr": "node0", "master_port": 29500}
specs = [({"task": told, "devices": {"ids": [device.id]}, "parallel": parallel},
          Inventory((device,), source))
         for told in (task, command) for parallel in ({"mode": "single"}, where)
         for device, source in ((gpu, "nvml"), (slot, "cpu"))]
for spec, inventory in specs:  # what is imported late
    plan(from_dict(spec), inventory, python="python")
seen = []
sys.addaudithook(lambda event, args: seen.append((event, args)) if watching else None)
watching = True
for spec, inventory in specs:
    plan(from_dict(spec), inventory, python="python")
watching = False
print(len(specs), [(e, a) for e, a in seen if e.split(".")[0] in
                   ("open", "os", "socket", "subprocess", "import", "pathlib", "shutil", "glob")])
"""], capture_output=True, text=True, timeout=600)
    assert done.stdout == "8 []\n", done.stdout + done.stderr


def our_modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for top, root in (("gpu_engine", ENGINE), ("gpu_panel", PANEL)):
        for file in root.rglob("*.py"):
            name = ".".join((top, *file.relative_to(root).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = file
    return found


def imported_modules(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """Which of our modules a file imports: at its top, within a function, for type checkers."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[:len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            for alias in node.names:
                below = f"{base}.{alias.name}"
                found.add(below if below in known else base)
    return {module for module in found if module in known and module != name}


def circles(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Groups of nodes that all lead to each other."""
    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            for module in graph[ahead.pop()] - found:
                found.add(module)
                ahead.append(module)
        return found

    ways = {node: reached(node) for node in graph}
    return sorted({tuple(sorted(b for b in ways[a] if a in ways[b]))
                   for a in graph if a in ways[a]})


def room_of(module: str) -> str:
    """The folder directly below a package that a module is in; its own name at the root.
    `worker/rank/` is a room of its own: training leans on it, the program around it on training. So
    are the three of `remote/`: a launch leans on what reaches a host, and a host on a launch."""
    parts = module.split(".")
    own = parts[1:3] == ["worker", "rank"] or parts[1:2] == ["remote"]
    return ".".join(parts[:3 if own else 2])


def test_no_file_imports_another_in_a_circle():
    known = our_modules()
    graph = {name: imported_modules(name, file, known) for name, file in known.items()}
    assert len(graph) > 200
    assert sum(map(len, graph.values())) > 500
    assert circles(graph) == []


def test_no_room_imports_another_in_a_circle():
    """The packages' own doors (`gpu_engine`, `__main__`) hand on what is in the rooms."""
    known = our_modules()
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        if name.count(".") == 0 or name.endswith("__main__"):
            continue
        found = imported_modules(name, file, known)
        rooms = {room_of(m) for m in found if m.count(".")} - {room_of(name)}
        graph.setdefault(room_of(name), set()).update(rooms)
    assert circles(graph) == []


def test_a_circle_is_seen(tmp_path: Path):
    """Also where one of its imports is made late, and one for type checkers alone."""
    known = {}
    for name, text in {"a": "def f():\n    from x import b", "b": "from . import c",
                       "c": "if TYPE_CHECKING:\n    from x.a import f", "d": "from x import a"
                       }.items():
        known[f"x.{name}"] = tmp_path / f"{name}.py"
        known[f"x.{name}"].write_text(text)
    graph = {name: imported_modules(name, file, known) for name, file in known.items()}
    assert circles(graph) == [("x.a", "x.b", "x.c")]


def test_the_tests_on_a_gpu_need_only_torch_and_pytest():
    """Beside what gpu-panel needs: a machine with GPUs often can't fetch the rest."""
    others = ["accelerate", "hypothesis", "lightning", "nvitop", "pyte",
              "pytest_asyncio", "pytest_timeout", "sklearn", "tensorboardX", "transformers",
              "xdist", "yaml"]
    code = (f"import sys; sys.modules |= dict.fromkeys({others}); import pytest; "
            "sys.exit(pytest.main(['tests/gpu', '--collect-only', '-qq', '-W', 'ignore']))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "tests/gpu/test_gpu.py" in done.stdout
    marked = {file.parent.name for file in (ROOT / "tests").rglob("*.py")
              if "pytest.mark" + ".gpu" in file.read_text()}
    assert marked == {"gpu"}  # others would not be among those of `make test-gpu`
