"""When the next frame may be sent, and how much of it. Pure; all times are `time.monotonic()`.

A line to a far terminal hides how full it is: hundreds of kilobytes wait in ssh's buffers and
TCP's, and a key pressed now shows its effect behind them. So only little is under way at any time.
What the terminal has taken in is known by its answer to a question at the end of each frame (the
cursor's position, DSR 6). As in mosh (Winstein and Balakrishnan, USENIX ATC 2012), what a slow line
has no room for is never sent: the next frame shows the newest state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

QUIET = 2850.0
"""Bytes per second for what changes by itself: one and a half frames of eight ranks."""
LEAST = 500.0
"""The least of that where it is known."""
SHARE = 0.1
"""The part of a known line's speed that is used for what changes by itself."""
BURST = 2.0
"""Seconds for which unused bytes are kept."""
URGENT = 1.0
"""Seconds in which a key, a click or a resize has its effect. What is drawn until then is sent as
fast as the line takes it."""
PIECE = 0.25
"""Seconds of the line's time that one piece of a frame may take."""
SMALLEST = 512
"""Bytes; a piece is never smaller."""
PATIENCE = 2.0
"""Seconds after which an answer is no longer expected soon."""
AT_ONCE = 3
"""Questions that may be under way."""
STANDSTILL = 5.0
"""Seconds between pieces when a terminal that used to answer no longer does."""
TELLING = 256
"""Bytes; less says nothing about the line's speed."""


@dataclass(slots=True)
class Pace:
    """How a terminal's line is used. `now` must not go backwards between calls."""

    answering: bool = True
    """Whether the terminal is asked for answers.
    False behind tmux and screen: they answer at once, for themselves."""
    speed: float | None = None
    """Bytes per second that the line carries; None: not known."""
    delay: float | None = None
    """Seconds between a small frame and its answer; None: not known."""
    answers: bool = field(init=False, default=False)
    """Whether the terminal has ever answered."""
    _last: float = field(init=False, default=0.0)
    """When the last piece was sent."""
    _budget: float = field(init=False, default=QUIET * BURST)
    _filled: float | None = field(init=False, default=None)
    _urgent_until: float = field(init=False, default=0.0)
    _owed: bool = field(init=False, default=False)
    """Whether some effect of the person's last action may not have been sent yet."""
    _asked: list[tuple[float, int]] = field(init=False, default_factory=list)
    """(when, bytes) of what was sent and not yet answered, oldest first."""

    @property
    def rate(self) -> float:
        """Bytes per second for what changes by itself."""
        if self.speed is None:
            return QUIET
        return min(max(self.speed * SHARE, LEAST), QUIET)

    @property
    def piece(self) -> int | None:
        """The most bytes to send at once; None: any number."""
        return None if self.speed is None else max(int(self.speed * PIECE), SMALLEST)

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def touched(self, now: float) -> None:
        """The person has pressed a key or the like, and waits for its effect."""
        self._urgent_until = now + URGENT
        self._owed = True

    def caught_up(self, now: float) -> None:
        """The terminal shows, or will shortly show, all that has been drawn."""
        self._owed = now < self._urgent_until

    def urgent(self, now: float) -> bool:
        """Whether the person waits for what is sent."""
        return self._owed or now < self._urgent_until

    def wait(self, now: float) -> float:
        """Seconds until the next piece may be sent, 0 if it may now."""
        if self._asked:
            waited = now - self._asked[0][0]
            if self.answers:
                if waited > PATIENCE:  # the line stands still: one piece from time to time
                    return max(self._last + STANDSTILL - now, 0.0)
                under_way = sum(size for _, size in self._asked)
                if not self.urgent(now) or len(self._asked) >= AT_ONCE \
                        or under_way > (self.piece or SMALLEST):
                    return PATIENCE - waited + 0.001
        if self.urgent(now):
            return 0.0
        missing = self._missing(now)
        return missing / self.rate if missing >= 1.0 else 0.0

    def asks(self, now: float) -> bool:
        """Whether to ask for an answer at the end of the next piece."""
        return self.answering and len(self._asked) < AT_ONCE \
            and not (self._asked and now - self._asked[0][0] > PATIENCE)

    def _missing(self, now: float) -> float:
        """The bytes that must be saved up before the next piece, negative if there are some."""
        if self._filled is not None:
            self._budget = min(self._budget + (now - self._filled) * self.rate,
                               self.rate * BURST)
        self._filled = now
        return -self._budget

    def asked(self, now: float, size: int) -> None:
        """A piece of `size` bytes is about to be written, with a question at its end."""
        self._asked.append((now, size))

    def sent(self, began: float, now: float, size: int) -> None:
        """A piece of `size` bytes was written from `began` to `now`."""
        self._last = now
        if size >= TELLING and now - began > 0.05:  # a write waits only for a line that is full
            self._measured(size / (now - began))
        self._missing(now)
        if not self.urgent(now):
            self._budget -= size

    def answered(self, now: float) -> bool:
        """The terminal has answered. Returns whether it had been asked."""
        if not self._asked:
            return False
        self.answers = True
        began, size = self._asked.pop(0)
        took = max(now - began, 1e-6)
        if size < TELLING:
            self.delay = took if self.delay is None else min(self.delay * 1.05, took)
        else:
            rest = took - (self.delay or 0.0)
            self._measured(size / max(rest, took * 0.1, 1e-3))
        return True

    def _measured(self, speed: float) -> None:
        self.speed = speed if self.speed is None else 0.7 * self.speed + 0.3 * speed
