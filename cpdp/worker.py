"""One rank, from rendezvous to its last event: `python -m cpdp.worker CELL.json --out DIR`.

Flow: `Lab.run` starts this on every worker with RANK, WORLD_SIZE, MASTER_ADDR, ... set -> process group ->
workload and strategy -> training loop -> rank-R.events.jsonl. The loop is an ordinary DDP loop: everything
particular to a strategy or to measuring is in `parallel.DataParallel`. Exit codes as in the design: 0 done, 1
the job failed, 2 a user's mistake.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from cpdp.cell import Cell, read_cell
from cpdp.clock import MonotonicClock
from cpdp.errors import CellError, CpdpError, PeerLost
from cpdp.events import EndEvent, EvalEvent, EventWriter, Json, StartEvent, finite
from cpdp.flat import float_buffers, trained_parameters
from cpdp.parallel import DataParallel
from cpdp.recorder import StepRecorder
from cpdp.schedule import position
from cpdp.strategies import strategy_class
from cpdp.transport import Transport, first_line, is_network_failure, open_group
from cpdp.workloads import build
from cpdp.workloads.base import Batch, Place, Workload


@dataclass(frozen=True)
class _Rank:
    rank: int
    world: int

    @classmethod
    def from_environment(cls) -> _Rank:
        """Read RANK and WORLD_SIZE. Raises CellError when they are missing or make no sense."""
        try:
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError) as error:
            raise CellError(f"RANK and WORLD_SIZE must be whole numbers in the environment: {error}") from error
        if not 0 <= rank < world:
            raise CellError(f"RANK={rank} is not below WORLD_SIZE={world}")
        return cls(rank, world)


def main(arguments: list[str] | None = None) -> int:
    """Run one rank; the only place where this process turns an error into an exit code."""
    parser = argparse.ArgumentParser(prog="python -m cpdp.worker", description="Run one rank of a cell.")
    parser.add_argument("cell", type=Path, help="the cell's file, the same for every rank")
    parser.add_argument("--out", type=Path, required=True, help="folder for rank-R.events.jsonl")
    options = parser.parse_args(arguments)
    try:
        cell, me = read_cell(options.cell), _Rank.from_environment()
        options.out.mkdir(parents=True, exist_ok=True)
        with EventWriter(options.out / f"rank-{me.rank}.events.jsonl") as writer:
            run(cell, me.rank, me.world, writer)
    except CpdpError as error:
        print(f"cpdp.worker: {error}", file=sys.stderr, flush=True)
        # Without destructors: those of a process group whose peers are gone would wait for its time limit.
        os._exit(error.exit_code)
    return 0


def run(cell: Cell, rank: int, world: int, writer: EventWriter) -> None:
    """Train one cell on this rank and write its events. Raises CpdpError; its end event is written in any
    case.
    """
    torch.set_num_threads(1)
    transport = Transport(contexts=cell.gloo_contexts, timeout_s=cell.timeout_s)
    writer.write(_start_event(cell, rank, world))
    try:
        with open_group(transport, rank, world):
            training = _Training(cell, Place(rank, world, cell.seed), writer)
            try:
                training.run()
            except RuntimeError as error:
                raise training.explain(error) from error
    except CpdpError as error:
        writer.write(EndEvent(time.monotonic_ns(), ok=False, reason=str(error)))
        raise
    writer.write(EndEvent(time.monotonic_ns(), ok=True))


def _start_event(cell: Cell, rank: int, world: int) -> StartEvent:
    details: dict[str, Json] = {
        "cell": cell.id,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pid": os.getpid(),
        "seed": cell.seed,
        "gloo_contexts": cell.gloo_contexts,
        "timeout_s": cell.timeout_s,
    }
    host = os.environ.get("NETLAB_WORKER") or socket.gethostname()
    return StartEvent(rank, world, cell.strategy.label, time.monotonic_ns(), host, MonotonicClock.name, details)


class _Training:
    """The training loop of one cell on one rank."""

    def __init__(self, cell: Cell, place: Place, writer: EventWriter) -> None:
        self.cell, self.place, self.writer = cell, place, writer
        self.workload: Workload = build(cell.workload, place)
        self.steps_per_epoch = self._epoch_length()
        self.total = cell.total_steps(self.steps_per_epoch)
        self.optimizer = self.workload.optimizer(cell.optimizer)
        self.recorder = StepRecorder(writer.write, warmup_steps=cell.warmup_steps)
        self._check_loss()

    @cached_property
    def model(self) -> DataParallel:
        """The module under its strategy, wrapped on first use: from then on all ranks act together."""
        return DataParallel(
            self.workload.module,
            self.optimizer,
            self.cell.strategy,
            steps_per_epoch=self.steps_per_epoch,
            recorder=self.recorder,
        )

    def _check_loss(self) -> None:
        name = self.cell.strategy.name
        if strategy_class(name).needs_loss and not self.workload.reports_loss():
            raise CellError(f"cell {self.cell.id}: {name} follows the loss, and this workload reports none")

    def _epoch_length(self) -> int | None:
        decided, asked = self.workload.steps_per_epoch, self.cell.steps_per_epoch
        if decided is not None and asked is not None and decided != asked:
            raise CellError(
                f"cell {self.cell.id}: steps_per_epoch: {asked} is not possible; the data set and batch give {decided}"
            )
        return asked if decided is None else decided

    def run(self) -> None:
        """All steps, with an evaluation at the end of each epoch where the workload has one."""
        self.model.train()
        gc.collect()
        gc.freeze()  # what exists now is not searched again: a full collection would stop a timed step for tens of ms
        with self.recorder.paused():
            self.model.collectives.barrier()
        for batch in self._batches():
            self._step(batch)
        self.recorder.close()
        self.model.collectives.barrier()
        self.model.close()

    def _batches(self) -> Iterator[Batch]:
        """Batches of epoch after epoch until all steps are taken; evaluates between epochs."""
        while self.model.upcoming.n <= self.total:
            epoch = self.model.upcoming.epoch
            self.recorder.switch("data")
            for batch in self.workload.batches(epoch):
                yield batch
                if self.model.upcoming.n > self.total or self.model.upcoming.epoch != epoch:
                    break
                self.recorder.switch("data")
            with self.recorder.paused():
                self._evaluate(epoch)

    def _step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.workload.reports_loss():
            self.recorder.set_loss(loss.detach())
            self.model.observe_loss(loss)
        self.optimizer.step()

    def _evaluate(self, epoch: int) -> None:
        began, module = time.monotonic_ns(), self.workload.module
        last = position(self.model.upcoming.n - 1, self.steps_per_epoch)
        if self.model.replicas_equal:
            result = self.workload.evaluate(module)
        else:  # between boundaries the replicas differ: it is their mean that is evaluated
            with self.model.collectives.averaged([*trained_parameters(module), *float_buffers(module)]):
                result = self.workload.evaluate(module)
        if result is None:
            return
        (accuracy, first), (loss, second) = finite("accuracy", result[0]), finite("loss", result[1])
        now = time.monotonic_ns()
        self.writer.write(EvalEvent(last.n, epoch, now, accuracy, loss, now - began, notes=(*first, *second)))

    def explain(self, error: RuntimeError) -> Exception:
        """A failure inside a collective that torch itself issued, in words that name rank, step and operation."""
        if not is_network_failure(error):
            return error
        return PeerLost(f"rank {self.place.rank}, {self.recorder.last_activity()}: {first_line(error)}")


if __name__ == "__main__":
    sys.exit(main())
