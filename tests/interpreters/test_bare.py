"""gpu-panel as a package, in an environment without torch: what is built installs, and works.

The environment sees the packages that gpu-panel needs through links, and none that is torch's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from .environments import environment

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.own_torch

BUILD = """
import os, sys, tarfile
from hatchling.build import build_sdist, build_wheel
os.chdir(sys.argv[1])
name = build_sdist(sys.argv[2])
with tarfile.open(os.path.join(sys.argv[2], name)) as archive:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
    archive.extractall(sys.argv[2], **safely)
os.chdir(os.path.join(sys.argv[2], name.removesuffix(".tar.gz")))
build_wheel(sys.argv[2])
"""
"""The wheel is made from what the sdist holds, so that this must be whole."""

SMOKE = """
import sys
from click.testing import CliRunner
import gpu_panel.app, gpu_engine.cli
from gpu_panel.__main__ import main as panel
for words in (["--version"], ["presets"], ["plan", "default", "--devices", "cpu:0"],
              ["devices", "--json"], ["runs"], ["describe", "tiny.py:Tiny"]):
    done = CliRunner().invoke(gpu_engine.cli.cli, words)
    print("$", *words, done.exit_code, done.output, done.exception or "")
print("$ panel", CliRunner().invoke(panel, ["--version"]).output)
print("$ files", gpu_engine.__file__, gpu_panel.app.__file__, "torch" in sys.modules)
"""

TASK = """
from dataclasses import dataclass
import torch
from torch import nn
from gpu_engine import Task

@dataclass
class Tiny(Task):
    width: int = 4

    def model(self):
        return nn.Linear(8, 2)

    def train_data(self):
        return torch.utils.data.TensorDataset(torch.ones(64, 8), torch.ones(64).long())

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(ROOT), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def bare(dist: Path) -> Path:
    """The interpreter of an environment in which the wheel is installed, without torch."""
    site = environment(dist / "tool")
    wheel, = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    links = dist / "links"
    links.mkdir()
    own = Path(sysconfig.get_path("purelib"))
    info, = site.glob("*.dist-info")
    for name in needed(metadata.Distribution.at(info)):
        files = metadata.distribution(name).files or ()
        for top in {f.parts[0] for f in files if ".." not in f.parts} - {"__pycache__"}:
            (links / top).symlink_to(own / top)
    (site / "needed.pth").write_text(f"{links}\n")
    return dist / "tool" / "bin" / "python"


def needed(package: metadata.Distribution) -> set[str]:
    """The packages that `package` needs, at any depth, and those of the extras that are named."""
    found: set[str] = set()
    todo: list[tuple[metadata.Distribution, set[str]]] = [(package, set())]
    while todo:
        owner, extras = todo.pop()
        for text in owner.requires or ():
            name, _, more = text.partition("[") if "[" in text.partition(";")[0] else (text, "", "")
            name = re.split(r"[^\w.-]", name)[0]
            condition = re.findall(r"extra == ['\"]([^'\"]+)", text)
            if name in found or (condition and not extras & set(condition)):
                continue
            with contextlib.suppress(metadata.PackageNotFoundError):  # of another platform
                todo.append((metadata.distribution(name), set(more.partition("]")[0].split(","))))
                found.add(name)
    return found


def engine(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(folder), "PATH": "/none", "GPU_PANEL_HOME": str(folder / "home"),
               "GPU_PANEL_SHARED": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(python), *words], cwd=folder, env=environ, text=True,
                          capture_output=True, check=False, timeout=600)


