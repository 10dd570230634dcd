"""Every file name of a run, making and finding run folders, and reading back what a run left, whole or
killed.

    runs/2026-12-01T14-05-33-nancy-sophia/
        experiment.yaml  resolved.json  machine.json  network.json
        cells/ID/{cell.json, rank-R.events.jsonl, traffic.jsonl, output.log, done.json, checkpoints/}
        attempts/ID-N/      what a cell left that was run again: interrupted, failed, or the emulation did not keep up
        tables/{steps,cells,network,eval}.{parquet,csv}
        report.html
    runs/latest -> the newest

Flow: `runner` writes a run through `RunDir`; `read_run` gives a frozen `RunData` to the pure `tables`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cpdp import jsonfile
from cpdp.errors import EventError, RunFolderError
from cpdp.events import EventLog, read_events

LATEST = "latest"
DEFAULT_ROOT = Path("runs")


@dataclass(frozen=True)
class CellDir:
    """The folder of one cell."""

    path: Path

    @property
    def spec(self) -> Path:
        """What the worker was told (cell.json)."""
        return self.path / "cell.json"

    @property
    def done(self) -> Path:
        """How the cell ended; absent while it runs and when the run was killed in it."""
        return self.path / "done.json"

    @property
    def output(self) -> Path:
        """What the workers printed, each line with its worker's name."""
        return self.path / "output.log"

    @property
    def traffic(self) -> Path:
        """Samples of the WAN's byte counters while the cell ran, one JSON object a line."""
        return self.path / "traffic.jsonl"

    def events(self, rank: int) -> Path:
        """The event file of one rank."""
        return self.path / f"rank-{rank}.events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """What the ranks saved for a resume; absent where no checkpoint was asked for, and once a cell is done."""
        return self.path / "checkpoints"

    def event_files(self) -> list[Path]:
        """The event files that exist, in rank order."""
        found = self.path.glob("rank-*.events.jsonl")
        return sorted(found, key=lambda path: int(path.name.split(".")[0].removeprefix("rank-")))


@dataclass(frozen=True)
class RunDir:
    """The folder of one run; a name for every file in it."""

    path: Path

    @property
    def experiment(self) -> Path:
        """The experiment file as it was written by the user (or made from the command line's flags)."""
        return self.path / "experiment.yaml"

    @property
    def resolved(self) -> Path:
        """Everything that was decided before the first cell."""
        return self.path / "resolved.json"

    @property
    def machine(self) -> Path:
        """What the run was measured on."""
        return self.path / "machine.json"

    @property
    def network(self) -> Path:
        """The network that was achieved, held against the profile."""
        return self.path / "network.json"

    @property
    def tables(self) -> Path:
        """The folder of Parquet and CSV tables."""
        return self.path / "tables"

    @property
    def report(self) -> Path:
        """The self-contained report."""
        return self.path / "report.html"

    def cell(self, cell_id: str) -> CellDir:
        """The folder of one cell."""
        return CellDir(self.path / "cells" / cell_id)

    def start_cell(self, cell_id: str) -> CellDir:
        """Make the folder of a cell anew; what an earlier attempt left is kept under attempts/, but for its
        checkpoints, from which the new one goes on.
        """
        cell = self.cell(cell_id)
        try:
            earlier = self._keep_attempt(cell_id, cell.path) if cell.path.exists() else None
            cell.path.mkdir(parents=True)
            if earlier and earlier.checkpoints.is_dir():
                earlier.checkpoints.rename(cell.checkpoints)
        except OSError as error:
            raise RunFolderError(f"cannot make {cell.path}: {error.strerror or error}") from error
        return cell

    def attempts(self, cell_id: str) -> list[CellDir]:
        """What is kept of a cell's earlier attempts, oldest first."""
        parent = self.path / "attempts"
        found = [one for one in parent.glob(f"{glob.escape(cell_id)}-*") if one.name.rpartition("-")[0] == cell_id]
        return [CellDir(one) for one in sorted(found, key=lambda one: int(one.name.rpartition("-")[2]))]

    def _keep_attempt(self, cell_id: str, path: Path) -> CellDir:
        attempts = self.path / "attempts"
        attempts.mkdir(exist_ok=True)
        number = 1 + len(self.attempts(cell_id))
        return CellDir(path.rename(attempts / f"{cell_id}-{number}"))


def create(root: Path, name: str, now: datetime) -> RunDir:
    """Make runs/TIME-NAME under `root` and point `latest` at it.

    Two runs started in the same second get different folders. Raises RunFolderError when `root` cannot be
    written.
    """
    stem = f"{now:%Y-%m-%dT%H-%M-%S}-{name}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        path = _make_unused(root, stem)
    except OSError as error:
        raise RunFolderError(f"cannot make a run folder in {root}: {error.strerror or error}") from error
    point_latest_at(path)
    return RunDir(path)


def create_at(path: Path) -> RunDir:
    """Use the folder that the user named for this run; it must be new or empty."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RunFolderError(f"{path} is not empty: name a new folder, or go on with --resume {path}")
    except OSError as error:
        raise RunFolderError(f"cannot use {path} as run folder: {error.strerror or error}") from error
    return RunDir(path.resolve())


def _make_unused(root: Path, stem: str) -> Path:
    for number in range(1, 1000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise RunFolderError(f"cannot make {root / stem}: 999 folders of that name exist")


def point_latest_at(path: Path) -> None:
    """Replace the `latest` link beside `path` in one rename; a reader always finds the old or the new run."""
    link = path.parent / LATEST
    if link.exists() and not link.is_symlink():
        raise RunFolderError(f"{link} is not a link: move it away, the newest run is found through that name")
    aside = path.parent / f".{LATEST}.{os.getpid()}"
    try:
        aside.symlink_to(path.name, target_is_directory=True)
        aside.replace(link)
    except OSError as error:
        raise RunFolderError(f"cannot point {link} at {path.name}: {error.strerror or error}") from error


def find(run: Path | None) -> RunDir:
    """The run folder a user named, runs/latest when none was named.

    Raises RunFolderError that says what is there instead and, for a folder that holds runs, names the newest.
    """
    path = DEFAULT_ROOT / LATEST if run is None else run
    if (path / LATEST / "resolved.json").exists() and not (path / "resolved.json").exists():
        path = path / LATEST
    if not path.exists():
        hint = "; no run was made here yet: start one with cpdp compare" if run is None else _near(path)
        raise RunFolderError(f"there is no run at {path}{hint}")
    if not path.is_dir():
        raise RunFolderError(f"{path} is a file: name the run's folder")
    if not (path / "resolved.json").exists():
        raise RunFolderError(f"{path} is not a run: it has no resolved.json{_inside(path)}")
    return RunDir(path.resolve())


def _near(path: Path) -> str:
    beside = path.parent if path.parent.is_dir() else DEFAULT_ROOT
    return _inside(beside) if beside.is_dir() else ""


def _inside(path: Path) -> str:
    """A hint that names the newest run in a folder of runs, empty when there is none."""
    try:
        runs = sorted(one.name for one in path.iterdir() if (one / "resolved.json").exists() and not one.is_symlink())
    except OSError:
        return ""
    return f"; the newest run in {path} is {path / runs[-1]}" if runs else ""


@dataclass(frozen=True)
class CellData:
    """What one cell left: its place in the matrix (from resolved.json) and whatever exists on disk.

    `done` is None when the cell never ended; `logs` are the ranks that wrote at least a file; `problems` says
    what could not be read.
    """

    cell: Mapping[str, Any]
    done: Mapping[str, Any] | None
    logs: tuple[EventLog, ...]
    traffic: tuple[Mapping[str, Any], ...]
    problems: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The cell's name, which is its folder's name too."""
        return str(self.cell["id"])

    @property
    def started(self) -> bool:
        """Whether anything of the cell exists on disk."""
        return self.done is not None or bool(self.logs)


@dataclass(frozen=True)
class RunData:
    """A whole run in memory, as far as it got."""

    path: Path
    resolved: Mapping[str, Any]
    machine: Mapping[str, Any]
    network: Mapping[str, Any] | None
    cells: tuple[CellData, ...]

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.resolved["experiment"]["name"])

    @property
    def complete(self) -> bool:
        """Whether every cell of the matrix ended."""
        return all(cell.done is not None for cell in self.cells)


