"""Two takers never hold one device: every order in which their steps can follow each other.

The search runs the rule itself (`taking`), on a model of the folder. A look is not one step: first
the names are listed, then each file is opened, and anything may happen between. A taker may stand
still for ever between any two steps, die, or let go again; somebody who keeps to no rule may post
and withdraw what he likes at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from gpu_engine.box import taking
from gpu_engine.box.taking import Rival, Step, Time

ENDS = ("held", "refused", "gone")


class Taker(NamedTuple):
    step: str = "post"
    rank: int | None = None
    """The place of its file's name among all names that are there; None: it has no file."""
    held: bool = False
    """What its file says."""
    listed: tuple[int, ...] | None = None
    """During a look: whose files are still to be opened."""
    seen: frozenset[tuple[bool, bool]] = frozenset()
    """During a look, of each file that was opened: whether its name is less, and what it says."""


World = tuple[Taker, ...]
Rule = Callable[[taking.Order, list[Rival], Time], Step]


def file(world: World, me: int, taker: Taker, rank: int | None, *, held: bool = False) -> World:
    """The world after `me` has become `taker`, with a file before which `rank` others are by name,
    or with none. All others keep their order."""
    old = world[me].rank
    others = [t._replace(rank=t.rank - (old is not None and t.rank > old))
              if t.rank is not None else t for t in world]
    if rank is not None:
        others = [t._replace(rank=t.rank + (t.rank >= rank)) if t.rank is not None else t
                  for t in others]
    return (*others[:me], taker._replace(rank=rank, held=held), *others[me + 1:])


def moves(world: World, me: int, rule: Rule, times: tuple[Time, ...]) -> Iterator[World]:
    """The worlds that the taker's next step may lead to."""
    taker = world[me]
    there = [n for n, t in enumerate(world) if n != me and t.rank is not None]

    def become(taker: Taker) -> World:
        return (*world[:me], taker, *world[me + 1:])

    if taker.step == "look":
        if taker.listed is None:
            yield become(taker._replace(listed=tuple(there)))
        elif not taker.listed:
            rivals = [Rival(("0" if less else "2", 0), held) for less, held in taker.seen]
            for step in {rule(("1", 0), rivals, time) for time in times}:
                yield become(Taker(step, taker.rank))
        for n in taker.listed or ():
            seen, other = taker.seen, world[n]
            if other.rank is not None:
                assert taker.rank is not None
                seen |= {(other.rank < taker.rank, other.held)}
            yield become(taker._replace(listed=tuple(m for m in taker.listed or () if m != n),
                                        seen=seen))
    elif taker.step == "post":
        for rank in range(len(there) + 1):
            yield file(world, me, Taker(taking.after("post")), rank)
    elif taker.step == "settle":
        yield become(Taker(taking.after("settle"), taker.rank, held=True))
    elif taker.step in ("withdraw", "give up"):
        yield file(world, me, Taker(taking.after(taker.step)), None)
    elif taker.step in ("wait", "back off"):
        yield become(Taker(taking.after(taker.step), taker.rank))


def lawless(world: World, me: int) -> Iterator[World]:
    """What somebody may do who keeps to no rule."""
    yield file(world, me, Taker("hostile"), None)
    others = sum(t.rank is not None for n, t in enumerate(world) if n != me)
    for rank in (0, others):
        for held in (False, True):
            yield file(world, me, Taker("hostile"), rank, held=held)


def search(start: World, rule: Rule, times: tuple[Time, ...] = ("early", "late", "over"), *,
           fate: bool = False) -> dict[World, list[World]]:
    """Every world that can come about, and what can follow from it. `fate`: takers may die and let
    go."""
    found: dict[World, list[World]] = {}
    ahead = [start]
    while ahead:
        world = ahead.pop()
        if world in found:
            continue
        follow: list[World] = []
        for n, taker in enumerate(world):
            if taker.step == "hostile":
                follow += lawless(world, n)
                continue
            follow += moves(world, n, rule, times)
            if fate and taker.step != "gone":
                follow.append(file(world, n, Taker("gone"), None))
        found[world] = follow
        ahead += follow
    return found


def holding(world: World) -> int:
    return sum(taker.step == "held" for taker in world)


@pytest.mark.parametrize("takers", [2, 3])
def test_never_two_and_in_the_end_one(takers: int) -> None:
    """Without an end of the time for trying: whatever happens, one gets it."""
    found = search((Taker(),) * takers, taking.after_look, ("early", "late"))
    assert max(map(holding, found)) == 1
    ends = {world for world in found if all(t.step in ENDS for t in world)}
    assert {holding(world) for world in ends} == {1}
    before: dict[World, list[World]] = {}
    for world, follow in found.items():
        for next_world in follow:
            before.setdefault(next_world, []).append(world)
    reach, ahead = set(ends), list(ends)
    while ahead:
        for world in before.get(ahead.pop(), ()):
            if world not in reach:
                reach.add(world)
                ahead.append(world)
    assert reach == set(found), "from some worlds there is no way to an end"


def test_never_two_whoever_dies_lets_go_or_is_too_late() -> None:
    found = search((Taker(),) * 3, taking.after_look, fate=True)
    assert max(map(holding, found)) == 1
    assert any(all(t.step in ("refused", "gone") for t in world) for world in found)


def test_never_two_honest_ones_whatever_somebody_else_posts() -> None:
    found = search((Taker(), Taker(), Taker("hostile")), taking.after_look)
    assert max(map(holding, found)) == 1


def careless(mine, rivals, time) -> Step:
    """Goes on if others only try."""
    return taking.after_look(mine, [r for r in rivals if r.held], time)


def hasty(mine, rivals, time) -> Step:
    """Goes on if the others have a greater name."""
    return "settle" if all(mine < r.order and not r.held for r in rivals) else "give up"


def stubborn(mine, rivals, time) -> Step:
    """Waits, whatever its name is."""
    step = taking.after_look(mine, rivals, time)
    return "wait" if step == "withdraw" else step


@pytest.mark.parametrize("rule", [careless, hasty])
def test_the_search_finds_two_holders(rule: Rule) -> None:
    assert max(map(holding, search((Taker(),) * 2, rule))) == 2


def test_the_search_finds_those_who_wait_for_each_other() -> None:
    found = search((Taker(),) * 2, stubborn, ("early",))
    assert max(map(holding, found)) == 1
    stuck = next(w for w in found if all(t.step == "wait" for t in w))
    assert all(holding(w) == 0 for w in search(stuck, stubborn, ("early",)))
