"""Whom a stop signals, holds and lets go on, over processes that are made up."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_engine.events import schema
from gpu_engine.events.reader import Tail
from gpu_engine.supervisor import stopping
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.ranks import RankState
from gpu_engine.supervisor.stopping import Stopping, saving

US, CHILD = os.getpid(), 7000
INT, TERM, STOP, CONT = signal.SIGINT, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT


@dataclass
class Machine:
    """Processes: pid → (parent, program, process group)."""

    processes: dict[int, tuple[int, str, int]]
    deaf: tuple[int, ...] = ()
    """What ignores SIGINT."""
    piped: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    """What belongs to another user."""
    now: float = 100.0
    written: int = 0
    sent: list[tuple[int, int]] = field(default_factory=list)

    def send(self, pid: int, ticks: int | None, number: int) -> bool:
        if pid in self.others:
            raise PermissionError
        if pid in self.processes:
            assert ticks == pid + 1
            self.sent.append((pid, number))
        return pid in self.processes

    def told(self) -> list[tuple[int, int]]:
        told, self.sent = sorted(self.sent), []
        return told


@pytest.fixture
def machine(monkeypatch):
    def made(**processes) -> Machine:
        there = Machine({int(name[1:]): each for name, each in processes.items()})

        def ticks(pid):
            return pid + 1 if pid in there.processes else None

        for name, fake in {
                "send": there.send, "start_ticks": ticks,
                "program": lambda pid: there.processes.get(pid, ("", "", 0))[1],
                "ignores": lambda pid, number: number == INT and pid in there.deaf,
                "alive": lambda pid, began: began is not None and ticks(pid) == began,
                "moved": lambda pid, what: there.written}.items():
            monkeypatch.setattr(stopping.procs, name, fake)
        monkeypatch.setattr(stopping, "process_table", lambda: {US: (1, False)} | {
            pid: (parent, False) for pid, (parent, _, _) in there.processes.items()})
        monkeypatch.setattr(stopping, "_reads_pipe", lambda pid: pid in there.piped)
        monkeypatch.setattr(stopping.time, "monotonic", lambda: there.now)
        monkeypatch.setattr(os, "getpgid", lambda pid: there.processes[pid][2])
        monkeypatch.setattr(os, "kill", lambda pid, number: there.send(pid, pid + 1, number))
        return there

    return made


def child(pid: int = CHILD) -> Child:
    return Child((0,), "rank", pid, pid + 1, None)  # pyright: ignore[reportArgumentType]


def ranks(*pids: int, steps: int = 0) -> dict[int, RankState]:
    found = {}
    for rank, pid in enumerate(pids):
        found[rank] = RankState(rank, Tail(Path("none")), 1)
        found[rank].fold(schema.Start(rank, rank, 0, pid, pid + 1, len(pids), attempt=1))
        if steps:
            found[rank].fold(schema.Step(steps, 0.1, 0, n=steps, loss=1.0, losses=(1.0,)))
    return found


def test_a_shell_is_held_until_its_ranks_have_ended_and_ended_if_it_lingers(machine):
    there = machine(p7000=(US, "bash", 7000), p7001=(7000, "env", 7000),
                    p7002=(7001, "python3", 7000), p7003=(7000, "python3", 7000))
    stop, shell = Stopping(INT), child()
    stop.advance([shell], ranks(7002, 7003))
    assert there.told() == [(7000, STOP), (7002, INT), (7003, INT)]
    assert stop.going_on
    stop.advance([shell], ranks(7002, 7003))
    del there.processes[7002]
    stop.advance([shell], ranks(7002, 7003))
    assert there.told() == []  # once each
    assert stop.press_on()
    assert not stop.press_on()
    assert there.told() == [(7003, TERM)]
    del there.processes[7003]
    assert not stop.going_on
    there.now += 50
    stop.advance([shell], ranks(7002, 7003))
    assert there.told() == [(7000, TERM), (7000, CONT)]
    there.now += 3
    stop.advance([shell], ranks(7002, 7003))
    assert there.told() == []
    there.now += 0.5
    for _ in range(2):
        stop.advance([shell], ranks(7002, 7003))
    assert there.told() == [(7000, TERM)]
    assert shell.asked


@pytest.mark.parametrize(("number", "program", "told"), [
    (INT, "python3", [(7000, INT)]), (INT, "accelerated", [(7001, INT), (7002, INT)]),
    (TERM, "python3", [(7001, TERM), (7002, TERM)])])
def test_what_gave_its_ranks_groups_of_their_own_passes_ctrl_c_on(machine, number, program, told):
    there = machine(p7000=(US, program, 7000), p7001=(7000, "python3", 7001),
                    p7002=(7000, "python3", 7002), p7003=(US, "python3", 7003))
    stop = Stopping(number)
    stop.advance([child()], ranks(7001, 7002))
    assert there.told() == told
    stop.advance([child()], ranks(7001, 7002, 7003, 7004))  # one is an orphan, one is gone
    assert there.told() == [(7003, number)]
    assert {7001, 7002, 7003} <= {pid for pid, _ in stop.signalled}


def test_a_process_that_is_a_rank_gets_it_itself_and_once_it_has_stepped_also_a_wrapper(machine):
    there = machine(p7000=(US, "python3", 7000), p7001=(7000, "python3", 7000),
                    p8000=(US, "python3", 8000))
    stop, both = Stopping(INT), [child(), child(8000)]
    stop.advance(both, ranks(7001, 8000))
    assert there.told() == [(7001, INT), (8000, INT)]
    stop.advance(both, ranks(7000, 8000))
    assert there.told() == []
    stop.advance(both, ranks(7000, 8000, steps=1))
    assert there.told() == [(7000, INT)]


def test_where_no_rank_is_known_it_is_as_in_a_terminal(machine):
    """What ignores it gets SIGTERM, but below a Python what leaves Ctrl-C to others gets none."""
    there = machine(
        p7000=(US, "sh", 7000), p7001=(7000, "python3", 7000), p7002=(7001, "python3", 7000),
        p7003=(7001, "sleep", 7003), p7004=(7001, "deaf", 7000), p7005=(7000, "sleep", 7000),
        p7006=(7000, "tee", 7000), p7007=(7000, "deaf", 7000), p7008=(7002, "cp", 7000))
    there.deaf, there.piped = (7004, 7007), (7006,)
    stop, shell = Stopping(INT), child()
    stop.advance([shell], {})
    told = [(7000, STOP), (7001, INT), (7002, INT), (7005, INT), (7007, TERM), (7008, INT)]
    assert there.told() == told
    stop.advance([shell], {})
    assert there.told() == []


def test_a_shell_that_is_held_between_two_commands_is_let_go(machine, monkeypatch):
    """What it ran has ended when it is held; or it has begun the next, which is the one to tell."""
    for begins in ({}, {7002: (7000, "python3", 7000)}):
        there = machine(p7000=(US, "sh", 7000), p7001=(7000, "sleep", 7000))

        def send(pid, ticks, number, there=there, begins=begins):
            if number == STOP:
                there.processes.pop(7001)
                there.processes.update(begins)
            return there.send(pid, ticks, number)

        monkeypatch.setattr(stopping.procs, "send", send)
        Stopping(INT).advance([child()], {})
        let_go = [(7000, TERM), (7000, CONT), (7000, STOP)]
        assert there.told() == ([(7000, STOP), (7002, INT)] if begins else let_go)


def test_a_program_without_any_below_gets_it_and_who_can_not_be_told_is_let_be(machine):
    there = machine(p7000=(US, "a.out", 7000), p8000=(US, "a.out", 8000))
    there.others = (8000,)
    stop = Stopping(INT)
    stop.advance([child(), child(8000)], {})
    assert there.told() == [(7000, INT)]
    stop.signal_all([7000, 9000])
    assert there.told() == []
    assert not Stopping(TERM).press_on()


def test_what_writes_a_mebibyte_a_second_is_saving_for_five_seconds_more(machine):
    there = machine(p7000=(US, "python3", 7000))
    stop = Stopping(TERM)
    stop.advance([child()], ranks(7000))
    assert not stop.writing()
    for seconds, written, writes in [
            (1, 1 << 20, True), (1, 0, True), (3.5, 0, True), (0.5, 0, False),
            (2, (2 << 20) - 1, False), (0.15, 9**9, False), (0.15, 0, True)]:
        there.now, there.written = there.now + seconds, there.written + written
        assert stop.writing() == writes, (seconds, written)


def test_who_writes_a_checkpoint_that_grows_is_waited_for(monkeypatch):
    found = ranks(1, 2, 3)
    for rank, kind in ((0, 0.0), (1, 40.0), (2, 50.0)):
        monkeypatch.setattr(stopping.time, "monotonic", lambda at=kind: at)
        found[rank].fold(schema.Phase("checkpoint", 1.0, 3, None if rank == 1 else 5))
    monkeypatch.setattr(stopping.time, "monotonic", lambda: 60.0)
    assert [s.rank for s in saving(found.values())] == [2, 1]
