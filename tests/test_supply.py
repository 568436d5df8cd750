"""What is executed to build and test this comes by an exact name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_use_actions_by_their_commit_and_may_only_read():
    assert WORKFLOWS
    for file in WORKFLOWS:
        text = file.read_text()
        told = yaml.safe_load(text)
        assert told["permissions"] == {"contents": "read"}
        for name, job in told["jobs"].items():
            if (file.name, name) == ("release.yml", "publish"):  # of a tag, what another job built
                assert job["permissions"] == {"contents": "write", "id-token": "write"}
                assert told[True]["push"] == {"tags": ["v*"]}
                steps = str(job["steps"])
                assert ".ci" not in steps
                assert "make" not in steps
            else:
                assert "permissions" not in job
            for step in job["steps"]:
                assert re.fullmatch(r"\S+@[0-9a-f]{40}", step.get("uses", f"x@{'0' * 40}")), file
                for line in step.get("run", "").splitlines():
                    how = "--require-hashes" if name == "publish" else "-c constraints.txt"
                    assert "pip install" not in line or how in line, line
        assert not re.search("unsafe-best-match|EXTRA_INDEX", text), "two indexes for one name"


def test_what_builds_the_package_has_one_version():
    pinned = set((ROOT / "constraints.txt").read_text().split())
    built_by = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(built_by) < pinned
    assert all("==" in name for name in built_by)
    assert any(name.startswith("build==") for name in pinned)


def test_all_that_make_installs_but_torch_has_hashes():
    locked = re.findall(r"^(\S+?)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
                        (ROOT / "locked.txt").read_text(), re.MULTILINE)
    assert len(locked) == (ROOT / "locked.txt").read_text().count("==") > 80
    uv = re.search(r"uv==\S+(?= --hash=sha256:[0-9a-f]{64}\")", WORKFLOWS[1].read_text())
    assert uv[0] in (ROOT / "constraints.txt").read_text().split()
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
                  if "==" in line)
    assert not [name for name, version, _ in locked if pinned.get(name, version) != version]
    assert not {"torch", "triton"} & {name for name, _, _ in locked}
    assert "--no-deps --require-hashes -r locked.txt" in (ROOT / "Makefile").read_text()
