"""`python -m gpu_engine.sweep.ask`: what Optuna says of a search, in a process of its own, as the
rest of gpu-engine imports none of it. A question as JSON on standard input, its answer as JSON on
standard output; `search.py` asks.

Nothing of a study is kept. It is gone through again: each try is asked for in the order in which it
was, and told its value when it had ended. So the sampler draws as it has drawn, and where one try
ran at a time, it asks for what Optuna's own loop does. Where it would have asked for something else
than was tried, as members were removed since, or several ran at a time, it is given what was.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from gpu_engine.sweep import grid
from gpu_engine.sweep.grid import Axis

_AGAIN, _DRAWS = 100, 1000
"""How often what was tried already is asked for in a row, and how often something is drawn then."""

Texts = tuple[str, ...]
"""A combination of values, each as text that `--set` takes, in the order of the axes."""


class Search:
    """A question: `axes`, `seed`, `largest`, `tries` in their order, and the combinations that were
    `refused`."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.axes = [grid.parse(f"{key}={text}") for key, text in question["axes"].items()]
        self.space = {axis.key: _distribution(axis) for axis in self.axes}
        self.seed: int = question["seed"]
        self.tries: list[dict[str, Any]] = question["tries"]
        self.refused = {tuple(texts) for texts in question["refused"]}
        self.direction: Literal["maximize", "minimize"] = \
            "maximize" if question["largest"] else "minimize"
        self.study = optuna.create_study(sampler=TPESampler(seed=self.seed, constant_liar=True),
                                         direction=self.direction)
        self._asked: dict[Texts, dict[str, Any]] = {}

    def next(self) -> Texts | None:
        """What to try next; None: nothing that was not tried is found."""
        trials = dict[int, Trial]()
        moments = [(one["begun"], at, 0) for at, one in enumerate(self.tries)]
        moments += [(max(one["ended"], one["begun"]), at, 1) for at, one in enumerate(self.tries)
                    if one["ended"] is not None]
        for _, at, over in sorted(moments):
            one = self.tries[at]
            if over:
                self._tell(trials[at], one)
            else:
                trials[at] = self._as_it_was(tuple(one["values"]))
                self._asked[tuple(one["values"])] = one
        for _, texts in self._new():
            return texts
        chance = random.Random(f"{self.seed} {len(self.tries)}")
        drawn = (tuple(axis.draw(chance) for axis in self.axes) for _ in range(_DRAWS))
        return next((t for t in drawn if t not in self._asked and t not in self.refused), None)

    def _as_it_was(self, texts: Texts) -> Trial:
        """The trial of a try, asked for again."""
        for trial, new in self._new():
            if new == texts:
                return trial
            self.study.tell(trial, state=TrialState.FAIL)
            break
        self.study.enqueue_trial(self._params(texts))
        return self.study.ask(self.space)

    def _new(self) -> Iterator[tuple[Trial, Texts]]:
        """What the study asks for; what was tried is told again, and what was refused has
        failed."""
        for _ in range(_AGAIN):
            trial = self.study.ask(self.space)
            texts = tuple(_text(axis, trial.params[axis.key]) for axis in self.axes)
            if texts in self._asked:
                self._tell(trial, self._asked[texts])
            elif texts in self.refused:
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                yield trial, texts

    def _tell(self, trial: Trial, one: dict[str, Any]) -> None:
        state, value = TrialState[one["state"]], one["value"]
        if state is TrialState.PRUNED:
            trial.report(value, one["step"])
        done = state is TrialState.COMPLETE
        self.study.tell(trial, value if done else None,
                        state=TrialState.FAIL if state is TrialState.RUNNING else state)

    def _params(self, texts: Texts) -> dict[str, Any]:
        return {axis.key: _number(axis, text) for axis, text in zip(self.axes, texts, strict=True)}

    def frozen(self) -> list[FrozenTrial]:
        """All tries as they are, for another study."""
        found = list[FrozenTrial]()
        for at, one in enumerate(self.tries):
            state, value, ended = TrialState[one["state"]], one["value"], one["ended"]
            pruned = state is TrialState.PRUNED
            found.append(FrozenTrial(
                number=at, trial_id=at, state=state, value=None if state is TrialState.FAIL
                else value, params=self._params(tuple(one["values"])), distributions=self.space,
                datetime_start=dt.datetime.fromtimestamp(one["begun"]),
                datetime_complete=None if ended is None else dt.datetime.fromtimestamp(ended),
                user_attrs={"runs": one["runs"]}, system_attrs={},
                intermediate_values={one["step"]: value} if pruned else {}))
        return found


def matters(search: Search) -> dict[str, float]:
    """How much each value matters for being among the better half, as shares of 1. Not for the best
    tenth, which is PED-ANOVA's own choice: of a few dozen tries those are too few to tell by."""
    study = optuna.create_study(direction=search.direction)
    study.add_trials([one for one in search.frozen() if one.state is TrialState.COMPLETE])
    return optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.5))


def write(search: Search, url: str, name: str) -> None:
    """Make a study of the tries in a database that has none of this name."""
    study = optuna.create_study(storage=url, study_name=name, direction=search.direction)
    study.add_trials(search.frozen())


def _distribution(axis: Axis) -> BaseDistribution:
    chosen = axis.range
    if chosen is None:
        return CategoricalDistribution(axis.values)
    low, high, step = chosen.low, chosen.high, chosen.step
    if step is not None:
        high = low + chosen.steps * step
    if chosen.whole:
        return IntDistribution(int(low), int(high), log=chosen.log, step=int(step or 1))
    return FloatDistribution(float(low), float(high), log=chosen.log,
                             step=None if step is None else float(step))


def _text(axis: Axis, value: Any) -> str:
    return value if axis.range is None else axis.range.text(value)


def _number(axis: Axis, text: str) -> Any:
    if axis.range is None:
        return text
    return int(float(text)) if axis.range.whole else float(text)


def main() -> int:
    """Answer one question. Returns 0."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # what they say of experimental parts goes to nobody
    question = json.load(sys.stdin)
    search, answer = Search(question), dict[str, Any]()
    if (url := question.get("url")) is not None:
        write(search, url, question["name"])
    elif question.get("matters"):
        answer = {"matters": matters(search)}
    else:
        answer = {"values": search.next()}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
