"""``netlab top``: a lab's links while they carry traffic. Reads counters, and sends an echo a second over each link."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from netlab.echoes import Echoes
from netlab.links.relay_stats import DirectionStats
from netlab.processors import Load, Processors, load

if TYPE_CHECKING:
    from netlab.impairment import Impairment
    from netlab.lab import Lab

WIDTH = 80
"""Of what goes to a pipe; a terminal has its own."""

_COLUMNS = ("Mbit/s", "of rate", "pkt/s", "queue", "drops", "late p99", "RTT ms")


@dataclass(frozen=True)
class View:
    """What one look shows. ``changes`` describe the last interval, ``rtt_ms`` is by link."""

    title: str
    changes: Sequence[DirectionStats]
    state: Mapping[str, Impairment]
    rtt_ms: Mapping[str, float | None]
    machine: Load


def watch(lab: Lab, interval_s: float, count: int | None, *, echoes: bool = True) -> None:
    """Show every direction and the machine, until interrupted or for ``count`` looks."""
    console = Console(highlight=False)
    before, busy = lab.statistics(), Processors.now()
    looks = 0
    with (
        Echoes(lab, max(interval_s, 1.0)) if echoes else nullcontext() as sent,
        Live(console=console, refresh_per_second=10, transient=False) if console.is_terminal else _Plain() as screen,
    ):
        while count is None or looks < count:
            time.sleep(interval_s)
            now, processors = lab.statistics(), Processors.now()
            changes = [late - early for late, early in zip(now, before, strict=True)]
            rtt_ms = sent.read() if sent is not None else {}
            title = f"{lab.profile.name} ({lab.carrier})"
            screen.update(render(View(title, changes, lab.impairments(), rtt_ms, load(busy, processors))))
            before, busy = now, processors
            looks += 1


class _Plain:
    """Prints every look below the one before, for pipes and logs."""

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, table: Table) -> None:
        Console(file=sys.stdout, width=WIDTH, highlight=False).print(table)


def render(view: View) -> Table:
    """One row per direction, a link's round trip in its first."""
    machine = f"CPUs {view.machine.busy:.0%} busy, {view.machine.stolen:.0%} stolen"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", title=f"{view.title}  {machine}")
    table.add_column("direction", overflow="fold", ratio=1, min_width=18)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    shown: set[str] = set()
    for change in view.changes:
        link = change.name.split(":", 1)[0]
        table.add_row(*_row(change, view.state[change.name]), _rtt(view, link) if link not in shown else "")
        shown.add(link)
    return table


def _row(change: DirectionStats, impairment: Impairment) -> tuple[str | Text, ...]:
    seconds = max(change.updated_ns / 1e9, 1e-9)
    rate = change.wire_bytes_out * 8 / seconds
    share = "-" if impairment.rate is None else f"{100 * rate / impairment.rate.bps:.0f} %"
    late = change.lateness_quantile(0.99) if change.lateness else None
    return (
        _direction(change.name),
        f"{rate / 1e6:.2f}" if rate < 1e9 else f"{rate / 1e6:.0f}",
        share,
        f"{change.packets_out / seconds:.0f}",
        _size(change.queue_bytes),
        _drops(change),
        "-" if late is None else f"{late / 1000:.0f} us",
    )


def _direction(name: str) -> str:
    """Where from and where to; a line of a worker is between its gateway and its site's router."""
    ends = name.split(":", 1)[-1]
    for kind in (".router", ".edge", ".gateway"):
        ends = ends.replace(kind, "")
    return ends


def _drops(change: DirectionStats) -> Text:
    """Those that the profile asks for, and in red those that it does not."""
    asked = change.drops_queue + change.drops_codel + change.drops_loss + change.drops_down
    text = Text(str(asked))
    return text.append(f" +{change.drops_other}!", style="bold red") if change.drops_other else text


def _rtt(view: View, link: str) -> str:
    value = view.rtt_ms.get(link)
    return "-" if value is None else f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def _size(count: int) -> str:
    return (
        f"{count} B" if count < 10_000 else f"{count / 1000:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"
    )
