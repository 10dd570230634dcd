"""A run folder made by arithmetic: every number a test expects can be computed by hand from the constants
here.

Computation is 60 ms forward + 120 ms backward + 5 ms optimizer. An all-reduce of the 94.8 MB model takes 800
ms; of DDP's, 80 ms lie beneath the backward pass. Repeat r is slower by (r - 2) percent in its exposed time.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from cpdp import jsonfile
from cpdp.events import EndEvent, EvalEvent, EventWriter, Operation, Span, StartEvent, StepEvent
from cpdp.rundir import CellDir, RunDir

MS = 1_000_000
FORWARD, BACKWARD, OPTIMIZER, REST = 60 * MS, 120 * MS, 5 * MS, 1 * MS
TRAVERSAL, HIDDEN = 800 * MS, 80 * MS
PAYLOAD = 94_800_000
HEADERS = 1.04
DIRECTIONS = ("nancy>sophia", "sophia>nancy")

DDP = {"name": "ddp", "period": 1}
LOCAL2 = {"name": "localsgd", "period": 2}
LOCAL4 = {"name": "localsgd", "period": 4}
CPDP2 = {"name": "cpdp", "period": 2, "beta": 0.3}
CPDP4 = {"name": "cpdp", "period": 4, "beta": 0.3}
PAPER = (DDP, LOCAL2, LOCAL4, CPDP2, CPDP4)


def verified(way: str, quantity: str, unit: str, asked: float, achieved: float, slack: float) -> dict:
    """A row as `netlab verify --json` has it."""
    low, high = asked - slack, asked + slack
    return {
        "link": "nancy-sophia", "direction": way, "quantity": quantity, "unit": unit, "asked": asked,
        "achieved": achieved, "low": low, "high": high, "ok": low <= achieved <= high,
    }  # fmt: skip


NETWORK = {
    "ok": True,
    "carrier": "relay",
    "links": [
        verified("round trip", "rtt", "ms", 16.6, 16.68, 0.5),
        verified("nancy-0>sophia-0", "rate", "Mbit/s", 1000.0, 1000.0, 30.0),
        verified("sophia-0>nancy-0", "rate", "Mbit/s", 1000.0, 998.0, 30.0),
    ],
}


def label(strategy: dict) -> str:
    """The label that the matrix gives it."""
    return strategy["name"] if strategy["name"] == "ddp" else f"{strategy['name']} K={strategy['period']}"


def exposed_ms(strategy: dict, repeat: int = 2) -> float:
    """Exposed milliseconds per step, over whole periods: boundaries cost what they cost, the rest nothing."""
    slower = 1 + (repeat - 2) / 100
    gradients, parameters = (TRAVERSAL - HIDDEN) / MS, TRAVERSAL / MS
    once = {"ddp": gradients, "localsgd": parameters, "cpdp": gradients + parameters}[strategy["name"]]
    return once * slower / strategy["period"]


@dataclass
class FakeRun:
    """Writes a run folder cell by cell."""

    path: Path
    strategies: tuple = PAPER
    repeats: int = 3
    steps: int = 12
    warmup: int = 4
    training: tuple = ()
    network: dict | None = field(default_factory=lambda: NETWORK)
    world: int = 2
    workload: str = "resnet50-cifar100"

    def cells(self) -> list[dict]:
        """The matrix, in order."""
        replayed = [
            {"phase": "exposure", "strategy": strategy, "repeat": repeat}
            for repeat in range(1, self.repeats + 1)
            for strategy in self.strategies
        ]
        training = [{"phase": "accuracy", "strategy": strategy, "repeat": 1} for strategy in self.training]
        cells = []
        for number, cell in enumerate([*replayed, *training], start=1):
            name, period, repeat = cell["strategy"]["name"], cell["strategy"]["period"], cell["repeat"]
            cell_id = f"{number:02d}-{name}-k{period}-r{repeat}"
            cells.append({"id": cell_id, "label": label(cell["strategy"]), "seed": 42, **cell})
        return cells

    def resolved(self) -> dict:
        """What resolved.json holds."""
        phases = [
            {
                "name": "exposure",
                "kind": "replayed",
                "workload": {"name": self.workload, "batch": 128},
                "steps": self.steps,
                "warmup_steps": self.warmup,
                "repeats": self.repeats,
                "strategies": [{"label": label(s), **s} for s in self.strategies],
            }
        ]
        if self.training:
            phases.append(
                {
                    "name": "accuracy",
                    "kind": "training",
                    "workload": {"name": "digits", "batch": 32},
                    "epochs": 5,
                    "target_accuracy": 0.9,
                    "strategies": [{"label": label(s), **s} for s in self.training],
                }
            )
        experiment = {
            "name": "fake",
            "network": {"name": "grid5000-nancy-sophia", "sha256": "0" * 64, "text": "sites: ..."},
            "phases": phases,
            "order_seed": 7,
        }
        versions = {"python": "3.11.7", "torch": "2.14.1"}
        return {"format": 1, "experiment": experiment, "cells": self.cells(), "versions": versions}

    def write(self) -> RunDir:
        """The whole run."""
        run = self.start()
        for cell in self.cells():
            self.write_cell(run, cell)
        return run

    def start(self) -> RunDir:
        """A run before its first cell."""
        self.path.mkdir(parents=True)
        run = RunDir(self.path)
        jsonfile.write(run.resolved, self.resolved())
        jsonfile.write(run.machine, {"cpu": "a processor", "cores": 2, "memory_bytes": 25 * 10**9, "load": [0.1]})
        if self.network is not None:
            jsonfile.write(run.network, self.network)
        run.experiment.write_text("name: fake\n")
        return run

    def write_cell(self, run: RunDir, cell: dict, *, done: dict | None = None, steps: int | None = None) -> CellDir:
        """One cell, complete by default; `steps` cuts it short, `done` replaces its end."""
        folder = run.start_cell(cell["id"])
        jsonfile.write(folder.spec, {"id": cell["id"]})
        total = self.warmup + self.steps if steps is None else steps
        made = [self._steps(cell, total) for _ in range(self.world)]
        for rank in range(self.world):
            self._write_rank(folder, cell, rank, made[rank])
        self._write_traffic(folder, made[0])
        ended = {"ok": True, "reasons": [], "wall_s": 12.5, "failure": None, "valid": True}
        if steps is None or done is not None:
            jsonfile.write(folder.done, ended | (done or {}))
        return folder

    def _write_rank(self, folder: CellDir, cell: dict, rank: int, steps: list[StepEvent]) -> None:
        training = cell["phase"] == "accuracy"
        with EventWriter(folder.events(rank)) as writer:
            writer.write(StartEvent(rank, self.world, cell["label"], 0, f"worker-{rank}"))
            for step in steps:
                writer.write(step)
                if training and rank == 0 and step.n % 4 == 0:
                    accuracy = min(0.98, 0.5 + 0.12 * step.n / 4)
                    writer.write(EvalEvent(step.n, step.n // 4, step.end_ns + MS, accuracy, 1 - accuracy))
            if len(steps) == self.warmup + self.steps:
                writer.write(EndEvent(steps[-1].end_ns if steps else 1, ok=True))

    def _steps(self, cell: dict, count: int) -> list[StepEvent]:
        steps, now = [], 1_000 * MS
        for n in range(1, count + 1):
            step = make_step(cell["strategy"], n, now, repeat=cell["repeat"], warmup=n <= self.warmup)
            if self.world == 1:
                step = alone(step)
            steps.append(step)
            now = step.end_ns
        return steps

    def _write_traffic(self, folder: CellDir, steps: list[StepEvent]) -> None:
        names = DIRECTIONS if self.world > 1 else ()
        moved, lines = 0.0, [{"t": 0, **dict.fromkeys(names, 0)}]
        for step in steps:
            lines.append({"t": step.start_ns, **dict.fromkeys(names, round(moved))})
            moved += HEADERS * sum(op.bytes for op in step.ops)
            lines.append({"t": step.end_ns, **dict.fromkeys(names, round(moved))})
        folder.traffic.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_step(strategy: dict, n: int, start: int, *, repeat: int = 2, warmup: bool = False) -> StepEvent:
    """One step of a strategy, starting at `start` nanoseconds."""
    boundary = n % strategy["period"] == 0
    slower = 1 + (repeat - 2) / 100
    gradients = boundary and strategy["name"] in ("ddp", "cpdp")
    parameters = boundary and strategy["name"] in ("localsgd", "cpdp")
    spans, ops, now = [], [], start
    forward_end = start + FORWARD
    backward_end = forward_end + BACKWARD
    spans += [Span("forward", start, forward_end), Span("backward", forward_end, backward_end)]
    now = backward_end
    if gradients:
        end = now + round((TRAVERSAL - HIDDEN) * slower)
        ops.append(Operation("all_reduce", "gradients", PAYLOAD, backward_end - HIDDEN, end))
        spans.append(Span("exposed.gradients", now, end))
        now = end
    spans.append(Span("optimizer", now, now + OPTIMIZER))
    now += OPTIMIZER
    if parameters:
        end = now + round(TRAVERSAL * slower)
        ops.append(Operation("all_reduce", "parameters", PAYLOAD, now, end))
        spans.append(Span("exposed.parameters", now, end))
        now = end
    return StepEvent(
        n=n, epoch=0, warmup=warmup, boundary=boundary, start_ns=start, end_ns=now + REST, spans=tuple(spans),
        ops=tuple(ops), loss=2.0 / n, overhead_ns=20_000,
    )  # fmt: skip


def alone(step: StepEvent) -> StepEvent:
    """The same step of a run that has nobody to talk to."""
    spans = tuple(span for span in step.spans if not span.name.startswith("exposed."))
    return StepEvent(step.n, 0, step.warmup, step.boundary, step.start_ns, step.end_ns, spans, (), step.loss)
