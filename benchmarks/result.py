"""What a benchmark found: figures with their unit, how each was measured, and the bounds that are claimed for it."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured number. ``low`` and ``high`` are claimed bounds; None where nothing is claimed."""

    name: str
    value: float
    unit: str
    how: str
    low: float | None = None
    high: float | None = None

    @property
    def ok(self) -> bool:
        """Inside what is claimed."""
        return (self.low is None or self.value >= self.low) and (self.high is None or self.value <= self.high)

    @property
    def claim(self) -> str:
        """The bounds for people."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g}..{self.high:g}"
        return f">= {self.low:g}" if self.low is not None else f"<= {self.high:g}" if self.high is not None else ""


@dataclass
class Result:
    """All figures of one benchmark."""

    figures: list[Figure] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, how: str, *, low: float | None = None, high: float | None = None
    ) -> None:
        """Add a figure."""
        self.figures.append(Figure(name, value, unit, how, low, high))

    @property
    def ok(self) -> bool:
        """Every figure is inside its bounds."""
        return all(figure.ok for figure in self.figures)

    def show(self) -> None:
        """Print the table."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("figure", "value", "claimed", "", "how"):
            table.add_column(name, overflow="fold", justify="right" if name in ("value", "claimed") else "left")
        for figure in self.figures:
            verdict = "" if not figure.claim else "ok" if figure.ok else "MISSED"
            table.add_row(figure.name, f"{figure.value:.4g} {figure.unit}", figure.claim, verdict, figure.how)
        Console(highlight=False).print(table)

    def write(self, name: str) -> None:
        """Keep the figures with time and machine."""
        RESULTS.mkdir(exist_ok=True)
        machine = {
            "kernel": platform.release(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load_average": os.getloadavg()[0],
        }
        record = {
            "name": name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": machine,
            "ok": self.ok,
            "figures": [asdict(figure) | {"ok": figure.ok} for figure in self.figures],
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
