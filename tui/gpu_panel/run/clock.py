"""The time of a run, from which the pauses between its attempts are left out. Pure."""

from __future__ import annotations

from gpu_engine.runs.state import AttemptRecord, State


class RunClock:
    """Turns moments into seconds of the run. Each attempt begins with a second of its own, and what
    was once said of one stays, so that curves don't shift."""

    def __init__(self) -> None:
        self._began: dict[int, tuple[float, float]] = {}
        """Attempt → (when it began, when it would have begun without the pauses), Unix seconds."""
        self._last = 0.0

    def learn(self, state: State) -> None:
        passed = 0
        for one in state.attempts or (AttemptRecord(1, state.started or state.created),):
            self._began.setdefault(one.number, (one.started, one.started - passed))
            passed += int((one.ended or one.started) - one.started) + 1

    def begun(self, attempt: int, at: float) -> None:
        """Take in that a rank has begun an attempt, of which the state may not say so yet."""
        if self._began:
            self._began.setdefault(attempt, (at, at - int(self._last) - 1))

    def seconds(self, at: float) -> float | None:
        """The time of the run at this Unix second; None if nothing is known of the run."""
        found = None
        for began, origin in self._began.values():
            if found is None or at >= began:
                found = max(at - origin, 0.0)
        self._last = max(self._last, found or 0.0)
        return found

    def moment(self, seconds: float) -> float:
        """When this time of the run was, Unix seconds."""
        found = 0.0
        for began, origin in self._began.values():
            if not found or origin + seconds >= began:
                found = origin + seconds
        return found
