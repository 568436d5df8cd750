"""What the ranks of a run are asked on its hosts, all hosts at once."""

from __future__ import annotations

from collections.abc import Collection

from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import traces as asking
from gpu_engine.remote.reach.call import ASK, Refused, ask, at_once
from gpu_engine.remote.reach.protocol import Asked
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs.folder import Run


def answers(run: Run, ranks: Collection[int], command: str, *words: str, seconds: float = ASK
            ) -> list[tuple[Part, list[Asked] | UserError]]:
    """What the hosts that have these ranks say to `gpu-engine COMMAND RUN WORDS` about them."""
    def one(part: Part) -> list[Asked]:
        if part.run is None:
            raise Refused(part.host, "it has not begun there")
        return ask(parts.host_of(run.path, part), list[Asked], command, part.run, *words, *(
            word for rank in part.ranks if rank in ranks for word in ("--rank", str(rank))),
            seconds=seconds)

    return at_once(one, [part for part in parts.read(run.path) if {*ranks} & {*part.ranks}])


def traces(run: Run, *, steps: int = 3, ranks: Collection[int] = (), wait: float = 120.0
           ) -> dict[int, tuple[str | None, str | None]]:
    """Have `ranks` (none: all), wherever they are, trace their next steps. Returns of each its file
    ("gpu1:/…": there), or why there is none. Raises UserError and OSError."""
    if not parts.spans(run.path):
        found = asking.trace(run, steps=steps, ranks=ranks, wait=wait).items()
        told = [(rank, *asking.describe(run, answer)) for rank, answer in found]
        return {rank: (path and str(path), problem) for rank, path, problem in told}
    asked, out = asking.able(run, steps, ranks), dict[int, tuple[str | None, str | None]]()
    for part, answer in answers(run, asked, "trace", "--steps", str(steps), "--wait", str(wait),
                                seconds=wait + ASK):
        why = str(answer) if isinstance(answer, UserError) else "no answer"
        known = {} if isinstance(answer, UserError) else {one.rank: one for one in answer}
        for rank in {*part.ranks} & {*asked}:
            one = known.get(rank)
            out[rank] = (one.path and f"{part.host}:{one.path}", one.problem) if one \
                else (None, why)
    return dict(sorted(out.items()))
