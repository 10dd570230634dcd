"""What a rank writes down while it trains: frozen event types, their JSON-lines form, a writer and a reader.

Flow: worker and recorder -> `EventWriter` -> rank-R.events.jsonl -> `read_events` -> exposure, tables,
report. All times are integer nanoseconds of CLOCK_MONOTONIC, which every process of one machine shares. A
line reaches the kernel in one write as soon as its event is complete, so a killed rank leaves all its earlier
events readable; a last line that is torn is reported by the reader, not raised. No NaN or Infinity token is
ever written: a number that is not finite becomes null and `notes` says which one it was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpdp.errors import EventError

FORMAT = 1
"""Version of the line format, written into the start event; a reader refuses a newer one."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True)
class Span:
    """A named stretch of the main thread's time; the spans of a step never overlap."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the span."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Operation:
    """One collective as one rank saw it.

    `kind` is the collective's name ("all_reduce"), `purpose` what travelled ("gradients", "parameters", ...),
    `bytes` the tensor's size (not what a ring sends), `issued_ns` when it was handed to the library, and
    `finished_ns` when its result was complete; None when that was never seen.
    """

    kind: str
    purpose: str
    bytes: int
    issued_ns: int
    finished_ns: int | None


@dataclass(frozen=True)
class StartEvent:
    """First line of a rank: who it is, under which clock it measures, and `details`."""

    rank: int
    world: int
    strategy: str
    t_ns: int
    host: str
    clock: str = "monotonic"
    details: Mapping[str, Json] = field(default_factory=dict)

    @property
    def before(self) -> Mapping[str, Any]:
        """`checkpoint.History` of the steps before, for a rank that went on from a checkpoint; else empty."""
        found = self.details.get("before")
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class StepEvent:
    """One optimizer step, with everything between the end of the step before it and its own end.

    `n` counts optimizer steps from 1 over the whole run, warm-up included. `boundary` says whether the
    strategy synchronised its parameters. `overhead_ns` is what the recorder itself cost inside the step.
    """

    n: int
    epoch: int
    warmup: bool
    boundary: bool
    start_ns: int
    end_ns: int
    spans: tuple[Span, ...]
    ops: tuple[Operation, ...]
    loss: float | None = None
    overhead_ns: int = 0
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    """What else is known of the step: `period` of a strategy that changes it, `drawn_ns` of padded computation, ..."""


@dataclass(frozen=True)
class EvalEvent:
    """The averaged model measured on the test set after step `n`; its time belongs to no step.

    `train_loss` is its mean loss on the training set, `local_accuracy` and `local_loss` the workers' means of what
    their own models reach on the test set before averaging; each where it was asked for.
    """

    n: int
    epoch: int
    t_ns: int
    accuracy: float | None
    loss: float | None
    duration_ns: int = 0
    notes: tuple[str, ...] = ()
    train_loss: float | None = None
    local_accuracy: float | None = None
    local_loss: float | None = None


@dataclass(frozen=True)
class EndEvent:
    """Last line of a rank that ended by itself; absent when it was killed."""

    t_ns: int
    ok: bool
    reason: str | None = None


Event = StartEvent | StepEvent | EvalEvent | EndEvent

EVALUATED = ("train_loss", "local_accuracy", "local_loss")
"""Numbers of an evaluation that are written only where there are any."""


def finite(name: str, value: float | None) -> tuple[float | None, tuple[str, ...]]:
    """Split a number into what JSON can hold and the note that says what it was when JSON cannot."""
    if value is None or math.isfinite(value):
        return value, ()
    return None, (f"{name} is {value}",)


def to_line(event: Event) -> str:
    """One line of JSON, without its newline. Raises EventError for a number that JSON cannot hold."""
    try:
        return json.dumps(_to_json(event), allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise EventError(f"cannot write {type(event).__name__}: {error}; use null and a note") from error


def _to_json(event: Event) -> dict[str, Any]:
    match event:
        case StartEvent():
            head = {
                "k": "start",
                "v": FORMAT,
                "rank": event.rank,
                "world": event.world,
                "strategy": event.strategy,
            }
            return {**head, "t": event.t_ns, "clock": event.clock, "host": event.host, **event.details}
        case StepEvent():
            return _step_to_json(event)
        case EvalEvent():
            head = {
                "k": "eval",
                "n": event.n,
                "epoch": event.epoch,
                "t": event.t_ns,
                "dur": event.duration_ns,
            }
            more = {key: value for key in EVALUATED if (value := getattr(event, key)) is not None}
            return {**head, "accuracy": event.accuracy, "loss": event.loss, **more, **_notes(event.notes)}
        case EndEvent():
            reason = {} if event.reason is None else {"reason": event.reason}
            return {"k": "end", "t": event.t_ns, "ok": event.ok, **reason}


def _step_to_json(step: StepEvent) -> dict[str, Any]:
    return {
        "k": "step",
        "n": step.n,
        "epoch": step.epoch,
        "warmup": step.warmup,
        "boundary": step.boundary,
        "t": [step.start_ns, step.end_ns],
        "spans": [[span.name, span.start_ns, span.end_ns] for span in step.spans],
        "ops": [[op.kind, op.purpose, op.bytes, op.issued_ns, op.finished_ns] for op in step.ops],
        "loss": step.loss,
        "overhead_ns": step.overhead_ns,
        **_notes(step.notes),
        **({"facts": dict(step.facts)} if step.facts else {}),
    }


def _notes(notes: tuple[str, ...]) -> dict[str, list[str]]:
    return {"notes": list(notes)} if notes else {}


def from_line(line: str) -> Event:
    """The event that a line holds. Raises EventError with the reason; the caller knows file and line."""
    try:
        raw = json.loads(line, parse_constant=_refuse_constant)
        kind = raw["k"]
        event: Event = _READERS[kind](raw)
        return event
    except EventError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EventError(f"not an event: {type(error).__name__}: {error}") from error


def _refuse_constant(token: str) -> None:
    raise EventError(f"not JSON: {token}; a number that is not finite must be null")


def _start_from_json(raw: dict[str, Any]) -> StartEvent:
    if raw.get("v", FORMAT) > FORMAT:
        raise EventError(f"event format {raw['v']} is newer than {FORMAT}, the newest this version reads")
    known = {"k", "v", "rank", "world", "strategy", "t", "clock", "host"}
    details = {key: value for key, value in raw.items() if key not in known}
    return StartEvent(raw["rank"], raw["world"], raw["strategy"], raw["t"], raw["host"], raw["clock"], details=details)


def _step_from_json(raw: dict[str, Any]) -> StepEvent:
    start, end = raw["t"]
    return StepEvent(
        n=raw["n"],
        epoch=raw["epoch"],
        warmup=raw["warmup"],
        boundary=raw["boundary"],
        start_ns=start,
        end_ns=end,
        spans=tuple(Span(name, a, b) for name, a, b in raw["spans"]),
        ops=tuple(Operation(*fields[:5]) for fields in raw["ops"]),
        loss=raw["loss"],
        overhead_ns=raw.get("overhead_ns", 0),
        notes=tuple(raw.get("notes", ())),
        facts=dict(raw.get("facts", {})),
    )


def _eval_from_json(raw: dict[str, Any]) -> EvalEvent:
    notes = tuple(raw.get("notes", ()))
    head = raw["n"], raw["epoch"], raw["t"], raw["accuracy"], raw["loss"], raw.get("dur", 0), notes
    return EvalEvent(*head, *(raw.get(key) for key in EVALUATED))


def _end_from_json(raw: dict[str, Any]) -> EndEvent:
    return EndEvent(raw["t"], raw["ok"], raw.get("reason"))


_READERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "start": _start_from_json,
    "step": _step_from_json,
    "eval": _eval_from_json,
    "end": _end_from_json,
}


class EventWriter:
    """Appends events to one file, one write(2) per event and no buffer in this process.

    The file is made anew. A write that fails (a full disk) raises OSError at once: a run must not go on
    unrecorded.
    """

    def __init__(self, path: Path) -> None:
        """Make the file at `path` anew. Raises OSError when that is impossible."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: Event) -> None:
        """Hand one event to the kernel."""
        data = memoryview((to_line(event) + "\n").encode())
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


