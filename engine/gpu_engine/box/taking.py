"""The rule by which two users never take one device: what a taker does next. Pure.

A taker posts a claim that says "trying", and looks at the claims of all others on the same devices.
If there is none, it marks its own claim "held" and has the devices. If another's is held, it
withdraws its claim and is refused. If others are only trying, the one with the least name waits for
the others to withdraw, and looks again; the others withdraw, pause for a random time, and post
again, under another name.

Why never two that keep to this hold one device, wherever any of them is suspended and for however
long: a taker marks its claim "held" only after a look that began when its claim was posted and that
saw no other claim, neither held nor trying. Of two that did so, one has posted later. Its look came
later still, so the claim of the other was there, and would have been seen. No clock, no lock and no
order of scheduling is part of this argument. A look need not show all claims at one moment: it is
enough that it shows those that are there from its beginning to its end.

Why somebody gets it: of takers who meet, all but the one with the least name withdraw, and that one
tries longer than the others. Whoever only ever tries, be it a stopped process or on purpose, is at
last taken for one who holds the device, and named. That is no more than anybody can do by holding
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpu_engine.common.frozen import frozen

Step = Literal["post", "look", "wait", "withdraw", "back off", "settle", "give up", "held",
               "refused"]
"""What a taker does: post its claim; look; wait while its claim stands; withdraw it and then pause
without one; mark it held; withdraw it for good. The last two are the ends."""

Time = Literal["early", "late", "over"]
"""Whether to try again; to try on only if one's own name is the least; not at all."""

Order = tuple[str, int]
"""The name in a claim, and its owner's uid, as anybody may copy a name."""

_NEXT: dict[Step, Step] = {
    "post": "look", "wait": "look", "withdraw": "back off", "back off": "post", "settle": "held",
    "give up": "refused"}


@frozen(slots=True)
class Rival:
    """Another's claim on the same device."""

    order: Order
    held: bool


def after(step: Step) -> Step:
    """What follows a step other than a look."""
    return _NEXT[step]


def after_look(mine: Order, rivals: Iterable[Rival], time: Time) -> Step:
    """What follows a look that showed these claims."""
    rivals = list(rivals)
    if not rivals:
        return "settle"
    if any(r.held for r in rivals):
        return "give up"
    if mine < min(r.order for r in rivals):
        return "give up" if time == "over" else "wait"
    return "withdraw" if time == "early" else "give up"
