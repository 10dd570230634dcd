"""Carries a matrix out: one Lab, its network verified, one job per missing cell, every outcome stored.

Flow: `matrix` cells -> here -> the run folder -> `tables`. Nothing is dropped: a cell that failed, or during
which the emulation did not keep up, is stored with the reasons and shown as such. What is measured is on disk
before the next cell starts, so that a run that is stopped at any moment can be read and resumed.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

from cpdp import jsonfile, padding, wire
from cpdp.errors import NetworkNotAsAsked
from cpdp.experiment import Experiment
from cpdp.matrix import Cell
from cpdp.rundir import CellDir, RunData, RunDir, read_cell, read_run
from cpdp.sampler import Progress, Sampler
from cpdp.tables import state_of
from netlab import JobResult, Lab, Profile, Verification, dilate

ATTEMPTS = 3
"""How often at most a cell is measured until the emulation keeps up. It is the emulation's health alone that decides,
never the result, so this chooses no favourable ones; every attempt is kept and named.
"""

LAST_LINES = 12
"""Lines of a failed worker's output that are kept with the failure and shown."""

LONGEST_LINE = 1 << 16
"""A longer line is stored in pieces: what a program prints must not decide how much memory we use."""


class View(Protocol):
    """Who is told while a run goes on: a terminal, plain lines, or a test."""

    def network(self, verification: Mapping[str, Any], choices: Sequence[str]) -> None:
        """The network was measured; `choices` is what was chosen automatically."""

    def cell_started(self, cell: Cell, number: int, total: int) -> None:
        """A cell starts, the `number`th of `total`."""

    def progress(self, progress: Progress) -> None:
        """Called about ten times a second, from another thread."""

    def cell_ended(self, cell: Cell, run: RunData) -> None:
        """A cell ended; `run` holds all cells so far."""

    def message(self, text: str) -> None:
        """Something the user should know."""


@dataclass(frozen=True)
class Job:
    """What `run` carries out."""

    experiment: Experiment
    profile: Profile
    cells: tuple[Cell, ...]
    folder: RunDir


def missing(run: RunData) -> set[str]:
    """Ids of the cells that have not ended well: never started, interrupted or failed."""
    return {cell.id for cell in run.cells if state_of(cell) != "done"}


def run(job: Job, view: View, start: Callable[..., Lab] = Lab.start) -> RunData:
    """Run every cell that is missing and return the run as it then is.

    Raises NetworkNotAsAsked when the network misses the profile and the experiment says stop, NetlabError
    when no lab can be built. KeyboardInterrupt passes through once the lab is gone.
    """
    todo = missing(read_run(job.folder))
    left = [cell for cell in job.cells if cell.id in todo]
    if not left:
        view.message("every cell of this run is already measured")
        return read_run(job.folder)
    asked = job.experiment
    with start(
        dilate(job.profile, asked.dilation), carrier=asked.carrier, hosts=asked.hosts, writable=[job.folder.path]
    ) as lab:
        verification = _verify(lab, job)
        view.network(verification, lab.choices)
        _check(verification, job)
        faults = [] if verification["ok"] else ["the network was not the one asked for"]
        queue = deque((cell, 1) for cell in left)
        while queue:
            cell, attempt = queue.popleft()
            view.cell_started(cell, job.cells.index(cell) + 1, len(job.cells))
            outcome = _Execution(lab, cell, job.folder.start_cell(cell.id), view, faults, _earlier(job, cell)).run()
            view.cell_ended(cell, read_run(job.folder))
            if outcome is Outcome.FAILED and asked.on_failure == "stop":
                view.message(f"stopped at the first cell that failed, as asked: {cell.id}")
                break
            if outcome is Outcome.NOT_KEPT_UP and asked.on_invalid == "again" and attempt < ATTEMPTS:
                view.message(f"{cell.id} will be measured again, after the others: the emulation did not keep up")
                queue.append((cell, attempt + 1))
    return read_run(job.folder)


