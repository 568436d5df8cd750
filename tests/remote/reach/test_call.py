"""A command on a host, over programs that are real and some that are not what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace as changed

from gpu_engine.remote.reach import call, protocol, ssh
from gpu_engine.remote.reach.call import Call, Refused, Unreachable, ask
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.run.survey import meet
from gpu_engine.remote.there import main
from gpu_engine.runs.folder import Run
from tests.conftest import over, wait_for

NOISY = 'printf "Welcome to gpu1\\nno newline: "; echo "gpu-panel-agent 0123"; exec "$@"'
LATE = """"$@" | while IFS= read -r line; do
case $line in *welcome*) sleep 2;; esac; printf '%s\\n' "$line"; done"""
HERE = Host("local")


def box(script: str = 'exec "$@"', python: str | None = sys.executable) -> Host:
    """A host whose login runs `script` before the shell that we ask for."""
    return Host("box", via=("sh", "-c", script, "login"), python=python)


def fake(body: str) -> Host:
    """One whose program is a few lines of shell, run when it is asked something."""
    return box("while [ -z \"$line\" ]; do read -r line; done; "
               "word=$(echo \"$line\" | sed 's/.*agent \\([0-9a-f]*\\).*/\\1/'); "
               "echo; echo gpu-panel-agent $word; "
               f"while read -r line; do case $line in *hello*) break;; esac; done; {body}")


@pytest.mark.parametrize("host", [HERE, box(), box(NOISY), box(LATE)],
                         ids=["local", "shell", "noisy", "late"])
def test_a_host_says_what_it_is(host, home):
    met = meet(host, ())
    assert (met.welcome.protocol, met.welcome.home) == (protocol.VERSION, str(home))
    assert met.welcome.python == sys.executable
    assert met.skew == 0.0, "though one that answers late has looked at its clock before"


def test_devices_come_again_and_again_until_nobody_wants_them(home):
    with Call(HERE, protocol.Watch(0.25)) as watching:
        ids = {d.id for d in watching.expect(protocol.Welcome).inventory.devices}
        looks = [watching.expect(protocol.Looked) for _ in range(3)]
        assert len({look.snapshot.taken for look in looks}) == 3
        assert all(set(look.freedom) == ids for look in looks)
    assert watching._shell.process.returncode == 0, "it has ended by itself"


def test_what_can_not_be_done_is_told(home):
    for name in ("zz", "../..", "abcdef", "", "a\nb"):
        with pytest.raises(Refused, match="no run"):
            ask(HERE, protocol.Stop(name))
    with pytest.raises(Refused, match="there is no folder"):
        ask(HERE, protocol.Start({"name": "x"}, "key", ("/nowhere",)))
    with pytest.raises(Refused, match="no name of code"):
        meet(HERE, (), code="../..")


def test_one_key_starts_one_run_however_often_it_is_said_at_once(home):
    asked = protocol.Start({"task": {"command": ["sleep", "600"]}, "devices": {"ids": ["cpu:0"]}},
                           "key")
    with pytest.raises(Refused, match="it has not begun there"):
        ask(HERE, changed(asked, only_ask=True))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: ask(HERE, asked, protocol.Started), range(2))
    assert first == second == ask(HERE, changed(asked, only_ask=True))
    ask(HERE, protocol.Stop(first.run, now=True))
    over(Run(Path(first.path)))


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b"\n", b'{"kind": "stop"}\n',
                                  b"x" * (2 << 20)])
def test_our_program_says_that_an_odd_request_is_none(line, home):
    done = subprocess.run([sys.executable, "-P", "-m", "gpu_engine", "agent", "w0rd"], input=line,
                          capture_output=True)
    assert done.returncode == 0, done
    assert b"a request that is none" in done.stdout


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
    with pytest.raises(Unreachable, match=why):
        Call(host, protocol.Hello(), seconds=3)


def test_what_a_login_shell_prints_without_end_ends_with_it(tmp_path):
    pid = tmp_path / "pid"
    with pytest.raises(Unreachable, match="prints without end") as raised:
        Call(box(f"sh -c 'echo $$ > {pid}; exec yes'"), protocol.Hello(), seconds=30)
    wait_for(lambda: not Path(f"/proc/{int(pid.read_text())}").exists())
    assert raised  # the error, and what it refers to, is still held


@pytest.mark.parametrize(("body", "why"), [
    ("printf '{\"ki'", "box: the connection ended$"),
    ("printf '\\377\\001\\000x\\n\\376'", "box: the connection ended$"),
    ("echo '{\"kind\":\"what\"}'; cat", "none of an agent's: Invalid value 'what'"),
    ("echo '{\"kind\":\"done\"'; cat", "none of an agent's: Expecting"),
    ("while :; do echo job done; done", "none of an agent's: 1000 lines"),
    ("printf '{'; exec tr '\\0' x </dev/zero", "none of an agent's: a line of more than"),
], ids=["cut", "no text", "unknown", "broken", "endless", "long"])
def test_an_agent_that_is_none(body, why):
    with Call(fake(body), protocol.Hello(), seconds=60) as way, \
            pytest.raises(Unreachable, match=why):
        way.next()
    assert way._shell.process.poll() is not None


def test_a_way_that_ignores_the_end_of_its_input_leaves_no_process(tmp_path):
    pid = tmp_path / "pid"
    ask(fake(f"echo '{{\"kind\":\"done\"}}'; sh -c 'echo $$ > {pid}; exec sleep 1000'; true"),
        protocol.Hello())
    wait_for(lambda: not Path(f"/proc/{int(pid.read_text())}").exists())


def test_lines_of_the_login_shell_between_answers_are_passed_over():
    assert ask(fake("echo '[1]+ Done'; echo; echo '{\"kind\":\"done\"}'; cat"),
               protocol.Hello()) == protocol.Done()


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
    out = subprocess.run(["sh", "-s"], input=ssh.script(host, "w0rd"), capture_output=True,
                         env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert out.stdout == b"started -P -m gpu_engine agent w0rd\n", out
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
def test_a_command_is_found_beside_the_agents_interpreter(torch, monkeypatch):
    """ssh's PATH does not have it; an environment without torch is the last resort."""
    monkeypatch.setattr(main.importlib.util, "find_spec", lambda name: object() if torch else None)
    own = str(Path(sys.executable).parent)
    assert main.search_path(f"/usr/bin:{own}:/bin").split(":") \
        == ([own, "/usr/bin", "/bin"] if torch else ["/usr/bin", "/bin", own])


def test_a_port_is_free_again_once_nobody_listens_on_it_for_us(home):
    """The very next request finds it so."""
    with Call(HERE, protocol.Listen(0)) as listening:
        port = listening.expect(protocol.Listening).port
        reach = protocol.Reach(("127.0.0.1",), port)
        assert ask(HERE, reach, protocol.Reached).tried == {"127.0.0.1": None}
    assert ask(HERE, reach, protocol.Reached).tried == {"127.0.0.1": "connection refused"}


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
