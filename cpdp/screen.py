"""A run's summary -> tables for a terminal (rich). Shared by the live view, the closing table and `cpdp
show`.

Readable at 80 columns; narrower terminals lose columns, the least needed first, never digits. Colour only
carries what words say too, and rich leaves it out when NO_COLOR is set or the output is no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cpdp import race_view
from cpdp.analysis import Analysis
from cpdp.rundir import RunData
from cpdp.summary import Line, Spread, Summary, Training

DASH = "–"


def number(value: float | None, digits: int = 0) -> str:
    """A number with fixed digits, a dash when it is unknown."""
    return DASH if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return DASH if value is None else f"{value * 100:.0f}%"


def span(value: Spread | None, digits: int = 0) -> str:
    """Mean (smallest-largest); the mean alone where all repeats read the same."""
    if value is None:
        return DASH
    mean, low, high = (f"{one:.{digits}f}" for one in (value.mean, value.low, value.high))
    return mean if low == high else f"{mean} ({low}-{high})"


@dataclass(frozen=True)
class Column:
    """A column of the table of strategies; `spare` columns go first when the terminal is narrow.

    `published` columns are for phases with published figures (True), for those without (False), or for both
    (None).
    """

    head: str
    cell: Callable[[Line], str]
    spare: int = 0
    published: bool | None = None


def _pair(seconds: float | None, part: float | None) -> str:
    return DASH if seconds is None else f"{seconds:.1f} {share(part):>4}"


COLUMNS = (
    Column("strategy", lambda line: line.label),
    Column("step\nms", lambda line: number(line.mean("step_ms")), spare=2),
    Column("comp.\nms", lambda line: number(line.mean("computation_ms")), spare=4),
    Column("hid-\nden", lambda line: number(line.mean("hidden_ms")), spare=3),
    Column("exposed ms\n(min-max)", lambda line: span(line.values["exposed_ms"])),
    Column("MB/\nstep", lambda line: number(_mega(line.mean("wire_bytes_per_step")), 1), spare=5),
    Column(
        "exposed\ns/ep.    %",
        lambda line: _pair(
            line.epoch_s.mean if line.epoch_s else None, line.share_of_ddp.mean if line.share_of_ddp else None
        ),
        published=True,
    ),
    Column("of\nDDP", lambda line: share(line.share_of_ddp.mean if line.share_of_ddp else None), published=False),
    Column(
        "published\ns/ep.    %",
        lambda line: _pair(line.published.exposed_s if line.published else None, line.published_share),
        published=True,
    ),
    Column("ok", lambda line: f"{line.valid}/{line.cells}"),
)


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def strategies_table(lines: Sequence[Line], width: int, *, published: bool) -> Table:
    """One row per strategy; a strategy without a valid cell is dimmed and marked."""
    columns = [column for column in COLUMNS if column.published in (None, published)]
    while _width(columns, lines) > width and any(column.spare for column in columns):
        columns.remove(max(columns, key=lambda column: column.spare))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        left = column.head == "strategy"
        table.add_column(Text(column.head), justify="left" if left else "right", no_wrap=width >= 60)
    for line in lines:
        style = "" if line.counted or not line.values["exposed_ms"] else "dim"
        table.add_row(*(Text(column.cell(line), style) for column in columns))
    return table


def _width(columns: Sequence[Column], lines: Sequence[Line]) -> int:
    """Width that the table would need: the widest text of each column and a gap between."""
    texts = [[*column.head.split("\n"), *(column.cell(line) for line in lines)] for column in columns]
    return sum(max(map(len, column)) for column in texts) + len(columns)


def training_table(trainings: Sequence[Training]) -> Table:
    """Accuracy against time, one row per strategy."""
    target = trainings[0].target if trainings else 0.0
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for head in ("strategy", "final\naccuracy", "best\naccuracy", f"s to\n{target:.0%}", "reached", "s in\nsteps"):
        table.add_column(head, justify="left" if head == "strategy" else "right")
    for one in trainings:
        table.add_row(
            one.label, _percent(one.final), _percent(one.best), span(one.to_target_s, 1),
            f"{one.reached}/{one.repeats}", span(one.total_s, 1),
        )  # fmt: skip
    return table


def _percent(value: Spread | None) -> str:
    return f"{span(value.scaled(100), 1)}%" if value else DASH


def network_table(network: Mapping[str, Any], width: int) -> Table:
    """What was achieved against what was asked, with the accepted range where there is room for it."""
    rows = network.get("links", ())
    several = len({row["link"] for row in rows}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    heads = [*(["link"] if several else []), "direction", "what", "asked", "achieved"]
    heads += ["accepted"] if width >= 72 + 16 * several else []
    for head in (*heads, ""):
        left = head in ("link", "direction", "what", "")
        table.add_column(head, justify="left" if left else "right", overflow="fold")
    for row in rows:
        texts = _network_texts(row)
        verdict = Text("ok", "green") if row["ok"] else Text("NO", "bold red")
        table.add_row(*(texts[head] for head in heads), verdict)
    return table


def _network_texts(row: Mapping[str, Any]) -> dict[str, str]:
    unit = f" ({row['unit']})" if row.get("unit") else ""
    return {
        "link": str(row["link"]),
        "direction": str(row["direction"]),
        "what": f"{row['quantity']}{unit}",
        "asked": plain(row["asked"]),
        "achieved": plain(row["achieved"]),
        "accepted": f"{plain(row['low'])}..{plain(row['high'])}",
    }


def plain(value: Any) -> str:
    """A value of a verification row: number, text with its unit, or nothing."""
    if value is None:
        return DASH
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def faults(run: RunData, cells: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """A line for every cell that does not count, with its reasons and, of a failed one, its last words."""
    ended = {cell.id: cell.done or {} for cell in run.cells}
    for cell in cells:
        if cell["valid"]:
            continue
        yield Text(f"{cell['cell']}: {cell['state']}, not counted: {cell['reasons']}", "yellow")
        failure = ended[str(cell["cell"])].get("failure") or {}
        for said in failure.get("last_lines", [])[-4:-1]:
            yield Text(f"    {said}")


def repeated(run: RunData) -> Iterator[Text]:
    """A line for every attempt that another one took the place of."""
    for cell in run.cells:
        for attempt in (cell.done or {}).get("earlier_attempts", ()):
            yield Text(f"{cell.id}: kept in {attempt['folder']}: {'; '.join(attempt['reasons'])}")


def summary_view(found: Analysis, width: int) -> RenderableType:
    """Everything that `cpdp show` and the end of `cpdp compare` print of a run."""
    run, summary, cells, trainings = found.run, found.summary, found.cells, found.trainings
    parts: list[RenderableType] = []
    for phase, rows in summary.phases.items():
        known = phase in summary.published
        parts += [Text(f"\n{_title(run, phase)}", "bold"), strategies_table(rows, width, published=known)]
        if trainings.get(phase):
            parts += [Text(""), training_table(trainings[phase])]
        parts += _race(found, phase)
    parts += [Text(f"\n{note}", "dim") for note in _notes(summary)]
    for head, sentences in (("Take care", found.cautions), ("Differences explained", found.differences)):
        if sentences:
            parts += [Text(f"\n{head}", "bold"), *(_bullet(sentence) for sentence in sentences)]
    hidden = list(faults(run, [cell for cell in cells if cell["state"] != "missing"]))
    waiting = sum(1 for cell in cells if cell["state"] == "missing")
    if waiting:
        hidden.append(Text(f"{waiting} of {len(cells)} cells are not measured yet"))
    again = list(repeated(run))
    parts += [Text("\nMeasured again", "bold"), *again] if again else []
    return Group(*parts, *([Text("\nCells that do not count", "bold"), *hidden] if hidden else []))


def _race(found: Analysis, phase: str) -> Iterator[RenderableType]:
    racers, runtimes = found.races.get(phase, ()), found.runtimes.get(phase, ())
    if racers:
        yield from (
            Text(f"\n{race_view.race_caption(racers)}"),
            _plain_table(race_view.RACE, race_view.race_rows(racers)),
        )
    if runtimes:
        rows = race_view.model_rows(runtimes)
        yield from (Text(f"\n{race_view.model_caption(runtimes)}"), _plain_table(race_view.MODEL, rows))


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == "strategy" else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _title(run: RunData, phase: str) -> str:
    found = next(one for one in run.resolved["experiment"]["phases"] if one["name"] == phase)
    return f"{phase}: {found['workload']['name']}, {found['kind']}, {length(found)}, {repeats(found)}"


def length(phase: Mapping[str, Any]) -> str:
    """How long a phase's cells are, in words."""
    if phase.get("duration_s") is not None:
        return f"{phase['duration_s']:g} s"
    unit, count = ("step", phase["steps"]) if phase.get("steps") is not None else ("epoch", phase.get("epochs"))
    return f"{count} {unit}{'' if count == 1 else 's'}"


def repeats(phase: Mapping[str, Any]) -> str:
    """How often, in words."""
    count = phase.get("repeats", 1)
    return f"{count} repeat{'' if count == 1 else 's'}"


def _notes(summary: Summary) -> Iterator[str]:
    """What the columns mean, and where the published figures are from."""
    yield (
        "Milliseconds per step, mean over valid cells (smallest-largest repeat). MB/step: over the busiest WAN"
        " direction. ok: valid cells."
    )
    for paper in summary.published.values():
        yield (
            f"s/ep.: exposed seconds per epoch of {paper.steps_per_epoch} steps; %: of DDP's."
            f" Published: {paper.source}."
        )


def _bullet(text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row("-", text)
    return grid


def console() -> Console:
    """Standard output as it is: colour on a terminal that wants it, 80 columns when it is none."""
    probe = Console(highlight=False)
    return probe if probe.is_terminal else Console(highlight=False, width=max(80, probe.width), color_system=None)
