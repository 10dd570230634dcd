"""``netlab top``: a lab's links while they carry traffic. Reads counters only; the lab does not notice."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from netlab.links.relay_stats import DirectionStats

if TYPE_CHECKING:
    from netlab.impairment import Impairment
    from netlab.lab import Lab


def watch(lab: Lab, interval_s: float, count: int | None) -> None:
    """Show rate, queue, drops and lateness of every direction, until interrupted or for ``count`` looks."""
    console = Console(highlight=False)
    live = console.is_terminal
    before = lab.statistics()
    looks = 0
    with Live(console=console, refresh_per_second=10, transient=False) if live else _Plain() as screen:
        while count is None or looks < count:
            time.sleep(interval_s)
            now = lab.statistics()
            table = render(lab, [late - early for late, early in zip(now, before, strict=True)])
            screen.update(table)
            before = now
            looks += 1


class _Plain:
    """Prints every look below the one before, for pipes and logs."""

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, table: Table) -> None:
        Console(file=sys.stdout, width=100, highlight=False).print(table)


def render(lab: Lab, changes: Sequence[DirectionStats]) -> Table:
    """One row per direction; ``changes`` describe the last interval."""
    state = lab.impairments()
    table = Table(box=None, pad_edge=False, header_style="bold", title=f"{lab.profile.name} ({lab.carrier})")
    table.add_column("direction", overflow="ellipsis", no_wrap=True, ratio=1, min_width=16)
    for name in ("Mbit/s", "of rate", "pkt/s", "queue", "drops", "late p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for change in changes:
        table.add_row(*_row(change, state[change.name]))
    if not changes:
        table.caption = "netem carries the links; its counters are in tc -s qdisc (netlab shell LAB SITE.router)"
    return table


def _row(change: DirectionStats, impairment: Impairment) -> tuple[str, ...]:
    seconds = max(change.updated_ns / 1e9, 1e-9)
    rate = change.wire_bytes_out * 8 / seconds
    share = "-" if impairment.rate is None else f"{100 * rate / impairment.rate.bps:.0f} %"
    late = change.lateness_quantile(0.99) if change.packets_out else None
    return (
        change.name.split(":", 1)[-1].replace(".router", "").replace(".edge", ""),
        f"{rate / 1e6:.2f}",
        share,
        f"{change.packets_out / seconds:.0f}",
        _size(change.queue_bytes),
        str(change.drops_queue + change.drops_other),
        "-" if late is None else f"{late / 1000:.0f} us",
    )


def _size(count: int) -> str:
    return (
        f"{count} B" if count < 10_000 else f"{count / 1000:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"
    )
