"""A profiled run on one screen: step, computation, exposed by cause, hidden, per rank; who was late; the ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cpdp import jsonfile
from cpdp.profiler import analysis, hang
from cpdp.profiler.split import PARTS
from cpdp.rundir import RunDir
from cpdp.screen import DASH, number

DONE = 0
PHASE_COLUMNS = ("data", "forward", "backward", "optimizer", "other")


def show(run: RunDir, *, as_json: bool) -> int:
    """Print a profiled run."""
    from cpdp.screen import console

    found = analysis.to_json(analysis.open_run(run))
    if as_json:
        print(jsonfile.dumps(found))
        return DONE
    draw(found, console())
    return DONE


def draw(found: Mapping[str, Any], console: Console) -> None:
    """The whole screen."""
    console.print(Text(f"{found['name']}  {found['run']}", "bold"), soft_wrap=True)
    for reason in found["reasons"]:
        console.print(Text(f"NOT VALID: {reason}", "bold red"))
    for problem in found["problems"]:
        console.print(Text(problem, "yellow"))
    for cell in found["cells"]:
        size = f"{cell['ranks']} rank{'' if cell['ranks'] == 1 else 's'} of {cell['world']}"
        console.print(Text(f"\n{cell['id']}: {cell['steps']} steps, {size}, {cell['state']}", "bold"))
        console.print(_times(cell))
        if any(row["exposed_ms"] for row in cell["per_rank"]):
            console.print(Text("\nexposed, ms per step"))
            console.print(_causes(cell))
        for line in sentences(cell):
            console.print(Text(f"- {line}"))


def _table(heads: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == "rank" else "right")
    return table


def _rows(cell: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for row in cell["per_rank"]:
        yield f"{row['rank']} {row['place']}", row
    if len(cell["per_rank"]) > 1:
        yield "mean", cell


def _times(cell: Mapping[str, Any]) -> Table:
    names = ("step", "computation", "exposed", "hidden", "rest")
    table = _table(("rank", "step ms", *names[1:], *PHASE_COLUMNS))
    for label, row in _rows(cell):
        table.add_row(label, *(_ms(row[f"{name}_ms"]) for name in (*names, *PHASE_COLUMNS)))
    return table


def _causes(cell: Mapping[str, Any]) -> Table:
    table = _table(("rank", "exposed", *PARTS))
    for label, row in _rows(cell):
        table.add_row(label, _ms(row["exposed_ms"]), *(_ms(row["exposed_by_cause"][part]) for part in PARTS))
    return table


def _ms(value: float | None) -> str:
    return number(value, 1) if value is None or abs(value) >= 0.05 or value == 0 else f"{value:.2f}"


def sentences(cell: Mapping[str, Any]) -> Iterator[str]:
    """What the numbers mean, one sentence each."""
    yield from map(hang.sentence, cell["waiting"])
    slow = cell["late"]
    if slow is not None:
        worst = slow["longest"]
        yield (
            f"rank {slow['rank']} is waited for most: {slow['share']:.0%} of all waiting for a peer. Longest: rank"
            f" {worst['waiting_rank']} waited {worst['ms']:.1f} ms for rank {worst['rank']} on {worst['kind']} number"
            f" {worst['seq']} of group {worst['group']} ({worst['bytes']} bytes)"
        )
    top = cell["ceiling"]
    if top is not None and top["achieved_mbit"] is not None:
        yield (
            f"ceiling: {top['achieved_mbit']:.0f} Mbit/s while operations were on their way (rank {top['rank']});"
            f" the link allows {_mbit(top['link_mbit'])}, gloo's window {_mbit(top['gloo_window_mbit'])}"
            f" ({top['threads'] or 1} operations at once)"
        )
    share = cell["overhead_share"]
    yield (
        f"payload {_bytes(cell['payload_bytes_per_step'])} per step and rank; on the wire"
        f" {_bytes(cell['wire_bytes_per_step'])}; retransmits {number(cell['retransmits_per_step'], 2)}; the profiler"
        f" itself took {DASH if share is None else f'{share:.2%}'} of a step"
    )
    clock = cell["clock_uncertainty_ms"]
    told = "unknown: ranks on several machines" if clock is None else f"at most {clock:.3f} ms, measured"
    told = "0 ms: one machine, one clock" if clock == 0 else told
    yield f"clock uncertainty across ranks {told}; starts of operations are an {cell['started_from']}"
    known = cell["floors_from"]
    yield f"latency and bytes from {known}" if known else "no delay or rate known: latency and bytes are in protocol"


def _mbit(value: float | None) -> str:
    return "an unknown rate" if value is None else f"{value:.0f} Mbit/s"


def _bytes(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value / 1e6:.2f} MB" if value >= 1e5 else f"{value:.0f} B"
