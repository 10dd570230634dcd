"""What a user sees while an experiment runs: a live screen on a terminal, plain lines anywhere else.

Both are `runner.View`s. They hold no numbers of their own: a cell's figures come from `tables` and `summary`,
the progress within a cell from `sampler`. The screen is drawn twice a second, so that watching costs the
measurement next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cpdp import screen, summary, tables
from cpdp.matrix import Cell
from cpdp.rundir import RunData
from cpdp.sampler import Progress

REFRESH_PER_S = 2


def verdict_line(verification: Mapping[str, Any]) -> str:
    """Whether the network is the one of the profile."""
    if verification["ok"]:
        return f"network: every link is inside its bounds (carrier {verification['carrier']})"
    return f"network: NOT the one asked for (carrier {verification['carrier']})"


def cell_line(cell: Cell, run: RunData) -> str:
    """One line about a cell that has ended."""
    row = tables.build_cell(run, cell.id)
    if row["state"] != "done":
        return f"{row['state']}: {row['reasons']}"
    text = f"step {screen.number(row.get('step_ms'))} ms, exposed {screen.number(row.get('exposed_ms'))} ms"
    wire = row.get("wire_bytes_per_step")
    text += f", {screen.number(None if wire is None else wire / 1e6, 1)} MB/step"
    if row.get("accuracy") is not None:
        text += f", accuracy {row['accuracy']:.1%}"
    return text if row["valid"] else f"{text}, NOT VALID: {row['reasons']}"


def duration(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Clock:
    """Guesses how long the rest takes from the cells that have ended, strategy by strategy."""

    def __init__(self) -> None:
        """Start now."""
        self.started = time.monotonic()
        self._cell_started = self.started
        self._spent: dict[tuple[str, str], list[float]] = {}

    def cell_started(self) -> None:
        """A cell starts."""
        self._cell_started = time.monotonic()

    def cell_ended(self, cell: Cell) -> None:
        """It has ended."""
        spent = time.monotonic() - self._cell_started
        self._spent.setdefault((cell.phase.name, cell.label), []).append(spent)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def left(self, cells: Sequence[Cell]) -> float | None:
        """Seconds that these cells may take; None before anything has been measured."""
        known = {key: sum(spent) / len(spent) for key, spent in self._spent.items()}
        if not known:
            return None
        usual = sum(known.values()) / len(known)
        return sum(known.get((cell.phase.name, cell.label), usual) for cell in cells)


class PlainView:
    """A line for everything that happens; for pipes, logs and people who switched the screen off."""

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        """Print to `console`."""
        self._console = console
        self._cells = cells
        self._clock = Clock()

    def network(self, verification: Mapping[str, Any], choices: Sequence[str]) -> None:
        """The table of what was achieved, then the verdict."""
        for choice in choices:
            self.message(choice)
        self._console.print(screen.network_table(verification, self._console.width))
        self.message(verdict_line(verification))

    def cell_started(self, cell: Cell, number: int, total: int) -> None:
        """Remember when."""
        self._clock.cell_started()
        self._console.print(Text(f"[{number}/{total}] {cell.phase.name}: {cell.label}, repeat {cell.repeat} ..."))

    def progress(self, progress: Progress) -> None:
        """Too much for lines."""

    def cell_ended(self, cell: Cell, run: RunData) -> None:
        """Its figures, and how long the rest may take."""
        self._clock.cell_ended(cell)
        self._console.print(Text(f"    {cell_line(cell, run)}"))

    def message(self, text: str) -> None:
        """As it is."""
        self._console.print(Text(text))


class LiveView:
    """A screen that is redrawn: the table so far, the running cell, the time left. A context manager."""

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        """Draw on `console`, which is a terminal."""
        self._console = console
        self._cells = cells
        self._clock = Clock()
        self._progress = Progress(0, 0.0)
        self._current: Cell | None = None
        self._table: RenderableType = Text("")
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=REFRESH_PER_S, transient=True)

    def __enter__(self) -> LiveView:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was found, without the screen."""
        self._live.stop()

    def network(self, verification: Mapping[str, Any], choices: Sequence[str]) -> None:
        """Printed once, above the part that is redrawn."""
        for choice in choices:
            self.message(choice)
        self._console.print(screen.network_table(verification, self._console.width))
        self._console.print(Text(verdict_line(verification), "green" if verification["ok"] else "bold red"))

    def cell_started(self, cell: Cell, number: int, total: int) -> None:
        """Show it as the running one."""
        self._clock.cell_started()
        self._current = cell
        self._progress = Progress(0, 0.0)
        self._live.refresh()

    def progress(self, progress: Progress) -> None:
        """Kept until the next drawing."""
        self._progress = progress

    def cell_ended(self, cell: Cell, run: RunData) -> None:
        """Redraw the table; a cell that does not count is named above it, for good."""
        self._clock.cell_ended(cell)
        self._current = None
        found = tables.build(run)
        row = found.cells[found.cells["cell"] == cell.id].iloc[0]
        if not row["valid"]:
            self._console.print(Text(f"{cell.id}: {cell_line(cell, run)}", "yellow"))
        summed = summary.summarise(run, found.cells[found.cells["state"] != "missing"])
        shown = summed.phases[cell.phase.name]
        self._table = screen.strategies_table(shown, self._console.width, published=cell.phase.name in summed.published)
        self._live.refresh()

    def message(self, text: str) -> None:
        """Above the part that is redrawn."""
        self._console.print(Text(text))

    def _draw(self) -> RenderableType:
        cell = self._current
        if cell is None:
            return Group(self._table, Text(f"{duration(self._clock.elapsed())} so far", "dim"))
        number = self._cells.index(cell) + 1
        left = self._clock.left(self._cells[number - 1 :])
        rest = "" if left is None else f", about {duration(max(0.0, left))} left"
        head = Text(f"\ncell {number} of {len(self._cells)}: {cell.label}, repeat {cell.repeat} ({cell.phase.name})")
        foot = Text(f"{duration(self._clock.elapsed())} so far{rest}", "dim")
        return Group(self._table, head, self._bar(cell), foot)

    def _bar(self, cell: Cell) -> RenderableType:
        """Steps done, and what crosses the WAN at this moment."""
        done, total = self._progress.steps, cell.total_steps
        grid = Table.grid(padding=(0, 2))
        speed = f"{self._progress.bytes_per_s * 8 / 1e6:.0f} Mbit/s"
        bar = ProgressBar(total=total, completed=done, width=30, pulse=total is None)
        count = f"{done}/{total} steps" if total is not None else f"{done} steps"
        grid.add_row(bar, count, speed)
        return grid
