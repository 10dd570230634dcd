"""What a running lab can be asked and told: each method is one request to its keeper. The base of `netlab.Lab`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netlab.errors import UserError
from netlab.health import Health, Mark, judge
from netlab.impairment import Impairment
from netlab.links.relay_stats import DirectionStats
from netlab.live import known_link
from netlab.operations import Carrier
from netlab.plan import Plan

_COUNTERS = ("packets_in", "packets_out", "bytes_in", "bytes_out", "drops_queue", "drops_other")
SNAPLEN = 128
CAPTURE_LIMIT = 1_000_000


@dataclass(frozen=True)
class Captured:
    """What a capture has written: packets seen at both ends of a link, and those left out (lost, or over the limit)."""

    packets: int
    left_out: int


class Requests(ABC):
    """The requests of a lab; ``plan`` is what it was built from."""

    def __init__(self, plan: Plan) -> None:
        """Keep the plan."""
        self.plan = plan

    @abstractmethod
    def _call(self, name: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> Any:
        """Send a request and wait for its answer. Raises UserError, or LabError when the lab cannot."""

    @property
    def carrier(self) -> Carrier:
        """What carries the links: ``relay`` or ``netem``."""
        return self.plan.carrier

    def traffic(self) -> dict[str, dict[str, int]]:
        """What crossed each shaped direction so far: IP bytes and packets in and out, and drops."""
        return {stats.name: {key: getattr(stats, key) for key in _COUNTERS} for stats in self.statistics()}

    def statistics(self) -> tuple[DirectionStats, ...]:
        """The relay's own counters of every direction (empty when netem carries the links)."""
        stats: tuple[DirectionStats, ...] = self._call("traffic")
        return stats

    def mark(self) -> Mark:
        """Remember this moment, to ask later for the ``health`` since."""
        seen: Mark = self._call("mark")
        return seen

    def health(self, since: Mark) -> Health:
        """Whether the emulation kept up since ``since``, and if not, why. A schedule that could not be followed counts
        from the lab's start: the network is not the one asked for since then. From a mark on, the lab looks at itself
        once a second.
        """
        now, samples, alive = self._call("since", since.at_ns)
        faults = self._call("unfollowed", since.at_ns)
        return judge(since, now, samples, relay_alive=alive, carrier=self.carrier, faults=faults)

    def set(self, link: str, *words: str) -> list[str]:
        """Change a link while traffic flows: ``lab.set("paris-tokyo", "rate=10mbit", "backward.loss=1%")``.

        Nothing in flight is lost or reordered. Holds until the schedule or another ``set`` speaks for the same key.
        Returns the directions that got a new state. Raises UserError, and then nothing has changed.
        """
        touched: list[str] = self._call("change", link, list(words))
        return touched

    def begin_schedule(self) -> int | None:
        """Start the profile's schedule, unless it has begun; ``run`` does it. Returns its start, CLOCK_MONOTONIC ns."""
        start: int | None = self._call("begin")
        return start

    def reached(self, rank: int, step: int) -> bool:
        """Tell the schedule that a rank begins a training step; True when something waited for it."""
        return bool(self._call("reached", rank, step))

    def impairments(self) -> dict[str, Impairment]:
        """The present state of every direction, by its name in the plan."""
        found: dict[str, Impairment] = self._call("impairments")
        return found

    def events(self) -> list[dict[str, Any]]:
        """What happened to the lab so far: it came up, it was changed; each with its time."""
        found: list[dict[str, Any]] = self._call("events")
        return found

    def capture(self, link: str, path: str | Path, *, snaplen: int = SNAPLEN, limit: int = CAPTURE_LIMIT) -> int:
        """Write the packets of a link (or a WORKER.access) to a pcapng file, as they are at both of its ends, until
        `end_capture`; returns a handle for that. The first ``snaplen`` bytes of each packet, ``limit`` packets in all.

        Raises UserError.
        """
        known_link(self.plan.topology.profile, link)
        if not (20 <= snaplen <= 262_144 and 1 <= limit <= 1 << 40):
            raise UserError(f"capture {link}: {snaplen} bytes of {limit} packets: 20 to 262144 bytes, from 1 packet on")
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        try:
            handle: int = self._call("capture", link, snaplen, limit, descriptors=(fd,))
        finally:
            os.close(fd)
        return handle

    def end_capture(self, handle: int) -> Captured:
        """End a capture; its file is complete."""
        return Captured(*self._call("end_capture", handle))
