"""A command on a host, over programs that are real and some that are not what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_engine.remote.reach import call, protocol, ssh
from gpu_engine.remote.reach.call import Call, Refused, Unreachable, ask
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.run import link
from gpu_engine.remote.run.nodes import meet
from gpu_engine.remote.run.parts import Part
from gpu_engine.remote.there import wire
from gpu_engine.runs.folder import Run
from tests.conftest import over, wait_for

NOISY = 'printf "Welcome to gpu1\\nno newline: "; echo "gpu-panel-wire 0123"; exec "$@"'
LATE = """"$@" | while IFS= read -r line; do
case $line in *machine*) sleep 2;; esac; printf '%s\\n' "$line"; done"""
HERE = Host("local")
DEAF = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("asked", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
LOOK = ("devices", "--json", "--watch", "0.25")


def box(script: str = 'exec "$@"', python: str | None = sys.executable) -> Host:
    """A host whose login runs `script` before the shell that we ask for."""
    return Host("box", via=("sh", "-c", script, "login"), python=python)


def fake(body: str) -> Host:
    """One whose program is a few lines of shell; `$w` begins its answers."""
    return box("while [ -z \"$line\" ]; do read -r line; done; "
               "w=$(echo \"$line\" | sed 's/.*wire \\([0-9a-f]*\\).*/\\1/'); "
               f"echo; echo gpu-panel-wire $w ${{v-{protocol.VERSION} 9.9.9}}; {body}")


@pytest.mark.parametrize("host", [HERE, box(), box(NOISY), box(LATE)],
                         ids=["local", "shell", "noisy", "late"])
def test_a_host_says_what_it_is(host, home):
    met = meet(host, ())
    assert met.welcome.home == str(home)
    assert met.welcome.python == sys.executable
    assert met.skew == 0.0, "though one that answers late has looked at its clock before"


def test_devices_come_again_and_again_until_nobody_wants_them(home):
    with Call(HERE, *LOOK) as watching:
        ids = {d.id for d in watching.next(protocol.Welcome).inventory.devices}
        looks = [watching.next(protocol.Looked) for _ in range(3)]
        assert len({look.snapshot.taken for look in looks}) == 3
        assert all(set(look.freedom) == ids for look in looks)
    assert watching._shell.process.returncode == 0, "it has ended by itself"


def test_what_can_not_be_done_is_told(home):
    for name in ("zz", "../..", "abcdef", "", "a\nb", "last"):
        with pytest.raises(Refused, match="no run"):
            link.stop(HERE, name)
    with pytest.raises(Refused, match="there is no folder /nowhere there"):
        ask(HERE, protocol.Started, "run", "-", folders=("/nowhere",), content=b"{}")
    with pytest.raises(Refused, match="no preset as JSON"):
        ask(HERE, protocol.Checked, "plan", "-", content=b'{"name": "x", "task"')
    with pytest.raises(Refused, match="steps = 0: expected") as refused:
        ask(HERE, protocol.Checked, "plan", "-", content=b'{"train": {"steps": 0}}')
    assert refused.value.problems[0].value == 0
    with pytest.raises(Refused, match="no name of code"):
        meet(HERE, (), code="../..")
    with pytest.raises(Refused, match="o such command 'agent'"):
        ask(HERE, protocol.Started, "agent")


def test_one_key_starts_one_run_however_often_it_is_said_at_once(home, tmp_path):
    """And told to stop twice, it is told once."""
    (script := tmp_path / "deaf.py").write_text(DEAF)
    part = Part(host="local", node=0, ranks=(0,), folders=(), key="key", spec={
        "task": {"command": [sys.executable, str(script)]}, "devices": {"ids": ["cpu:0"]}})
    with pytest.raises(Refused, match="it has not begun there"):
        link.begun(HERE, tmp_path, part, only_ask=True)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: link.begun(HERE, tmp_path, part), range(2))
    assert first == second == link.begun(HERE, tmp_path, part, only_ask=True)
    run = Run(Path(first.path))
    wait_for(lambda: run.log(0).exists() and run.log(0).read_text())
    for _ in range(2):
        link.stop(HERE, run.id)
        wait_for(lambda: run.log(0).read_text() == "ready\nasked\n")
    link.stop(HERE, run.id, "--now")
    over(run)
    assert run.log(0).read_text() == "ready\nasked\n", "no SIGTERM"


@pytest.mark.parametrize(("host", "why"), [
    (box(python="/no/such/python"), "there is no interpreter /no/such/python"),
    (box('HOME=/nowhere PATH=/usr/bin:/bin; exec "$@"', None), "hosts setup box"),
    (box("exit 3"), "its shell ended with 3"),
    (box("yes"), "prints without end"),
    (box("exec cat >/dev/null"), "something reads its input away"),
    (Host("box", via=("/no/such/program",)), "can't be started"),
    (Host("-oProxyCommand=x"), "no name of a host"),
    (Host("box", ssh="a;touch x"), "no name of a host"),
], ids=lambda v: v if isinstance(v, str) else None)
def test_no_agent_comes(host, why):
    # Only one of them is silent: the others may take their time.
    with pytest.raises(Unreachable, match=why):
        Call(host, *LOOK, seconds=3 if "reads its input" in why else 60)


def test_what_a_login_shell_prints_without_end_ends_with_it(tmp_path):
    pid = tmp_path / "pid"
    with pytest.raises(Unreachable, match="prints without end") as raised:
        Call(box(f"sh -c 'echo $$ > {pid}; exec yes'"), *LOOK, seconds=30)
    wait_for(lambda: not Path(f"/proc/{int(pid.read_text())}").exists())
    assert raised  # the error, and what it refers to, is still held


@pytest.mark.parametrize(("body", "why"), [
    ("printf \"$w{\"", "box: the connection ended$"),
    ("printf '\\377\\001\\000x\\n\\376'", "box: the connection ended$"),
    ("echo $w{}; cat", "no answer: Object missing required field `path`"),
    ("echo \"$w{\"; cat", "no answer: Expecting"),
    ("while :; do echo '{\"path\": \"/x\"}'; done", "no answer: 1000 lines"),
    ("printf \"$w{\"; exec tr '\\0' x </dev/zero", "no answer: a line of more than"),
], ids=["cut", "no text", "unknown", "broken", "endless", "long"])
def test_an_answer_that_is_none(body, why):
    with Call(fake(body), *LOOK, seconds=60) as way, pytest.raises(Unreachable, match=why):
        way.next(protocol.CodeKept)
    assert way._shell.process.poll() is not None


@pytest.mark.parametrize(("host", "why"), [
    (fake("cat").via[2].replace("${v-", "${v-1"), r"gpu-panel there is 9.9.9 \(wire 16\), which"),
    ("cat >/dev/null & echo \"Error: No such option: --wire\"; exit 2", "is older than this one")])
def test_another_wire_is_told_with_what_to_type(host, why):
    with pytest.raises(Unreachable, match=f"{why}.*gpu-engine hosts setup box"):
        Call(box(host), *LOOK)


def test_a_way_that_ignores_the_end_of_its_input_leaves_no_process(tmp_path):
    pid = tmp_path / "pid"
    ask(fake(f"echo $w'{{\"path\":\"\"}}'; sh -c 'echo $$ > {pid}; exec sleep 1000'; true"),
        protocol.CodeKept, "x")
    wait_for(lambda: not Path(f"/proc/{int(pid.read_text())}").exists())


def test_lines_of_the_login_shell_between_answers_are_passed_over_and_so_are_newer_keys():
    assert ask(fake("echo '[1]+ Done'; echo; echo $w'{\"path\":\"/x\",\"new\":[{}]}'; cat"),
               protocol.CodeKept, "x") == protocol.CodeKept("/x")


@pytest.mark.parametrize(("said", "why"), [
    ("@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed.",
     "ssh-keygen -R"),
    ("No ED25519 host key is known for gpu1 and you have requested strict checking.\n"
     "Host key verification failed.", "not known here yet"),
    ("alice@gpu1: Permission denied (publickey,password).", "ssh-copy-id gpu1"),
    ("ssh: Could not resolve hostname gpu1: Name or service not known", "no host of that name"),
    ("ssh: connect to host gpu1 port 22: Connection refused", "nothing answers"),
    ("ssh: connect to host gpu1 port 22: Connection timed out", "no answer"),
    ("/usr/bin/python3: No module named gpu_engine", "hosts setup gpu1"),
    ("Timeout, server gpu1 not responding.", "the connection broke"),
    ("mux_client_request_session: read from master failed: Broken pipe\r\n"
     "ssh: connect to host gpu1 port 22: Network is down\r\n", "Network is down"),
    ("mux_client_request_session: write packet: Broken pipe\r\n", "the connection broke"),
    ("", "the connection ended"), ("\x1b]0;title\x07odd", "odd")])
def test_why_in_words(said, why):
    words = ssh.why(Host("gpu1"), said, 255, greeted=False)
    assert why in words
    assert words.isprintable()


CHANGED = "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\n"


@pytest.mark.parametrize(("host", "said", "typed"), [
    (Host("g", ssh="alice@gpu1"), CHANGED, ["(ssh-keygen -R gpu1)", "(ssh alice@gpu1)"]),
    (Host("gpu1"), CHANGED + "Host key for [10.0.0.7]:2222 has changed and you have requested "
     "strict checking.", ["(ssh-keygen -R '[10.0.0.7]:2222')", "(ssh gpu1)"]),
    (Host("gpu1"), CHANGED + "Host key for $(id) has changed", ["(ssh-keygen -R gpu1)"]),
    (Host("box", via=("ssh", "-p", "2222", "a b")), "Host key verification failed.",
     ["Type once: ssh -p 2222 'a b' true "]),
    (Host("box", via=("ssh", "b")), "Permission denied", ["Bring your key there, or load"])])
def test_what_to_type_about_a_host_is_what_helps(host, said, typed):
    words = ssh.why(host, said, 255, greeted=False)
    for one in typed:
        assert one in words


@pytest.mark.parametrize("python", ["my env/bin/python", "~/v/bin/python", "a'b",
                                    "$(touch x)"])
def test_an_interpreter_of_any_name_reaches_the_shell_to_the_letter(python, tmp_path: Path):
    asked = tmp_path / python.replace("~/", "")
    asked.parent.mkdir(parents=True, exist_ok=True)
    asked.write_text("#!/bin/sh\necho started \"$@\"\n")
    asked.chmod(0o755)
    host = Host("box", python=str(tmp_path) + "/" + python if "~" not in python else python)
    out = subprocess.run(["sh", "-s"], input=ssh.script(host, "w0rd", ["stop", "a b'"]),
                         capture_output=True,
                         env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert out.stdout == b"started -P -m gpu_engine stop a b'\n", out
    assert not (tmp_path / "x").exists()


def test_the_argument_list_of_ssh(home, monkeypatch):
    words = ssh.shell(Host("gpu1", ssh="alice@10.0.0.2"))
    assert words[0] == "ssh"
    assert words[-3:] == ["--", "alice@10.0.0.2", "exec sh -s"]
    assert "BatchMode=yes" in words
    assert ssh.ALIVE * (ssh.MISSED + 1) + ssh.CONNECT < call.OPEN
    assert not any("StrictHostKeyChecking" in w for w in words)
    monkeypatch.setenv("GPU_PANEL_HOME", f"/tmp/{'h' * 45}")
    assert "ControlMaster=auto" not in ssh.shell(Host("gpu1")), "its sockets' paths are too long"


def test_connections_to_a_host_are_shared_by_sockets_of_the_user_alone(tmp_path, monkeypatch):
    with TemporaryDirectory(prefix="h") as short:
        monkeypatch.setenv("GPU_PANEL_HOME", short)
        folder = Path(short, "ssh")

        def socket(host: str) -> str | None:
            words = ssh.shell(Host(host))
            assert ("ControlMaster=auto" in words) == any("ControlPath=" in w for w in words)
            return next((w for w in words if w.startswith(f"ControlPath={folder}/")), None)

        assert len({socket("a"), socket("b"), socket("a"), socket("me@a")} - {None}) == 3
        own = ssh.shell(Host("a"), shared=False)
        assert {"ControlPath=none", "ControlMaster=no"} <= set(own)
        assert folder.stat().st_mode & 0o777 == 0o700
        other = os.getuid() + 1
        with monkeypatch.context() as theirs:
            theirs.setattr(ssh.os, "getuid", lambda: other)
            assert socket("a") is None, "its folder is another user's"
        folder.chmod(0o770)
        assert socket("a") is not None
        assert folder.stat().st_mode & 0o777 == 0o700, "it was closed again"
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert socket("a") is None


@pytest.mark.parametrize("torch", [True, False])
def test_a_command_is_found_beside_our_programs_interpreter(torch, monkeypatch):
    """ssh's PATH does not have it; an environment without torch is the last resort."""
    monkeypatch.setattr(wire.importlib.util, "find_spec", lambda name: object() if torch else None)
    own = str(Path(sys.executable).parent)
    assert wire.search_path(f"/usr/bin:{own}:/bin").split(":") \
        == ([own, "/usr/bin", "/bin"] if torch else ["/usr/bin", "/bin", own])


def test_a_port_is_free_again_once_nobody_listens_on_it_for_us(home):
    """The very next request finds it so."""
    with Call(HERE, "port", "0") as listening:
        asked = ("port", str(listening.next(protocol.Listening).port), "127.0.0.1")
        assert ask(HERE, protocol.Reached, *asked).tried == {"127.0.0.1": None}
    assert ask(HERE, protocol.Reached, *asked).tried == {"127.0.0.1": "connection refused"}


def test_where_the_shared_connection_ends_another_is_opened_alone(home, tmp_path, monkeypatch):
    program = tmp_path / "ssh"
    program.write_text('#!/bin/sh\ncase "$*" in *ControlPath=none*) exec sh -s;; esac\n'
                       'echo "mux_client_request_session: write packet: Broken pipe" >&2\n'
                       'exit 255\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = Host("gpu1", python=sys.executable)
    assert call.run(host, b"echo there\n", 60).out == "there\n"
    assert meet(host, ()).welcome.home == str(home)