def _earlier(job: Job, cell: Cell) -> list[dict[str, Any]]:
    """What is known of a cell's earlier attempts, oldest first."""
    found = []
    for attempt in job.folder.attempts(cell.id):
        done = jsonfile.read(attempt.done) if attempt.done.exists() else {}
        reasons = done.get("reasons") or ["interrupted before its end"]
        found.append({"folder": str(attempt.path.relative_to(job.folder.path)), "reasons": reasons})
    return found


def _verify(lab: Lab, job: Job) -> dict[str, Any]:
    """Measure the network and store the result with what was chosen; on a resume the earlier ones are kept."""
    found: Verification = lab.verify("quick")
    record = {**found.to_json(), "at": _now(), "lab": lab.describe()}
    if job.folder.network.exists():
        earlier = jsonfile.read(job.folder.network)
        record["earlier"] = [*earlier.pop("earlier", []), {key: earlier[key] for key in ("ok", "links", "at")}]
    jsonfile.write(job.folder.network, record)
    return record


def _check(verification: Mapping[str, Any], job: Job) -> None:
    if verification["ok"] or job.experiment.on_bad_network == "continue":
        return
    bad = [row for row in verification["links"] if not row["ok"]]
    lines = [
        f"  {row['link']} {row['direction']}: {row['quantity']} asked {amount(row, 'asked')},"
        f" achieved {amount(row, 'achieved')}, accepted {amount(row, 'low')} to {amount(row, 'high')}"
        for row in bad
    ]
    raise NetworkNotAsAsked(
        "the network is not the one asked for, no cell was run:\n"
        + "\n".join(lines)
        + f"\n  stored in {job.folder.network}; --on-bad-network continue measures all the same, every cell invalid"
    )


