"""Who is trusted with what, held by lists of all places in the source: a new one has to be put into
its list, by somebody who has thought about whose word it follows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .test_walls import ENGINE, PANEL

# --- what opens a file for writing ----------------------------------------------------------------

WRITING = {
    "through the one function, as what is there may come from anybody": """
        common/files.py: open in _inside, open in open_inside, open in _replace,
            open_inside in overwrite_inside, write_inside in write_json_inside,
            replace in _replace
        events/writer.py: KeptFile in __init__
        launching/launcher.py: open_inside in supervise
        launching/notifier.py: open_inside in start
        places/hosts.py: open_inside in _fetch
        notify/journal.py: open_inside in acquire
        observe/findings.py: open_inside in _noted_by_another
        observe/identity.py: open_inside in note
        queue/wait.py: write_inside in _planned, write_json_inside in _planned
        runs/attempts.py: write_inside in save
        runs/create.py: open_inside in lock_of, write_inside in _make, write_json_inside in _make,
            write_inside in reopen_run, write_json_inside in reopen_run
        runs/digest.py: write_inside in make
        runs/environment.py: write_json_inside in write
        runs/folder.py: open_inside in _leave_the_line, overwrite_inside in write_state,
            write_json_inside in write_state
        runs/job.py: write_inside in ask_to_stop, write_json_inside in write
        runs/notes.py: write_json_inside in change
        runs/sweep.py: write_json_inside in write
        diagnose/traces.py: write_json_inside in trace
        runs/waiting.py: write_json_inside in write
        places/slurm.py: write_inside in _submit
        on_node/nodes.py: write_json_inside in _sign, write_json_inside in gather
        on_node/nodes.py: write_json_inside in join
        remote/run/link.py: open_inside in append, open_inside in _begin_anew
        remote/run/parts.py: write_json_inside in write
        events/paths.py: open_inside in open_to_append
        supervisor/logs.py: open_inside in _keep, open_inside in bound
        training/checkpoint.py: write_inside in add_metrics
        worker/rank/memory.py: open_inside in write_snapshot
        worker/without_supervisor.py: write_json_inside in _folder""",
    "as that function, where it can't be imported": """
        observe/hook/sitecustomize.py: open in _open""",
    "a new file, under a name of our making, in a folder that was made just now or of no name": """
        code/difference.py: TemporaryDirectory in between
        code/store.py: open in fill, symlink_to in fill
        code/submitted.py: symlink_to in _link_ignored
        export/exporter.py: TemporaryDirectory in optuna, mkstemp in replacing
        training/checkpoint.py: open in write
        training/resuming.py: TemporaryFile in find
        doctor/user_files.py: NamedTemporaryFile in _tried""",
    "the person's own configuration: a link stands for its file": """
        common/files.py: write_atomic in write_json
        remote/reach/hosts.py: write_atomic in _change
        notify/config.py: write_atomic in begin
        settings/file.py: write_atomic in begin
        spec/presets.py: write_atomic in save
        gpu_panel/theme.py: write_json in write""",
    "the person's private home, under a name of our making": """
        cli/mcp.py: open in _alone
        code/store.py: touch in save, write_bytes in save
        devices/use_log.py: open in _append
        launching/fit.py: write_json in remember
        queue/serve.py: open in start_sweep
        remote/there/part.py: open in _alone
        runs/trust.py: write_json in note_started
        runs/waiting.py: open in locked, touch in enter
        slurm/watch.py: open in refresh
        sweep/group.py: overwrite_inside in stop
        sweep/kept.py: write_json_inside in keep
        gpu_panel/common/clipboard.py: write_atomic in copy
        gpu_panel/common/errors.py: open in record""",
    "what the person named on the command line": """
        cli/report.py: write_atomic in command, write_atomic in page
        cli/slurm.py: write_text in command
        training/export.py: open in export
        remote/reach/install_there.py: copytree in main, write_text in main""",
    "a lock or a notice among users, whose owner and mode are looked at": """
        devices/leases.py: open in make, open in alone""",
    "no file of anybody: memory, or /dev/null": """
        cli/__init__.py: open in mistakes_shown
        cli/hold.py: open in _keep
        remote/reach/setup.py: ZipFile in script
        remote/there/wire.py: open in begin"""}
"""Whose file it is, and the places that open such a one: a function that writes, in which of
ours."""

_OURS = {"write_atomic", "write_json", "write_inside", "write_json_inside", "overwrite_inside",
         "write_text", "write_bytes", "symlink_to", "hardlink_to", "touch"}
_OTHERS = {"os": {"link", "symlink", "truncate", "mkfifo", "mknod", "replace", "rename"},
           "shutil": {"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move"},
           "tempfile": {"TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile", "mkstemp",
                        "mkdtemp", "TemporaryDirectory"}}
_READING = {"os", "O_RDONLY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_DIRECTORY"}
_BY_MODE = {"open", "FileIO", "GzipFile", "BZ2File", "LZMAFile", "ZipFile", "TarFile"}


def names_in(node: ast.AST) -> set[str]:
    return {n.attr if isinstance(n, ast.Attribute) else n.id for n in ast.walk(node)
            if isinstance(n, ast.Attribute | ast.Name)}


def writes(call: ast.Call) -> str | None:
    """The name of the function by which this call may write; None: it does not."""
    function, given = call.func, [*call.args, *(k.value for k in call.keywords)]
    if isinstance(function, ast.Attribute):
        name, owner = function.attr, function.value.id if isinstance(function.value, ast.Name) \
            else ""
    else:
        name, owner = getattr(function, "id", ""), ""
    if (owner, name) == ("os", "open"):
        return None if names_in(call.args[1]) <= _READING else name
    if name in ("open_inside", "KeptFile"):
        return name if any(n.startswith("O_") and n not in _READING
                           for a in given for n in names_in(a)) else None
    if name in _BY_MODE:
        modes = [a.value for a in given if isinstance(a, ast.Constant)
                 and isinstance(a.value, str) and set(a.value) <= set("rwaxbt+")]
        return name if any(set("wax+") & set(mode) for mode in modes) else None
    return name if name in _OURS or name in _OTHERS.get(owner, ()) else None


def places(node: ast.AST, within: str = "the module") -> Iterator[str]:
    """"function in function of ours" for each place below `node` that may write."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and (name := writes(child)) is not None:
            yield f"{name} in {within}"
        ours = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from places(child, child.name if ours else within)


