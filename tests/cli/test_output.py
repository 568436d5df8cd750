"""What is printed: through one function, which takes out all that a terminal would obey."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.cli import output
from gpu_engine.common.clean import clean_text, escaped

ROOT = Path(__file__).parents[2]
PRINTERS = {"echo", "secho", "confirm", "prompt", "progressbar", "pause", "style", "getchar",
            "echo_via_pager", "get_text_stream", "get_binary_stream", "clear", "launch", "edit"}
"""click's."""
MAY = {
    "engine/gpu_engine/cli/output.py": "the one place",
    "engine/gpu_engine/worker/start.py": "a rank: its output goes to its log",
    "engine/gpu_engine/worker/rank/recorder.py": "a rank",
    "engine/gpu_engine/worker/without_supervisor.py": "a rank",
    "engine/gpu_engine/worker/__main__.py": "a rank: numbers; Python 2 can read it",
    "engine/gpu_engine/training/export.py": "an answer to the engine, which reads it",
    "engine/gpu_engine/worker/check.py": "an answer to the engine, which reads it",
    "engine/gpu_engine/supervisor/__main__.py": "its log",
    "engine/gpu_engine/sweep/__main__.py": "its log",
    "engine/gpu_engine/sweep/ask.py": "an answer to the engine, which reads it",
    "engine/gpu_engine/on_node/__main__.py": "its log, which Slurm keeps",
    "engine/gpu_engine/remote/run/__main__.py": "its log",
    "tui/gpu_panel/__main__.py": "asks whether there is a stream",
}
"""Files that print past it, each with the reason."""


def prints(text: str) -> list[str]:
    """What in a program's text prints, or hands on a stream."""
    found, questions = [], set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) \
                and node.attr in ("isatty", "flush", "fileno"):
            questions.add(id(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) \
                and node.func.id in ("print", "Console", "input"):
            found.append(f"{node.lineno}: {node.func.id}")
        if isinstance(node, ast.ImportFrom) and node.module == "click":
            found += [f"{node.lineno}: {a.name}" for a in node.names if a.name in PRINTERS]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if (node.value.id == "click" and node.attr in PRINTERS) or (id(node) not in questions \
                    and name in ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")):
                found.append(f"{node.lineno}: {name}")
    return found


def test_nothing_prints_past_it():
    past = {}
    for file in [*(ROOT / "engine").rglob("*.py"), ROOT / "tui" / "gpu_panel" / "__main__.py"]:
        if found := prints(file.read_text()):
            past[str(file.relative_to(ROOT))] = found
    assert {file: found for file, found in past.items() if file not in MAY} == {}
    assert set(MAY) == set(past), "a reason for what prints nothing"


@pytest.mark.parametrize(("text", "shown"), [
    ("a\x1b]52;c;AAAA\x07b", "ab"), ("a\x1b]0;title\x1b\\b", "ab"), ("a\x1b[2J\x1b[Hb", "ab"),
    ("a\x9b2Jb", "ab"), ("a\x9d0;t\x9cb", "ab"), ("a\u202eb\u2066c\u200f", "abc"),
    ("a\x1bP$qm\x1b\\b", "ab"), ("a\x1b[31mred\x1b[0m", "ared"), ("a\tb\nc", "a\tb\nc"),
    ("a\n\x1b]52;c\nb", "a\n\nb"), ("x" * 9000, "x" * 9000), ("é\n\n", "é\n\n"), ("", ""),
    ("one\rtwo", "two"), ("a\x7fb\x00", "ab"), ("\x1b\x1b]52;\x1b]52;c\x07", "")])
def test_lines_and_tabs_stay_and_nothing_else_that_is_obeyed(text, shown):
    assert clean_text(text) == shown
    assert clean_text(shown) == shown


def test_what_cannot_be_seen_is_written_as_in_toml():
    assert escaped('a\x1b"\u202e\U000e0041é') == 'a\\u001b"\\u202e\\U000e0041é'


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_a_question_mark(encoding):
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "plan", "default", "--devices",
                           "cpu:0"], capture_output=True, timeout=600, check=True,
                          env=os.environ | {"PYTHONIOENCODING": encoding})
    assert "per slot × 1".encode(encoding, "replace") in done.stdout


def test_columns_are_as_wide_as_their_widest_cell():
    assert output.table([("mode", "speed"), "a title", ("dp", "1,000")]) == [
        "mode  speed", "a title", "dp    1,000"]
    assert output.table([]) == []
