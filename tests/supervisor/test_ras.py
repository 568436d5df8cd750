"""Asking NCCL why ranks stand still. A server stands in for NCCL: it takes the commands and gives
the answer of docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest

from gpu_engine.plan.records import Process
from gpu_engine.runs import folder as runs
from gpu_engine.supervisor import hang_watch, ras, starting
from gpu_engine.supervisor.attempt import Attempt

from ..conftest import wait_for
from ..plans import plan
from .test_hang_watch import rank

ANSWER = b"""OK
NCCL version 2.27.5 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
"""


WELL = b"""OK
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          1            1          1        1

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         1         1         1   RUNNING      OK

Errors
======

Warnings
========

"""
"""What NCCL 2.28.9 says of one rank, which sleeps, on an H200."""


@contextlib.contextmanager
def nccl(answer: bytes, *, closes: bool = True):
    """A server for one question: (its address, what it was asked)."""
    asked: list[bytes] = []
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve() -> None:
            link, _ = server.accept()
            with link:
                while b"STATUS\n" not in b"".join(asked):
                    asked.append(link.recv(100))
                with contextlib.suppress(OSError):
                    for at in range(0, len(answer), 400):
                        link.sendall(answer[at:at + 400])
                    if not closes:
                        done.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        done.set()
        thread.join()


def words(question: ras.Question) -> str:
    wait_for(question.receive)
    return question.words


def test_what_nccl_finds_wrong():
    with nccl(ANSWER) as (address, asked):
        found = words(ras.Question(address))
    assert found.splitlines() == [line.rstrip() for line in ANSWER.decode().splitlines()[-5:]]
    assert b"".join(asked) == b"TIMEOUT 2\nVERBOSE STATUS\n"


@pytest.mark.parametrize("answer", [WELL, ANSWER.partition(b"Warnings")[0]])
def test_nothing_wrong_is_nothing_told(answer):
    with nccl(answer) as (address, _):
        assert words(ras.Question(address)) == ""


def test_what_stands_below_another_heading_is_not_wrong():
    """NCCL may tell its tables after what is wrong."""
    tables, heading, wrong = ANSWER.partition(b"Warnings\n")
    tables = tables[tables.index(b"Job summary"):]
    with nccl(heading + wrong + b"\n" + tables) as (address, _):
        found = words(ras.Question(address))
    assert found.splitlines() == [line.rstrip() for line in wrong.decode().splitlines()[2:]]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "127.0.0.1:99999999999", ""])
def test_nobody_there_is_no_wait(address):
    assert words(ras.Question(address)) == ""


def test_an_answer_without_end_and_of_anything_is_bounded_text():
    evil = b"Errors\n======\n" + b"\x1b]0;evil\x07 \x9b2J\xff a line\n" * 100_000
    with nccl(evil, closes=False) as (address, _):
        found = words(ras.Question(address))
    assert len(found.splitlines()) == 12
    assert "\x1b" not in found
    assert "evil" not in found


def test_one_that_is_silent_is_left_alone():
    with nccl(b"", closes=False) as (address, asked):
        question = ras.Question(address)
        wait_for(lambda: not question.receive() and b"STATUS" in b"".join(asked))
        question.close()
        assert question.words == ""


def test_a_hang_has_the_words_of_nccl_in_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(hang_watch.stacks, "send", lambda *about: False)
    with nccl(ANSWER) as (address, _):
        watch = hang_watch.Watch(runs.Run(tmp_path), 3.0, address)
        seen = rank(SimpleNamespace(pid=2**22 + 1), tmp_path, still=10, silent=0.5)
        cause = wait_for(lambda: watch.judge({0: seen}))
    assert cause.message.startswith("hang: rank 0 has stalled in backward")
    assert cause.message.endswith("process 483072 on node 172.16.64.210")
    assert "NCCL says:\n#0-0 (27a079b828ff1a75) MISMATCH" in cause.message
    assert cause.line.endswith("(train.hang_timeout = 3 s)")


@pytest.mark.parametrize(("backend", "given", "own"), [
    ("nccl", {}, True), ("gloo", {}, False), ("nccl", {"NCCL_RAS_ADDR": "localhost:7"}, False)])
def test_each_attempt_has_an_address_of_its_own(tmp_path, monkeypatch, backend, given, own):
    started = []
    monkeypatch.setattr(starting, "spawn", lambda argv, *, env, **more: started.append(
        env.get("NCCL_RAS_ADDR")) or SimpleNamespace(pid=1))
    process = Process(("true",), given, (0,), "rank", (), "ranks/00000.log", ())
    told = []
    for number in (1, 2):
        attempt = Attempt(number)
        (tmp_path / "ranks").mkdir(exist_ok=True)
        assert starting.start(runs.Run(tmp_path), plan(backend=backend, processes=(process,)),
                              attempt, direct=True, umask=0o77) is None
        told.append(attempt.nccl_at)
    assert started == (told if backend == "nccl" else [None, None])
    if own:
        assert all(address.startswith("127.0.0.1:") for address in told)
        assert told[0] != told[1]
    else:
        assert told == ([given["NCCL_RAS_ADDR"]] * 2 if given else [None, None])
