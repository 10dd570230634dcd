"""How far a rank's clock is from rank 0's, and how sure that is: an exchange of times as NTP has it.

Rank 0 answers on a UDP port, which it writes into the store at which the ranks met; a rank on another machine asks, and
asks again while it runs, so that drift is seen. Of several exchanges the one with the shortest round trip counts: half
of that trip is the most by which its offset can be wrong, whatever the two ways take. Ranks that share a boot of one
machine and its time namespace read one clock: their offset is zero, and nothing is exchanged.

The exchange must not go through an emulated link: `CPDP_CLOCK_ADDRESS`, set for rank 0, names its address on an
unshaped way. Without it the store's host is asked, and a shaped way shows as a large uncertainty.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "cpdp_profile_clock"
ADDRESS = "CPDP_CLOCK_ADDRESS"
EXCHANGES = 16
ANSWER_S = 0.5
PUBLISHED_S = 10.0
AGAIN_S = 20.0
_TIMES = struct.Struct("!qqq")

Now = Callable[[], int]


@dataclass(frozen=True)
class Offset:
    """Add `offset_ns` to this clock's time to get the other's; wrong by at most `uncertainty_ns`."""

    at_ns: int
    offset_ns: int
    uncertainty_ns: int


def clock_identity() -> str | None:
    """Which clock this process reads: the machine's boot and the time namespace; None where it cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    try:
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:  # a kernel without time namespaces
        return boot


def answer(server: socket.socket, now: Now = time.monotonic_ns) -> None:
    """Answer one question with the times at which it came and went."""
    data, whom = server.recvfrom(64)
    came = now()
    if len(data) == _TIMES.size:
        asked, _, _ = _TIMES.unpack(data)
        server.sendto(_TIMES.pack(asked, came, now()), whom)


def measure(server: tuple[str, int], now: Now = time.monotonic_ns, exchanges: int = EXCHANGES) -> Offset | None:
    """Ask a server for its time; None when it never answers."""
    best: Offset | None = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(ANSWER_S)
        link.connect(server)
        for _ in range(exchanges):
            found = _exchange(link, now)
            if found is not None and (best is None or found.uncertainty_ns < best.uncertainty_ns):
                best = found
    return best


def _exchange(link: socket.socket, now: Now) -> Offset | None:
    asked = now()
    try:
        link.send(_TIMES.pack(asked, 0, 0))
        while True:
            data = link.recv(64)
            back = now()
            echoed, came, went = _TIMES.unpack(data)
            if echoed == asked:  # an answer to an earlier question, which had been given up, is not this one's
                break
    except (OSError, struct.error):
        return None
    return Offset(back, ((came - asked) + (went - back)) // 2, (back - asked - (went - came) + 1) // 2)


def serve(store: Any, identity: str | None) -> None:
    """Rank 0: answer from now on, in a thread that ends with the process, and say in the store where."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("", 0))
    host = os.environ.get(ADDRESS) or os.environ.get("MASTER_ADDR") or socket.gethostname()
    store.set(KEY, json.dumps([host, server.getsockname()[1], identity]))
    threading.Thread(target=_serve, args=(server,), name="cpdp-clock", daemon=True).start()


def _serve(server: socket.socket) -> None:
    while True:
        try:
            answer(server)
        except OSError:
            continue


def follow(store: Any, identity: str | None, say: Callable[[Mapping[str, Any]], None]) -> None:
    """Another rank: write the offset down from time to time, in a thread; nothing when both read one clock."""
    threading.Thread(target=_follow, args=(store, identity, say), name="cpdp-clock", daemon=True).start()


def _follow(store: Any, identity: str | None, say: Callable[[Mapping[str, Any]], None]) -> None:
    try:
        deadline = time.monotonic() + PUBLISHED_S
        while not store.check([KEY]):
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        host, port, theirs = json.loads(store.get(KEY))
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError):
        return
    while identity is None or identity != theirs:
        try:
            found = measure((host, port))
        except OSError:
            found = None
        if found is not None:
            say({"k": "clock", "t": found.at_ns, "offset": found.offset_ns, "uncertainty": found.uncertainty_ns})
        time.sleep(AGAIN_S if found is not None else 1.0)
