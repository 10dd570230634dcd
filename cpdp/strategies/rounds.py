"""What all strategies of local steps share: a flat layout, a schedule, and one wave of sums at a boundary.

Flow: `attach` lays parameters and buffers out flat and starts everyone from rank 0's state; at a boundary
`synchronise` sums them over the workers and applies the strategy's own rule slice by slice. A strategy built
on this says which schedule it follows, which tensors it keeps from one boundary to the next (`_begin`) and its
rule (`_rule`). A kept tensor has the shape of its flat parameter buffer and is saved under its name.

What is averaged: the trained parameters and, by default, the floating-point buffers (BatchNorm's running mean and
variance, see `statistics`). Frozen parameters keep rank 0's initial values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from cpdp.errors import StrategyError
from cpdp.schedule import Position
from cpdp.strategies.averaging import Share, reconcile
from cpdp.strategies.base import Attachment, Strategy
from cpdp.strategies.statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor, nn


class Schedule(Protocol):
    """When a round ends: `schedule.Periodic` or `schedule.Every`."""

    def boundary(self, at: Position) -> bool:
        """Whether the step ends a round."""
        ...

    def check(self, steps_per_epoch: int | None) -> None:
        """Raise StrategyError when the length of an epoch is needed and unknown."""
        ...


class RoundStrategy(Strategy):
    """Local steps in rounds; what happens at a round's end is the subclass's."""

    @abstractmethod
    def _schedule_for(self, to: Attachment) -> Schedule:
        """The schedule, from the strategy's values."""

    @abstractmethod
    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        """What to do with a slice of the `which`-th parameter buffer once it holds the sum over the workers."""

    def _begin(self, to: Attachment) -> None:
        """Make what is kept, from rank 0's state."""

    def attach(self, to: Attachment) -> nn.Module:
        """Lay the parameters out flat and start everyone from rank 0's state."""
        from cpdp.flat import flatten, float_buffers, trained_parameters  # torch: not for `cpdp strategies`

        self._schedule = self._schedule_for(to)
        self._schedule.check(to.steps_per_epoch)
        self._collectives = to.collectives
        self._parameters = flatten(trained_parameters(to.module))
        self._buffers = flatten(float_buffers(to.module))
        self._statistics = Statistics(self.values["statistics"], self._buffers, to.collectives)
        self._kept: dict[str, list[Tensor]] = {}
        to.collectives.broadcast([*to.module.parameters(), *to.module.buffers()], "start")
        self._begin(to)
        return to.module

    def reduces_gradients(self, at: Position) -> bool:
        """Never."""
        return False

    def boundary(self, at: Position) -> bool:
        """The last step of each round."""
        return self._schedule.boundary(at)

    def synchronise(self, at: Position) -> None:
        """Average the buffers and apply the rule to the parameters, chunk by chunk as their sums arrive."""
        reconcile(self._collectives, [*self._statistics.shares(), *self._parameter_shares(at), *self._more_shares(at)])
        self._settle(at)

    def _more_shares(self, at: Position) -> list[Share]:
        """What else travels in the same wave."""
        return []

    def _settle(self, at: Position) -> None:
        """What is left to do once the wave has arrived."""

    def _parameter_shares(self, at: Position) -> list[Share]:
        return [Share(b, "parameters", self._rule(i, at)) for i, b in enumerate(self._parameters)]

    def _keep(self, name: str, *, start: bool) -> list[Tensor]:
        """Tensors to keep between boundaries: the parameters' values now when `start`, else zeros."""
        import torch

        made = [b.data.clone() if start else torch.zeros_like(b.data) for b in self._parameters]
        self._kept[name] = made
        return made

    def state_dict(self) -> dict[str, Any]:
        """Everything that is kept, by name."""
        return {name: list(tensors) for name, tensors in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it. Raises StrategyError when a name or a shape is another strategy's or another model's."""
        missing = [name for name in self.state_dict() if name not in state]
        if missing or len(state) != len(self.state_dict()):
            raise StrategyError(
                f"{self.name}: the saved state is another strategy's: it has {', '.join(state) or 'nothing'},"
                f" needed: {', '.join(self.state_dict()) or 'nothing'}"
            )
        for name, own in self._kept.items():
            restore(self.name, name, own, state[name])


def restore(strategy: str, name: str, own: list[Tensor], saved: list[Tensor]) -> None:
    """Copy saved tensors into a strategy's own. Raises StrategyError when their shapes differ."""
    if [t.shape for t in saved] != [t.shape for t in own]:
        raise StrategyError(f"{strategy}: saved {name} has other shapes than the model it is loaded into")
    for target, tensor in zip(own, saved, strict=True):
        target.copy_(tensor)