def read_run(run: RunDir) -> RunData:
    """Read everything of a run that is there. A run killed at any moment is readable.

    Raises RunFolderError when resolved.json is absent or damaged: without it nothing else has a meaning.
    """
    resolved = jsonfile.read(run.resolved)
    try:
        listed = [dict(cell) for cell in resolved["cells"]]
        _ = resolved["experiment"]["name"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run.resolved} is not what a run writes: {error!r}") from error
    machine = jsonfile.read(run.machine) if run.machine.exists() else {}
    network = jsonfile.read(run.network) if run.network.exists() else None
    cells = tuple(read_cell(run.cell(str(cell["id"])), cell) for cell in listed)
    return RunData(run.path, resolved, machine, network, cells)


def read_cell(folder: CellDir, cell: Mapping[str, Any]) -> CellData:
    """Read what one cell left so far. `cell` is its line in resolved.json."""
    problems: list[str] = []
    logs: list[EventLog] = []
    for path in folder.event_files():
        try:
            logs.append(read_events(path))
        except (EventError, OSError) as error:
            problems.append(str(error))
    problems += [log.problem for log in logs if log.problem]
    done = jsonfile.read(folder.done) if folder.done.exists() else None
    return CellData(cell, done, tuple(logs), _read_traffic(folder.traffic), tuple(problems))


def _read_traffic(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The samples that were written whole."""
    if not path.exists():
        return ()
    *lines, _torn = path.read_bytes().split(b"\n")
    return tuple(jsonfile.parse(line, path) for line in lines)
