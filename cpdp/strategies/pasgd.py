"""PASGD, as the AdaComm paper has it: parameters averaged every tau steps of the whole run, epochs or no epochs.

    x_i <- mean of x over the workers at steps tau, 2 tau, 3 tau, ...

tau = 1 is synchronous SGD in that paper: every worker's model is the mean after each step. `localsgd` counts anew in
every epoch; here a period may be longer than one.
"""

from __future__ import annotations

from cpdp.schedule import Every
from cpdp.strategies.base import Attachment
from cpdp.strategies.local_sgd import PERIODIC, LocalSgd
from cpdp.strategies.rounds import Schedule
from cpdp.strategies.statistics import STATISTICS


class Pasgd(LocalSgd):
    """Local steps, and the mean of all workers' parameters every tau steps."""

    name = "pasgd"
    aliases = ("periodic",)
    summary = "parameters averaged every tau steps, counted over the whole run"
    source = "Wang, Joshi, Cooperative SGD (arXiv 1808.07576); the baseline of AdaComm (arXiv 1810.08313)"
    parameters = (PERIODIC[0], STATISTICS)

    def _schedule_for(self, to: Attachment) -> Schedule:
        return Every(self.values["period"])
