"""Searches: sweeps whose next values are asked for when a place has room (`--search tpe`).

The members' folders are the study. Each question goes to a short child that has Optuna (`ask.py`),
with what the members have done by then: those that were removed are not in it, those that were
resumed count as they are. What a member is made of stands in a file of the queue's folder as long
as there is more to ask; the process of the sweep asks (`__main__.py`), and goes on where another
was killed.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_engine.code.submitted import Kept
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.interpreters import choose
from gpu_engine.places import slurm, verbs
from gpu_engine.queue import submit, wait
from gpu_engine.queue.submit import Submission
from gpu_engine.queue.turns import Start, When
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.create import working_folder
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict
from gpu_engine.sweep import grid, group, study, table
from gpu_engine.sweep.kept import HOW, Search, read

_REFUSED = 20
"""How often in a row what is asked for may be refused."""
_BLIND = 5
"""How many may be done of which none has recorded what decides."""
_FAILS = 3
"""How often in a row asking may fail."""

log = logging.getLogger(__name__)


def made(how: str, spec: RunSpec, axes: Sequence[grid.Axis], tries: int | None, repeat: int
         ) -> Search:
    """The search over these axes. Raises SpecError with all that is wrong with it, UserError
    where Optuna is missing."""
    if how == "cma":
        raise UserError("--search cma: CMA-ES keeps a state of its own that can't be made again "
                        "from what the runs' folders have; take --search tpe")
    if how != HOW:
        raise UserError(f"--search {how}: there is {HOW}; without --search, --tries draws at "
                        "random")
    if tries is None:
        raise UserError("--search needs to know how many combinations to try: --tries 40")
    grid.points(spec, axes, repeat, tries)
    if problems := [*_placed(spec, axes), *_unvalued(spec), *grid.unheard([spec], axes, repeat)]:
        raise SpecError(problems)
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"--search needs Optuna, which is not installed for {sys.executable}, "
                        f"which runs gpu-engine;\n{choose.extra('optuna>=5,<6')} installs it")
    texts = {axis.key: ",".join(axis.values) for axis in axes}
    return Search(to_dict(spec, defaults=False), texts, tries, repeat)


def _placed(spec: RunSpec, axes: Sequence[grid.Axis]) -> Iterable[Problem]:
    if verbs.meant_by(spec) is slurm:
        yield Problem("", None, "--search asks when a place has room, which Slurm does not say "
                                "before: leave it out, and --tries draws at random")
    for axis in axes:
        if axis.key.startswith("devices."):
            yield Problem(axis.key, None, "can't be searched for: the next values are asked for "
                                          "when devices.* have room")


def _unvalued(spec: RunSpec) -> Iterable[Problem]:
    """Of a command it must be known which value decides."""
    run = spec.run
    named = run.metrics if isinstance(run.metrics, dict) else {}
    if spec.task.command and not run.best and "loss" not in named:
        name = next(iter(named), "loss")
        yield Problem("run.best", None, "a search needs to know which value decides: --set "
                      f"run.best=min:{name}, or max:{name}" + (
                          "" if named or run.metrics else
                          ", with --metric 'loss: (\\S+)' if the command prints it"))


# --- asking --------------------------------------------------------------------------------------

def first(search: Search, base: tuple[str, RunSpec] | None
          ) -> tuple[Search, list[grid.Member]]:
    """The members with the first values, and the search that knows what was refused before. Raises
    SpecError, UserError."""
    spec = from_dict(search.spec)
    found = _members(search, (), False, 0, Submission(
        verbs.meant_by(spec).devices(spec), Kept(), Path(working_folder())), base)
    assert found is not None  # else it has raised: nothing was tried yet
    return found


def _members(search: Search, tries: Sequence[dict[str, Any]], largest: bool, before: int,
             prepared: Submission, base: tuple[str, RunSpec] | None,
             keep: Callable[[Search], None] = lambda search: None
             ) -> tuple[Search, list[grid.Member]] | None:
    """The members of the next combination that can run, and the search that knows what was refused,
    which `keep` gets each time; None: all combinations were tried. Raises SpecError where the
    reason is not in the values, UserError."""
    said = ""
    for _ in range(_REFUSED):
        spec, axes = from_dict(search.spec), search.parsed
        texts = study.ask(search.told(), spec.train.seed, largest, tries,
                          search.refused)["values"]
        if texts is None and not tries:
            raise UserError(f"none of the combinations can run; the last: {said}")
        if texts is None:
            return None
        try:
            found = grid.members_at([search.typed(texts)],
                                    grid.trained_by(spec, search.repeat), axes, search.repeat,
                                    before=before, of=search.of)
            for member in found:
                submit.plan(member.spec, prepared.inventory, base, prepared.folder, in_sweep=True)
            return search, found
        except SpecError as err:
            if str(err) == said and not any(map(str.__eq__, texts, search.refused[-1])):
                raise
            said = str(err)
            log.info("refused: %s", said)
            search = replace(search, refused=(*search.refused, tuple(texts)))
            keep(search)
    raise UserError(f"{_REFUSED} combinations in a row can't run; the last: {said}")


class Asker:
    """Asks for the next values of one search when a place has room, and submits them."""

    def __init__(self, queue: Path, sweep: str) -> None:
        self.queue, self.sweep = queue, sweep
        self.gave_up = False
        self._fails = 0
        self._devices, self._entry = wait.Devices(), None

    def __call__(self, *, room: bool) -> bool:
        """Ask if a place has room. `room`: none of the search's members waits for one. Returns
        whether there is more to ask."""
        search = read(self.queue, self.sweep)
        if search is None or self.gave_up:
            return False
        try:
            if room and not self._goes_on(search):
                waiting.search_file(self.queue, self.sweep).unlink(missing_ok=True)
                return False
        except (UserError, OSError) as err:
            log.error("%s", err)
            self._fails += 1
            if self._fails == _FAILS or search.why is not None:
                self.gave_up = True
                self._keep(replace(read(self.queue, self.sweep) or search, why=str(err)))
        else:
            self._fails = 0 if room else self._fails
        return not self.gave_up

    def _goes_on(self, search: Search) -> bool:
        """Raises UserError, OSError."""
        spec, when = from_dict(search.spec), When(search.after, search.begin, search.priority)
        if not self._room(search, spec, when):
            return True
        found = group.find(self.sweep)
        ours = replace(found, members=tuple(
            (run, m) for run, m in found.members if trust.started_here(run.path)))
        if not ours.members:
            return False
        run, last = ours.members[-1]
        base = None if search.base is None else (search.base[0], from_dict(search.base[1]))
        prepared = Submission(verbs.meant_by(spec).devices(spec), Kept(search.code, search.root),
                              Path(search.folder))
        if lacks := -last.index % search.repeat:  # killed before all its seeds were there
            chosen = grid.members_at(
                [search.typed(last.values.values())], spec, search.parsed, search.repeat,
                before=last.index + lacks - search.repeat, of=search.of)[-lacks:]
        elif last.index >= search.of:
            return False
        else:
            members = group.read(ours)
            by, tries = group.default_by(ours, members), study.tries_of(ours, members)
            if len(tries) >= _BLIND and by.name not in table.names(members) \
                    and all(one.kind == table.DONE for one in members):
                raise UserError(f"all {len(tries)} tries are done and none has recorded {by.name}")
            more = _members(search, tries, by.largest, last.index, prepared, base, self._keep)
            if more is None:
                return False
            if search.why is not None:
                self._keep(replace(more[0], why=None))
            chosen = more[1]
        for member in chosen:
            if read(self.queue, self.sweep) is None:  # `sweep stop` meanwhile
                return False
            run = submit.submit(member.spec, when, prepared, base=base, begin=False,
                                tags=search.tags, member=group.place(
                                    self.sweep, found.name, member, search.begun, search))
            log.info("run %s tries %s", run.id, member.values)
        return True

    def _keep(self, search: Search) -> None:
        if read(self.queue, self.sweep) is not None:  # else `sweep stop` has ended it meanwhile
            search.keep(self.queue, self.sweep)

    def _room(self, search: Search, spec: RunSpec, when: When) -> bool:
        """Whether a member could start now, as far as leases and the line tell; with hosts always,
        so that one waits for them. Raises UserError, OSError."""
        if spec.devices.hosts is not None:
            return True
        if self._entry is None:
            prepared = Submission(verbs.meant_by(spec).devices(spec), Kept(), Path(search.folder))
            self._entry = replace(submit.entry_of(spec, when, prepared, self.queue, self.sweep),
                                  number=math.inf)
        self._devices.find(self._entry)
        return isinstance(wait.decide(self.queue, "", self._entry, self._devices, read=False),
                          Start)
