"""The small contract that every strategy fulfils, and the description of its parameters.

Flow: `strategies.parse` text -> `StrategySpec` -> `Strategy` object -> `parallel.DataParallel` calls it. A
strategy decides when gradients and parameters cross the wire and what is done with what arrives; it reaches
the network only through `collectives.Collectives` and never opens a socket or a process group itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cpdp.errors import StrategyError
from cpdp.schedule import Position

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from cpdp.collectives import Collectives

Value = int | float | bool | str


@dataclass(frozen=True)
class Parameter:
    """One option of a strategy: its type, default, allowed range (None: unbounded) and other accepted names."""

    name: str
    kind: type[int] | type[float] | type[bool] | type[str]
    default: Value
    meaning: str
    low: float | None = None
    high: float | None = None
    below_high: bool = False
    aliases: tuple[str, ...] = ()
    in_label: bool = False
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return f"one of {', '.join(self.choices)}"
        what = "a whole number" if self.kind is int else "a number"
        low = "" if self.low is None else f" from {_plain(self.low)}"
        high = "" if self.high is None else f" {'to below' if self.below_high else 'to'} {_plain(self.high)}"
        return what + low + high

    def holds(self, value: float) -> bool:
        """Whether a number lies in the range."""
        if self.low is not None and value < self.low:
            return False
        return self.high is None or value < self.high or (value == self.high and not self.below_high)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


@dataclass(frozen=True)
class Attachment:
    """What a strategy is given to work with: the user's module and optimizer, the network, the length of an epoch."""

    module: nn.Module
    collectives: Collectives
    steps_per_epoch: int | None
    optimizer: torch.optim.Optimizer
    scale: Callable[[torch.device], Tensor] | None = None
    """The gradients' scale on this worker, where a GradScaler is in use."""


class Strategy(ABC):
    """How workers keep in step. One object serves one model on one rank.

    Order of calls: `attach` once; then per optimizer step `reduces_gradients` before the forward pass, `observe` for
    each loss that the training loop reports and, after the optimizer has stepped, `synchronise` when `boundary` is
    true for the step and `between` when it is not; `finish` once at the end.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    summary: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    aliases: ClassVar[tuple[str, ...]] = ()
    needs_loss: ClassVar[bool] = False

    def __init__(self, **values: Any) -> None:
        """Keep the checked values; construct through `cpdp.strategies.build`."""
        self.values: Mapping[str, Any] = values

    @abstractmethod
    def attach(self, to: Attachment) -> nn.Module:
        """Take hold of a module and return what the forward pass shall call. All ranks start from rank 0's
        state.
        """

    @abstractmethod
    def reduces_gradients(self, at: Position) -> bool:
        """Whether the gradients of this step are averaged over the workers during its backward pass."""

    @abstractmethod
    def boundary(self, at: Position) -> bool:
        """Whether this step synchronises the workers at all, in gradients or in parameters."""

    @abstractmethod
    def synchronise(self, at: Position) -> None:
        """Exchange what a boundary exchanges after its optimizer step. Where `equalises` is true for the step the
        replicas are then equal bit by bit.
        """

    @property
    def mixes_steps(self) -> bool:
        """Whether gradients are averaged in some steps and not in others, over the same workers. Their scales may then
        differ when they are, and a GradScaler must be made known.
        """
        return False

    @property
    def current_period(self) -> int | None:
        """The period of the round under way, for a strategy that changes it; it is written into each step's event."""
        return None

    def equalises(self, at: Position) -> bool:
        """Whether this step leaves all replicas equal; asked before `synchronise`."""
        return self.boundary(at)

    def between(self, at: Position) -> None:  # noqa: B027 - most strategies have nothing to do
        """Called after the optimizer step of each step that is no boundary."""

    def observe(self, loss: Any) -> None:  # noqa: B027 - only adaptive strategies look
        """A loss (tensor or number) of the step under way, on this worker."""

    def finish(self) -> None:  # noqa: B027 - only overlapped strategies have something on its way
        """Wait for what is still on its way; the process group may be closed afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers that must survive a restart beside the model's and the optimizer's own state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises StrategyError when it does not fit the model."""
        if state:
            raise StrategyError(f"{self.name}: the saved state is another strategy's: {', '.join(state)}")
