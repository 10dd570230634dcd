"""`cpdp.DataParallel`: the wrapper under which a DDP user's training loop stays as it is.

    model = cpdp.DataParallel(net, optimizer, "cpdp:k=4", steps_per_epoch=len(loader))
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

Flow: forward asks the strategy whether this step's gradients cross the wire and arms DDP before its forward
pass (DDP decides there, not in backward); a hook on the outputs sees backward begin; an engine callback
queued then runs when all gradients are computed and before DDP's own, which waits for the network; another
one queued from it runs after DDP's. Hooks on the optimizer see its step, count it, and let the strategy
synchronise. A period counts optimizer steps, so gradient accumulation (`no_sync`, `accumulate`) changes
neither the schedule nor how often anything crosses the wire.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpdp.buckets import Arrivals
from cpdp.collectives import Collectives
from cpdp.errors import UsageError
from cpdp.recorder import Recorder
from cpdp.scaling import ScaledSteps, scale_of
from cpdp.schedule import Position, position
from cpdp.strategies import Attachment, Strategy, StrategySpec, build

T = TypeVar("T")


@dataclasses.dataclass
class _Forward:
    """One forward pass: what was decided before it, and whether its backward pass has begun."""

    synced: bool
    accumulating: bool
    begun: bool = False


class DataParallel(nn.Module):
    """A module trained by several workers under a synchronisation strategy.

    `optimizer` holds the module's parameters and is stepped by the caller; every one of its steps counts, so
    all ranks must take the same number. `strategy` is text such as "cpdp:k=4,beta=0.3", a spec or a strategy
    object. `steps_per_epoch` counts optimizer steps and is needed by schedules that speak of epochs. A
    `torch.amp.GradScaler` works as with DDP; a strategy that averages gradients in some steps only needs it as
    `scaler`. The module is reachable as `.module`, as with DistributedDataParallel, and keys of `state_dict` start with
    "module." as there. Raises StrategyError for a strategy that does not exist or lacks something.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        strategy: str | StrategySpec | Strategy,
        *,
        steps_per_epoch: int | None = None,
        recorder: Recorder | None = None,
        scaler: Any = None,
    ) -> None:
        """Start all workers from rank 0's parameters and buffers. Collective: every rank must call it."""
        super().__init__()
        self.module = module
        self.strategy = strategy if isinstance(strategy, Strategy) else build(strategy)
        self.recorder = recorder or Recorder()
        self.collectives = Collectives(self.recorder)
        self._steps_per_epoch = steps_per_epoch
        self._scaled_steps = ScaledSteps(optimizer)
        self._knows_scaler = scaler is not None
        scale = None if scaler is None else scale_of(scaler)
        attached = self.strategy.attach(Attachment(module, self.collectives, steps_per_epoch, optimizer, scale))
        self._inner = (attached,)  # in a tuple: not a second submodule, whose parameters would appear twice
        self._arrivals = Arrivals(attached) if isinstance(attached, DistributedDataParallel) else None
        self._accumulating = False
        self._last_backward_synced: bool | None = None
        self._operations_before: int | None = None
        self._arming = "buffers"
        self._position = position(1, steps_per_epoch)
        self._replicas_equal = True
        self._at_boundary = True
        self._hooks = (
            module.register_forward_pre_hook(self._enter_module),
            optimizer.register_step_pre_hook(self._before_optimizer),
            optimizer.register_step_post_hook(self._after_optimizer),
        )

    @property
    def upcoming(self) -> Position:
        """Where the optimizer step stands that comes next."""
        return self._position

    @property
    def replicas_equal(self) -> bool:
        """Whether all workers' parameters are equal now; where not, the model is the mean of all of them."""
        return self._replicas_equal

    @property
    def at_boundary(self) -> bool:
        """Whether the last step synchronised the workers (or none has been taken)."""
        return self._at_boundary

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in an epoch, where somebody said how many."""
        return self._steps_per_epoch

    def observe_loss(self, loss: Any) -> None:
        """Tell a strategy that adapts to the loss (`strategy.needs_loss`) what it is; others ignore it.

        `loss` is this worker's, a scalar tensor or a number; once per backward pass, before `optimizer.step()`.
        """
        self.strategy.observe(loss.detach() if isinstance(loss, Tensor) else loss)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module. In training, decide first whether the backward pass to come averages gradients."""
        (inner,) = self._inner
        if not (torch.is_grad_enabled() and self.module.training):
            return inner(*inputs, **named)
        synced = self.strategy.reduces_gradients(self._position) and not self._accumulating
        if isinstance(inner, DistributedDataParallel):
            inner.require_backward_grad_sync = synced
            buffers: bool = inner.will_sync_module_buffers()  # type: ignore[no-untyped-call]
            if synced and inner.find_unused_parameters and self.strategy.mixes_steps:
                self._give_gradients()
            self._arming = "buffers" if buffers else "buckets"
            self.collectives.label_broadcasts(self._arming)
        self.recorder.switch("forward")
        self._operations_before = self.recorder.operations()
        output = inner(*inputs, **named)
        self._watch(output, _Forward(synced and self.collectives.world > 1, self._accumulating))
        return output

    def _give_gradients(self) -> None:
        """DDP takes what the local steps before used for used in this one, as if they had been accumulated, and then
        demands a gradient: where there is none, it is zero.
        """
        for p in self.module.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate: forward and backward passes inside do not count as the step's last micro-batch.

        As with DistributedDataParallel the forward pass must be inside, too; here a backward pass that was
        split from its forward pass raises UsageError instead of being synchronised in silence.
        """
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def accumulate(self, micro_batches: Iterable[T]) -> Iterator[T]:
        """Yield the micro-batches of one optimizer step, all but the last under `no_sync`.

        However many there are, the last one synchronises, so a short group at the end of an epoch is a whole
        step.
        """
        items = iter(micro_batches)
        try:
            item = next(items)
        except StopIteration:
            return
        for following in items:
            with self.no_sync():
                yield item
            item = following
        yield item

    def training_state(self) -> dict[str, Any]:
        """What a restart needs beside the module's and the optimizer's `state_dict`."""
        arrivals = list(self._arrivals.order) if self._arrivals else []
        return {"steps": self._position.n - 1, "strategy": self.strategy.state_dict(), "arrivals": arrivals}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue after the step at which `training_state` was taken. Load the module's own state first.

        Collective: every rank must call it.
        """
        done = position(int(state["steps"]), self._steps_per_epoch)
        self._position = position(done.n + 1, self._steps_per_epoch)
        (inner,) = self._inner
        if self._arrivals is not None:
            with self.collectives.purpose("start"):
                self._arrivals.replay(state.get("arrivals", ()))
        self.strategy.load_state_dict(state["strategy"])
        if isinstance(inner, DistributedDataParallel) and done.n:
            # a new DDP would broadcast its buffers before the first forward pass, whatever the last step was
            inner.require_forward_param_sync = self.strategy.reduces_gradients(done)

    def close(self) -> None:
        """Wait for what is on its way and take every hook off the module, the optimizer and the process group."""
        self.strategy.finish()
        for hook in self._hooks:
            hook.remove()
        self._scaled_steps.close()
        if self._arrivals is not None:
            self._arrivals.close()
        self.collectives.close()

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        """DDP has done what it does before a forward pass; if that used the network, the time was exposed."""
        before, self._operations_before = self._operations_before, None
        if before is not None and self.recorder.operations() > before:
            self.recorder.rename(f"exposed.{self._arming}")
            self.recorder.switch("forward")

    def _watch(self, output: Any, forward: _Forward) -> None:
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._backward_begins(forward))  # type: ignore[no-untyped-call]

    def _backward_begins(self, forward: _Forward) -> None:
        if forward.begun:
            return
        forward.begun = True
        if forward.accumulating != self._accumulating:
            raise UsageError(
                f"step {self._position.n}: no_sync() must cover the forward pass as well as the backward pass; "
                "whether gradients are averaged is decided before the forward pass"
            )
        self._last_backward_synced = forward.synced
        self.recorder.switch("backward")
        _when_backward_ends(lambda: self._gradients_computed(forward))

    def _gradients_computed(self, forward: _Forward) -> None:
        if not forward.synced:
            self.recorder.switch(None)
            return
        self.recorder.switch("exposed.gradients")
        _when_backward_ends(lambda: self.recorder.switch(None))

    def _before_optimizer(self, optimizer: Any, inputs: Any, named: Any) -> None:
        due = self.strategy.reduces_gradients(self._position) and self.collectives.world > 1
        if due and self._last_backward_synced is False:
            raise UsageError(
                f"step {self._position.n}: the last backward pass before optimizer.step() ran under no_sync(), so "
                "each worker would step on its own gradient; leave the last micro-batch outside no_sync()"
            )
        self._check_scaler()
        self.recorder.switch("optimizer")
        self._scaled_steps.before()

    def _check_scaler(self) -> None:
        unknown = self._scaled_steps.in_use and not self._knows_scaler
        if unknown and self.strategy.mixes_steps and self.collectives.world > 1:
            raise UsageError(
                f"step {self._position.n}: {self.strategy.name} averages gradients after local steps, in which each "
                "worker's GradScaler may have gone down alone; pass it: DataParallel(..., scaler=scaler)"
            )

    def _after_optimizer(self, optimizer: Any, inputs: Any, named: Any) -> None:
        at = self._position
        self._scaled_steps.after()
        if self._arrivals is not None:
            self._arrivals.settle()
        self.recorder.switch(None)
        boundary = self.strategy.boundary(at)
        if (period := self.strategy.current_period) is not None:
            self.recorder.fact("period", period)
        self._at_boundary = boundary
        self._replicas_equal = boundary and self.strategy.equalises(at)
        with torch.no_grad():
            (self.strategy.synchronise if boundary else self.strategy.between)(at)
        self._last_backward_synced = None
        self._position = position(at.n + 1, self._steps_per_epoch)
        self.recorder.end_step(at.n, at.epoch, boundary=boundary)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a nest of mappings, sequences and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def _when_backward_ends(call: Any) -> None:
    """Queue a callback on the backward pass under way; they run in the order in which they were queued."""
    torch.autograd.Variable._execution_engine.queue_callback(call)
