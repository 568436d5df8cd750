"""The loss pane: every rank's loss over the steps, for one optimizer at a time."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_engine.common.clean import clean
from gpu_panel import keys
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.charts.series import RankSeries
from gpu_panel.common import units
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore


class LossPane(CurveView, RunPane):
    """The chart of the loss. Its own keys work on the whole screen, as most people watch it."""

    NAME = TITLE = "loss"
    KEYS = keys.of("chart", "loss")
    HELP = """The loss of every rank, step by step; the chosen rank's line is on top. A vertical
line marks where an attempt or another training begins; × marks a loss that is not finite."""
    DEFAULT_CSS = "LossPane { width: 62fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, empty="no step yet")
        self._optimizer = 0
        self._optimizers = [0]
        self._painted: object = None
        self._last: tuple[RunStore, Moment] | None = None

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._last = store, moment
        state = (store.version, moment.rank, self._optimizer)
        if state == self._painted:
            return
        self._painted = state
        self._optimizers = [0, *store.others]
        self.show(loss_lines(store, self._optimizer), loss_series(store, self._optimizer).all,
                  moment.rank, marks=loss_marks(store, self._optimizer))
        self.entitle(loss_title(store, self._optimizer))

    def action_log_scale(self) -> None:
        """Switch between a logarithmic and a linear scale."""
        self.toggle_log()

    def action_smooth(self) -> None:
        """Use the next strength of smoothing."""
        self.cycle_smoothing()

    def action_optimizer(self) -> None:
        """Show the next optimizer's loss, if the script has several."""
        known = self._optimizers
        if len(known) == 1:
            self.notify("This run has only one optimizer", timeout=2)
            return
        at = known.index(self._optimizer) if self._optimizer in known else 0
        self._optimizer = known[(at + 1) % len(known)]
        if self._last is not None:
            self.paint(*self._last)


def loss_series(store: RunStore, optimizer: int = 0) -> RankSeries:
    """The losses of an optimizer. 0 is the first one; most runs have no other."""
    return store.others[optimizer].loss if optimizer in store.others else store.loss


def loss_marks(store: RunStore, optimizer: int = 0) -> list[int]:
    """The steps at which an attempt, or another training in the same process, begins."""
    return [*store.begins.values(), *(() if optimizer in store.others
                                      else store.trainings.values())]


def loss_lines(store: RunStore, optimizer: int = 0) -> list[Curve]:
    """A line for each rank with the losses of an optimizer."""
    return [Curve(i, f"rank {_label(store, rank)}", series)
            for i, (rank, series) in enumerate(loss_series(store, optimizer).ranks.items())]


def loss_title(store: RunStore, optimizer: int = 0) -> str:
    """ "loss ─ mean 1.832, ranks 1.79 to 1.88", with the optimizer's name if there are several."""
    if optimizer not in store.others:
        title = _loss_title([v.loss for v in store.ranks.values()])
        view = max(store.ranks.values(), key=lambda v: v.training or 0, default=None)
        if view is not None and view.training is not None:
            title += f" · training {view.training}, {clean(view.training_name or '?')}"
        return title + (" · optimizer 0 (o)" if store.others else "")
    values = [v.metrics.get(f"loss[{optimizer}]") for v in store.ranks.values()]
    return f"{_loss_title(values)} · {clean(store.others[optimizer].name)} (o)"


def _label(store: RunStore, rank: int) -> str:
    return store.ranks[rank].label if rank in store.ranks else str(rank)


def _loss_title(latest: Iterable[float | None]) -> str:
    values = [v for v in latest if v is not None]
    if not values:
        return "loss"
    if len(values) == 1:
        return f"loss ─ {units.loss(values[0])}"
    finite = [v for v in values if v - v == 0]
    if not finite:
        return "loss ─ NaN on all ranks"
    text = f"loss ─ mean {units.loss(sum(finite) / len(finite))}, " \
           f"ranks {units.loss(min(finite))} to {units.loss(max(finite))}"
    lost = len(values) - len(finite)
    return text + (f", {lost} not finite" if lost else "")
