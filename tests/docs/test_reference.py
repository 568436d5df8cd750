"""The reference is what the code says."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "site" / "reference.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


@pytest.mark.parametrize("name", ["commands.md", "spec.md"])
def test_the_page_is_as_the_code(name):
    """If it is not: python docs/site/reference.py"""
    text, file = reference.pages()[name], ROOT / "docs" / name
    if os.environ.get("GOLDENS") == "write":
        file.write_text(text)
    assert file.read_text() == text
