"""A Lab without a network: its workers write the events of `fake_run` a thousand times faster, and count
bytes.
"""

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from cpdp.events import EndEvent, EvalEvent, EventWriter, Operation, Span, StartEvent, StepEvent
from tests.unit import fake_run

FASTER = 1000


@dataclass(frozen=True)
class Node:
    name: str
    site: str


@dataclass(frozen=True)
class End:
    node: str


@dataclass(frozen=True)
class Joint:
    kind: str
    directions: tuple


@dataclass(frozen=True)
class Topology:
    nodes: tuple
    joints: tuple


@dataclass(frozen=True)
class Worker:
    name: str
    site: str
    rank: int


@dataclass(frozen=True)
class Exit:
    worker: str
    rank: int
    code: int | None
    signal: int | None = None


@dataclass(frozen=True)
class Result:
    ok: bool
    exits: tuple = ()
    failure: Exit | None = None
    timed_out: bool = False

    def describe(self) -> str:
        if self.ok:
            return "all workers ended with status 0"
        return f"{self.failure.worker} (rank {self.failure.rank}) exited with status {self.failure.code}"


@dataclass(frozen=True)
class Health:
    reasons: tuple = ()

    def to_json(self) -> dict:
        return {"valid": not self.reasons, "reasons": list(self.reasons)}


@dataclass(frozen=True)
class Verification:
    raw: dict

    @property
    def ok(self) -> bool:
        return self.raw["ok"]

    def to_json(self) -> dict:
        return dict(self.raw)


WAN = {"nancy-sophia:nancy-r>sophia-r": "nancy>sophia", "nancy-sophia:sophia-r>nancy-r": "sophia>nancy"}


@dataclass
class FakeLab:
    """`fail`, `interrupt`, `late` and `bypass` name the cells (by a part of their id) that go wrong, and how; of a cell
    that is late, its first `late_times` attempts are.
    """

    verification: dict = field(default_factory=lambda: fake_run.NETWORK)
    fail: str | None = None
    interrupt: str | None = None
    late: str | None = None
    late_times: int = 99
    bypass: str | None = None
    log: list = field(default_factory=list)

    def __post_init__(self) -> None:
        ends = {name: tuple(map(End, name.split(":")[1].split(">"))) for name in WAN}
        nodes = (Node("nancy-r", "nancy"), Node("sophia-r", "sophia"))
        joint = Joint("wan", tuple((name, *ends[name], None) for name in WAN))
        uplink = Joint("uplink", (("nancy-up:a>b", End("nancy-r"), End("nancy-r"), None),))
        self.topology = Topology(nodes, (joint, uplink))
        self.workers = (Worker("nancy-0", "nancy", 0), Worker("sophia-0", "sophia", 1))
        self.carrier, self.python = "relay", "python"
        self.choices = ("carrier relay: this kernel has no sch_netem",)
        self.counts = dict.fromkeys(WAN, 0)
        self._late = False

    def start(self, profile, *, carrier="auto", hosts="process", writable=()) -> "FakeLab":
        self.log.append(("start", profile.name, carrier, hosts))
        return self

    def __enter__(self) -> "FakeLab":
        return self

    def __exit__(self, *_) -> None:
        self.log.append(("stop",))

    def describe(self) -> dict:
        return {"carrier": self.carrier, "choices": list(self.choices)}

    def verify(self, level="quick") -> Verification:
        return Verification(self.verification)

    def traffic(self) -> dict:
        return {name: {"bytes_out": count} for name, count in self.counts.items()} | {
            "nancy-up:a>b": {"bytes_out": 10**12}
        }

    def mark(self) -> str:
        return "mark"

    def health(self, since) -> Health:
        assert since == "mark"
        return Health(("the relay was late",) if self._late else ())

    def run(self, argv, *, env=None, cwd=None, output=None, errors=None, timeout=None) -> Result:
        spec = json.loads(Path(argv[3]).read_text())
        out = Path(argv[argv.index("--out") + 1])
        self.log.append(("run", spec["id"]))
        output("nancy-0", b"hello\nwor")
        output("nancy-0", b"ld\n")
        attempts = self.log.count(("run", spec["id"]))
        self._late = bool(self.late) and self.late in spec["id"] and attempts <= self.late_times
        failing = bool(self.fail) and self.fail in spec["id"]
        interrupted = bool(self.interrupt) and self.interrupt in spec["id"]
        self._work(spec, out, cut=failing or interrupted)
        if interrupted:
            raise KeyboardInterrupt
        if failing:
            output("sophia-0", b"RuntimeError: the peer has gone")
            output("sophia-0", b"")
            return Result(ok=False, failure=Exit("sophia-0", 1, 7))
        return Result(ok=True)

    def _work(self, spec: dict, out: Path, cut: bool) -> None:
        training = spec["epochs"] is not None
        total = 12 if training else spec["steps"] + spec["warmup_steps"]
        start = time.monotonic_ns() + 1_000_000
        strategy = {"period": 1, **spec["strategy"]}
        steps, now = [], start
        for n in range(1, (total // 2 if cut else total) + 1):
            step = fast(fake_run.make_step(strategy, n, 0, warmup=n <= spec["warmup_steps"]), now)
            steps.append(step)
            now = step.end_ns
        for rank in range(2):
            with EventWriter(out / f"rank-{rank}.events.jsonl") as writer:
                writer.write(StartEvent(rank, 2, spec["strategy"]["name"], start, f"worker-{rank}"))
                for step in steps:
                    writer.write(step)
                    if training and rank == 0 and step.n % 4 == 0:
                        writer.write(EvalEvent(step.n, step.n // 4, step.end_ns, 0.3 * step.n / 4, 0.5))
                if not cut:
                    writer.write(EndEvent(now, ok=True))
        if not (self.bypass and self.bypass in spec["id"]):
            sent = sum(op.bytes for step in steps for op in step.ops)
            self.counts = {name: count + sent for name, count in self.counts.items()}

        time.sleep(max(0.0, (now - time.monotonic_ns()) / 1e9) + 0.005)


def fast(step: StepEvent, start: int) -> StepEvent:
    """The same step, a thousand times faster, starting at `start`."""

    def at(t: int) -> int:
        return start + t // FASTER

    spans = tuple(Span(span.name, at(span.start_ns), at(span.end_ns)) for span in step.spans)
    ops = tuple(Operation(op.kind, op.purpose, op.bytes, at(op.issued_ns), at(op.finished_ns)) for op in step.ops)
    return replace(step, start_ns=at(step.start_ns), end_ns=at(step.end_ns), spans=spans, ops=ops)
