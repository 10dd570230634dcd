"""When a training is evaluated, what is measured, and whether its time is over: the pauses between its steps.

Flow: `worker` calls `after_step` behind every step and `at_epoch_end` behind every epoch -> `EvalEvent`. Everything
here is collective and happens while the recorder is paused, so it belongs to no step and costs no training time. All
ranks decide alike: on step numbers, on the strategy's boundaries and, for the end of the training, on the mean of
their clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from cpdp.cell import Cell
from cpdp.checkpoint import History
from cpdp.events import EvalEvent, finite
from cpdp.flat import float_buffers, trained_parameters
from cpdp.parallel import DataParallel
from cpdp.recorder import Recorder
from cpdp.schedule import position
from cpdp.workloads.base import Workload


@dataclass(frozen=True)
class Found:
    """What one evaluation came to; None for what was not asked for or does not exist."""

    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None
    local_accuracy: float | None = None
    local_loss: float | None = None


class Evaluations:
    """The evaluations of one cell on one rank.

    With `evaluate_every` they come at the first boundary from every so many steps on, where the replicas are equal and
    the ranks meet anyway; exactly at those steps where the workers' own models are asked for, too. Without it they
    come at the ends of epochs.
    """

    def __init__(self, cell: Cell, workload: Workload, model: DataParallel, write: Callable[[EvalEvent], None]) -> None:
        """`write` takes the events."""
        self._cell, self._workload, self._model, self._write = cell, workload, model, write
        self._recorder: Recorder = model.recorder
        self._began, self._last = 0.0, 0
        self.over = False
        """Whether the training has had its `duration`."""

    def start(self, before: History) -> None:
        """The first step is about to begin, or the next one of a training that had come so far."""
        self._began = time.monotonic() - self._recorder.paused_s() - before.train_ns / 1e9
        self._last = max((row["n"] for row in before.evals), default=0)
        if self._cell.evaluate_every is not None and not before.evals:
            self._evaluate()  # where the curves begin

    def after_step(self) -> None:
        """A step is over and another one may follow: evaluate if it is time to."""
        every = self._cell.evaluate_every
        if every is None or self._model.upcoming.n - 1 - self._last < every:
            return
        if self._model.at_boundary or self._cell.local_models:
            self._evaluate()

    def at_epoch_end(self, *, last: bool) -> None:
        """An epoch is over, or with `last` the whole training, which does not end without having been evaluated."""
        done = self._model.upcoming.n - 1
        if self._cell.evaluate_every is None or (last and self._last != done):
            self._evaluate()

    def _evaluate(self) -> None:
        if not self._workload.reports_loss():
            return
        with self._recorder.paused():
            spent = time.monotonic() - self._recorder.paused_s() - self._began
            began = time.monotonic_ns()
            done = self._model.upcoming.n - 1
            found, elapsed = self._measure(spent)
            self._last = done
            limit = self._cell.duration_s
            self.over = limit is not None and elapsed >= limit
            if found is not None:
                self._report(done, found, began)

    def _report(self, done: int, found: Found, began: int) -> None:
        steps_per_epoch = self._model.steps_per_epoch
        numbers: dict[str, float | None] = {}
        notes: list[str] = []
        for name in ("accuracy", "loss", "train_loss", "local_accuracy", "local_loss"):
            numbers[name], note = finite(name, getattr(found, name))
            notes += note
        now = time.monotonic_ns()
        epoch = position(max(done, 1), steps_per_epoch).epoch
        head = {"n": done, "epoch": epoch, "t_ns": now, "duration_ns": now - began, "notes": tuple(notes)}
        self._write(EvalEvent(**head, **numbers))  # type: ignore[arg-type]

    def _measure(self, spent: float) -> tuple[Found | None, float]:
        """What the model reaches, and the workers' mean of the seconds that they have spent in steps."""
        module, model = self._workload.module, self._model
        own = self._workload.evaluate(module) if self._cell.local_models else None
        if model.replicas_equal:
            reached, loss = self._workload.evaluate(module), self._training_loss(module)
        else:  # between boundaries the replicas differ: it is their mean that is evaluated
            with model.collectives.averaged([*trained_parameters(module), *float_buffers(module)]):
                reached, loss = self._workload.evaluate(module), self._training_loss(module)
        seconds, loss_sum, count, *local = self._sum([spent, *loss, *(own or (0.0, 0.0))])
        world = model.collectives.world
        if reached is None:
            return None, seconds / world
        means = [value / world for value in local] if own else [None, None]
        return Found(*reached, loss_sum / count if count else None, *means), seconds / world

    def _training_loss(self, module: nn.Module) -> tuple[float, float]:
        """Sum and number of the losses of this worker's part of the training set; (0, 0) where nobody asks for it."""
        if self._cell.evaluate_every is None:
            return 0.0, 0.0
        found = self._workload.training_loss(module)
        return found or (0.0, 0.0)

    def _sum(self, numbers: list[float]) -> list[float]:
        """The same numbers summed over all workers: the same bits everywhere."""
        device = next(iter(self._workload.module.parameters())).device
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        for _ in self._model.collectives.sum_in_chunks([(total, "evaluation")]):
            pass
        summed: list[float] = total.tolist()
        return summed
