"""Programs that end, print, fork or fail in unusual ways. The panel sees what it can and changes
nothing, and none of its own errors reach the program."""

from __future__ import annotations

import ast
import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader, IterableDataset

from gpu_engine.cli import cli
from gpu_engine.events import schema
from gpu_engine.observe.loss import Losses
from gpu_engine.observe.observer import Observer
from gpu_engine.observe.recorder import ScriptRecorder
from gpu_engine.plan.own_command import HOOK
from gpu_engine.runs import folder as runs
from gpu_engine.runs.follow import Follower

from .. import event_lines
from .kit import PYTHON, SCRIPTS, Alone, Ran, engine_run, observe

QUICK = f"import sys; sys.path.append({str(SCRIPTS)!r}); import quick, torch\n"
FIVE = [1.21676779, 0.442564756, 0.360280454, 0.206805378, 0.120234087]

ANEW = ("binary,chdir,fork,threads", "no torch")
"""What is compared with an interpreter that has started anew, as these print what it has loaded."""


@pytest.mark.parametrize(("how", "state", "outcome"), [
    ("binary,chdir,fork,threads", "completed", "completed"),
    ("raise", "failed", "failed"), ("exit", "failed", "failed"), ("kill", "failed", "failed"),
    ("hook", "failed", "failed"), ("no torch", "failed", "failed")])
def test_it_ends_and_prints_as_without_the_panel(home, how, state, outcome):
    seen = observe("odd.py", how, bare=how not in ANEW)
    if how in ANEW:
        alone = subprocess.run([PYTHON, str(SCRIPTS / "odd.py"), how], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=600,
                               env=os.environ | {"PYTHONUNBUFFERED": "1"})
        seen = replace(seen, bare=alone)
    seen.same_as_without()
    assert seen.state["state"] == state
    assert seen.events()[-1] | {"t": 0} == {
        "t": 0, "kind": "end", "outcome": outcome, "steps": seen.events()[-1]["steps"],
        "seconds": seen.events()[-1]["seconds"]}
    if how not in ("kill", "no torch"):  # what happened in its last tenth of a second is lost
        assert seen.losses() == seen.printed()
        assert seen.losses()[:5] == pytest.approx(FIVE)
    assert len(seen.of("start")) == 1
    assert not seen.of("warning")
    errors = {"raise": "RuntimeError", "hook": "KeyError"}
    assert [e["type"] for e in seen.of("error")] == [errors[how] for _ in "1" if how in errors]
    if how in errors:
        assert "odd.py" in seen.of("error")[0]["traceback"]
        assert "gpu_engine" not in seen.of("error")[0]["traceback"]
        assert seen.state["cause"]["type"] == errors[how]
    if how == "exit":
        assert seen.state["reason"] == "rank 0: exited with 3"


def test_files_that_get_the_numbers_of_ours_hold_what_the_script_wrote(home):
    seen = observe("descriptors.py", "all")
    seen.same_as_without()
    assert "it fails plainly" in seen.log()
    assert seen.state["reason"] == "rank 0: exited with 1"
    assert len(seen.losses()) == 5
    assert seen.losses() == seen.printed()
    assert not seen.of("warning")


def test_nothing_follows_the_end_of_a_rank(tmp_path):
    """Its thread may come late, on a machine that is busy."""
    (tmp_path / "ranks").mkdir()
    run = runs.Run(tmp_path)
    recorder = ScriptRecorder(run.events(0), tmp_path, Losses())
    recorder.close()
    recorder.write(schema.End("completed", 0, 0.0))
    recorder.tick()
    assert event_lines.read(run.events(0))[-1]["kind"] == "end"


def test_a_second_process_of_the_same_rank_has_a_record_of_its_own(home):
    seen = observe("odd.py", "helper", bare=False)
    assert len(seen.losses()) == 6
    assert seen.run.ranks() == [0, 1]
    (start,) = seen.of("start", 1)
    assert (start["as_rank"], start["process"], start["world_size"]) == (0, 2, 1)
    assert len(seen.losses(1)) == 5
    assert len(seen.of("start")) == 1
    assert "as_rank" not in seen.of("start")[0]


