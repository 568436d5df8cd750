"""Characters for terminals that have only ASCII."""

import ast
import unicodedata
from pathlib import Path

import pytest
from rich.cells import cell_len

from gpu_panel.terminal.driver import ascii_only, wants_ascii

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("golden", sorted((Path(__file__).parents[1] / "goldens").glob("*.txt")),
                         ids=lambda p: p.stem)
def test_every_screen_keeps_its_shape_and_loses_nothing(golden):
    for line in golden.read_text().splitlines():
        plain = ascii_only(line)
        assert plain.isascii()
        assert cell_len(line) == len(plain), line
        assert plain.count("?") == line.count("?"), line


READ = "\uff1d\uff0b\uff0d\uff20"
"""Never shown: a cell of a CSV must not begin with them."""


def test_every_character_of_the_program_has_one():
    files = [f for room in ("tui", "engine") for f in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    for file in files:
        if file.name == "output.py":  # the command line has a table of its own
            continue
        tree = ast.parse(file.read_text())
        told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) \
                    and id(node) not in told:
                lost = [c for c in node.value if c != "?" and unicodedata.category(c)[0] in "SP"
                        and "?" in ascii_only(c) and c not in READ]
                assert not lost, (file.name, node.lineno, lost)


def test_dots_are_where_they_were():
    assert ascii_only("⠉⣀⣿⡇⠁⠀─│") == "'.#:' -|"
    assert ascii_only("日x") == "??x"


@pytest.mark.parametrize(("env", "plain"), [
    ({}, False), ({"LANG": "C"}, True), ({"LANG": "de_DE.UTF-8"}, False),
    ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # what Python makes of LANG=C
    ({"LC_CTYPE": "C.UTF-8"}, False), ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
    ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True), ({"LANG": "de_DE.ISO-8859-1"}, True),
    ({"LANG": "de_DE.utf8@euro"}, False), ({"TERM": "linux", "LANG": "en_US.UTF-8"}, True),
    ({"LANG": "C", "GPU_PANEL_ASCII": "0"}, False), ({"GPU_PANEL_ASCII": "1"}, True)])
def test_when_it_is_wanted(env, plain):
    assert wants_ascii(env) is plain
