"""The examples of docs/notifications.md, as they stand there."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.notify import config, messages, send

from .endpoint import private

PAGE = Path(__file__).parents[2] / "docs" / "notifications.md"


@pytest.fixture
def examples():
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    private(config.path(), "\n".join(blocks).replace("…", "x"))
    return config.read()


def test_there_is_one_of_each_kind_and_all_are_right(examples):
    assert {to.kind for to in examples} == set(config.KINDS)


def test_apprise_gets_the_text_as_it_is_and_not_in_its_words(examples, tmp_path, monkeypatch):
    """By a program of that name, which writes down what it was given."""
    got = tmp_path / "got.json"
    program = tmp_path / "apprise"
    program.write_text(f"#!{sys.executable}\nimport json, sys\n"
                       f"json.dump([sys.argv[1:], sys.stdin.read()], open({str(got)!r}, 'w'))\n"
                       "sys.exit(1)\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    [others] = [to for to in examples if to.name == "others"]
    text = r"""--body "x" $(id) `id` %s \n 'y' ü"""
    message = replace(messages.test("gpu1", 1.8e9), text=text)
    assert send.deliver(others, message) == "its command ended with status 1"
    words, body = json.loads(got.read_text())
    assert body == text
    assert words == ["--storage-mode=memory", f"--title={message.title}"]
