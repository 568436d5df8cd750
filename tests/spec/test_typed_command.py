"""A command that was typed into a field, where no shell has seen it."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from gpu_engine.spec.typed_command import one_line, split


@pytest.mark.parametrize("text", [
    "python train.py --lr 1e-3", "python 'a b' \"c d\" e\\ f", "python '$LR' \\$X \"\\$Y\"",
    "~/bin/python x", "x ~", "x a~ --d=~/x '~' \"~/y\" \\~",
    "python a\\\n\t--lr 1\\\n \"b\\\nc\"\n",
    "bash -c 'a | b > c; d'", "x 'a&b' \"(*)\" \\| '`'", "x\\\\ y", "x '' \"\"", "x $ 1",
    "x a'b'\"c\"d"])
def test_the_words_are_those_of_a_shell(text):
    said = subprocess.run(["sh", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True,
                          check=True, timeout=600)
    assert split(text) == said.stdout.split("\0")[:-1]


@pytest.mark.parametrize(("text", "what"), [
    ("python a.py | tee log", '"|"'), ("python a.py > out.txt", '">"'), ("a && b", '"&"'),
    ("python a.py --lr $LR", '"$LR"'), ('python "a ${LR}"', '"${LR}"'), ("a; b", '";"'),
    ("python a.py $(date)", '"$(date)"'), ("a `date`", '"`date`"'), ("a b &", '"&"'),
    ("python a.py\npython b.py", "a second line"), ("a *.pt", '"*"'), ("a < b", '"<"')])
def test_what_only_a_shell_can_do_is_named(text, what):
    with pytest.raises(ValueError) as got:
        split(text)
    assert str(got.value).startswith(f"{what} needs a shell")
    offered = str(got.value).partition("or write ")[2]
    assert shlex.split(offered) == ["sh", "-c", text]
    assert split(offered) == ["sh", "-c", text], "what is offered is taken"


@pytest.mark.parametrize(("text", "says"), [
    ("python 'x", "the quote ' is not closed"), ('python "x', 'the quote " is not closed'),
    ("python x\\", "ends in a backslash")])
def test_what_is_missing_is_said(text, says):
    with pytest.raises(ValueError, match=says):
        split(text)


def test_variables_before_a_command_are_set():
    assert split("LR=1 WIDTH='a b' python x.py") == ["env", "LR=1", "WIDTH=a b", "python", "x.py"]


def test_a_home_without_a_user_stays(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of me")
    assert split("~/bin/python ~nobody-has-this/x") == ["/home/of me/bin/python",
                                                        "~nobody-has-this/x"]
    assert os.environ["HOME"] == "/home/of me"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r"])
def test_pasted_lines_are_one_that_means_the_same(end):
    text = f" cd x{end}python t.py \\{end}  --lr 1{end}{end}\tls{end}"
    assert one_line(text) == "cd x; python t.py  --lr 1; ls"