def amount(row: Mapping[str, Any], key: str) -> str:
    """A quantity of a verification row with its unit."""
    value = row.get(key)
    if value is None:
        return "nothing"
    return f"{value:g} {row.get('unit', '')}".strip() if isinstance(value, int | float) else str(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def wan_directions(lab: Lab) -> dict[str, str]:
    """Name of each WAN direction in the lab's counters -> "site>site"."""
    site = {node.name: node.site for node in lab.topology.nodes}
    return {
        name: f"{site[near.node]}>{site[far.node]}"
        for joint in lab.topology.joints
        if joint.kind == "wan"
        for name, near, far, _ in joint.directions
    }


class Outcome(Enum):
    """How a cell ended, as far as what follows depends on it."""

    COUNTED = auto()
    FAILED = auto()
    NOT_KEPT_UP = auto()
    """The job ended well, and only the emulation's health speaks against it."""
    NOT_COUNTED = auto()


@dataclass
class _Execution:
    """One cell, from its folder to its done.json."""

    lab: Lab
    cell: Cell
    folder: CellDir
    view: View
    faults: list[str]
    """What already speaks against the cell before it starts."""
    earlier: list[dict[str, Any]]
    """Attempts before this one, each with its folder and what speaks against it."""
    tails: dict[str, list[bytes]] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Run the job on every worker and store its outcome in done.json."""
        jsonfile.write(self.folder.spec, self.cell.spec())
        mark, started, clock = self.lab.mark(), _now(), time.monotonic()
        directions = wan_directions(self.lab)
        sites = tuple(dict.fromkeys(worker.site for worker in self.lab.workers))
        with (
            self.folder.output.open("wb") as log,
            Sampler(
                lambda: self._counts(directions), self.folder.traffic, self.folder.events(0), self.view.progress
            ) as sampler,
        ):
            result = self.lab.run(
                [self.lab.python, "-m", "cpdp.worker", str(self.folder.spec), "--out", str(self.folder.path)],
                env={"PYTHONPATH": _import_path(), "PYTHONUNBUFFERED": "1"},
                output=lambda worker, data: self._keep(log.write, worker, data),
                timeout=self.cell.phase.limit_s * self.cell.dilation,
            )
        health = self.lab.health(since=mark)
        done = {
            "id": self.cell.id,
            "ok": result.ok,
            "started": started,
            "wall_s": round(time.monotonic() - clock, 3),
            "result": result.describe(),
            "failure": None if result.ok else self._failure(result),
            "health": health.to_json(),
        }
        if self.earlier:
            done["earlier_attempts"] = self.earlier
        reasons = self._finish(done, result, [*self.faults, *health.reasons, *_sampling(sampler)], sites)
        if not result.ok:
            return Outcome.FAILED
        if not reasons:
            return Outcome.COUNTED
        return Outcome.NOT_KEPT_UP if reasons == list(health.reasons) else Outcome.NOT_COUNTED

    def _counts(self, directions: Mapping[str, str]) -> dict[str, int]:
        traffic = self.lab.traffic()
        return {short: traffic[name]["bytes_out"] for name, short in directions.items() if name in traffic}

    def _keep(self, write: Callable[[bytes], object], worker: str, data: bytes) -> None:
        """Store a piece of output, whole lines with the worker's name before them, and remember the last
        lines.
        """
        pending = self.tails.setdefault(worker, [b""])
        *lines, rest = (pending.pop() + data).split(b"\n")
        if rest and (not data or len(rest) > LONGEST_LINE):  # the stream has ended, or never will end its line
            lines, rest = [*lines, rest], b""
        for line in lines:
            write(f"[{worker}] ".encode() + line + b"\n")
        pending.extend(lines)
        del pending[:-LAST_LINES]
        pending.append(rest)

    def _failure(self, result: JobResult) -> dict[str, Any]:
        """Who failed, how, and what it said last."""
        first = result.failure
        worker = first.worker if first else next(iter(self.tails), "")
        lines = [line.decode(errors="replace") for line in self.tails.get(worker, []) if line.strip()]
        return {
            "worker": worker or None,
            "rank": first.rank if first else None,
            "code": first.code if first else None,
            "signal": first.signal if first else None,
            "timed_out": result.timed_out,
            "last_lines": lines[-LAST_LINES:],
        }

    def _finish(self, done: dict[str, Any], result: JobResult, reasons: list[str], sites: Sequence[str]) -> list[str]:
        """Add the proof that the bytes crossed and the verdict, and write done.json in one rename. Returns what speaks
        against the cell.
        """
        proof, faults = _proof(self.folder, sites)
        continued = _continued_after(self.folder)
        if continued:
            done["continued_after"] = continued
        if not result.ok:
            said = done["failure"]["last_lines"]
            reasons = [f"{result.describe()}: {said[-1]}" if said else result.describe(), *reasons]
        elif not faults and proof["moved_bytes"] is None:
            done["notes"] = [f"the carrier {self.lab.carrier} counts no bytes: that they crossed is not proven"]
        reasons = [*reasons, *(faults if result.ok else []), *_overrun(self.folder, self.cell)]
        jsonfile.write(self.folder.done, {**done, "wire": proof, "valid": not reasons, "reasons": reasons})
        return reasons


def _proof(folder: CellDir, sites: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What had to cross the WAN, what did, and the faults when that was less."""
    cell = read_cell(folder, {"id": folder.path.name})
    expected = wire.expected_crossing(cell.logs)
    window = wire.window(cell.logs)
    moved: Mapping[str, float] | None = None
    if window and cell.traffic and len(cell.traffic[0]) > 1:
        moved = wire.bytes_around(cell.traffic, *window)
    proof = {"least_bytes": expected, "moved_bytes": None if moved is None else dict(moved)}
    return proof, [] if moved is None else wire.crossing(expected, moved, sites)


def _overrun(folder: CellDir, cell: Cell) -> list[str]:
    """Whether padded computation took the times that were drawn for it."""
    return padding.faults(cell.compute, read_cell(folder, {"id": folder.path.name}).logs) if cell.compute else []


def _continued_after(folder: CellDir) -> int | None:
    """The step after which the cell went on from a checkpoint; None when it began at the beginning."""
    starts = [log.start for log in read_cell(folder, {"id": folder.path.name}).logs if log.start]
    steps = [int(step) for start in starts if isinstance(step := start.details.get("continued_after"), int)]
    return max(steps, default=None)


def _sampling(sampler: Sampler) -> list[str]:
    return [] if sampler.error is None else [f"the WAN's counters could not be read: {sampler.error}"]


def _import_path() -> str:
    """Where this cpdp was imported from, so that the workers run the same code wherever the command was
    started.
    """
    return os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
