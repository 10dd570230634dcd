"""Changing a link while traffic flows: by hand and by schedule; nothing in flight is lost or reordered."""

from __future__ import annotations

import statistics
import sys
import threading
import time

import pytest

from netlab import Lab, UserError, parse_profile
from tests.conftest import PLAIN

pytestmark = pytest.mark.lab

STREAM = """
import os, socket, struct, sys, time
count, gap = int(sys.argv[1]), float(sys.argv[2])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "1":
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sock.bind(("", 7000)); sock.settimeout(3)
    try:
        while True:
            number, sent = struct.unpack("!Qq", sock.recv(2000)[:16])
            print(number, time.monotonic_ns() - sent)
            if number == count - 1: break
    except TimeoutError:
        pass
else:
    time.sleep(0.3); start = time.monotonic()
    for number in range(count):
        time.sleep(max(0, start + number * gap - time.monotonic()))
        sock.sendto(struct.pack("!Qq", number, time.monotonic_ns()) + bytes(184), ("b-0", 7000))
"""


def stream(lab: Lab, count: int, gap_s: float) -> list[tuple[int, float]]:
    """(number, one-way delay in ms) of the datagrams that arrived, in the order of arrival."""
    printed = bytearray()

    def collect(worker: str, data: bytes) -> None:
        if worker == "b-0":
            printed.extend(data)

    result = lab.run([sys.executable, "-c", STREAM, str(count), str(gap_s)], output=collect, timeout=60)
    assert result.ok, (result.describe(), bytes(printed[-500:]))
    return [(int(line.split()[0]), int(line.split()[1]) / 1e6) for line in printed.splitlines()]


def test_changes_by_hand_lose_and_reorder_nothing() -> None:
    count = 3000
    with Lab.start(parse_profile(PLAIN, "plain.yaml")) as lab:
        stop = threading.Event()

        def meddle() -> None:
            settings = ["delay=40ms", "rate=20mbit", "delay=2ms", "rate=1gbit", "queue=500packets", "delay=10ms"]
            number = 0
            while not stop.wait(0.15):
                lab.set("a-b", settings[number % len(settings)])
                number += 1

        thread = threading.Thread(target=meddle)
        thread.start()
        try:
            arrived = stream(lab, count, 0.001)
        finally:
            stop.set()
            thread.join()
        changed = [event for event in lab.events() if event["kind"] == "change"]
    assert len(changed) >= 10
    assert [number for number, _ in arrived] == list(range(count))


def test_a_new_delay_holds_for_packets_sent_after_it() -> None:
    with Lab.start(parse_profile(PLAIN, "plain.yaml")) as lab:
        before = statistics.median(delay for _, delay in stream(lab, 100, 0.002))
        assert lab.set("a-b", "forward.delay=30ms") == ["a-b:a.router>b.router"]
        after = statistics.median(delay for _, delay in stream(lab, 100, 0.002))
    assert 10.0 <= before <= 11.0
    assert 30.0 <= after <= 31.0


def test_a_schedule_is_followed_within_20_ms_of_each_step() -> None:
    steps = ", ".join(f"{{at: {second}s, link: a-b, set: {{delay: {10 + 5 * second}ms}}}}" for second in range(1, 4))
    text = f"{PLAIN}schedule: [{steps}]\n"
    with Lab.start(parse_profile(text, "steps.yaml")) as lab:
        arrived = stream(lab, 4000, 0.001)
        changes = [event for event in lab.events() if event["kind"] == "change"]
    assert len(changes) == 6
    assert all(0 <= event["held_ns"] - event["due_ns"] <= 20_000_000 for event in changes)
    assert [number for number, _ in arrived] == list(range(4000))
    delays = [delay for _, delay in arrived]
    for expected in (10.0, 15.0, 20.0, 25.0):
        share = sum(expected <= delay <= expected + 1.0 for delay in delays) / len(delays)
        assert 0.1 <= share <= 0.4, (expected, share)


def test_a_schedule_does_not_begin_before_the_job() -> None:
    text = f"{PLAIN}schedule: [{{at: 0s, link: a-b, set: {{delay: 40ms}}}}]\n"
    with Lab.start(parse_profile(text, "late.yaml")) as lab:
        time.sleep(0.2)
        assert [event["kind"] for event in lab.events()] == ["up"]
        (row,) = lab.verify("rtt").links
        assert row.ok, row
        delays = [delay for _, delay in stream(lab, 50, 0.002)]
    assert 40.0 <= statistics.median(delays) <= 41.5


def test_an_entry_tied_to_a_training_step_waits_for_it() -> None:
    text = f"{PLAIN}schedule: [{{at: {{step: 40, rank: 0}}, link: a-b, set: {{rate: 1mbit}}}}]\n"
    with Lab.start(parse_profile(text, "step.yaml")) as lab:
        lab.begin_schedule()
        assert not lab.reached(1, 40)
        assert not lab.reached(0, 39)
        rates = {impairment.rate.bps for impairment in lab.impairments().values() if impairment.rate}
        assert rates == {100_000_000}
        assert lab.reached(0, 40)
        rates = {impairment.rate.bps for impairment in lab.impairments().values() if impairment.rate}
        assert rates == {1_000_000}


@pytest.mark.parametrize(
    ("link", "word", "expected"),
    [
        ("a-c", "rate=1mbit", "a-b"),
        ("a-b", "rate=1", "unit"),
        ("a-b", "speed=1mbit", "rate"),
        ("a-b", "rate", "KEY=VALUE"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(link: str, word: str, expected: str) -> None:
    with Lab.start(parse_profile(PLAIN, "plain.yaml")) as lab:
        before = lab.impairments()
        with pytest.raises(UserError, match=expected):
            lab.set(link, word)
        assert lab.impairments() == before
