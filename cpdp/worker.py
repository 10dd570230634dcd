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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cpdp.cell import Cell, read_cell
from cpdp.checkpoint import FOLDER, Checkpoints, History, random_state, set_random_state
from cpdp.clock import MonotonicClock
from cpdp.errors import CellError, CpdpError, PeerLost
from cpdp.evaluation import Evaluations
from cpdp.events import EndEvent, Event, EventWriter, Json, StartEvent
from cpdp.padder import Padder
from cpdp.parallel import DataParallel
from cpdp.recorder import StepRecorder
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
            run(cell, me.rank, me.world, writer, options.out)
    except CpdpError as error:
        print(f"cpdp.worker: {error}", file=sys.stderr, flush=True)
        # Without destructors: those of a process group whose peers are gone would wait for its time limit.
        os._exit(error.exit_code)
    return 0


def run(cell: Cell, rank: int, world: int, writer: EventWriter, folder: Path) -> None:
    """Train one cell on this rank and write its events. Raises CpdpError; its end event is written in any
    case.
    """
    torch.set_num_threads(1)
    transport = Transport(contexts=cell.gloo_contexts, timeout_s=cell.timeout_s)
    try:
        saved = Saved.of(cell, rank, world, folder)
        writer.write(_start_event(cell, rank, world, saved))
        with open_group(transport, rank, world):
            train(cell, Place(rank, world, cell.seed), writer, saved)
    except CpdpError as error:
        writer.write(EndEvent(time.monotonic_ns(), ok=False, reason=str(error)))
        raise
    writer.write(EndEvent(time.monotonic_ns(), ok=True))


def train(cell: Cell, place: Place, writer: EventWriter, saved: Saved) -> None:
    """The training of one cell in the process group that is open. Raises CpdpError."""
    training = _Training(cell, place, writer, saved)
    try:
        training.run()
    except PeerLost as error:
        raise PeerLost(f"{error}; {training.what_was_saved()}") from error
    except RuntimeError as error:
        raise training.explain(error) from error


@dataclass(frozen=True)
class Saved:
    """The checkpoints of a rank, and the one from which it goes on (None: it starts anew)."""

    checkpoints: Checkpoints
    state: Mapping[str, Any] | None

    @classmethod
    def of(cls, cell: Cell, rank: int, world: int, folder: Path) -> Saved:
        """Look for what an interrupted run left. Raises CellError when it was another job's."""
        checkpoints = Checkpoints(folder / FOLDER, rank, world, cell.identity())
        step = checkpoints.newest() if cell.checkpoint else None
        return cls(checkpoints, None if step is None else checkpoints.load(step))

    @property
    def step(self) -> int:
        """The last step that is done already."""
        return 0 if self.state is None else int(self.state["step"])


def _start_event(cell: Cell, rank: int, world: int, saved: Saved) -> StartEvent:
    details: dict[str, Json] = {
        "cell": cell.id,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pid": os.getpid(),
        "seed": cell.seed,
        "gloo_contexts": cell.gloo_contexts,
        "timeout_s": cell.timeout_s,
    }
    if saved.state is not None:
        details |= {"continued_after": saved.step, "before": saved.state["history"]}
    host = os.environ.get("NETLAB_WORKER") or socket.gethostname()
    return StartEvent(rank, world, cell.strategy.label, time.monotonic_ns(), host, MonotonicClock.name, details)


