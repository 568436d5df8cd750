"""The examples of docs/notifications.md, as they stand there."""

import re
from pathlib import Path

import pytest

from gpu_engine.notify import config

from .endpoint import private

PAGE = Path(__file__).parents[2] / "docs" / "notifications.md"


@pytest.fixture
def examples():
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    private(config.path(), "\n".join(blocks).replace("…", "x"))
    return config.read()


def test_there_is_one_of_each_kind_and_all_are_right(examples):
    assert {to.kind for to in examples} == set(config.KINDS)
