"""Local SGD whose period follows a schedule: linear, by steps, QSR, LUPA or ADPSGD, as pure rules of `cpdp.schedule`.

    x_i <- mean of x over the workers at the end of each round; then the rule says how long the next round is

    fixed     period
    linear    from `period` to `last` in a straight line over the first `over` steps
    step      `period` up to step `over`, `last` from there
    qsr       max(period, floor((alpha / lr)^power)), lr the learning rate now (arXiv 2310.14423)
    lupa      floor(period (1 + a i)) in round i, a = 2 / (C + 1) x T / (C period), T = `over`, C = `rounds`
    adpsgd    one step longer where the workers differ little, one shorter where they differ much (arXiv 2007.06134)

Every worker draws the same conclusion: from the step number, from a learning rate that is the same everywhere, and for
adpsgd from a variance that is summed over all of them (8 bytes more at each averaging, and one more copy of the
parameters). Its scale is the mean ratio of variance to learning rate over the first `measure` rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cpdp.schedule import Position, adpsgd_period, linear_period, lupa_period, lupa_slope, qsr_period, step_period
from cpdp.strategies.averaging import mean_of
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.local_sgd import PERIODIC
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slow import LearningRate
from cpdp.strategies.statistics import STATISTICS

if TYPE_CHECKING:
    from torch import Tensor

RULES = ("fixed", "linear", "step", "qsr", "lupa", "adpsgd")


@dataclass
class _Progress:
    """Where a run stands: the same on every worker."""

    period: int
    round_end: int
    round: int = 0
    ratios: list[float] = field(default_factory=list)

    def boundary(self, at: Position) -> bool:
        """Whether the step ends a round."""
        return at.n >= self.round_end

    def check(self, steps_per_epoch: int | None) -> None:
        """Nothing here speaks of epochs."""


class Scheduled(RoundStrategy):
    """Local steps, averaged at a period that a rule chooses after each averaging."""

    name = "scheduled"
    summary = "parameters averaged at a period that follows a rule: linear, step, qsr, lupa, adpsgd"
    source = "QSR arXiv 2310.14423; LUPA-SGD, NeurIPS 2019; ADPSGD arXiv 2007.06134"
    parameters = (
        replace(PERIODIC[0], meaning="the first period, and qsr's least one"),
        Parameter("rule", str, "fixed", "how the next period is chosen", choices=RULES, in_label=True),
        Parameter("last", int, 16, "linear and step: the last period", low=1, high=1_000_000),
        Parameter("over", int, 1000, "linear, step, lupa: steps until then (T)", low=1, high=10**9),
        Parameter("alpha", float, 0.2, "qsr: its growth coefficient", low=0, high=1e6),
        Parameter("power", float, 2.0, "qsr: the power of alpha / lr", low=0, high=10),
        Parameter("rounds", int, 100, "lupa: rounds in all (C)", low=1, high=10**9),
        Parameter("measure", int, 5, "adpsgd: first rounds, from which its scale is taken", low=1, high=10**6),
        Parameter("max_period", int, 1000, "cap on what a rule gives", low=1, high=1_000_000),
        STATISTICS,
    )

    @property
    def current_period(self) -> int | None:
        """The period of the round under way."""
        return self._progress.period

    def _schedule_for(self, to: Attachment) -> Schedule:
        self._progress = _Progress(self.values["period"], self.values["period"])
        return self._progress

    def _begin(self, to: Attachment) -> None:
        self._rate = LearningRate(to.optimizer, self.name)
        self._mine: list[Tensor] = []

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        return mean_of(self._parameters[which], self._collectives.world)

    def synchronise(self, at: Position) -> None:
        """Average; for adpsgd remember what this worker had, to see how far it was from the mean."""
        if self.values["rule"] == "adpsgd":
            self._mine = [buffer.data.clone() for buffer in self._parameters]
        super().synchronise(at)

    def _settle(self, at: Position) -> None:
        progress = self._progress
        progress.round += 1
        progress.period = max(1, min(self._next(at), self.values["max_period"]))
        progress.round_end = at.n + progress.period

    def _next(self, at: Position) -> int:
        values, progress = self.values, self._progress
        first, last, over = values["period"], values["last"], values["over"]
        match values["rule"]:
            case "linear":
                return linear_period(at.n / over, first, last)
            case "step":
                return step_period(at.n + 1, [(1, first), (over + 1, last)])
            case "qsr":
                lr = self._rate.now()[0]
                return (
                    values["max_period"] if lr <= 0 else qsr_period(lr, values["alpha"], first, power=values["power"])
                )
            case "lupa":
                return lupa_period(progress.round, first, lupa_slope(over, values["rounds"], first))
            case "adpsgd":
                return self._adapted()
        return int(first)

    def _adapted(self) -> int:
        """ADPSGD's answer to the workers' variance; the first rounds only measure."""
        progress, lr = self._progress, self._rate.now()[0]
        variance = self._variance()
        if progress.round <= self.values["measure"]:
            progress.ratios.append(variance / lr if lr > 0 else 0.0)
            return progress.period
        scale = sum(progress.ratios) / len(progress.ratios)
        return adpsgd_period(progress.period, variance, lr, scale)

    def _variance(self) -> float:
        """The workers' mean squared distance from their mean: the same bits everywhere."""
        import torch

        pairs = zip(self._mine, self._parameters, strict=True)
        own = sum(float((before - buffer.data).double().square().sum()) for before, buffer in pairs)
        self._mine = []
        device = self._parameters[0].data.device if self._parameters else "cpu"
        total = torch.tensor([own], dtype=torch.float64, device=device)
        for _ in self._collectives.sum_in_chunks([(total, "agreement")]):
            pass
        return float(total) / self._collectives.world

    def state_dict(self) -> dict[str, Any]:
        """The schedule's position."""
        return {**super().state_dict(), "progress": dict(vars(self._progress))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        super().load_state_dict(state)
        for key, value in state["progress"].items():
            setattr(self._progress, key, value)
