"""Delivering a message to real endpoints on loopback that answer well, badly, late or never."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest

from gpu_engine.common import procs
from gpu_engine.notify import messages, send
from gpu_engine.notify.config import To

from ..conftest import patience, wait_for
from .endpoint import drip, endpoint, hang, redirect, seconds, then

MESSAGE = messages.test("here", 1.8e9)
SECRET = "hushhush"
NO_HTTP = "no HTTP or TLS is spoken there, or by the proxy"


def to(url: str, kind="json", **more) -> To:
    return To("one", kind, url, **more)


def deliver(entry: To) -> tuple[str | None, list[float]]:
    """The result, and the pauses that were made."""
    pauses: list[float] = []
    return send.deliver(entry, MESSAGE, sleep=pauses.append), pauses


def test_a_message_arrives_as_one_post_with_its_token():
    with endpoint(204) as there:
        assert deliver(to(f"{there.url}/a/{SECRET}?b=1", token=SECRET)) == (None, [])
        [got] = there.got
        assert got.path == f"/a/{SECRET}?b=1"
        assert got.json["text"] == MESSAGE.text
        assert got.headers["Authorization"] == f"Bearer {SECRET}"
        assert got.headers["User-Agent"].startswith("gpu-panel/")


@pytest.mark.parametrize(("answers", "result", "pauses", "requests"), [
    ([500, 503, 200], None, [1.0, 3.0], 3),
    ([500], "the endpoint answered 500, 3 times", [1.0, 3.0], 3),
    ([429, 200], None, [1.0], 2),
    ([400], "the endpoint answered 400", [], 1),
    ([404], "the endpoint answered 404", [], 1),
    ([lambda h: None, 200], None, [1.0], 2),
    ([lambda h: h.wfile.write(b"SSH-2.0-x\r\n")], NO_HTTP, [], 1),
])
def test_what_is_tried_again_and_what_is_not(answers, result, pauses, requests):
    with endpoint(*answers) as there:
        assert deliver(to(f"{there.url}/{SECRET}")) == (result, pauses)
        assert len(there.got) == requests


@pytest.mark.parametrize("status", ["absolute", "local"])
def test_a_redirect_is_never_followed(status):
    with endpoint(200) as aim:
        where = f"{aim.url}/{SECRET}" if status == "absolute" else "/elsewhere"
        with endpoint(redirect(where), 200) as there:
            result, pauses = deliver(to(there.url))
            assert result == "the endpoint answered 307, a redirect, which is never followed"
            assert (pauses, len(there.got)) == ([], 1)
        assert aim.got == []


@pytest.mark.parametrize(("answer", "limit"), [(hang, "SECONDS"), (drip("head"), "IN_ALL")])
def test_an_endpoint_that_never_answers_is_given_up(monkeypatch, answer, limit):
    """Also one whose every byte comes in time: a socket's own timeout would never pass."""
    monkeypatch.setattr(send, limit, 1.0)
    with endpoint(answer) as there:
        took, entry = seconds(), to(f"{there.url}/{SECRET}")
        assert list(send.deliver_all([entry], MESSAGE)) == [(entry, "no answer within 1 s")]
        assert took() < 60, "it would have been for ever"
        wait_for(lambda: there.got)  # the endpoint may come to read it only now
        assert len(there.got) == 1


def test_of_an_answer_only_the_head_is_read():
    with endpoint(drip("body")) as there:
        assert deliver(to(there.url)) == (None, [])


def test_a_host_that_takes_no_connection(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/{SECRET}"
    assert deliver(to(url)) == ("connection refused, 3 times", [1.0, 3.0])

    def unknown(*_args, **_more):
        raise socket.gaierror(-2, f"Name or service not known: {SECRET}")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert deliver(to(f"http://{SECRET}.invalid/")) == ("its host can't be found, 3 times",
                                                       [1.0, 3.0])


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path, monkeypatch):
    """Against a real TLS server, whose certificate openssl made."""
    import subprocess

    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key), "-out",
                    str(cert), "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with endpoint(200) as plain, endpoint(200) as there:
        assert deliver(to(plain.url.replace("http:", "https:"))) == (
            NO_HTTP, [])
        real = there.server.socket
        there.server.socket = context.wrap_socket(real, server_side=True)
        url = f"https://localhost:{there.port}/{SECRET}"
        assert deliver(to(url)) == ("its certificate can't be verified", [])
        assert there.got == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert deliver(to(url)) == (None, [])
        assert deliver(to(url.replace("localhost", "127.0.0.1"))) == (
            "its certificate can't be verified", []), "it is not made out for that name"
        assert len(there.got) == 1


def test_a_proxy_of_the_environment_is_used_and_no_proxy_is_kept_to(monkeypatch):
    with endpoint(200) as proxy, endpoint(200) as there:
        for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
        assert deliver(to("http://ntfy.invalid:81/hook?x=1")) == (None, [])
        [got] = proxy.got
        assert got.path == "http://ntfy.invalid:81/hook?x=1"
        assert got.headers["Host"] == "ntfy.invalid:81"
        assert got.headers["Proxy-Authorization"].startswith("Basic ")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert deliver(to(there.url)) == (None, [])
        assert (len(proxy.got), len(there.got)) == (1, 1)
        proxy.answers = [400]
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        assert deliver(to("https://ntfy.invalid/hook"))[0] == NO_HTTP


