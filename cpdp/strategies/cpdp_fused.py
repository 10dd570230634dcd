"""Fused CPDP, a variant of our own: one collective at a boundary that does the work of CPDP's two.

CPDP averages the gradients, steps, and averages the parameters. For an optimizer whose step is linear in the gradient
(SGD, with momentum and weight decay) the mean of the parameters after steps on local gradients is what it would be
after steps on the averaged gradient, so the first all-reduce can go:

    boundary: optimizer step on the local gradient, then
    v <- beta v + (mean - reference);   theta <- reference + v;   reference <- theta

Equal to CPDP: with plain SGD the parameters at every boundary; with momentum those at the first boundary, and the mean
over the workers of their momentum buffers then. Not equal: each worker's own momentum buffer (which holds its own last
gradient instead of the mean one), hence what follows; and anything under an optimizer that is not linear in the
gradient (Adam). For every optimizer it is BMUF with a block momentum of beta and a block learning rate of 1.
"""

from __future__ import annotations

from cpdp.strategies.cpdp import BETA, Cpdp
from cpdp.strategies.local_sgd import PERIODIC
from cpdp.strategies.statistics import STATISTICS


class CpdpFused(Cpdp):
    """Local steps and a reconciliation, without the gradient all-reduce."""

    name = "cpdp-fused"
    aliases = ("cpdp_fused", "cpdpfused")
    summary = "CPDP with one all-reduce at a boundary: the gradient's is implied by the parameters'"
    source = "a variant of this project's own of arXiv 2607.21224v1; docs/reference/strategies.md says what is equal"
    parameters = (*PERIODIC, BETA, STATISTICS)

    def _reduces(self) -> bool:
        return False