def test_several_processes_that_share_a_model_are_shown_as_such(home):
    """Hogwild: each process has its own steps and losses; the run counts the steps of one."""
    seen = observe("hogwild.py", bare=False)
    assert seen.state["state"] == "completed", seen.log()
    assert seen.run.ranks() == [0, 1, 2]
    printed = {tuple(seen.printed(f"process {i} loss")) for i in range(3)}
    assert {tuple(seen.losses(rank)) for rank in range(3)} == printed
    assert {e["process"] for rank in (1, 2) for e in seen.of("start", rank)} == {2, 3}
    shown = CliRunner().invoke(cli, ["show", seen.run.id]).output
    assert "rank 2 (process 3 of rank 0)  completed" in shown
    follower = Follower(seen.run)
    while follower.poll():  # one stops when its time is up, and has not begun some ranks then
        pass
    assert follower.progress().step == follower.ranks[0].step
    assert [v.label for v in follower.ranks.values()] == ["0", "0.2", "0.3"]


def test_an_error_is_written_before_what_takes_longer_as_its_launcher_may_end_it(tmp_path):
    observer = Observer(tmp_path, lambda _: None)
    observer.rec = rec = Mock()
    observer.failed(ValueError("a reset connection"))
    calls = [name for name, *_ in rec.method_calls]
    assert calls.index("write") < calls.index("write_failure")


@pytest.mark.parametrize(("collate", "told"), [
    (None, "the first has 3"), (lambda rows: torch.ones(1, 8), None)], ids=["stacks", "packs"])
def test_the_first_batch_of_a_stream_says_how_large_they_are_where_examples_are_stacked(
        tmp_path, collate, told):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(3, 2))

    observer = Observer(tmp_path, lambda _: None)
    loader = DataLoader(Stream(), batch_size=4, collate_fn=collate)
    with suppress(TypeError):  # a stream has no length, as whoever calls this knows
        observer.iterated(loader)
    observer.loaded(id(loader), next(iter(loader)))
    small = observer._small.get(id(loader))
    assert small is None if told is None else told in small.message


