"""Files of measurements -> what a link does over time: CSV time series, Mahimahi traces, delay samples. Pure.

Read by `netlab.link_fields` and `netlab.schedule_fields`; a fault is a UnitError that names the file and its line.

CSV: a first line of column names, then rows in the order of time; "#" begins a comment line. `time` and any of
`delay`, `rate`, `loss` and `state`. A value has a unit ("20ms"), or its column does (`delay_ms`, `rate_mbit`,
`loss_percent`). An empty cell: as in the row before. Each row holds until the next.

Mahimahi (Netravali et al., USENIX ATC 2015): one whole number a line, the millisecond at which the link can deliver one
more packet, not decreasing; the trace starts again after the last. It becomes a rate per step: the packets of the step,
each with the bytes that one full packet takes on the link, over the step's length. Packets wait where Mahimahi's wait,
but within a step they leave evenly instead of at the very milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from netlab.chances import Chance
from netlab.errors import UnitError
from netlab.fields import did_you_mean
from netlab.timeline import Series
from netlab.units import MAX_RATE_BPS, MIN_RATE_BPS, NS_PER_S, Delay, Duration, Fraction, Rate, quote

NS_PER_MS = 1_000_000
MAHIMAHI_PACKET = 1500  # IP bytes that one delivery opportunity carries
MAX_TRACE_MS = 30 * 24 * 3600 * 1000
MAX_STEPS = 1_000_000


def _state(text: str) -> bool:
    if text not in ("up", "down"):
        raise UnitError(f"{quote(text)} is not allowed: up or down")
    return text == "up"


def _loss(text: str) -> Chance | None:
    share = Fraction.parse(text)
    return Chance(share) if share.ppb else None


_COLUMNS: dict[str, Callable[[str], Any]] = {
    "time": lambda text: Duration.parse(text).ns,
    "delay": Delay.parse,
    "rate": Rate.parse,
    "loss": _loss,
    "state": _state,
}
_COLUMN = re.compile(r"([a-z]+)(?:_([A-Za-zµμ%]+))?")


class _Table:
    """Rows of a CSV text: (line number, {column: value}), empty cells left out."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines = [
            (number, [cell.strip() for cell in line.split(",")])
            for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if not self._lines:
            raise UnitError(f"{quote(name)} is empty")
        line, header = self._lines.pop(0)
        self._columns = [self._column(line, cell) for cell in header]
        self.names = [column for column, _ in self._columns]
        twice = [column for column, count in Counter(self.names).items() if count > 1]
        if twice:
            raise self.fault(line, f"two columns of {twice[0]}")
        if not self._lines:
            raise UnitError(f"{quote(name)} has no rows")

    def fault(self, line: int, message: str) -> UnitError:
        return UnitError(f"{quote(self._name)}, line {line}: {message}")

    def _column(self, line: int, cell: str) -> tuple[str, str]:
        match = _COLUMN.fullmatch(cell)
        if match is None or match.group(1) not in _COLUMNS:
            allowed = ", ".join(_COLUMNS)
            hint = did_you_mean(cell.partition("_")[0], _COLUMNS)
            raise self.fault(line, f"{quote(cell)} is not a column: {allowed}, or with a unit like delay_ms{hint}")
        unit = match.group(2) or ""
        return match.group(1), "%" if unit == "percent" else unit

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, cells in self._lines:
            if len(cells) != len(self._columns):
                raise self.fault(line, f"{len(cells)} cells in a table of {len(self._columns)} columns")
            pairs = zip(self._columns, cells, strict=True)
            yield line, {column: self._value(line, column, cell + unit) for (column, unit), cell in pairs if cell}

    def _value(self, line: int, column: str, text: str) -> Any:
        try:
            return _COLUMNS[column](text)
        except UnitError as error:
            raise self.fault(line, f"{column}: {error}") from None


def csv_series(text: str, name: str, loop: bool) -> Series:
    """The settings of a time series, complete in each row. Raises UnitError.

    Looping, the last row holds as long as the one before it, then the first comes again; a single row holds for ever.
    """
    table = _Table(text, name)
    if "time" not in table.names or len(table.names) < 2:
        raise UnitError(f"{quote(name)} needs a column time and one at least of delay, rate, loss and state")
    points: list[tuple[int, dict[str, Any]]] = []
    for line, row in table.rows():
        if "time" not in row:
            raise table.fault(line, "no time")
        at_ns = row.pop("time")
        if points and at_ns <= points[-1][0]:
            raise table.fault(line, f"time {Duration(at_ns)} does not come after {Duration(points[-1][0])}")
        if not points and loop and at_ns:
            raise table.fault(line, f"the first row of a looping series is at time 0, not {Duration(at_ns)}")
        points.append((at_ns, {**(points[-1][1] if points else {}), **row}))
    period = 2 * points[-1][0] - points[-2][0] if loop and len(points) > 1 else None
    return Series(tuple(points), period)


def mahimahi_series(text: str, name: str, step_ns: int, packet_bytes: int, loop: bool) -> Series:
    """The rate of each step of a packet-delivery trace, at `packet_bytes` on the wire per opportunity.

    A step without an opportunity gets the slowest rate there is, 1 kbit/s: what waits keeps waiting. Raises UnitError.
    """
    times = _opportunities(text, name)
    period_ns = times[-1] * NS_PER_MS
    if period_ns // step_ns > MAX_STEPS:
        raise UnitError(f"{quote(name)}: {Duration(period_ns)} has over {MAX_STEPS} steps of {Duration(step_ns)}")
    counts = Counter(max(0, -(-time * NS_PER_MS // step_ns) - 1) for time in times)
    points = []
    for step in range(-(-period_ns // step_ns)):
        length_ns = min(step_ns, period_ns - step * step_ns)
        bps = max(counts[step] * packet_bytes * 8 * NS_PER_S // length_ns, MIN_RATE_BPS)
        if bps > MAX_RATE_BPS:
            raise UnitError(
                f"{quote(name)}: {counts[step]} packets in {Duration(length_ns)} exceed {Rate(MAX_RATE_BPS)}"
            )
        points.append((step * step_ns, {"rate": Rate(bps)}))
    return Series(tuple(points), period_ns if loop else None)


def _opportunities(text: str, name: str) -> list[int]:
    times: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        if not re.fullmatch(r"[0-9]{1,12}", word, re.ASCII) or int(word) > MAX_TRACE_MS:
            raise UnitError(f"{quote(name)}, line {number}: {quote(word)} is not a whole number of milliseconds")
        if times and int(word) < times[-1]:
            raise UnitError(f"{quote(name)}, line {number}: {word} comes before {times[-1]}: times must not decrease")
        times.append(int(word))
    if not times or times[-1] == 0:
        raise UnitError(f"{quote(name)} has no packet after time 0: a trace lasts for more than no time")
    return times


def delay_samples(text: str, name: str) -> list[int]:
    """Measured delays in ns from a CSV text with the single column `delay` (or `delay_ms` ...). Raises UnitError."""
    table = _Table(text, name)
    if table.names != ["delay"]:
        raise UnitError(
            f"{quote(name)}: measured delays are one column, delay or delay_ms, not {', '.join(table.names)}"
        )
    return [row["delay"].ns for _, row in table.rows()]
