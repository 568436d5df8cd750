"""The conda recipe says what pyproject.toml says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from gpu_engine import __version__

ROOT = Path(__file__).parents[2]
RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def spaced(requirement: str) -> str:
    """What a recipe has for "click>=8.1,<9": "click >=8.1,<9"."""
    return re.sub(r"^([A-Za-z0-9._-]+)\s*(?=[<>=!~])", r"\1 ",
                  requirement.partition(";")[0].strip())


def test_what_is_needed_is_what_pyproject_says():
    project, found = PROJECT["project"], RECIPE["requirements"]
    assert [spaced(r) for r in project["dependencies"]] == found["run"][1:]
    assert [spaced(r) for r in PROJECT["build-system"]["requires"]] == found["host"][2:]
    least = project["requires-python"].removeprefix(">=")
    assert (RECIPE["context"]["python_min"], found["run"][0]) == (least,
                                                                 "python >=${{ python_min }}")
    assert not any("torch" in r for r in found["run"])


def test_versions_and_commands_are_the_same():
    project = PROJECT["project"]
    assert RECIPE["context"]["version"] == project["version"] == __version__
    assert RECIPE["build"]["noarch"] == "python"
    assert dict(e.split(" = ") for e in RECIPE["build"]["python"]["entry_points"]) \
        == project["scripts"]
    assert RECIPE["about"]["license"] == project["license"]
    assert RECIPE["about"]["summary"] == project["description"]
    assert (ROOT / RECIPE["about"]["license_file"]).is_file()