def test_the_persons_own_sitecustomize_comes_after_ours(home, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("MARK = 'my own'\nprint('early', __name__)\n")
    seen = observe("odd.py", "sitecustomize", env={"PYTHONPATH": str(tmp_path)})
    seen.same_as_without()
    assert seen.log().startswith("early sitecustomize\n")
    assert f"my own {tmp_path}" in seen.log()
    assert len(seen.losses()) == 5


UPLOADS = QUICK + """
import atexit, os, time
import show
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(16, 8)).mean().backward()
    optimizer.step()
def upload():
    until = time.monotonic() + 60
    while '"phase":"done"' not in open(os.environ["GPU_PANEL_RUN"] + "/ranks/00000.jsonl").read():
        assert time.monotonic() < until
        time.sleep(0.02)
    print("uploaded")
atexit.register(upload)
"""


def test_what_a_script_does_after_its_last_line_is_no_training(home, tmp_path):
    (tmp_path / "uploads.py").write_text(UPLOADS)
    seen = observe(str(tmp_path / "uploads.py"), bare=False)
    assert seen.state["state"] == "completed"
    assert "uploaded" in seen.log().splitlines(), seen.log()


HOLDS = """
import os, signal, sys, time, torch
class Holder:
    def __init__(self, path):
        self.me, self.file = self, open(path, "w")
        self.file.write("all of it")
    def __del__(self, say=os.write):
        say(1, b"taken apart")
holder = Holder(sys.argv[1])
"""


@pytest.mark.parametrize(("last", "state"), [
    ("raise KeyError", "failed"),
    # Python sleeps on if SIGINT comes between its letting the GIL go and the call of the kernel.
    ("os.kill(os.getppid(), signal.SIGTERM)\nwhile True: time.sleep(0.1)", "stopped")])
@pytest.mark.usefixtures("whole_torch")
def test_what_a_script_has_not_closed_is_written_at_its_end(home, tmp_path, last, state):
    """One that is stopped does not wait until Python has taken torch apart, object by object."""
    (tmp_path / "holds.py").write_text(HOLDS + last)
    seen = observe(str(tmp_path / "holds.py"), str(tmp_path / "out"), bare=False)
    assert seen.state["state"] == state
    assert (tmp_path / "out").read_text() == "all of it"
    assert ("taken apart" in seen.log()) == (state == "failed")


@pytest.mark.parametrize("body", ["raise ValueError('mine')", QUICK], ids=["ValueError", "torch"])
def test_a_sitecustomize_that_fails_fails_as_alone(tmp_path, body):
    (tmp_path / "sitecustomize.py").write_text(body)
    (tmp_path / "run").mkdir()

    def outcome(*path):
        return subprocess.run([PYTHON, "-c", "import sys; print('on', 'torch' in sys.modules)"],
                              capture_output=True, text=True, timeout=600, env=os.environ | {
                                  "PYTHONPATH": os.pathsep.join(path), "GPU_PANEL_RANK": "0",
                                  "GPU_PANEL_RUN": str(tmp_path / "run")})

    alone, observed = outcome(str(tmp_path)), outcome(HOOK, str(tmp_path))
    assert (alone.stdout, alone.stderr, alone.returncode) \
        == (observed.stdout, observed.stderr, observed.returncode)


def test_a_python_without_the_hook_runs_with_a_warning(home):
    run, state = engine_run("--devices", "cpu:0", "--", PYTHON, "-I", "-c", "print('quiet')")
    assert state["state"] == "completed"
    assert run.log(0).read_text() == "quiet\n"
    assert "only the output of this process can be shown" in run.events(0).read_text()


@pytest.mark.parametrize(("how", "told", "ends"), [
    ("raise", "rank 0 failed at step 5 with RuntimeError: ", ["failed"]),
    ("kill", "did not reach the end of the script: killed", [])])
def test_what_failed_below_a_command_that_ended_well_is_told(home, how, told, ends):
    run, state = engine_run("--devices", "cpu:0", "--", "bash", "-c",
                            f"{PYTHON} {SCRIPTS / 'odd.py'} {how} | cat")
    assert (state["state"], state["exit_code"]) == ("completed", 0)
    (notice,) = state["warnings"]
    assert (notice["code"], notice["rank"]) == ("rank-lost", 0)
    assert told in notice["message"]
    assert notice["cure"][0].startswith("set -eo pipefail")
    assert [e["outcome"] for e in Ran(run, state, None).of("end")] == ends
    assert notice["message"] in CliRunner().invoke(cli, ["show", run.id]).output


def test_a_loader_without_a_batch_is_told(home):
    code = QUICK + """
for x in torch.utils.data.DataLoader(torch.zeros(10), batch_size=32, drop_last=True):
    pass
"""
    _, state = engine_run("--devices", "cpu:0", "--", PYTHON, "-c", code)
    assert [n["code"] for n in state["warnings"]] == ["no-batch"]
    assert "10 examples, batch_size=32 and drop_last=True" in state["warnings"][0]["message"]


def test_a_file_that_could_not_be_saved_on_a_full_disk_is_named(home, tmp_path):
    """torch's own words are "unexpected pos 832 vs 726"."""
    code = QUICK + f"""
import os, types
torch.optim.SGD([torch.ones(3, requires_grad=True)], 0.1).step()
os.statvfs = lambda path: types.SimpleNamespace(f_bavail=2, f_frsize=4096)
def full(file):
    raise RuntimeError("unexpected pos 832 vs 726")
torch.serialization._open_zipfile_writer = full
torch.save(3, {str(tmp_path / 'm.pt')!r})
"""
    _, state = engine_run("--devices", "cpu:0", "--", PYTHON, "-c", code)
    assert state["reason"].startswith(f"rank 0: no space left on the disk of {tmp_path}/m.pt (")


def faulty(tmp_path, *, forked=True, code=""):
    """Run a script's process under the hook, in a run folder made by hand. Returns what it printed
    and the contents of observe-errors.log."""
    run = tmp_path / "run"
    (run / "ranks").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.append({str(SCRIPTS)!r})\n{code}\n"
                      "import quick\n"
                      + (SCRIPTS / "plain.py").read_text())
    env = {"GPU_PANEL_RUN": str(run), "GPU_PANEL_RANK": "0"}
    alone = Alone(str(script))
    if forked:
        seen = Alone(str(script), env=env, site=HOOK).done()
    else:
        seen = subprocess.run([PYTHON, str(script)], stdout=subprocess.PIPE, timeout=600,
                              stderr=subprocess.STDOUT, env=os.environ | env | {"PYTHONPATH": HOOK})
    bare = alone.done()
    assert (seen.stdout, seen.returncode) == (bare.stdout, bare.returncode)
    errors = run / "observe-errors.log"
    return runs.Run(run), errors.read_text() if errors.exists() else ""


def test_values_can_be_logged_where_gpu_panel_is_not_installed(tmp_path):
    run, _ = faulty(tmp_path, code='''
import os
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "gpu_engine"))]
if "GPU_PANEL_RUN" in os.environ:
    import quick
    from atexit import register
    sys.meta_path[:] = [f for f in sys.meta_path if "ditable" not in str(f)]
    def end():
        import gpu_engine
        gpu_engine.log(accuracy=0.5)
    register(end)
''')
    assert '"accuracy":0.5' in run.events(0).read_text()


