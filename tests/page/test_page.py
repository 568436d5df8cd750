"""gpu-engine page: what a browser gets, who gets it, and that it can only look."""

from __future__ import annotations

import http.client
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpu_engine.page import pages as content
from gpu_engine.page.pages import Server
from gpu_engine.report import formats

from ..command_line import called
from ..conftest import patience, wait_for
from ..export.kit import Written
from ..report.test_report import EVIL, Read, trained


@pytest.fixture
def server() -> Iterator[Server]:
    def page(path: str) -> str | None:
        if path == "fault":
            raise RuntimeError("ours")
        return f"<p>{path}</p>" if path in ("", "run/3f2a") else None

    with Server(0, page) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server: Server, path: str, method: str = "GET") -> tuple[int, str]:
    there = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    there.request(method, path)
    answer = there.getresponse()
    return answer.status, answer.read().decode()


def test_only_this_machine_and_who_knows_the_token_is_answered(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address.startswith("http://127.0.0.1:")
    token = f"/{server.token}"
    assert asked(server, f"{token}/") == (200, "<p></p>")
    assert asked(server, f"{token}/run/3f2a?x=1") == (200, "<p>run/3f2a</p>")
    for path in ("/", "", "/run/3f2a", f"{token}x/", f"/{server.token[:-1]}/", token,
                 f"{token}/run/9999", f"{token}/../{server.token}/", "/%C3%A9/", "foo"):
        status, text = asked(server, path or "/")
        assert (status, "<p>" in text) == (404, False), path


def test_nothing_but_looking_is_understood(server: Server) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert asked(server, f"/{server.token}/", method)[0] == 501
    assert asked(server, f"/{server.token}/", "HEAD") == (200, "")


def test_a_fault_of_ours_is_no_page_and_the_next_one_comes(server: Server, monkeypatch) -> None:
    faults: queue.Queue[BaseException | None] = queue.Queue()
    monkeypatch.setattr(Server, "handle_error", lambda *_: faults.put(sys.exc_info()[1]))
    status, text = asked(server, f"/{server.token}/fault")
    assert (status, text) == (500, "This page could not be made.\n")
    assert asked(server, f"/{server.token}/")[0] == 200
    assert repr(faults.get(timeout=patience())) == "RuntimeError('ours')"


def test_a_page_that_takes_long_to_make_is_kept_for_longer(monkeypatch) -> None:
    now, made = [100.0], []
    monkeypatch.setattr("gpu_engine.page.pages.time", SimpleNamespace(monotonic=lambda: now[0]))

    def page(path: str) -> str:
        made.append(path)
        now[0] += 2.0 if path == "run/long" else 0.0
        return path

    with Server(0, page) as server:
        for after, expected in ((0.0, ["run/long"]), (39.0, []), (2.0, ["run/long"])):
            made.clear()
            now[0] += after
            assert server.html(f"/{server.token}/run/long") == "run/long"
            assert made == expected
        made.clear()
        for after in (0.0, 2.0, 2.0):
            now[0] += after
            server.html(f"/{server.token}/")
        assert made == ["", ""]


def test_somebody_who_goes_away_is_no_fault(server: Server, capfd) -> None:
    for fault, said in ((BrokenPipeError(), False), (ValueError("ours"), True)):
        try:
            raise fault
        except Exception:  # noqa: BLE001 - as the library calls it
            server.handle_error(None, ("127.0.0.1", 1))
        assert ("Traceback" in capfd.readouterr().err) is said


def test_the_token_is_another_each_time_and_long() -> None:
    with Server(0, str) as one, Server(0, str) as two:
        assert one.token != two.token
        assert len(one.token) >= 22  # 128 bits


def test_a_run_is_shown_with_its_curves_and_the_end_of_its_log(home) -> None:
    run = trained("toy", 0.25, [4.0, 2.0, 1.0])
    run.log(0).write_text("".join(f"line {i}\n" for i in range(500)) + f"{EVIL}\x1b[31mred\n")
    text = formats.html("a run", content.of_run(run), "now", 5, "../")
    page = Read(text)
    said = " ".join(page.said)
    assert "<script" not in text
    assert EVIL in said
    assert "\x1b" not in text
    assert "line 499" in said
    assert "line 100" not in said
    assert text.count("<svg") >= 2
    assert ("content", "5") in page.attributes
    assert ("href", "../") in page.attributes
    assert said.index("Curves") < said.index("Log of rank 0") < said.index("What was asked")


def test_the_list_leads_to_each_run(home) -> None:
    ids = {trained(name, 0.25, [2.0, 1.0]).id for name in ("one", "two")}
    page = Read(formats.html("all", content.overview((), "run/{id}"), "now"))
    assert {value for name, value in page.attributes if name == "href"} == {
        f"run/{one}" for one in ids}
    assert content.known(ids.pop()) is not None
    assert content.known("last") is None
    assert content.known("../x") is None


def test_one_file_holds_all_and_leads_nowhere_else(home, tmp_path) -> None:
    run = trained("toy", 0.25, [4.0, 2.0, 1.0])
    with Written("broken") as broken:
        pass
    (broken.path / "spec.toml").write_text("no = [")
    done = called("page", "-o", str(tmp_path / "p.html"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'p.html'}\n"), done.stderr
    assert (tmp_path / "p.html").stat().st_mode & 0o777 == 0o600
    text = (tmp_path / "p.html").read_text()
    page = Read(text)
    links = {value for name, value in page.attributes if name == "href"}
    assert links == {f"#{run.id}", f"#{broken.run.id}"}
    assert "http-equiv=\"refresh\"" not in text
    nowhere = called("page", "-o", "/proc/no/p.html")
    assert nowhere.returncode == 2
    assert "/proc/no/p.html: can't be written" in nowhere.stderr


def test_the_command_says_its_address_and_a_taken_port_is_named(home) -> None:
    with subprocess.Popen([sys.executable, "-m", "gpu_engine", "page", "--port", "0"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        address = process.stdout.readline().strip()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]{22}/", address)[1])
        there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        there.request("GET", address.partition(str(port))[2])
        text = there.getresponse().read().decode()
        assert "Devices" in text
        assert "No runs yet" in text
        taken = called("page", "--port", str(port))
        assert taken.returncode == 2
        assert f"port {port} of 127.0.0.1: Address already in use; --port 0" in taken.stderr
        process.send_signal(2)
        wait_for(lambda: process.poll() is not None)
        assert process.returncode == 130
        assert "Traceback" not in process.stderr.read()
