"""AdaComm: periodic averaging whose period follows the loss, with or without block momentum.

Time is cut into intervals of T0 seconds. In the l-th of them workers average every tau_l steps:

    tau_l = ceil(sqrt(F_l / F_0) (eta_0 / eta_l)^p tau_0)      where that is less than tau_(l-1)
    tau_l = gamma tau_(l-1)                                    otherwise (saturation; `saturate=false`: always the rule)

F is the training loss, eta the learning rate. Workers must agree on both and on when an interval is over, or they
would wait for each other in different steps: at every boundary four numbers (time since the interval began, sum
and count of the losses of the round, learning rate) are summed in the same wave as the parameters, and every
worker draws the same conclusion from the same bits. So F_l is the mean over all workers and all steps of the round
that ends the interval, F_0 that of the first round, and an interval ends at the first boundary at which T0 is over
on the mean of the workers' clocks. `interval_steps` counts steps instead, for runs that must be repeatable.

With beta > 0 (the paper: 0.3) the mean update goes through block momentum, rescaled by the learning rate as in
SlowMo with alpha = 1. The paper clears the local momentum at each averaging: `buffers=reset`, the default.

`search` looks for tau_0 first, see `period_search`; the time it takes is training time like any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cpdp.errors import StrategyError, UsageError
from cpdp.schedule import Position, adacomm_next, adacomm_period
from cpdp.strategies.averaging import Share, mean_of
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.local_sgd import PERIODIC
from cpdp.strategies.local_state import LOCAL_BUFFERS, LocalState
from cpdp.strategies.period_search import PeriodSearch, candidates
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slow import LearningRate, SlowStep, slow_rule
from cpdp.strategies.statistics import STATISTICS

if TYPE_CHECKING:
    from cpdp.flat import FlatBuffer


@dataclass
class _Progress:
    """Where a run stands in its schedule: the same on every worker, except for the losses since the last boundary."""

    period: int
    round_end: int
    interval_start: int = 0
    first_loss: float | None = None
    first_rate: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    first_period: int = 1
    """tau_0: what was asked for, or what a search found."""

    def boundary(self, at: Position) -> bool:
        """Whether the step ends a round."""
        return at.n >= self.round_end

    def check(self, steps_per_epoch: int | None) -> None:
        """Nothing here speaks of epochs."""


@dataclass(frozen=True)
class _Agreed:
    """What all workers know after a boundary: means over them."""

    elapsed: float
    loss: float
    rate: float


class AdaComm(RoundStrategy):
    """Local steps, averaged at a period that shrinks as the loss falls."""

    name = "adacomm"
    summary = "parameters averaged every tau steps; tau follows the root of the loss in intervals of wall time"
    source = "Wang, Joshi, MLSys 2019 (arXiv 1810.08313)"
    needs_loss = True
    parameters = (
        replace(PERIODIC[0], default=20, meaning="tau_0: the first period", aliases=("tau0", "k", "tau")),
        Parameter("interval", float, 60.0, "T0: seconds between two choices of the period", low=0, high=1e6),
        Parameter("interval_steps", int, 0, "the same in steps; 0 means in seconds", low=0, high=10**9),
        Parameter("gamma", float, 0.5, "factor where the rule does not shorten the period; 1 keeps it", low=0, high=1),
        Parameter("lr_power", float, 0.5, "p: 0.5 usable, 1.5 the bound's, 0 ignores the learning rate", low=0, high=4),
        Parameter("saturate", bool, True, "never lengthen the period, and shorten it by gamma where the rule does not"),
        Parameter("max_period", int, 1000, "cap on what the rule gives", low=1, high=1_000_000),
        Parameter("beta", float, 0.0, "block momentum; the paper's is 0.3", low=0, high=1, below_high=True,
                  in_label=True),
        replace(LOCAL_BUFFERS, default="reset"),
        STATISTICS,
        Parameter("search", int, 0, "candidates for tau_0 to try first: period, period / 2, ...; 0: none", low=0,
                  high=20, in_label=False),
        Parameter("search_time", float, 0.0, "seconds for each of them; 0: as long as an interval", low=0, high=1e6),
        Parameter("search_steps", int, 0, "the same in steps; 0 means in seconds", low=0, high=10**9),
    )  # fmt: skip

    clock: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds; replaced in tests."""

    @property
    def period(self) -> int:
        """The period of the round under way."""
        return self._progress.period

    @property
    def current_period(self) -> int | None:
        """The same, for the events."""
        return self._progress.period

    def _schedule_for(self, to: Attachment) -> Schedule:
        first, longest = self.values["period"], self.values["max_period"]
        if first > longest:
            raise StrategyError(f"adacomm: period={first} is longer than max_period={longest}")
        self._progress = _Progress(first, first, first_period=first)
        return self._progress

    def _begin(self, to: Attachment) -> None:
        import torch

        from cpdp.flat import FlatBuffer

        self._local = LocalState(self.values["buffers"], to.optimizer, to.collectives)
        self._rate = LearningRate(to.optimizer, self.name)
        self._rate_before: list[float] | None = None
        if self.values["beta"]:
            self._reference = self._keep("reference", start=True)
            self._velocity = self._keep("velocity", start=False)
        device = self._parameters[0].data.device if self._parameters else "cpu"
        self._agreement: FlatBuffer = FlatBuffer(torch.zeros(4, dtype=torch.float64, device=device), (), ())
        self._losses: list[Any] = []
        self._recorder = to.collectives.recorder
        self._interval_began = self._read_at = self._now()
        self._optimizer = to.optimizer
        self._search: PeriodSearch | None = None
        if self.values["search"]:
            self._start_search()

    def _start_search(self) -> None:
        """Keep what every candidate begins with: the parameters and buffers as they are now, no optimizer state."""
        self._search = PeriodSearch(candidates(self.values["period"], self.values["search"]))
        self._keep("search_start", start=True)
        self._kept["search_buffers"] = [buffer.data.clone() for buffer in self._buffers]
        self._progress.period = self._progress.round_end = self._search.period

    def _now(self) -> float:
        """Seconds of training: an evaluation between two steps is not part of an interval."""
        return (self.clock() - self._recorder.paused_s()) / self._recorder.dilation

    def observe(self, loss: Any) -> None:
        """Keep the loss; it is not read before the round's end, so a GPU is not waited for."""
        self._losses.append(loss)

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        buffer, world = self._parameters[which], self._collectives.world
        beta = self.values["beta"]
        if not beta:
            return mean_of(buffer, world)
        step = SlowStep(decay=beta * self._rate.ratio_since(self._rate_before))
        return slow_rule(buffer.data, self._reference[which], self._velocity[which], world, step)

    def _more_shares(self, at: Position) -> list[Share]:
        """The optimizer's state, when it is averaged, and what the workers must agree on."""
        import torch

        progress = self._gather_losses()
        if progress.loss_count == 0:
            raise UsageError(
                f"step {at.n}: adacomm follows the training loss and was told none in this round; call "
                "model.observe_loss(loss) in each step"
            )
        self._read_at = self._now()
        own = [self._read_at - self._interval_began, progress.loss_sum, progress.loss_count, self._rate.now()[0]]
        self._agreement.data.copy_(torch.tensor(own, dtype=torch.float64))
        return [*self._local.shares(), Share(self._agreement, "agreement", lambda chunk: None)]

    def _gather_losses(self) -> _Progress:
        progress = self._progress
        progress.loss_sum += math.fsum(float(loss) for loss in self._losses)
        progress.loss_count += len(self._losses)
        self._losses = []
        return progress

    def _settle(self, at: Position) -> None:
        elapsed, loss_sum, count, rate = self._agreement.data.tolist()
        world = self._collectives.world
        self._choose(at, _Agreed(elapsed / world, loss_sum / count, rate / world))
        self._rate_before = self._rate.now()
        self._local.settle()

    def _choose(self, at: Position, agreed: _Agreed) -> None:
        """The next round: of the same period unless an interval is over. The first round only measures."""
        progress = self._progress
        progress.loss_sum, progress.loss_count = 0.0, 0
        if self._search is not None:
            self._try_next(at, self._search, agreed)
        elif progress.first_loss is None:
            progress.first_loss, progress.first_rate = agreed.loss, agreed.rate
        elif self._over(at, agreed):
            progress.period = self._next_period(agreed)
            progress.interval_start, self._interval_began = at.n, self._read_at
        progress.round_end = at.n + progress.period

    def _try_next(self, at: Position, search: PeriodSearch, agreed: _Agreed) -> None:
        """A round of a candidate is over; after its last one the next begins from the start again."""
        progress, values = self._progress, self.values
        spent, whole = agreed.elapsed, values["search_time"] or values["interval"]
        if values["search_steps"]:
            spent, whole = at.n - progress.interval_start, values["search_steps"]
        if not search.round_ended(spent / whole if whole else 1.0, agreed.loss):
            return
        self._restore_start()
        progress.period = search.best if search.over else search.period
        progress.interval_start, self._interval_began = at.n, self._read_at
        if search.over:
            progress.first_period, self._search = progress.period, None
            del self._kept["search_start"], self._kept["search_buffers"]

    def _restore_start(self) -> None:
        for buffers, name in ((self._parameters, "search_start"), (self._buffers, "search_buffers")):
            for buffer, start in zip(buffers, self._kept[name], strict=True):
                buffer.data.copy_(start)
        for kept, start in zip(self._kept.get("reference", []), self._kept["search_start"], strict=False):
            kept.copy_(start)
        for velocity in self._kept.get("velocity", []):
            velocity.zero_()
        self._optimizer.state.clear()

    def _over(self, at: Position, agreed: _Agreed) -> bool:
        if self.values["interval_steps"]:
            return bool(at.n - self._progress.interval_start >= self.values["interval_steps"])
        return bool(agreed.elapsed >= self.values["interval"])

    def _next_period(self, agreed: _Agreed) -> int:
        """By the rule; a loss that is not a number says nothing, and the period stays."""
        progress, values = self._progress, self.values
        assert progress.first_loss is not None, "an interval ended before the first round"
        if not (math.isfinite(agreed.loss) and math.isfinite(progress.first_loss) and progress.first_loss > 0):
            return progress.period
        ratio = progress.first_rate / agreed.rate if values["lr_power"] else 1.0
        proposed = adacomm_period(
            agreed.loss, progress.first_loss, progress.first_period, lr_ratio=ratio, lr_power=values["lr_power"]
        )
        gamma = values["gamma"] if values["saturate"] else None
        return adacomm_next(progress.period, proposed, gamma=gamma, longest=values["max_period"])

    def state_dict(self) -> dict[str, Any]:
        """What is kept, the schedule's position, and how much of the interval is over."""
        elapsed = 0.0 if self.values["interval_steps"] else self._now() - self._interval_began
        progress = dict(vars(self._gather_losses()))
        search = None if self._search is None else self._search.to_json()
        more = {"rate": self._rate_before, "progress": progress, "elapsed": elapsed, "search": search}
        return {**super().state_dict(), **more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them; the time between stop and restart does not count."""
        if state.get("search") is None and self._search is not None:  # it was over when the state was saved
            self._search = None
            del self._kept["search_start"], self._kept["search_buffers"]
        super().load_state_dict(state)
        self._search = None if state["search"] is None else PeriodSearch.from_json(state["search"])
        self._rate_before = None if state["rate"] is None else [float(rate) for rate in state["rate"]]
        for key, value in state["progress"].items():
            setattr(self._progress, key, value)
        self._interval_began = self._now() - float(state["elapsed"])