NOT_RECORDED = "nothing is recorded of a process that has not imported torch"
LOGS = """
import gpu_engine
for n in range(3):
    gpu_engine.log(accuracy=n)
"""


@pytest.mark.parametrize(("in_a_run", "warned"), [(True, True), (False, False)],
                         ids=["without torch", "outside a run"])
def test_values_that_are_not_recorded_are_said_to_be(tmp_path, in_a_run, warned):
    env = {k: v for k, v in os.environ.items() if k != "GPU_PANEL_RUN"}
    done = subprocess.run([PYTHON, "-c", LOGS], capture_output=True, text=True, check=True,
                          env=env | ({"GPU_PANEL_RUN": str(tmp_path)} if in_a_run else {}))
    assert done.stderr.count(NOT_RECORDED) == warned


def test_of_a_process_that_has_torch_nothing_is_said(tmp_path):
    (tmp_path / "logs.py").write_text("import torch\n" + LOGS)
    done = Alone(str(tmp_path / "logs.py"), env={"GPU_PANEL_RUN": str(tmp_path)}).done()
    assert (done.stdout, done.returncode) == (b"", 0)


def test_a_folder_that_is_gone_is_no_problem_of_the_scripts(tmp_path):
    _, errors = faulty(tmp_path, code="""
import os, shutil
shutil.rmtree(os.environ.get('GPU_PANEL_RUN', '/nowhere') + '/ranks', True)
""")
    assert "FileNotFoundError" in errors


def test_errors_in_each_of_our_parts_are_noted_until_observing_ends(tmp_path):
    run, _ = faulty(tmp_path, code="""
import quick
if "_gpu_panel" in sys.modules:
    here = sys.modules["_gpu_panel.observe.loss"]
    def bad(*args):
        raise RuntimeError("a fault of ours")
    here.Losses.add = here.Losses.take = bad
""")
    text = run.events(0).read_text()
    assert text.count("a fault of ours") == 5
    assert "no longer observed" in text
    assert '"end"' in text


def test_a_package_of_ours_that_is_broken_is_noted(tmp_path):
    _, errors = faulty(tmp_path, code="sys.modules['_gpu_panel.observe'] = None")
    assert "after torch: ModuleNotFoundError" in errors


def test_a_disk_without_room_is_no_problem_of_the_scripts(tmp_path):
    run, _ = faulty(tmp_path, forked=False, code="""
if "GPU_PANEL_RUN" in __import__("os").environ:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    import quick
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
""")
    assert '"step"' not in run.events(0).read_text()


@pytest.mark.parametrize("name", ["GPU_PANEL_RUN", "GPU_PANEL_RANK"])
def test_outside_a_run_the_hook_does_nothing(tmp_path, name):
    (tmp_path / "short.py").write_text(
        "import sys, torch\nprint([m for m in sys.modules if '_gpu_panel' in m],"
        " torch.autograd.backward.__module__)")
    out = Alone(str(tmp_path / "short.py"), site=HOOK,
                env={"GPU_PANEL_RUN": str(tmp_path), "GPU_PANEL_RANK": "0"} | {name: ""}).done()
    assert out.stdout == b"[] torch.autograd\n"


def test_the_hook_has_syntax_for_old_pythons(tmp_path):
    """Its syntax is old, so that a helper script under another Python does not fail in our hook."""
    ast.parse(Path(HOOK, "sitecustomize.py").read_text(), feature_version=(3, 4))
    (tmp_path / "loaded.py").write_text(
        "import sys, torch\n"
        "print(*[m.__file__ for name, m in sys.modules.items() "
        "if name.split('.')[0] == '_gpu_panel'], sep='\\n')\n"
        "assert 'gpu_engine' not in sys.modules")
    out = Alone(str(tmp_path / "loaded.py"), site=HOOK,
                env={"GPU_PANEL_RUN": str(tmp_path), "GPU_PANEL_RANK": "0"}).done()
    assert out.returncode == 0, out.stdout
    loaded = {Path(line) for line in out.stdout.decode().splitlines()}
    observe_room = {path for path in Path(HOOK).parent.glob("*.py") if path.name != "__init__.py"}
    assert len(observe_room) > 8
    assert observe_room < loaded
    for path in loaded:
        ast.parse(path.read_text(), feature_version=(3, 9))
