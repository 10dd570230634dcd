r"""Puts the worker's name before every line that workers print, and changes nothing else about their bytes.

``sophia-0 | text`` starts a line. Carriage returns count as line ends, so progress bars appear while they move. A
line that has not ended is shown after a moment; when another worker prints meanwhile, it is broken off with a
newline and goes on behind ``sophia-0 + ``, so that the original can always be put together again. Bytes are passed
through as they are (no decoding), a UTF-8 character is never cut by a pause, and at most HOLD_BYTES wait per
worker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

HOLD_BYTES = 1 << 16
PAUSE_S = 0.2

_BREAK = re.compile(rb"\r\n|\r|\n")


@dataclass
class _Stream:
    """What one worker has printed and not yet seen written."""

    held: bytes = b""
    since: float = 0.0
    middle: bool = False  # its last written byte was within a line
    after_return: bool = False  # its last written byte was a carriage return, so a newline belongs to it


@dataclass
class Prefixer:
    """Merges the workers' streams into one. ``write`` gets whole pieces."""

    write: Callable[[bytes], None]
    width: int = 0
    clock: Callable[[], float] = time.monotonic
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _open: str | None = None  # whose unfinished line is the last thing written

    def feed(self, worker: str, data: bytes) -> None:
        """A piece of what ``worker`` printed; b"" when its stream has ended."""
        stream = self._streams.setdefault(worker, _Stream())
        if not data:
            self._emit(worker, stream, stream.held)
            stream.held = b""
            return
        whole = stream.held + data if stream.held else data
        end = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        if end:
            self._emit(worker, stream, whole[:end])
        if not stream.held or end:
            stream.since = self.clock()
        stream.held = whole[end:]
        if len(stream.held) > HOLD_BYTES:
            self._release(worker, stream)

    def idle(self) -> float | None:
        """Show unfinished lines that have waited; returns the seconds until the next one is due, or None."""
        waits = []
        for worker, stream in self._streams.items():
            if not stream.held:
                continue
            left = stream.since + PAUSE_S - self.clock()
            if left <= 0:
                self._release(worker, stream)
                if stream.held:  # the start of a character whose rest may still come
                    stream.since = self.clock()
                    waits.append(PAUSE_S)
            else:
                waits.append(left)
        return min(waits) if waits else None

    def finish(self) -> None:
        """End an unfinished last line, so that what follows on a terminal starts on a line of its own."""
        if self._open is not None:
            self.write(b"\n")
            self._open = None

    def _release(self, worker: str, stream: _Stream) -> None:
        keep = _unfinished_character(stream.held)
        cut = len(stream.held) - keep
        if cut:
            self._emit(worker, stream, stream.held[:cut])
            stream.held = stream.held[cut:]

    def _emit(self, worker: str, stream: _Stream, piece: bytes) -> None:
        if not piece:
            return
        parts = []
        if stream.after_return and piece.startswith(b"\n"):
            parts.append(b"\n")
            piece = piece[1:]
        stream.after_return = False
        if piece:
            if self._open not in (None, worker):
                parts.append(b"\n")
            if self._open != worker:
                parts.append(self._prefix(worker, b"+" if stream.middle else b"|"))
            parts.append(self._marked(worker, piece))
            stream.middle = not piece.endswith((b"\n", b"\r"))
            stream.after_return = piece.endswith(b"\r")
            self._open = worker if stream.middle else None
        self.write(b"".join(parts))

    def _marked(self, worker: str, piece: bytes) -> bytes:
        prefix = self._prefix(worker, b"|")
        body, last = (piece[:-1], piece[-1:]) if piece.endswith((b"\n", b"\r")) else (piece, b"")
        if piece.endswith(b"\r\n"):
            body, last = piece[:-2], b"\r\n"
        if b"\r" not in body:
            return body.replace(b"\n", b"\n" + prefix) + last
        return _BREAK.sub(lambda found: found.group() + prefix, body) + last

    def _prefix(self, worker: str, mark: bytes) -> bytes:
        return worker.ljust(self.width).encode() + b" " + mark + b" "


def _unfinished_character(data: bytes) -> int:
    """How many bytes at the end could be the start of a UTF-8 character that is not complete yet (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < needed and byte < 0xF8 else 0
        if byte < 0x80:
            return 0
    return 0