@dataclass(frozen=True)
class EventLog:
    """All events of one rank that could be read, and what was wrong with the file's end, if anything was."""

    path: Path
    events: tuple[Event, ...]
    problem: str | None = None

    @property
    def start(self) -> StartEvent | None:
        """The start event; None when the rank was killed before it wrote one."""
        first = self.events[0] if self.events else None
        return first if isinstance(first, StartEvent) else None

    @property
    def steps(self) -> tuple[StepEvent, ...]:
        """The steps in the order in which they were taken, warm-up included."""
        return tuple(event for event in self.events if isinstance(event, StepEvent))

    @property
    def evals(self) -> tuple[EvalEvent, ...]:
        """The evaluations in order."""
        return tuple(event for event in self.events if isinstance(event, EvalEvent))

    @property
    def end(self) -> EndEvent | None:
        """The end event; None when the rank was killed or is still running."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, EndEvent) else None


def read_events(path: Path) -> EventLog:
    """Read one rank's file, whole or cut off anywhere.

    A last line that lacks its newline is dropped and named in `problem`. A damaged line before the last one
    is not what a killed rank leaves behind and raises EventError with file and line. Raises OSError when the
    file cannot be read.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    events = tuple(_read_line(path, number, line) for number, line in enumerate(lines, start=1))
    problem = None
    if rest:
        problem = f"{path}:{len(lines) + 1}: the last line is torn ({len(rest)} bytes without a newline), not used"
    return EventLog(path, events, problem)


def _read_line(path: Path, number: int, line: bytes) -> Event:
    try:
        return from_line(line.decode())
    except (EventError, UnicodeDecodeError) as error:
        raise EventError(f"{path}:{number}: {error}") from error