def test_all_entries_are_told_at_once_and_one_that_fails_harms_no_other(monkeypatch):
    """The slow one answers only when the others are known."""
    monkeypatch.setattr(send, "SECONDS", patience())
    others = threading.Event()

    def slow(handler: BaseHTTPRequestHandler):
        others.wait(patience())
        then(200)(handler)

    with endpoint(slow) as last, endpoint(200) as good, endpoint(404) as bad:
        entries = [To("slow", "json", last.url), To("good", "json", good.url),
                   To("bad", "json", bad.url)]
        results = send.deliver_all(entries, MESSAGE)
        assert dict(sorted((one.name, result) for one, result in (next(results), next(results)))
                    ) == {"good": None, "bad": "the endpoint answered 404"}
        others.set()
        assert list(results) == [(entries[0], None)]
    assert list(send.deliver_all([], MESSAGE)) == []


def test_one_that_is_given_up_takes_nothing_from_those_that_were_told(monkeypatch):
    clock, never = [0.0], threading.Event()
    monkeypatch.setattr(send, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(send, "deliver", lambda to, _: never.wait() if to.name == "late" else None)

    results = send.deliver_all([To("good", "json"), To("late", "json")], MESSAGE)
    told = [next(results)[1]]
    clock[0] = send.IN_ALL + 1
    told.append(next(results)[1])
    never.set()
    assert told == [None, "no answer within 45 s"]


# --- by Apprise ---------------------------------------------------------------------------------

def test_apprise_delivers_and_a_name_in_it_calls_nobody(capfd):
    with endpoint(500, 200, 404) as there:
        entry = to(f"json://127.0.0.1:{there.port}/{SECRET}", "apprise")
        message = replace(MESSAGE, title="a <!channel> run", text="@everyone")
        pauses: list[float] = []
        assert send.deliver(entry, message, sleep=pauses.append) is None
        assert pauses == [1.0], "500 is tried again"
        said = there.got[-1]
        assert said.path == f"/{SECRET}"
        assert (said.json["title"], said.json["message"]) == (
            "a <\u200b!channel> run", "@\u200beveryone")
        assert deliver(entry)[0] == "Apprise could not deliver it, 3 times"
    assert deliver(to(f"nosuch://{SECRET}", "apprise")) == (
        "Apprise does not know such an address", [])
    assert SECRET not in "".join(capfd.readouterr())


def test_apprise_follows_no_redirect():
    with endpoint(200) as aim, endpoint(redirect(aim.url)) as there:
        assert deliver(to(f"json://127.0.0.1:{there.port}/", "apprise"))[0] == (
            "Apprise could not deliver it, 3 times")
        assert aim.got == []


# --- commands -----------------------------------------------------------------------------------

WRITES = ("import os, sys, json; json.dump([json.load(sys.stdin), dict(os.environ)],"
          " open(sys.argv[1], 'w'))")


def command(*words: str) -> To:
    return To("desk", "command", command=words)


def test_a_command_gets_the_message_on_its_input_and_in_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_PANEL_RUN", "/some/run")
    out = tmp_path / "got.json"
    assert deliver(command(sys.executable, "-c", WRITES, str(out))) == (None, [])
    told, environment = json.loads(out.read_text())
    assert told == json.loads(json.dumps(MESSAGE.to_dict()))
    assert environment["GPU_PANEL_NOTIFY_TITLE"] == MESSAGE.title
    assert environment["GPU_PANEL_NOTIFY_LOSS"] == ""
    assert "GPU_PANEL_RUN" not in environment, "it would pass for one of the run's ranks"


@pytest.mark.parametrize(("words", "says"), [
    (("/no/such/program", SECRET), "its command can't be started: no such file or directory"),
    (("sh", "-c", f"echo {SECRET} >&2; exit 3"), "its command ended with status 3"),
    (("sh", "-c", "kill -9 $$"), "its command was ended by signal 9"),
    (("sh", "-c", "exec <&-; sleep 0.1"), None)])
def test_how_a_command_ends(words, says):
    assert deliver(command(*words)) == (says, [])


def test_a_command_that_never_ends_is_ended_with_its_group(tmp_path, monkeypatch):
    monkeypatch.setattr(send, "COMMAND_SECONDS", 2.0)
    monkeypatch.setattr(send, "_GRACE", 0.2)
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 600 & echo $$ $! > {pids}; while :; do sleep 600; done"
    assert deliver(command("sh", "-c", script)) == (
        "its command did not end within 2 s, and was ended", [])
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: procs.start_ticks(pid) is None)


def test_a_command_has_a_session_of_its_own(tmp_path):
    """So that no Ctrl-C of a terminal reaches it, and it reaches nobody in ours."""
    out = tmp_path / "sid"
    assert deliver(command("sh", "-c", f"ps -o sid= -p $$ > {out}; kill -INT 0"))[0] == (
        f"its command was ended by signal {signal.SIGINT.value}")
    assert int(out.read_text()) != os.getsid(0)
