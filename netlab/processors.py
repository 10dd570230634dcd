"""What this machine's processors did, from the kernel's own counters: how busy, how much stolen, how long throttled.

Read by the lab's keeper (`netlab.monitor`) and judged in `netlab.health`. Only processors on which this process may
run count: others cannot keep an emulation from its work. `parse_stat` and `parse_throttle` are pure.

Stolen time is what a hypervisor gave to other virtual machines while this one wanted to run (proc(5), /proc/stat);
throttled time is what a control group's CPU quota (cpu.max, or cpu.cfs_quota_us) kept its processes from running.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
GROUPS = Path("/proc/self/cgroup")
GROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Processor:
    """Clock ticks (mostly of 10 ms) since the machine's start: running something, stolen, and altogether."""

    number: int
    busy: int
    stolen: int
    total: int


@dataclass(frozen=True)
class Processors:
    """All counters at one moment. ``throttled_ns``: None where our group has no quota, or none that can be read."""

    each: tuple[Processor, ...]
    throttled_ns: int | None = None

    @classmethod
    def now(cls) -> Processors:
        """Read the counters."""
        allowed = os.sched_getaffinity(0)
        each = tuple(cpu for cpu in parse_stat(STAT.read_text()) if cpu.number in allowed)
        return cls(each, _throttled_ns())


@dataclass(frozen=True)
class Load:
    """An interval: shares from 0 to 1 of the processors' time; ``busiest`` is the number of the busiest one."""

    busy: float = 0.0
    stolen: float = 0.0
    busiest: int = 0
    busiest_busy: float = 0.0
    throttled_s: float = 0.0


def load(earlier: Processors, later: Processors) -> Load:
    """What happened between two moments. Stolen time is not idle: a processor is busy or wanted to be."""
    before = {cpu.number: cpu for cpu in earlier.each}
    spent = [(cpu.number, cpu.busy - was.busy, cpu.stolen - was.stolen, cpu.total - was.total)
             for cpu in later.each if (was := before.get(cpu.number)) is not None]  # fmt: skip
    total = sum(ticks for *_, ticks in spent)
    throttled_ns = (later.throttled_ns or 0) - (earlier.throttled_ns or 0)
    if total <= 0:
        return Load(throttled_s=throttled_ns / 1e9)
    shares = {number: (busy + stolen) / max(ticks, 1) for number, busy, stolen, ticks in spent}
    busiest = max(shares, key=lambda number: (shares[number], -number))
    return Load(
        busy=sum(busy + stolen for _, busy, stolen, _ in spent) / total,
        stolen=sum(stolen for _, _, stolen, _ in spent) / total,
        busiest=busiest,
        busiest_busy=shares[busiest],
        throttled_s=max(0, throttled_ns) / 1e9,
    )


def parse_stat(text: str) -> tuple[Processor, ...]:
    """The processors of /proc/stat. Guest time is part of user time there, and not counted twice."""
    found = []
    for line in text.splitlines():
        name, *figures = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, wait, irq, softirq, stolen = (int(value) for value in figures[:8])
            busy = user + nice + system + irq + softirq
            found.append(Processor(int(name[3:]), busy, stolen, busy + idle + wait + stolen))
    return tuple(found)


def parse_throttle(text: str) -> int | None:
    """Nanoseconds of throttling in a cpu.stat, of version 2 (throttled_usec) or 1 (throttled_time, in ns); None: the
    group has no quota, so nothing is counted.
    """
    figures = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    if not int(figures.get("nr_periods", 0)):
        return None
    if "throttled_usec" in figures:
        return int(figures["throttled_usec"]) * 1000
    return int(figures["throttled_time"]) if "throttled_time" in figures else None


def group_folders(text: str) -> tuple[Path, ...]:
    """Where cpu.stat of our group and of every group above it may be, for a /proc/self/cgroup: a quota may stand
    anywhere on the way up.
    """
    found: list[Path] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        for root in (GROUP_ROOT / controllers, GROUP_ROOT / "cpu") if controllers else (GROUP_ROOT,):
            here = root / path.lstrip("/")
            found += [here, *(above for above in here.parents if above == root or root in above.parents)]
    return tuple(dict.fromkeys(found))


def _throttled_ns() -> int | None:
    """The longest throttling of a group on the way up: the strictest quota is the one that is felt."""
    return max(_readable(group_folders(GROUPS.read_text())), default=None)


def _readable(folders: Iterable[Path]) -> Iterable[int]:
    for folder in folders:
        try:
            throttled = parse_throttle((folder / "cpu.stat").read_text())
        except OSError:
            continue  # this machine mounts its groups elsewhere, or not at all
        if throttled is not None:
            yield throttled
