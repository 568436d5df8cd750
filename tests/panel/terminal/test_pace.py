"""How a line is used: the numbers are worked out by hand."""

from __future__ import annotations

from gpu_panel.terminal.pace import (
    BURST,
    LEAST,
    PATIENCE,
    QUIET,
    SMALLEST,
    STANDSTILL,
    URGENT,
    Pace,
)


def send(pace: Pace, at: float, size: int, answer: float | None = None) -> None:
    """A piece of `size` bytes, written at once, answered `answer` seconds later."""
    if pace.asks(at):
        pace.asked(at, size)
    pace.sent(at, at, size)
    if answer is not None:
        assert pace.answered(at + answer)


def test_what_changes_by_itself_takes_so_many_bytes_a_second():
    pace = Pace(answering=False)
    now, total = 100.0, 0
    while now < 200.0:
        if (wait := pace.wait(now)) > 0:
            now += wait
            continue
        send(pace, now, 900)
        total += 900
    assert QUIET < 3000
    assert QUIET * 99 <= total <= QUIET * (100 + BURST) + 900


def test_a_key_does_not_wait_for_that():
    pace = Pace(answering=False)
    send(pace, 100.0, 50_000)
    assert pace.wait(100.0) > 10
    pace.touched(100.0)
    assert pace.wait(100.0) == 0
    assert pace.wait(100.0 + URGENT + 0.1) == 0  # some of its effect may be missing
    pace.caught_up(100.0 + URGENT + 0.1)
    assert pace.wait(100.0 + URGENT + 0.2) > 10
    pace.touched(110.0)
    pace.caught_up(110.5)  # more of it may still be drawn
    assert pace.urgent(112.0)


def test_the_speed_is_measured_and_a_piece_takes_a_quarter_of_a_second_of_it():
    pace = Pace()
    assert (pace.rate, pace.piece) == (QUIET, None)
    send(pace, 100.0, 100, answer=0.2)  # small: only the way there and back
    assert pace.speed is None
    send(pace, 101.0, 4000, answer=1.2)  # 0.2 s of them on the way
    assert round(pace.speed) == 4000
    assert (pace.piece, pace.rate) == (1000, LEAST)
    pace.speed = 1e6
    assert pace.rate == QUIET
    pace.speed = 10.0
    assert pace.piece == SMALLEST


def test_while_a_frame_is_under_way_nothing_follows_by_itself():
    pace = Pace()
    send(pace, 100.0, 100, answer=0.1)
    send(pace, 101.0, 300)
    assert 0 < pace.wait(101.5) <= PATIENCE
    assert pace.answered(101.6)
    assert pace.wait(101.6) == 0
    assert not pace.answered(101.7)  # a report that nobody asked for is not ours


def test_keys_may_overtake_a_little_but_not_much():
    pace = Pace()
    send(pace, 100.0, 100, answer=0.1)
    pace.touched(101.0)
    send(pace, 101.0, 200)
    assert pace.wait(101.05) == 0
    send(pace, 101.05, 400)
    assert pace.wait(101.1) > 0  # 600 bytes are under way


def test_no_more_than_three_pieces_are_under_way():
    pace = Pace()
    send(pace, 100.0, 100, answer=0.1)
    pace.touched(101.0)
    for at in (101.0, 101.1, 101.2):
        assert pace.wait(at) == 0
        send(pace, at, 10)
    assert pace.wait(101.3) > 0
    assert pace.answered(101.4)
    assert pace.wait(101.4) == 0


def test_a_terminal_that_never_answers_is_asked_no_more_than_thrice_and_not_waited_for():
    pace = Pace()
    asked = 0
    for n in range(20):
        asked += pace.asks(100.0 + n)
        send(pace, 100.0 + n, 100)
        assert pace.wait(100.5 + n) == 0
    assert asked <= 3


def test_a_line_that_stands_still_gets_a_piece_from_time_to_time():
    pace = Pace()
    send(pace, 100.0, 100, answer=0.1)
    send(pace, 101.0, 100)
    pace.touched(104.0)
    assert pace.wait(104.0) == STANDSTILL - 3.0
    assert pace.wait(101.0 + STANDSTILL) == 0
    assert not pace.asks(104.0)


def test_a_write_that_had_to_wait_tells_the_speed_too():
    pace = Pace(answering=False)
    pace.sent(100.0, 101.0, 4000)
    assert pace.speed == 4000
