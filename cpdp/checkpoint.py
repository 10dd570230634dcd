"""What a rank saves so that its run can go on with the same bits after it was interrupted.

Flow: worker -> `Checkpoints.save` -> OUT/checkpoints/rank-R.step-N.pt -> `newest` and `load` on the next start. A
checkpoint holds the model, the optimizer, the strategy (what is on its way has arrived by then), the random number
generators and the accounts of the run so far. Ranks write their own files: aside, then renamed, so a file that exists
is whole. A step counts as saved once every rank has its file, which is known without a word from the network; older
files go only after a barrier, so at any moment some step is complete.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpdp.errors import CellError
from cpdp.events import EvalEvent, Event, StepEvent

FOLDER = "checkpoints"
FORMAT = 1
_NAME = re.compile(r"rank-([0-9]+)\.step-([0-9]+)\.pt")


@dataclass
class History:
    """What a run did before it was interrupted: its time, and its evaluations as `tables.eval_rows` gives them."""

    train_ns: int = 0
    wall_ns: int = 0
    evals: list[dict[str, Any]] = field(default_factory=list)
    _began_ns: int | None = None
    _earlier_ns: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> History:
        """The accounts that `to_json` gave."""
        wall = int(raw["wall_ns"])
        return cls(int(raw["train_ns"]), wall, [dict(row) for row in raw["evals"]], None, wall)

    def to_json(self) -> dict[str, Any]:
        """JSON values, also written into the start event of the run that goes on."""
        return {"train_ns": self.train_ns, "wall_ns": self.wall_ns, "evals": self.evals}

    def note(self, event: Event) -> None:
        """Count a step or keep an evaluation."""
        if isinstance(event, StepEvent):
            self._began_ns = event.start_ns if self._began_ns is None else self._began_ns
            self.train_ns += event.end_ns - event.start_ns
            self.wall_ns = self._earlier_ns + event.end_ns - self._began_ns
        elif isinstance(event, EvalEvent):
            if self._began_ns is not None:
                self.wall_ns = self._earlier_ns + event.t_ns - self._began_ns
            values = {key: value for key, value in asdict(event).items() if key not in ("t_ns", "duration_ns", "notes")}
            self.evals.append({**values, "train_s": self.train_ns / 1e9, "wall_s": self.wall_ns / 1e9})


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one rank of a job. `identity` is what a run must share with the one that it continues."""

    folder: Path
    rank: int
    world: int
    identity: Mapping[str, Any]

    def newest(self) -> int | None:
        """The last step that every rank has saved; None when there is none.

        Asked before the process group is opened: no rank writes before all have asked.
        """
        ranks: dict[int, set[int]] = {}
        for rank, step, _ in self._files():
            ranks.setdefault(step, set()).add(rank)
        complete = [step for step, found in ranks.items() if found >= set(range(self.world))]
        return max(complete, default=None)

    def load(self, step: int) -> dict[str, Any]:
        """This rank's state after a step. Raises CellError when it is another job's or cannot be read."""
        path = self._path(step)
        try:
            saved: dict[str, Any] = torch.load(path, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise CellError(f"{path}: cannot be read as a checkpoint: {str(error).splitlines()[0]}") from error
        if saved.get("format") != FORMAT:
            raise CellError(f"{path}: is of format {saved.get('format')}; this version reads {FORMAT}")
        for key, value in self._key().items():
            if saved["identity"].get(key) != value:
                raise CellError(
                    f"{path}: was saved with {key}={saved['identity'].get(key)!r}, and the job has {value!r}: what "
                    "follows would be another run; remove the checkpoints to start anew"
                )
        return saved

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write this rank's state after a step. Raises CellError when that is impossible."""
        path = self._path(step)
        aside = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(exist_ok=True)
            torch.save({"format": FORMAT, "identity": self._key(), "step": step, **state}, aside)
            aside.replace(path)
        except (OSError, RuntimeError) as error:
            raise CellError(f"{path}: the checkpoint cannot be written: {str(error).splitlines()[0]}") from error

    def drop_before(self, step: float) -> None:
        """Remove this rank's files before a step; call it once every rank has saved that step."""
        for rank, found, path in self._files():
            if rank == self.rank and found < step:
                path.unlink()

    def drop_all(self) -> None:
        """Remove this rank's files, and the folder with the last rank's."""
        self.drop_before(math.inf)
        try:
            self.folder.rmdir()
        except OSError:  # it never was, another rank removed it, or another rank's files are still in it
            return

    def _key(self) -> dict[str, Any]:
        return {**self.identity, "world": self.world, "rank": self.rank, "torch": str(torch.__version__)}

    def _path(self, step: int) -> Path:
        return self.folder / f"rank-{self.rank}.step-{step}.pt"

    def _files(self) -> list[tuple[int, int, Path]]:
        """(rank, step, path) of every file."""
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        found = ((_NAME.fullmatch(path.name), path) for path in paths)
        return [(int(match[1]), int(match[2]), path) for match, path in found if match]


def random_state() -> dict[str, Any]:
    """The state of every random number generator that a training loop may draw from."""
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
