"""Workers' bytes come out as they went in, each line behind its worker's name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from netlab.prefix import HOLD_BYTES, PAUSE_S, Prefixer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def prefixer() -> tuple[Prefixer, list[bytes], Clock]:
    written: list[bytes] = []
    clock = Clock()
    return Prefixer(written.append, clock=clock), written, clock


def stripped(output: bytes) -> bytes:
    return re.sub(rb"(^|(?<=\n)|(?<=\r))[ab]-0 \| ", b"", output)


@given(st.lists(st.binary(max_size=40)))
def test_one_worker_s_bytes_are_unchanged_behind_the_prefix(pieces: list[bytes]) -> None:
    merged, written, _ = prefixer()
    for piece in pieces:
        if piece:
            merged.feed("a-0", piece)
    merged.feed("a-0", b"")
    whole = b"".join(pieces)
    if b"a-0 |" not in whole:
        assert stripped(b"".join(written)) == whole


@given(st.lists(st.tuples(st.sampled_from(["a-0", "b-0"]), st.binary(max_size=30), st.booleans()), max_size=30))
def test_two_workers_bytes_can_be_told_apart_whatever_the_interleaving(
    pieces: list[tuple[str, bytes, bool]],
) -> None:
    merged, written, clock = prefixer()
    sent = {"a-0": b"", "b-0": b""}
    for worker, raw, pause in pieces:
        piece = raw.replace(b"\r", b".").replace(b"|", b".").replace(b"+", b".")
        if piece:
            merged.feed(worker, piece)
            sent[worker] += piece
        if pause:
            clock.now += 2 * PAUSE_S
            merged.idle()
    for worker in sent:
        merged.feed(worker, b"")
    merged.finish()
    got = {"a-0": b"", "b-0": b""}
    for line in b"".join(written).split(b"\n"):
        found = re.match(rb"([ab]-0) ([|+]) ", line)
        if found is None:
            assert line == b""
            continue
        worker = found[1].decode()
        if found[2] == b"+":
            assert got[worker].endswith(b"\n")
            got[worker] = got[worker][:-1]
        got[worker] += line[found.end() :] + b"\n"
    for worker, data in sent.items():
        assert got[worker].removesuffix(b"\n") == data.removesuffix(b"\n")


def test_an_unfinished_line_shows_after_a_pause_and_not_before() -> None:
    merged, written, clock = prefixer()
    merged.feed("a-0", b"50 %")
    clock.now = PAUSE_S * 0.9
    merged.idle()
    assert written == []
    clock.now = PAUSE_S * 1.1
    merged.idle()
    assert b"".join(written) == b"a-0 | 50 %"


def test_a_pause_does_not_cut_a_character() -> None:
    merged, written, clock = prefixer()
    euro = "€".encode()
    merged.feed("a-0", b"cost " + euro[:2])
    clock.now = 10 * PAUSE_S
    merged.idle()
    merged.feed("b-0", b"other\n")
    merged.feed("a-0", euro[2:] + b"\n")
    assert euro in b"".join(written)


def test_carriage_returns_show_at_once() -> None:
    merged, written, _ = prefixer()
    merged.feed("a-0", b"1 %\r")
    merged.feed("a-0", b"2 %\r")
    assert b"".join(written) == b"a-0 | 1 %\ra-0 | 2 %\r"


def test_a_line_without_an_end_is_not_hoarded() -> None:
    merged, written, _ = prefixer()
    for _ in range(100):
        merged.feed("a-0", b"x" * 10_000)
    held = 1_000_000 - (sum(map(len, written)) - len(b"a-0 | "))
    assert 0 <= held <= HOLD_BYTES + 10_000
