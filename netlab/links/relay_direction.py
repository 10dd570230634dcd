"""One direction of a link, as whoever starts the relay describes it and as the C core is given it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from netlab.errors import NetlabError
from netlab.impairment import OFFLOAD_RATE_BPS
from netlab.links import _relay
from netlab.links.relay_model import Effects
from netlab.links.tun import Layer

MIB = 1 << 20
MEMORY_CAP_FLOOR = 64 * MIB
MEMORY_CAP_CEILING = 2048 * MIB
MEMORY_CAP_UNLIMITED_RATE = 1024 * MIB
MEMORY_START_CEILING = 32 * MIB
MEMORY_START_TOTAL = 256 * MIB
ETHERNET_HEADER_BYTES = 14

CHANGEABLE = ("delay_ns", "rate_bps", "queue_bytes", "queue_packets", "effects")
"""What Relay.change can change."""

LIMITS = {
    "delay_ns": 3_600_000_000_000,
    "rate_bps": 1_000_000_000_000,
    "queue_bytes": 1 << 40,
    "queue_packets": 1 << 40,
    "overhead": 1024,
    "min_frame": 65_536,
}
"""The most that the C core was made for; profiles are held to less."""


@dataclass(frozen=True)
class Direction:
    """One direction of a link: where its packets come from and go to, and what happens to them between.

    Descriptors are of TUN (layer "ip") or TAP (layer "ethernet") devices made by open_tun; they stay the caller's.
    With `offload`, in_fd was opened with it, and the relay turns it off for as long as single packets matter: with an
    effect that judges each, or at a slow rate. A queue limit of 0 is none; rate_bps 0 is no limit. wire bytes of a
    packet = its IP bytes + overhead, at least min_frame.
    """

    name: str
    in_fd: int
    out_fd: int
    delay_ns: int
    rate_bps: int
    queue_bytes: int
    queue_packets: int
    overhead: int
    min_frame: int
    layer: Layer = "ip"
    offload: bool = False
    effects: Effects = field(default_factory=Effects)

    def check(self) -> None:
        """Refuse what the C core was not made for: NetlabError."""
        for key, most in LIMITS.items():
            value = getattr(self, key)
            if not 0 <= value <= most:
                raise NetlabError(f"{self.name}: {key} {value}: 0 to {most} is allowed")
        if not 0 < len(self.name.encode()) < _relay.lib.NL_NAME_BYTES:
            allowed = f"1 to {_relay.lib.NL_NAME_BYTES - 1} bytes are allowed"
            raise NetlabError(f"direction name {self.name!r}: {allowed}")

    def memory_cap(self) -> int:
        """Return the most memory (bytes) that this direction may hold packets in; beyond it they are dropped,
        counted.

        Twice what the link can hold by its parameters (bandwidth x delay + queue), because small packets take
        more room here than on the wire, within 64 MiB and 2 GiB. Without a rate nothing bounds what can be in
        flight: 1 GiB.
        """
        if not self.rate_bps or not self.queue_bytes:
            return MEMORY_CAP_UNLIMITED_RATE
        return min(max(2 * self._held_bytes() + 16 * MIB, MEMORY_CAP_FLOOR), MEMORY_CAP_CEILING)

    def memory_start(self, directions: int) -> int:
        """Return how much of it is made ready at the start, so that the first packets meet no page fault.

        What the link can hold by its parameters, but all of the relay's `directions` together 256 MiB.
        """
        least = 2 * MIB
        if not self.rate_bps or not self.queue_bytes:
            return least
        most = min(MEMORY_START_CEILING, MEMORY_START_TOTAL // directions)
        return max(min(self._held_bytes(), most), least)

    def _held_bytes(self) -> int:
        return self.rate_bps * self.delay_ns // 8_000_000_000 + self.queue_bytes

    def to_core(self, jitter: int) -> dict[str, Any]:
        """As struct nl_params; `jitter` is the number of the table in use, 0 for none."""
        return {
            "delay_ns": self.delay_ns,
            "rate_bps": self.rate_bps,
            "queue_bytes": self.queue_bytes,
            "queue_packets": self.queue_packets,
            "overhead": self.overhead,
            "min_frame": self.min_frame,
            "link_header": ETHERNET_HEADER_BYTES if self.layer == "ethernet" else 0,
            "jitter": jitter,
            "offload": self._offload(),
            **self.effects.to_core(),
        }

    def _offload(self) -> int:
        if not self.offload:
            return int(_relay.lib.NL_OFFLOAD_AS_IS)
        slow = 0 < self.rate_bps < OFFLOAD_RATE_BPS
        single = self.effects.per_packet or slow
        return int(_relay.lib.NL_OFFLOAD_OFF if single else _relay.lib.NL_OFFLOAD_ON)

    def jitter_table(self) -> tuple[int, ...] | None:
        """Deviations of the delay in ns, ascending, equally likely; None without jitter."""
        return self.effects.jitter.table() if self.effects.jitter else None
