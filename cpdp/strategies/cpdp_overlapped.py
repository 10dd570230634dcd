"""Overlapped CPDP, a variant of our own: the averaging travels beneath the next local steps and is merged late.

    boundary:   start_i <- theta_i, sent
    d steps later, or at the next boundary if that is sooner:
                v <- beta v + (mean(start) - reference);   reference <- reference + v
                theta_i <- theta_i + (reference - start_i)

Replicas then differ at all times, by the steps taken since the last boundary. By default it is fused as well
(`cpdp_fused`); unfused, the gradient all-reduce of a boundary is still waited for. beta = 0 and a delay of a whole
period, fused, is CoCoD-SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cpdp.errors import StrategyError
from cpdp.schedule import Position
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.cpdp import BETA, Cpdp
from cpdp.strategies.ddp import BUCKETS
from cpdp.strategies.local_sgd import PERIODIC
from cpdp.strategies.statistics import STATISTICS

if TYPE_CHECKING:
    from torch import nn


class CpdpOverlapped(Cpdp):
    """A reconciliation that arrives while workers go on."""

    name = "cpdp-overlapped"
    aliases = ("cpdp_overlapped", "cpdpoverlapped")
    summary = "CPDP whose averaging travels beneath the next steps and is merged with the progress made meanwhile"
    source = "a variant of this project's own of arXiv 2607.21224v1; docs/reference/strategies.md has its rule"
    parameters = (
        *PERIODIC,
        BETA,
        Parameter("delay", int, 0, "local steps beneath which it travels; 0 is up to the next boundary", low=0,
                  high=1_000_000),
        Parameter("fused", bool, True, "leave out the gradient all-reduce; without it a boundary waits for gradients"),
        *BUCKETS,
        STATISTICS,
    )  # fmt: skip

    def attach(self, to: Attachment) -> nn.Module:
        """As CPDP, with room for what travels. Raises StrategyError for a delay beyond the period."""
        from cpdp.strategies.late import Late  # torch: not for `cpdp strategies`

        values = self.values
        if values["delay"] > values["period"]:
            raise StrategyError(
                f"cpdp-overlapped: delay={values['delay']} is longer than period={values['period']}; at most a period, "
                "because the next boundary needs what is on its way"
            )
        wrapped = super().attach(to)
        self._delay: int = values["delay"] or values["period"]
        self._late = Late(self._parameters, self._statistics, self._collectives)
        return wrapped

    def _reduces(self) -> bool:
        return not self.values["fused"]

    def equalises(self, at: Position) -> bool:
        """Never: every worker keeps its own progress since the last boundary."""
        return False

    def between(self, at: Position) -> None:
        """Merge what was sent `delay` steps ago."""
        if self._late.due(at, self._delay):
            self._merge(sends=False)
            self._collectives.recorder.switch(None)

    def synchronise(self, at: Position) -> None:
        """Merge what is still on its way, and send the parameters as they are then."""
        self._merge(sends=True)
        self._late.send(at)

    def _merge(self, *, sends: bool) -> None:
        """Reconcile what has travelled and add it to the local progress."""
        kept = zip(self._late.sums, self._reference, self._velocity, strict=True)
        self._late.merge([self._rule(sums, reference, velocity) for sums, reference, velocity in kept], sends=sends)

    def finish(self) -> None:
        """Wait for what is on its way."""
        self._late.wait()

    def state_dict(self) -> dict[str, Any]:
        """The reference, the velocity, and what is on its way."""
        return {**super().state_dict(), "late": self._late.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self._late.load_state_dict(state["late"])