def test_what_is_built_holds_all_of_it_and_needs_no_torch(dist: Path) -> None:
    ours = {str(f.relative_to(root.parent)) for root in (ROOT / "engine" / "gpu_engine",
                                                         ROOT / "tui" / "gpu_panel")
            for f in root.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    ours |= {f"gpu_engine/shipped_presets/{f.name}" for f in (ROOT / "presets").glob("*.toml")}
    wheel, = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        entry = archive.read(next(n for n in names if n.endswith("/entry_points.txt"))).decode()
    assert ours <= names
    about_it = wheel.name.removesuffix("-py3-none-any.whl")
    assert {n.partition("/")[0] for n in names} == {
        "gpu_engine", "gpu_panel", f"{about_it}.dist-info"}
    needs = re.findall(r"^Requires-Dist: (.*)$", about, re.MULTILINE)
    assert "torch<3,>=2.10; extra == 'torch'" in needs
    assert not [n for n in needs if n.startswith("torch") and "extra ==" not in n]
    assert "gpu-engine = gpu_engine.cli:main" in entry
    assert "gpu-panel = gpu_panel.__main__:main" in entry
    sdist, = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {n.partition("/")[2] for n in archive.getnames()}
    assert {"Makefile", "constraints.txt", "README.md", "LICENSE", "tests/conftest.py",
            "docs/install.md"} <= held


def test_without_torch_all_but_training_works(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TASK)
    done = engine(bare, tmp_path, "-c", SMOKE)
    assert done.returncode == 0, done.stderr[-3000:]
    version, presets, plan, devices, runs, task, panel, files = done.stdout.split("\n$ ")
    sentence = ("no interpreter near by has torch, which ranks need. "
                "python3 -m venv .venv && .venv/bin/python -m pip install torch makes an "
                "environment here that has it")
    assert version.startswith("$ --version 0 gpu-engine, version ")
    assert presets.startswith("presets 0 ddp")
    assert plan.startswith("plan default --devices cpu:0 1")
    assert f"run.python: {sentence}; or name one that has it" in plan
    assert devices.startswith("devices --json 0")
    assert json.loads(devices.partition(" 0 ")[2])
    assert runs.startswith("runs 0 ")
    assert "width: int = 4" in task
    assert "gpu-panel, version " in panel
    *paths, imported = files.split()[1:]
    assert all(p.startswith(f"{bare.parents[1]}/lib/") for p in paths)
    assert imported == "False"


def test_what_a_release_is_tried_with_passes(bare: Path) -> None:
    """.ci/try, before each release: it must know the commands and what they say now."""
    for script in metadata.Distribution.at(next(Path(bare.parents[1]).glob(
            "lib/*/site-packages/*.dist-info"))).entry_points:
        file = bare.parent / script.name
        file.write_text(f"#!{bare}\nfrom {script.module} import main\nmain()\n")
        file.chmod(0o755)
    done = subprocess.run([str(ROOT / ".ci" / "try"), str(bare.parents[1])], text=True,
                          capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_ranks_run_in_the_projects_environment(bare: Path, tmp_path: Path) -> None:
    """That has torch and nothing of gpu-panel's: the rank finds the engine by its file."""
    (tmp_path / "tiny.py").write_text(TASK)
    site = environment(tmp_path / ".venv")
    torch = subprocess.run([sys.executable, "-c", "import importlib.util as u; "
                            "print(u.find_spec('torch').origin)"], capture_output=True, text=True,
                           check=True).stdout
    (site / "torch.pth").write_text(f"{Path(torch).parents[1]}\n")
    done = engine(bare, tmp_path, "-m", "gpu_engine", "run", "--json", "--devices", "cpu:0",
                  "--set", "task.use=tiny.py:Tiny", "--set", "train.steps=2",
                  "--set", "batch.size=8")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    run, = (tmp_path / "home" / "runs").iterdir()
    plan = json.loads((run / "plan.json").read_text())
    python = str(tmp_path / ".venv" / "bin" / "python")
    assert plan["processes"][0]["argv"][:2] == [python, str(
        bare.parents[1] / os.path.relpath(site, tmp_path / ".venv") / "gpu_engine" / "worker"
        / "__main__.py")]
    assert plan["interpreter"]["why"] == f"the .venv of {tmp_path}"
    events = (run / "ranks" / "00000.jsonl").read_text()
    assert '"kind":"step"' in events.replace(" ", "")
