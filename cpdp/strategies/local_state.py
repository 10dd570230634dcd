"""What becomes of the local optimizer's own state (momentum, Adam's moments) when a round ends.

SlowMo's paper names three ways: the base buffers are set to zero, kept, or averaged like the parameters.
*reset* forgets the state, so that the next step starts it as a new optimizer would, whichever optimizer it is
(Adam's step counter included). *average* exchanges every state tensor that has its parameter's shape, in the
same wave as the parameters; counters stay local, they are alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpdp.errors import StrategyError
from cpdp.strategies.averaging import Share, mean_of
from cpdp.strategies.base import Parameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cpdp.collectives import Collectives

LOCAL_BUFFERS = Parameter(
    "buffers",
    str,
    "keep",
    "the local optimizer's state at a boundary: reset (forgotten), keep, or average (exchanged as well)",
    choices=("reset", "keep", "average"),
)


class LocalState:
    """The state of one optimizer under one of the three policies."""

    def __init__(self, policy: str, optimizer: torch.optim.Optimizer, collectives: Collectives) -> None:
        """`policy` is one of LOCAL_BUFFERS' choices. Raises StrategyError for state that a replay only stands for."""
        from cpdp.compute import InertOptimizer

        if policy == "average" and isinstance(optimizer, InertOptimizer):
            raise StrategyError(
                "buffers=average exchanges the optimizer's state, and a replayed workload's optimizer has none whose "
                "bytes could travel; use buffers=reset or keep, or a workload that trains"
            )
        self._policy = policy
        self._optimizer = optimizer
        self._collectives = collectives
        self._travelling: list[tuple[Tensor, list[tuple[Any, str]]]] = []

    def shares(self) -> list[Share]:
        """What travels with the parameters: nothing, unless the state is averaged."""
        from cpdp.flat import FlatBuffer

        if self._policy != "average" or self._collectives.world == 1:
            return []
        self._collectives.recorder.switch("update")
        self._travelling = [self._packed(slots) for slots in self._slots()]
        buffers = [FlatBuffer(flat, (), ()) for flat, _ in self._travelling]
        return [Share(buffer, "optimizer", mean_of(buffer, self._collectives.world)) for buffer in buffers]

    def settle(self) -> None:
        """Once the wave has arrived: put the averaged state back, or forget it."""
        if self._policy == "reset":
            self._optimizer.state.clear()
        elif self._travelling:
            self._collectives.recorder.switch("update")
            for flat, slots in self._travelling:
                self._unpack(flat, slots)
            self._travelling = []
            self._collectives.recorder.switch(None)

    def _slots(self) -> list[list[tuple[Any, str]]]:
        """(parameter, name of a state tensor) in the parameters' order, one list for each type and device.

        Every parameter has a slot for every name that any parameter has, so that a parameter which took no part on
        this worker, and has no state, does not change how much is sent.
        """
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        state = self._optimizer.state
        names = dict.fromkeys(name for p in parameters for name, value in state.get(p, {}).items() if _alike(value, p))
        kinds: dict[tuple[Any, Any], list[tuple[Any, str]]] = {}
        for name in names:
            for p in parameters:
                kinds.setdefault((p.dtype, p.device), []).append((p, name))
        return list(kinds.values())

    def _packed(self, slots: list[tuple[Any, str]]) -> tuple[Tensor, list[tuple[Any, str]]]:
        import torch

        first = slots[0][0]
        flat = torch.zeros(sum(p.numel() for p, _ in slots), dtype=first.dtype, device=first.device)
        for value, place in self._places(flat, slots):
            place.copy_(value)
        return flat, slots

    def _unpack(self, flat: Tensor, slots: list[tuple[Any, str]]) -> None:
        for value, place in self._places(flat, slots):
            value.copy_(place)

    def _places(self, flat: Tensor, slots: list[tuple[Any, str]]) -> list[tuple[Tensor, Tensor]]:
        """Every state tensor that exists, with its part of the flat buffer in its own shape."""
        pairs, offset = [], 0
        for p, name in slots:
            value = self._optimizer.state.get(p, {}).get(name)
            if _alike(value, p):
                pairs.append((value, flat[offset : offset + p.numel()].view(p.shape)))
            offset += p.numel()
        return pairs


def _alike(value: Any, parameter: Any) -> bool:
    """Whether a state entry is a tensor of its parameter's shape and type (a counter is not)."""
    if getattr(value, "shape", None) != parameter.shape or value.dim() == 0:
        return False
    return bool(value.dtype == parameter.dtype and value.device == parameter.device)