def listed(text: str) -> Iterator[str]:
    """The entries of a list above, each as "file: place"."""
    for file, all_of_it in re.findall(r"(\S+\.py): ((?:[^:]|\n)*?)(?=\s+\S+\.py:|\Z)", text):
        yield from (f"{file}: {' '.join(place.split())}" for place in all_of_it.split(","))


def test_every_place_that_opens_a_file_for_writing_is_listed() -> None:
    there = {f"{file.relative_to(root)}: {place}"
             for root, base in ((ENGINE, ENGINE), (PANEL.parent, PANEL))
             for file in base.rglob("*.py") for place in places(ast.parse(file.read_text()))}
    known = [place for text in WRITING.values() for place in listed(text)]
    assert len(known) == len(set(known))
    assert sorted(there - set(known)) == []
    assert sorted(set(known) - there) == []


@pytest.mark.parametrize("code", [
    "open(p, 'w')", "open(p, mode='a')", "p.open('wb')", "os.open(p, os.O_RDWR)",
    "os.open(p, flags)", "os.open(p, os.O_RDONLY | os.O_CREAT)", "p.write_text('')",
    "open_inside(*inside(p), os.O_WRONLY)", "files.write_atomic(p, '')", "shutil.copyfile(a, b)",
    "zipfile.ZipFile(p, 'w')", "os.truncate(p, 3)"])
def test_what_writes_is_seen(code: str) -> None:
    assert list(places(ast.parse(f"def f():\n {code}"))) != []


@pytest.mark.parametrize("code", [
    "open(p)", "open(p, 'rb')", "os.open(p, os.O_RDONLY | os.O_CLOEXEC)", "p.read_text()",
    "open_inside(folder, name)", "text.replace('a', 'b')", "panel.open('x.toml')"])
def test_what_reads_is_not(code: str) -> None:
    assert list(places(ast.parse(code))) == []
