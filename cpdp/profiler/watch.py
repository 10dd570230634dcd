"""`cpdp watch`: which rank is late, on which operation, while a profiled run goes on.

Reads the event files as they grow. A rank writes a line per step, and once a second while a step goes on. What has been
issued by all but one rank is what the others wait for; the rank whose count is lowest is late.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdp import rundir
from cpdp.errors import ProfileError
from cpdp.profiler.columns import WIDTH
from cpdp.rundir import RunDir

DONE = 0


@dataclass
class Tail:
    """One rank's file, read as it grows."""

    path: Path
    offset: int = 0
    rank: int = -1
    steps: int = 0
    step_ns: int = 0
    last_ns: int = 0
    phase: str = "starting"
    ended: bool = False
    begin_ns: int = 0
    issued: dict[str, int] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)
    open: list[list[int]] = field(default_factory=list)

    def read(self) -> None:
        """Take what has been written since."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        kind = line["k"]
        if kind == "start":
            self.rank = line["rank"]
        elif kind == "group":
            self.groups[line["g"]] = str(line["name"])
        elif kind == "op":
            self.heads[line["h"]] = line
        elif kind == "end":
            self.ended, self.phase = True, "ended" if line["ok"] else "failed"
        elif kind == "now":
            self.phase, self.last_ns, self.open = line["phase"], line["t"], line.get("open", [])
            self.begin_ns = line.get("begin", 0)
            for group, issued, _ in line["counts"]:
                name = self.groups.get(group, str(group))
                self.issued[name] = max(self.issued.get(name, 0), issued)
        elif kind in ("step", "tail"):
            self._step(line)

    def _step(self, line: dict[str, Any]) -> None:
        self.steps, self.last_ns = line["n"], line["t"][1]
        self.step_ns, self.open, self.phase = line["t"][1] - line["t"][0], [], "training"
        flat = line["o"]
        for i in range(0, len(flat), WIDTH):
            head = self.heads[flat[i]]
            if "peer" not in head:
                name = self.groups[head["g"]]
                self.issued[name] = max(self.issued.get(name, 0), flat[i + 1] + 1)

    def waits_on(self) -> str:
        """Its oldest operation without an end, in words."""
        if not self.open:
            return ""
        head, seq, _ = self.open[0]
        found = self.heads.get(head, {})
        return f"{found.get('kind', '?')} number {seq} of group {self.groups.get(found.get('g', -1), '?')}"


def late(tails: Iterable[Tail]) -> tuple[Tail, str, int] | None:
    """The rank that is behind: (tail, group, operations it has not issued); None when nobody is."""
    alive = [tail for tail in tails if not tail.ended]
    worst: tuple[Tail, str, int] | None = None
    for name in sorted({name for tail in alive for name in tail.issued}):
        members = [tail for tail in alive if name in tail.issued]
        if len(members) < 2:
            continue
        ahead = max(tail.issued[name] for tail in members)
        last = min(members, key=lambda tail: tail.issued[name])
        behind = ahead - last.issued[name]
        if behind and (worst is None or behind > worst[2]):
            worst = (last, name, behind)
    return worst


def lines(tails: list[Tail], now_ns: int) -> list[str]:
    """What is shown at one look."""
    shown = []
    for tail in tails:
        quiet = (now_ns - tail.last_ns) / 1e9 if tail.last_ns else 0.0
        waits = tail.waits_on()
        shown.append(
            f"rank {tail.rank}: step {tail.steps}, {tail.step_ns / 1e6:.1f} ms, {tail.phase},"
            f" last heard {quiet:.1f} s ago" + (f", waits for {waits}" if waits else "")
        )
    found = late(tails)
    if found is not None:
        tail, group, behind = found
        others = [other for other in tails if other is not tail and other.waits_on()]
        on = others[0].waits_on() if others else f"an operation of group {group}"
        shown.append(f"rank {tail.rank} is late by {behind} operation{'s' * (behind != 1)}: the others wait on {on}")
    return shown


def watch(run: Path | None, interval_s: float, count: int | None) -> int:
    """Print a look every interval until every rank has ended, or `count` looks."""
    if not 0.05 <= interval_s <= 3600:
        raise ProfileError(f"--interval {interval_s:g}: 0.05 to 3600 seconds are allowed")
    folder: RunDir = rundir.find(run)
    tails: dict[Path, Tail] = {}
    looks = 0
    while count is None or looks < count:
        for path in sorted((folder.path / "cells").glob("*/rank-*.events.jsonl")):
            tails.setdefault(path, Tail(path)).read()
        for line in lines(list(tails.values()), time.monotonic_ns()):
            print(line, flush=True)
        looks += 1
        if tails and all(tail.ended for tail in tails.values()):
            break
        if count is None or looks < count:
            print(flush=True)
            time.sleep(interval_s)
    return DONE
