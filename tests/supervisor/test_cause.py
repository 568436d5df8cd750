"""Why a run failed: whose failure leads, and what is read in logs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gpu_engine.runs.disk_room import shared_memory
from gpu_engine.runs.state import Cause
from gpu_engine.supervisor.cause import (
    Failure,
    crash_in,
    describe_exit,
    exits_in,
    first_cause,
    of_events,
    root_in,
    traceback_in,
)

from ..event_lines import from_dict as event_from
from ..export.kit import Written


def err(kind, message, t):
    return event_from({"kind": "error", "type": kind, "message": message, "t": t})


@pytest.mark.parametrize("errors", [
    [("KeyError", "'x'", 10.5), ("RuntimeError", "[gloo] Connection closed by peer", 9.0)],
    [("KeyError", "'x'", 10.5), ("RuntimeError", "Application timeout caused pair closure", 9.0)],
    # Whatever one quotes that could not go on, and whatever NCCL says of this rank itself.
    [("AcceleratorError", "CUDA error: an illegal memory access", 10.5),
     ("PeerLost", "rank 0: CUDA error: an illegal memory access", 9.0)],
    [("DistBackendError", "NCCL error: invalid usage, Duplicate GPU : rank 0 and rank 1", 9.5),
     ("DistBackendError", "NCCL error: remote process exited", 9.0)],
    [("KeyError", "'x'", 9.0), ("ValueError", "y", 10.5)],
    [("RuntimeError", "Connection reset", 9.0), ("RuntimeError", "Connection reset", 10.5)]])
def test_the_first_error_leads_and_wake_never_does_over_a_cause(errors):
    """However late its process ended, which may have saved or written a core file."""
    failures = [Failure(rank, 1, 20.0 - rank, err(*error)) for rank, error in enumerate(errors)]
    assert [first_cause(order).rank for order in (failures, failures[::-1])] == [0, 0]
    assert first_cause([]) is None


def test_a_killed_rank_leads_over_the_connection_errors_it_caused():
    cause = first_cause([
        Failure(0, 1, 10.2, err("DistBackendError", "NCCL error", 10.1)),
        Failure(1, -9, 10.3),
    ], oom_kills=1)
    assert cause.rank == 1
    assert "the kernel counted it" in cause.message


def test_who_ended_without_a_word_leads_over_broken_connections_alone():
    """It may as well have been ended by its launcher, after another had failed."""
    broke = Failure(0, 1, 10.2, err("DistBackendError", "NCCL error", 10.1))
    own = Failure(2, 1, 10.5, err("KeyError", "'x'", 10.4))
    assert first_cause([broke, Failure(1, None, 10.0), own]).rank == 2
    alone = first_cause([broke, Failure(1, None, 10.3)])
    assert alone.line.startswith("rank 1: ended without an error or an end of its own: killed")


@pytest.mark.parametrize(("log", "ends", "root"), [
    ("E1129 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: python\n"
     "W1129 api.py:1028] Sending process 11 closing signal SIGTERM\n"
     "Root Cause (first observed failure):\n[0]:\n  time      : 2026\n  host      : here\n"
     "  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 12)  (SIGKILL)\n",
     {12: -9, 11: -15}, (3, -9)),
    ("W1129 spawn.py:165] Terminating process 13 via signal SIGTERM\n"
     "ProcessExitedException: process 1 terminated with signal SIGSEGV", {13: -15, None: -11},
     None),
    ("a.sh: line 4: 14 Killed    python train.py\n", {14: -9}, None),
    ("Killed\n", {None: -9}, None),
    ("rank 0 Killed time\nexitcode  : 1 (pid: 15)\n", {15: 1}, None)])
def test_what_launchers_say_of_how_their_processes_ended(log, ends, root):
    assert (exits_in(log), root_in(log)) == (ends, root)


def test_a_signal_that_we_have_not_sent_is_a_ranks_own_end_also_where_python_says_which():
    broke = Failure(0, 1, 10.0, err("RuntimeError", "Connection closed by peer", 9.9))
    ended = Failure(1, -signal.SIGTERM, 10.1, asked=False)
    assert first_cause([broke, ended]).line == "rank 1: killed by SIGTERM"
    assert first_cause([broke, Failure(1, -signal.SIGTERM, 10.1)]).rank == 0
    log = "x\nFatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call"
    assert crash_in(log) == -signal.SIGSEGV
    assert crash_in("the log says Fatal Python error: Aborted") is None


def test_an_error_of_an_earlier_attempt_is_no_cause_of_this_one(home):
    with Written(ranks=2) as it:
        it.tell(1, "error", t=-50.0, type="KeyError", message="'before'")
        it.tell(0, "error", t=5.0, type="ValueError", message="now")
        cause = of_events(it.run)
    assert (cause.rank, cause.type) == (0, "ValueError")


def test_a_process_that_is_aborted_after_its_end_leads_only_where_nothing_else_failed():
    own = Failure(0, 1, 10.0, err("KeyError", "'x'", 9.5))
    for status, name in ((-6, "ABRT"), (-11, "SEGV"), (-9, "KILL")):
        aborted = Failure(1, status, 9.0, None, "thirty lines of native code", after_end=True)
        assert first_cause([aborted, own]).type == "KeyError"
        assert first_cause([aborted]) == Cause(
            f"killed by SIG{name} after its script had reached its end, so its training was over"
            + ": native code was too late for Python's end, mostly a thread of gloo"
            * (status != -9), 1)


def test_what_is_known_is_told():
    for kind, message, line in (("KeyError", "", "KeyError"), ("", "", "failed without a message"),
                                ("", "x", "x")):
        error = event_from({"kind": "error", "type": kind, "message": message, "t": 1.0,
                            "traceback": "at"})
        assert first_cause([Failure(3, 1, 1.0, error)]) == Cause(line, 3, kind or None, "at")
    for status, words in ((3, "exited with 3"), (-15, "was killed by SIGTERM")):
        ended = Failure(0, status, 1.0, log_tail="log", launcher=True, asked=False)
        assert first_cause([ended]) == Cause(f"the ranks' launcher {words}", None, None, "log")
    missing = "TCPStore: Timed out after 31 seconds waiting for clients. 1/2 clients joined."
    assert first_cause([Failure(0, 1, 1.0, log_tail=missing)]) == Cause(
        "only 1 of 2 machines connected within 31 s; start the run on the others, and check "
        "master_addr, master_port and firewalls there")


def test_a_type_error_is_an_error_of_its_own():
    """Although "TypeError" has the letters of "peer" in it."""
    log = "Traceback (most recent call last):\n  File \"a.py\"\nTypeError: unexpected keyword 'x'\n"
    cause = first_cause([Failure(1, -15, 9.0), Failure(0, 1, 9.5, None, log)])
    assert (cause.rank, cause.type) == (0, "TypeError")


def test_a_script_that_can_not_be_compiled_says_what_is_wrong(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("x = 1\nprint(x))\n")
    log = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True,
                         check=False).stderr
    cause = first_cause([Failure(0, 1, 9.5, None, "a line before\n" + log)])
    assert (cause.type, cause.message) == ("SyntaxError", "unmatched ')'")
    assert cause.traceback.splitlines()[0] == f'  File "{script}", line 2'
    assert traceback_in("  File \"a\", line 2\n\nfine\n") is None


@pytest.mark.parametrize(("status", "kills", "says"), [
    (0, None, "exited with 0 before training ended"), (1, None, "exited with 1"),
    (-9, None, "killed by SIGKILL: probably out of host memory"),
    (-9, 0, "killed by SIGKILL: not for lack of memory, as the kernel counted no such kill"),
    (-9, 2, "killed by SIGKILL: out of host memory (the kernel counted it)"),
    (-11, 2, "killed by SIGSEGV: a crash in native code"), (-64, None, "killed by SIGRTMAX"),
    (-6, None, "killed by SIGABRT: native code gave up"),
    (-7, None, f"killed by SIGBUS: often a full {shared_memory()}"),
    (None, 1, "killed by SIGKILL: out of host memory (the kernel counted it)"),
    *((None, kills, f"ended without an error or an end of its own: killed by a signal, {why}")
      for kills, why in ((0, "and the kernel counted no kill for lack of memory"),
                         (None, "SIGKILL where host memory is full")))])
def test_an_exit_in_words(status, kills, says):
    assert describe_exit(status, kills) == says


def test_the_last_traceback_of_a_log_is_found():
    log = ("noise\nTraceback (most recent call last):\n  File \"a\"\nKeyError: 1\n\nDuring\n\n"
           "Traceback (most recent call last):\n  File \"b\", line 3\n    x\nValueError: two\n"
           "after")
    assert traceback_in(log).splitlines()[-1] == "ValueError: two"
    assert traceback_in("nothing") is None
    cut = log[:log.index("ValueError")].rstrip()
    assert traceback_in(cut) == cut[cut.rindex("Traceback"):]


@pytest.mark.parametrize(("status", "after", "kind"), [
    (1, "", "KeyError"), (1, "one more line\n", "KeyError"), (3, "\n", "KeyError"),
    (3, "trained on without the cache\n", None)])
def test_a_traceback_that_was_caught_is_no_cause(status, after, kind):
    log = "Traceback (most recent call last):\n  File \"a\"\nKeyError: 'cache'\n" + after
    cause = first_cause([Failure(0, status, 1.0, log_tail=log)])
    assert cause.type == kind
    assert cause.message == ("'cache'" if kind else describe_exit(status, None))
    assert cause.traceback
