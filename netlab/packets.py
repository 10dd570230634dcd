"""The log of packets: what became of each packet that came to a link, as the relay notes it, and how to read it.

One file for all directions: a header (fixed fields, then JSON), then records of 48 bytes, `struct nl_fate` of
netlab/links/core/abi.h, in the byte order of the machine. The relay appends records and keeps three figures of the
header true (records, left out, error); all else is written here when the log is made. A log is bounded: what comes
after `limit` records, or faster than they can be written, is left out and counted.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netlab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

MAGIC = b"NLFATES1"
DEFAULT_NAME = "packets.netlab"
DEFAULT_LIMIT = 5_000_000  # 240 MB
MAX_LIMIT = 1 << 40
_FIXED = struct.Struct("=8sIIQQQQ")  # magic, bytes of the header and of a record, records, left out, error, limit

RECORD = [
    ("number", "u8"),
    ("arrival_ns", "u8"),
    ("release_ns", "u8"),
    ("written_ns", "u8"),
    ("ip_bytes", "u4"),
    ("wire_bytes", "u4"),
    ("segments", "u2"),
    ("direction", "u2"),
    ("fate", "u1"),
    ("flags", "u1"),
    ("unused", "u2"),
]
RECORD_BYTES = 48

FATES = ("passed", "queue", "loss", "codel", "down", "memory", "malformed", "refused", "held")
"""By enum nl_fate_kind. From memory to refused: the emulation's own faults; held: still under way at the end."""

FLAGS = ("marked", "corrupted", "overtook", "copy")
"""By enum nl_fate_flag, from the lowest bit."""


@dataclass(frozen=True)
class Header:
    """What a log says about itself. Times are of the moment in which it was made."""

    header_bytes: int
    records: int
    left_out: int
    error: int
    limit: int
    directions: tuple[str, ...]
    profile: str
    time: float
    monotonic_ns: int

    def describe(self) -> str:
        """One line for people."""
        text = f"{self.records} packets"
        if self.left_out:
            why = f": {os.strerror(self.error)}" if self.error else f" (the log holds {self.limit})"
            text += f", and {self.left_out} left out{why}"
        return text


def log_path(text: str) -> Path:
    """The file that ``--packet-log FILE|DIR`` means."""
    path = Path(text)
    return path / DEFAULT_NAME if text.endswith("/") or path.is_dir() else path


def create(path: Path, directions: Sequence[str], profile: str, limit: int) -> tuple[int, int]:
    """Make an empty log; returns its open descriptor and the offset of the first record. Raises UserError."""
    if not 1 <= limit <= MAX_LIMIT:
        raise UserError(f"--packet-log-limit {limit}: 1 to {MAX_LIMIT} records are allowed")
    said = {"directions": list(directions), "profile": profile, "time": time.time()}
    said["monotonic_ns"] = time.monotonic_ns()
    text = json.dumps(said).encode()
    size = -(-(_FIXED.size + len(text)) // RECORD_BYTES) * RECORD_BYTES
    fixed = _FIXED.pack(MAGIC, size, RECORD_BYTES, 0, 0, 0, limit)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(fd, (fixed + text).ljust(size))
    except OSError as error:
        raise UserError(f"--packet-log {path}: {error.strerror}") from error
    return fd, size


def read_header(path: str | Path) -> Header:
    """The header of a log. Raises UserError for any other file."""
    try:
        with Path(path).open("rb") as file:
            fixed = file.read(_FIXED.size)
            return _header(fixed, file.read(1 << 24), path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _header(fixed: bytes, rest: bytes, path: str | Path) -> Header:
    if len(fixed) < _FIXED.size or fixed[:8] != MAGIC:
        raise UserError(f"{path} is not a log of packets: netlab run --packet-log FILE writes one")
    _, size, record, records, left_out, error, limit = _FIXED.unpack(fixed)
    text = rest[: size - _FIXED.size]
    try:
        said: dict[str, Any] = json.loads(text)
        directions = tuple(str(name) for name in said["directions"])
        found = (str(said["profile"]), float(said["time"]), int(said["monotonic_ns"]))
    except (ValueError, KeyError, TypeError) as fault:
        raise UserError(f"{path}: a damaged log: its header cannot be read ({fault})") from fault
    if record != RECORD_BYTES or len(text) < size - _FIXED.size:
        raise UserError(f"{path}: a damaged log, or one of another version of netlab")
    return Header(size, records, left_out, error, limit, directions, *found)


def read_packets(path: str | Path) -> pd.DataFrame:
    """Every packet of a log, in the order of arrival; ``attrs`` has the header: left_out, limit, profile ...

    Columns: direction, number (the how-manieth that was read in its direction; 0: none), fate (see FATES), arrival_ns,
    release_ns (when the model let it go), written_ns (when it really left), all CLOCK_MONOTONIC and missing where they
    do not apply; delay_ns (written - arrival), late_ns (written - release), ip_bytes, wire_bytes, segments (packets in
    an offloaded unit), and whether it was marked, corrupted, overtook others, or is a copy. Raises UserError.
    """
    import numpy as np
    import pandas as pd

    header = read_header(path)
    whole = (Path(path).stat().st_size - header.header_bytes) // RECORD_BYTES
    count = min(header.records, whole)  # of a log whose writer was killed, the rest may not be counted yet
    raw = np.fromfile(path, dtype=RECORD, count=count, offset=header.header_bytes)
    if len(raw) and (raw["direction"].max() >= len(header.directions) or raw["fate"].max() >= len(FATES)):
        raise UserError(f"{path}: a damaged log: a record names a direction or a fate that there is not")
    raw = raw[np.argsort(raw["arrival_ns"], kind="stable")]
    table = pd.DataFrame(
        {
            "direction": _named(raw["direction"], header.directions),
            "number": raw["number"].astype("int64"),
            "fate": _named(raw["fate"], FATES),
        }
    )
    for name in ("arrival_ns", "release_ns", "written_ns"):
        table[name] = pd.array(raw[name].astype("int64"), dtype="Int64")
        table.loc[raw[name] == 0, name] = pd.NA
    table["delay_ns"] = table["written_ns"] - table["arrival_ns"]
    table["late_ns"] = table["written_ns"] - table["release_ns"]
    for name in ("ip_bytes", "wire_bytes", "segments"):
        table[name] = raw[name].astype("int64")
    for bit, name in enumerate(FLAGS):
        table[name] = (raw["flags"] >> bit & 1).astype(bool)
    table.attrs = {key: getattr(header, key) for key in ("records", "left_out", "limit", "profile", "time")}
    table.attrs["monotonic_ns"] = header.monotonic_ns
    return table


def _named(codes: Any, names: Sequence[str]) -> Any:
    import pandas as pd

    return pd.Categorical.from_codes(codes.astype("int64"), categories=pd.Index(list(names)))
