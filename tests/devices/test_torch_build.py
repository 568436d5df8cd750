"""A torch that is built for the processor is found before a launch on a GPU, with what to do.

The interpreters are real: virtual environments that hold a torch of a few files, whose __init__
fails, so that whoever imports it is caught.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError
from gpu_engine.places.verbs import prepare
from gpu_engine.spec.read import from_dict

from ..conftest import gpus, slots

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.own_torch]

CPU = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.13.0+cpu'
debug = False
cuda: Optional[str] = None
hip: Optional[str] = None
"""
CUDA = CPU.replace("+cpu", "+cu130").replace("cuda: Optional[str] = None",
                                             "cuda: Optional[str] = '13.0'")
ROCM = CPU.replace("+cpu", "+rocm7.0").replace("hip: Optional[str] = None",
                                               "hip: Optional[str] = '7.0.51831'")
OLD = "__version__ = '2.4.0'\ndebug = False\ncuda = None\ngit_version = 'x'\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment; call it with what its torch/version.py is to say."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path("
                                "'purelib'))"], capture_output=True, text=True,
                               check=True).stdout.strip())

    def holds(version: str | None) -> str:
        torch = site / "torch"
        torch.mkdir(exist_ok=True)
        for path in torch.iterdir():
            path.unlink()
        if version is None:
            torch.rmdir()
            return str(python)
        (torch / "__init__.py").write_text("raise SystemExit('torch was imported')")
        (torch / "version.py").write_text(version)
        return str(python)

    return holds


def spec(python, *ids, command=None, **sections):
    task = {"command": command} if command else {"use": "gpu_engine.tasks.digits:Digits"}
    return from_dict({"task": task, "devices": {"ids": list(ids)}, "run": {"python": python}}
                     | sections)


@pytest.mark.parametrize(("said", "words"), [
    (CPU, "torch 2.13.0+cpu is built for the processor alone"), (OLD, "torch 2.4.0 is"),
    (ROCM, "built for AMD's ROCm 7.0.51831")])
def test_it_is_refused_with_the_cure(environment, said, words):
    python = environment(said)
    with pytest.raises(SpecError) as caught:
        prepare(spec(python, "0"), inventory=gpus(1))
    (problem,) = caught.value.problems
    assert problem.key == "run.python"
    for part in (words, "can't use an NVIDIA GPU (its driver takes CUDA 13.0)",
                 f"{python} -m pip install --force-reinstall torch", "whl/cu130",
                 "--devices cpu:0"):
        assert part in problem.message
    prepare(spec(python, "cpu:0"), inventory=slots(1))


@pytest.mark.parametrize(("said", "words"), [
    (CPU, "built for the processor alone"), (CUDA, "built for NVIDIA's CUDA 13.0")])
def test_the_same_on_amd(environment, said, words):
    python, machine = environment(said), replace(gpus(1), source="amd", cuda=None)
    with pytest.raises(SpecError) as caught:
        prepare(spec(python, "0"), inventory=machine)
    (problem,) = caught.value.problems
    for part in (words, "can't use an AMD GPU. Install", "whl/rocm"):
        assert part in problem.message
    prepare(spec(environment(ROCM), "0"), inventory=machine)


@pytest.mark.parametrize("said", [CUDA, "", "def cuda(): pass", "cuda = (", "\0"])
def test_what_is_right_or_not_known_is_let_through(environment, said):
    prepare(spec(environment(said), "0"), inventory=gpus(1))


def test_of_ones_own_command_it_is_a_warning(environment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "x.py"):
        (tmp_path / name).touch()
    python = environment(CPU)
    script = tmp_path / "torchrun"
    script.write_text(f"#!{python}\nprint()\n")
    script.chmod(0o755)
    for command in ([python, "train.py"], [str(script), "train.py"], ["env", python, "x.py"]):
        warnings = prepare(spec(None, "0", command=command), inventory=gpus(1)).plan.warnings
        assert any("torch 2.13.0+cpu is built for the processor alone" in w for w in warnings)
    plan = prepare(spec(None, "0", command=["sh", "-c", f"{python} x.py"]), inventory=gpus(1)).plan
    assert not any("torch" in w for w in plan.warnings)


def test_this_interpreters_own_torch_is_read_and_not_imported():
    code = ("from gpu_engine.interpreters.inspection import inspect; import sys; "
            "b = inspect(sys.executable).build; print(b.version, b.cuda, 'torch' in sys.modules)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import torch

    assert said.stdout.split() == [torch.__version__, str(torch.version.cuda), "False"]
