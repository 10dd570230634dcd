"""CPDP (arXiv 2607.21224): a gradient all-reduce and a parameter reconciliation with momentum, every K steps.

Between boundaries each worker steps alone (backward under no_sync). A boundary step (1) averages the
gradients in its backward pass, (2) takes the optimizer step, (3) averages the parameters and (4) applies a
slow momentum:

    v <- beta v + (mean - reference);   theta <- reference + v;   reference <- theta

with v = 0 and the reference at the initial parameters. It is computed in the equal order theta <- mean + beta
v, then v <- theta - reference: one pass less over memory, and beta = 0 gives the mean itself, not its
rounding. No learning-rate scaling; optimizer state stays local. The paper's warm-up epochs use K = 1 and it
does not say whether (3) and (4) run then: here they do, K = 1 taken literally.

Variants of our own are `cpdp_fused` and `cpdp_overlapped`.

Floating-point buffers (BatchNorm's) are averaged at boundaries without momentum, unless asked otherwise
(`statistics`). DDP's own broadcast of buffers is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from cpdp.errors import StrategyError
from cpdp.schedule import Periodic, Position
from cpdp.strategies.averaging import Share, reconcile
from cpdp.strategies.base import Attachment, Parameter, Strategy
from cpdp.strategies.ddp import BUCKETS
from cpdp.strategies.local_sgd import PERIODIC
from cpdp.strategies.statistics import STATISTICS, Statistics

if TYPE_CHECKING:
    from torch import Tensor, nn

BETA = Parameter(
    "beta",
    float,
    0.3,
    "momentum of the reconciliation; 0 is plain averaging after an averaged gradient",
    low=0,
    high=1,
    below_high=True,
    in_label=True,
)


class Cpdp(Strategy):
    """Averaged gradient, then reconciled parameters, at every boundary; local steps between."""

    name = "cpdp"
    summary = "every K steps: gradient all-reduce, then parameter averaging with slow momentum"
    source = "Ettifouri, Zbakh, Tadonki, arXiv 2607.21224v1 (2026)"
    parameters: ClassVar[tuple[Parameter, ...]] = (*PERIODIC, BETA, *BUCKETS, STATISTICS)

    def attach(self, to: Attachment) -> nn.Module:
        """Lay the parameters out flat, wrap them in DDP and take the reference from rank 0's state."""
        from cpdp.flat import flatten, float_buffers, trained_parameters  # torch: not for `cpdp strategies`

        values = self.values
        self._beta: float = values["beta"]
        self._schedule = Periodic(values["period"], values["warmup_epochs"], values["epoch_end"])
        self._schedule.check(to.steps_per_epoch)
        self._collectives = to.collectives
        self._parameters = flatten(trained_parameters(to.module))
        self._statistics = Statistics(self.values["statistics"], flatten(float_buffers(to.module)), to.collectives)
        to.collectives.broadcast([*to.module.parameters(), *to.module.buffers()], "start")
        wrapped = self._wrap(to) if self._reduces() else to.module
        self._reference = [buffer.data.clone() for buffer in self._parameters]
        self._velocity = [reference.new_zeros(reference.shape) for reference in self._reference]
        return wrapped

    def _reduces(self) -> bool:
        """Whether a boundary averages the gradients."""
        return True

    def _wrap(self, to: Attachment) -> nn.Module:
        from cpdp.scaling import rescaled

        return to.collectives.data_parallel(
            to.module,
            bucket_mb=self.values["bucket_mb"],
            find_unused=self.values["find_unused"],
            forward_buffers=False,
            hook=rescaled(to.collectives, to.scale) if to.scale and self.mixes_steps else None,
        )

    @property
    def mixes_steps(self) -> bool:
        """Unless every step is a boundary."""
        return self._reduces() and bool(self.values["period"] > 1)

    def reduces_gradients(self, at: Position) -> bool:
        """At boundaries."""
        return self._schedule.boundary(at) and self._reduces()

    def boundary(self, at: Position) -> bool:
        """Every K-th step of an epoch, its last, and all of the warm-up."""
        return self._schedule.boundary(at)

    def synchronise(self, at: Position) -> None:
        """Average the buffers and reconcile the parameters, chunk by chunk as their sums arrive."""
        reconciled = [
            Share(buffer, "parameters", self._rule(buffer.data, reference, velocity))
            for buffer, reference, velocity in zip(self._parameters, self._reference, self._velocity, strict=True)
        ]
        reconcile(self._collectives, [*self._statistics.shares(), *reconciled])

    def _rule(self, total: Tensor, reference: Tensor, velocity: Tensor) -> Callable[[slice], None]:
        beta, share = self._beta, 1.0 / self._collectives.world

        import torch

        def update(chunk: slice) -> None:
            theta, ref, v = total[chunk], reference[chunk], velocity[chunk]
            theta.mul_(share).add_(v, alpha=beta)
            torch.sub(theta, ref, out=v)
            ref.copy_(theta)

        return update

    def state_dict(self) -> dict[str, Any]:
        """The reference and the velocity."""
        return {"reference": list(self._reference), "velocity": list(self._velocity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both. Raises StrategyError when the number or size of the buffers differs."""
        if list(state) != list(self.state_dict()):
            raise StrategyError(
                f"{self.name}: the saved state is another strategy's: it has {', '.join(state) or 'nothing'}"
            )
        for key, own in (("reference", self._reference), ("velocity", self._velocity)):
            saved = state[key]
            if [t.shape for t in saved] != [t.shape for t in own]:
                raise StrategyError(f"{self.name}: saved {key} has other shapes than the model it is loaded into")
            for target, tensor in zip(own, saved, strict=True):
                target.copy_(tensor)
