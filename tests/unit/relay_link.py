"""The relay's C model of a link, driven from tests through cffi: no network, and the test moves the clock."""

from __future__ import annotations

from typing import Any

from netlab.links import _relay
from netlab.links.relay_direction import Direction
from netlab.links.relay_model import Effects

ffi, lib = _relay.ffi, _relay.lib
NEVER = 2**64 - 1
NO_BIT = int(lib.NL_NO_BIT)


class Link:
    """The C model, with packets that know their number."""

    def __init__(self, effects: Effects | None = None, **params: int) -> None:
        self._params: dict[str, Any] = {"overhead": 38, "min_frame": 84, **params}
        self._effects = effects or Effects()
        self._table = 1
        self.link = ffi.new("struct nl_link *")
        self.packets: list[Any] = []
        lib.nl_link_init(self.link, *self._setting())

    def _setting(self) -> tuple[Any, Any]:
        plain = {"delay_ns": 0, "rate_bps": 0, "queue_bytes": 0, "queue_packets": 0}
        layer = "ethernet" if self._params.get("link_header") else "ip"
        given = {key: value for key, value in self._params.items() if key != "link_header"}
        direction = Direction(name="x", in_fd=0, out_fd=0, layer=layer, effects=self._effects, **(plain | given))
        table = direction.jitter_table()
        params = ffi.new("struct nl_params *", direction.to_core(self._table if table else 0))
        return params, ffi.new("int64_t[]", table) if table else ffi.NULL

    def copies(self) -> int:
        """How many there are of the next packet to arrive."""
        return int(lib.nl_link_copies(self.link))

    def offer(self, at_ns: int, length: int = 1500, header: int = 0, gso_size: int = 0, ecn: bool = False) -> bool:
        """Whether the model keeps the packet."""
        return self.verdict(at_ns, length, header, gso_size, ecn) == lib.NL_ACCEPT

    def verdict(self, at_ns: int, length: int = 1500, header: int = 0, gso_size: int = 0, ecn: bool = False) -> int:
        """What the model says of the packet."""
        fields = {"cookie": len(self.packets), "length": length, "header": header, "gso_size": gso_size}
        packet = ffi.new("struct nl_packet *", {**fields, "ecn_capable": ecn})
        self.packets.append(packet)
        return int(lib.nl_link_offer(self.link, packet, at_ns))

    def take(self, at_ns: int) -> tuple[int, int] | None:
        """(number, release time) of the next packet that is due."""
        packet = lib.nl_link_take(self.link, at_ns)
        return (packet.cookie, packet.release_ns) if packet != ffi.NULL else None

    def take_all(self, at_ns: int = NEVER - 1) -> list[tuple[int, int]]:
        """Every packet that is due."""
        taken = []
        while one := self.take(at_ns):
            taken.append(one)
        return taken

    def take_dropped(self) -> list[int]:
        """Numbers of the packets that CoDel has dropped since the last look."""
        numbers = []
        while (packet := lib.nl_link_take_dropped(self.link)) != ffi.NULL:
            numbers.append(packet.cookie)
        return numbers

    def change(self, at_ns: int, effects: Effects | None = None, **params: int) -> None:
        """New parameters; what is not named stays."""
        self._params.update(params)
        if effects is not None:
            self._table += effects.jitter != self._effects.jitter
            self._effects = effects
        lib.nl_link_change(self.link, *self._setting(), at_ns)

    def next(self) -> int:
        """When something may be due."""
        return int(lib.nl_link_next(self.link))

    def backlog(self, at_ns: int) -> tuple[int, int]:
        """(wire bytes, packets) not yet sent."""
        wire, packets = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.nl_link_backlog(self.link, at_ns, wire, packets)
        return int(wire[0]), int(packets[0])
