"""A whole lab carried by netem: an access line beside a link, what is told of it, watched and captured."""

from __future__ import annotations

import json
import statistics
import sys
import time

import pytest

from netlab.lab import Lab
from netlab.profile import parse_profile
from tests.lab.test_packet_log import packets_of

pytestmark = pytest.mark.netem

TEXT = """\
name: t
sites:
  campus:
    workers: 2
    access:
      1: {delay: 8ms, rate: 20mbit, queue: 40kB, backward: {delay: 4ms, rate: 100mbit, queue: 100ms}}
  cloud: {workers: 1}
links: [{between: [campus, cloud], rtt: 10ms}]
"""
UP = "campus-1.access:campus-1.gateway>campus.router"
SLOWER_MS = 2.0  # what this kernel adds to a round trip of two links
SEND = (
    "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\nto=(socket.gethostbyname('cloud-0'),9)\n"
    "for n in range(1000): s.sendto(bytes(972),to)\n"
)


@pytest.fixture(scope="module")
def lab():
    with Lab.start(parse_profile(TEXT, "t.yaml"), carrier="netem") as running:
        yield running


def ping_ms(lab: Lab, source: str, target: str) -> float:
    argv = [sys.executable, "-m", "netlab.probe", "rtt", lab.worker(target).address, "10", "0.02", "56", "2"]
    done = lab.exec(source, argv, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["rtt_ns"]
    return statistics.median(value / 1e6 for value in found)


@pytest.mark.parametrize(("source", "target", "expected"), [("campus-0", "campus-1", 12), ("campus-1", "cloud-0", 22)])
def test_an_access_line_has_its_delay_to_neighbours_and_to_other_sites(lab, source, target, expected):
    assert expected <= ping_ms(lab, source, target) <= expected + SLOWER_MS


def test_what_netem_does_differently_is_among_the_choices(lab):
    notes = [choice for choice in lab.choices if choice.startswith("netem: ")]
    assert any("queue of 40000 B is kept as 26 packets" in note and UP in note for note in notes), lab.choices


def test_a_line_changes_while_the_lab_runs(lab):
    lab.set("campus-1.access", "forward.delay=28ms")
    assert 32 <= ping_ms(lab, "campus-1", "campus-0") <= 32 + SLOWER_MS
    lab.set("campus-1.access", "forward.delay=8ms")


def test_health_has_netems_drops_backlog_and_unused_capacity(lab):
    mark = lab.mark()
    assert lab.exec("campus-1", [sys.executable, "-c", SEND], timeout=30).returncode == 0
    time.sleep(1.2)
    health = lab.health(mark)
    (way,) = (each for each in health.directions if each.name == UP)
    assert way.drops_queue + way.packets >= 1000
    assert way.drops_queue > 100
    assert way.unused_share is not None
    assert 0.5 < way.unused_share < 1
    assert way.lateness_p99_us is None
    assert health.samples
    assert sum(sample.ways[UP].packets for sample in health.samples) == way.packets


def test_a_link_of_netem_is_captured_at_both_ends(lab, tmp_path):
    handle = lab.capture("campus-1.access", tmp_path / "x.pcapng")
    ping_ms(lab, "campus-1", "campus-0")
    found = lab.end_capture(handle)
    seen = packets_of(tmp_path / "x.pcapng")
    assert (found.packets, found.left_out) == (len(seen), 0)
    for number, outgoing in ((0, True), (0, False), (1, True), (1, False)):
        assert sum(packet[:3:2] == (number, outgoing) for packet in seen) == 10
