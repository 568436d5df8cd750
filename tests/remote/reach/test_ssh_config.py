"""The names offered from ~/.ssh/config are those that ssh takes for hosts of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.remote.reach import ssh_config

CONFIG = """
# the cluster
Host gpu1 gpu2   # both
  HostName 10.0.0.1
HOST=gpu3
host = "gpu4" *.lab ?x
Host *.internal !bad.internal good
Host -oProxyCommand=x a;b $(x) alice@gpu9
Host *
Include more/*.conf
Include = ~/.ssh/one.conf absent.conf
Host jump
  Include only-for-jump.conf
Match host x exec "touch canary"
  Include only-when.conf
Match all
  Include always.conf
Host gpu1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ssh_config, "_home", lambda: tmp_path)
    ssh = tmp_path / ".ssh"
    (ssh / "more").mkdir(parents=True)
    return ssh


def test_names_without_patterns_includes_followed(folder: Path):
    (folder / "config").write_text(CONFIG)
    (folder / "more" / "b.conf").write_text("Host b1\nInclude config\n")
    (folder / "more" / "a.conf").write_text("Host a1\n")
    (folder / "one.conf").write_text("Host one\n")
    (folder / "only-for-jump.conf").write_text("Host of-jump\n")
    (folder / "only-when.conf").write_text("Host of-match\n")
    (folder / "always.conf").write_text("Host always\n")
    assert sorted(ssh_config.names()) == sorted(
        ["gpu1", "gpu2", "gpu3", "gpu4", "a1", "b1", "one", "jump", "of-jump", "of-match",
         "always"])
    assert ssh_config.names()[:4] == ["gpu1", "gpu2", "gpu3", "gpu4"]


def test_what_cannot_be_read_offers_nothing(folder: Path):
    assert ssh_config.names() == []
    os.mkfifo(folder / "config")
    assert ssh_config.names() == []
    (folder / "config").unlink()
    (folder / "config").write_bytes(b"Host \xff\x1b[2J ok\nHost " + b"x" * 300 + b"\n")
    assert ssh_config.names() == ["ok"]


def test_it_is_the_file_that_ssh_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Whatever HOME says."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ssh_config.own() != tmp_path / ".ssh" / "config"


_WORDS = st.text("abgxyz12*?!._-@", min_size=1, max_size=6)


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs OpenSSH's ssh")
@settings(max_examples=25)
@given(st.lists(st.lists(_WORDS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_every_name_offered_is_one_that_ssh_finds(tmp_path_factory, blocks):
    """ssh -G says which block it took for a name."""
    config = tmp_path_factory.mktemp("c") / "config"
    config.write_text("".join(f"Host {' '.join(words)}\n  HostName found{i}\n"
                              for i, words in enumerate(blocks)))
    for name in ssh_config.names(config)[:2]:
        told = subprocess.run(["ssh", "-F", str(config), "-G", "--", name], capture_output=True,
                              text=True, timeout=600)
        assert "hostname found" in told.stdout, (config.read_text(), name, told)


@given(st.text(max_size=300))
def test_any_text_is_read(tmp_path_factory, text):
    config = tmp_path_factory.mktemp("c") / "config"
    config.write_bytes(text.encode("utf-8", "surrogatepass"))
    for name in ssh_config.names(config):
        assert name.isprintable()