class _Training:
    """The training loop of one cell on one rank."""

    def __init__(self, cell: Cell, place: Place, writer: EventWriter, saved: Saved) -> None:
        self.cell, self.place, self.writer, self.saved = cell, place, writer, saved
        self.history = History() if saved.state is None else History.from_json(saved.state["history"])
        self.saved_step = saved.step
        self.workload: Workload = build(cell.workload, place, cell.dilation)
        self.steps_per_epoch = self._epoch_length()
        self.total = cell.total_steps(self.steps_per_epoch)
        self.optimizer = self.workload.optimizer(cell.optimizer)
        self.recorder = StepRecorder(self._write, warmup_steps=cell.warmup_steps)
        self.recorder.dilation = cell.dilation
        self.padder = self._padder()
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

    @cached_property
    def evaluations(self) -> Evaluations:
        """Made when the training starts: its clock counts from there."""
        return Evaluations(self.cell, self.workload, self.model, self._write)

    def _padder(self) -> Padder | None:
        compute, seed, rank = self.cell.compute, self.cell.seed, self.place.rank
        if compute is None:
            return None
        return Padder(lambda n: compute.drawn_ns(seed, rank, n), self.optimizer, self.recorder)

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
        if self.padder:
            self.padder.attach(self.workload.module)
        self._restore()
        gc.collect()
        gc.freeze()  # what exists now is not searched again: a full collection would stop a timed step for tens of ms
        with self.recorder.paused():
            self.model.collectives.barrier()
        self.evaluations.start(self.history)
        for batch in self._batches():
            self._step(batch)
        self.recorder.close()
        self.model.collectives.barrier()
        self.model.close()
        self.saved.checkpoints.drop_all()

    def _write(self, event: Event) -> None:
        self.writer.write(event)
        self.history.note(event)

    def _restore(self) -> None:
        """Go on where the checkpoint was taken."""
        steps = self.model.collectives.names(str(self.saved.step))
        if len(set(steps)) > 1:
            raise CellError(f"cell {self.cell.id}: the ranks found checkpoints of different steps: {', '.join(steps)}")
        if self.saved.state is None:
            return
        self.workload.module.load_state_dict(self.saved.state["model"])
        self.optimizer.load_state_dict(self.saved.state["optimizer"])
        self.model.load_training_state(self.saved.state["training"])
        set_random_state(self.saved.state["random"])
        self.recorder.continue_after(self.saved.step)

    def _save_if_due(self) -> None:
        """Save what the next step needs; the time for it belongs to no step."""
        every, done = self.cell.checkpoint, self.model.upcoming.n - 1
        if not every or done % every or done >= self.total:
            return
        with self.recorder.paused():
            state = {
                "model": self.workload.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "training": self.model.training_state(),
                "random": random_state(),
                "history": self.history.to_json(),
            }
            self.saved.checkpoints.save(done, state)
            self.model.collectives.barrier()
            self.saved_step = done
            self.saved.checkpoints.drop_before(done)

    def what_was_saved(self) -> str:
        """For the message of a failure."""
        if not self.cell.checkpoint:
            return "nothing is saved, since no checkpoint was asked for"
        if not self.saved_step:
            return f"nothing is saved yet: the first checkpoint comes after step {self.cell.checkpoint}"
        return f"saved by all ranks: step {self.saved_step} (checkpoints), where a resumed run goes on"

    def _batches(self) -> Iterator[Batch]:
        """Batches of epoch after epoch until all steps are taken; evaluates when it is time to."""
        while not self._over():
            epoch = self.model.upcoming.epoch
            self._load()
            for batch in islice(self.workload.batches(epoch), self.model.upcoming.t - 1, None):
                if self.padder:
                    self.padder.loaded()
                yield batch
                self.evaluations.after_step()
                if self._over() or self.model.upcoming.epoch != epoch:
                    break
                self._save_if_due()
                self._load()
            self.evaluations.at_epoch_end(last=self._over())
            self._save_if_due()

    def _over(self) -> bool:
        return self.model.upcoming.n > self.total or self.evaluations.over

    def _load(self) -> None:
        """A step begins, with its data."""
        self.recorder.switch("data")
        if self.padder:
            self.padder.begin(self.model.upcoming.n)

    def _step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.workload.reports_loss():
            self.recorder.set_loss(loss.detach())
            self.model.observe_loss(loss)
        self.optimizer.step()

    def explain(self, error: RuntimeError) -> Exception:
        """A failure inside a collective that torch itself issued, in words that name rank, step and operation."""
        if not is_network_failure(error):
            return error
        where = f"rank {self.place.rank}, {self.recorder.last_activity()}"
        return PeerLost(f"{where}: {first_line(error)}; {self.what_was_saved()}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written. Without the interpreter's end: a thread of gloo that lets go of the last collective's
    # Python callback after it finds no interpreter whose lock it could take, and aborts a process whose work is done.
    os._exit(code)
