"""Every text of a person's own files, presets and tasks holds what a terminal would obey. Every
command that shows them prints none of it. Of run folders: tests/trust."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_engine.queue import serve

from .. import odd_runs
from ..command_line import called

BAD = ("MARK\x1b]52;c;QQ==\x07\x1b]0;title\x1b\\\x1b[2J\x1b[3;4H\x1b[31m\x1bP$qm\x1b\\\x1b[c"
       "\x1b]8;;http://x\x07\x9b2J\x9d0;t\x9c\x1b_x\x1b\\\x9b6n\u202ea\u2066b\u200f\x7f\x00\x08"
       "\x1b\U000e0041[bold]")


def harmless(done: Any) -> str:
    """What was printed. Fails if a terminal would obey any of it."""
    text = done.stdout + done.stderr
    obeyed = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not obeyed, (done.args, obeyed, text)
    assert "Traceback (most" not in done.stderr, done.stderr
    return text


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(serve, "ensure", lambda *more: None)


def test_a_command_in_a_plan_is_shown_whole_and_harmless(alone):
    text = harmless(called("plan", "--devices", "cpu:0", "--", "python", "-c", "pass\x1b]52;c\x07"))
    assert r"$'pass\033]52;c\007'" in text
    harmless(called("plan", "--devices", "cpu:0", "--json", "--", "python", "x\x9b\u202e"))


def escaped_toml(text: str) -> str:
    return json.dumps(text.replace("\U000e0041", ""))


def test_presets(home, alone, tmp_path):
    bad = escaped_toml(BAD)
    (home / "presets").mkdir(parents=True)
    (home / "presets" / "evil.toml").write_text(
        f'name = {bad}\ndescription = {bad}\n[task]\ncommand = ["python", {bad}]\n'
        f'[parallel]\nmaster_addr = {bad}\n')
    (home / "presets" / "broken.toml").write_text(f'[{bad}]\n{bad} = {bad}\n[amp]\ndtype = {bad}\n')
    for words in ("presets", "presets --json", "presets evil", "presets evil --json",
                  "presets broken", "plan evil", "plan broken", "run broken", "run evil"):
        text = harmless(called(*words.split()))
        assert "MARK" in text, words
    shown = harmless(called("presets", "evil"))
    assert r"\u001b]52;c;QQ==\u0007" in shown  # whole, for a person who looks


def test_own_files(home, alone):
    bad = escaped_toml(BAD)
    home.mkdir()
    for name, text in {
        "hosts.toml": f'[gpu1]\nssh = "gpu1"\nlabel = {bad}\nfolder = {bad}\npython = {bad}\n',
        "notify.toml": f'[phone]\ncommand = ["x", {bad}]\n',
        "settings.toml": f'[panel]\ntheme = {bad}\n{bad} = 3\n'}.items():
        (home / name).write_text(text)
        for words in ("hosts", "hosts --json", "notify", "notify --json", "settings",
                      "settings --json", "doctor", "runs", "hosts check gpu1"):
            harmless(called(*words.split()))
        (home / name).unlink()


def test_a_task(alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(
        f'from dataclasses import dataclass\n\n@dataclass\nclass T:\n    {BAD!a}\n'
        f'    a: int = 3\n    {BAD!a}\n    b: str = {BAD!a}\n')
    for words in ("describe t.py:T", "describe t.py:T --json"):
        done = called(*words.split())
        assert "MARK" in harmless(done), done.stderr


def test_answers_to_a_shell(home, alone, monkeypatch):
    run = odd_runs.ended()
    for at, name in enumerate(("evil\nplain,evil", "evil\x1b]52;c;QQ==\x07", "$(evil)", "evil;evil",
                               "-evil", "evil*", "~evil", "evil evil")):
        (home / "runs" / name).mkdir()
        (home / "runs" / f"aaa{at}").mkdir()
        (home / "runs" / f"aaa{at}" / "sweep.json").write_text(json.dumps({"sweep": name}))
    (home / "notify.toml").write_text(f'[[to]]\nname = {escaped_toml(BAD)}\nkind = "command"\n'
                                      'command = ["x"]\n')
    seen = ""
    for line in ("show ", "run ", "sweep ", "stop ", "notify --test ", "logs ", "plan "):
        for shell in ("bash", "zsh", "fish"):
            monkeypatch.setenv("_GPU_ENGINE_COMPLETE", f"{shell}_complete")
            monkeypatch.setenv("COMP_WORDS", f"gpu-engine {line}")
            monkeypatch.setenv("COMP_CWORD", "" if shell == "fish" else str(1 + len(line.split())))
            seen += harmless(called())
    assert run.id in seen
    assert "evil" not in seen
