"""Names that libraries keep to themselves are used only where this says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from .private_names import Finder

ROOT = Path(__file__).parents[1]
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_replace", "_thread",
              "_values"}
"""Names with an underscore that are documented all the same: sys._current_frames, os._exit, those
of named tuples, sys._getframe, the module _thread, the values of a sparse tensor."""
OURS = {"_compared"}
"""Put on a class by `common/records.py`."""

ENGINE = {
    "torch, in any rank": {
        "engine/gpu_engine/worker/rank/torch_private.py": {
            "_ddp_params_and_buffers_to_ignore", "_dump_fr_trace_json", "_dump_nccl_trace_json",
            "_foreach_mul_", "_lazy_call", "_profiler_enabled", "_record_memory_history",
            "_snapshot"},
    },
    "torch, in a script of the person's own": {
        "engine/gpu_engine/observe/exit_hooks.py": {"_wrap"},
        "engine/gpu_engine/observe/findings.py": {"_get_sequence_number_for_group"},
        "engine/gpu_engine/observe/gradients.py": {"_version"},
        "engine/gpu_engine/observe/install.py": {"_builtin_ops", "_builtins", "_scale"},
        "engine/gpu_engine/observe/loss.py": {"_C", "_local_tensor", "_sequence_nr"},
        "engine/gpu_engine/observe/observer.py": {
            "_C", "_current_graph_task_id", "_foreach_norm"},
        "engine/gpu_engine/observe/wrap.py": {
            "_C", "_FrameAction", "_FrameExecStrategy", "_dynamo"},
    },
}
"""By library: the files that use such names, and which. The file says what each buys, and what
happens where it is gone."""
TEXTUAL = {"tui/gpu_panel/textual_private.py": {"_skip", "_writer_thread"}}
"""The same of the panel, all of it Textual's; panel/test_private_names.py also finds what overrides
a method that Textual keeps to itself."""
ALLOWED = {**TEXTUAL, **{file: names for files in ENGINE.values() for file, names in files.items()}}


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    finder = Finder([ROOT / "engine" / "gpu_engine", ROOT / "tui" / "gpu_panel"])
    return {str(file.relative_to(ROOT)): names - DOCUMENTED - OURS
            for file, names in finder.foreign().items()}


def test_private_names_stand_where_they_are_listed(found):
    new = {file: names - ALLOWED.get(file, set()) for file, names in found.items()}
    assert not {file: names for file, names in new.items() if names}


def test_nothing_is_listed_that_is_not_used_any_more(found):
    old = {file: names - found.get(file, set()) for file, names in ALLOWED.items()}
    assert not {file: names for file, names in old.items() if names}


@pytest.mark.parametrize("line", [
    "import torch\ntorch._C.x()", "from torch._dynamo import config", "import torch._dynamo",
    "from multiprocessing import process\nprocess.current_process()._config['a'] = 1",
    "import os\ngetattr(os, '_wrap')", "import os\nsetattr(os, '_wrap', 1)", "import os\nos._x = 1",
    "import importlib\nimportlib.import_module('torch._dynamo')",
    "from textual.app import App\nclass A(App):\n    def x(self):\n        self._driver.write('')"])
def test_each_way_to_reach_one_is_found(tmp_path, line):
    (tmp_path / "a.py").write_text(line)
    (tmp_path / "b.py").write_text("def _wrap(): ...")
    assert Finder([tmp_path]).foreign()[tmp_path / "a.py"]


@pytest.mark.parametrize("line", [
    "class A:\n    _x = 1\n    def y(self):\n        return self._x",
    "class A:\n    def __init__(self):\n        self._x = 1\ndef f(a): return a._x",
    "from gpu_engine.base import Base\nclass A(Base):\n    def y(self): return self._of_base",
    "from .base import Base\nclass A(Base):\n    def y(self): return self._of_base",
    "from . import base\ndef f(b: base.Base): return b._of_base"])
def test_names_of_our_own_are_not_taken_for_others(tmp_path, line):
    package = tmp_path / "gpu_engine"
    package.mkdir()
    (package / "base.py").write_text("class Base:\n    _of_base = 1")
    (package / "a.py").write_text(line)
    assert not Finder([package]).foreign()[package / "a.py"]
