"""A real lab that is disturbed on purpose: what its health says then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from netlab.lab import Lab
from netlab.profile import parse_profile

pytestmark = pytest.mark.lab

TEXT = "name: t\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 4ms, rate: 100mbit}]\n"
SEND = (
    "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
    "for n in range(2500): s.sendto(bytes(200),('b-0',9)); time.sleep(0.001)\n"
)


@pytest.fixture
def lab():
    with Lab.start(parse_profile(TEXT, "t.yaml"), carrier="relay") as running:
        yield running


def relay_of(lab: Lab) -> int:
    assert lab._process is not None
    found = psutil.Process(lab._process.pid).children(recursive=True)
    (relay,) = (each for each in found if "relay_main" in " ".join(each.cmdline()))
    return relay.pid


def test_a_relay_that_stood_still_for_a_moment_makes_the_run_invalid_with_where_and_how_much(lab):
    mark, relay = lab.mark(), relay_of(lab)
    moments = [
        threading.Timer(1.0, os.kill, (relay, signal.SIGSTOP)),
        threading.Timer(1.4, os.kill, (relay, signal.SIGCONT)),
    ]
    for moment in moments:
        moment.start()
    assert lab.exec("a-0", [sys.executable, "-c", SEND], timeout=30).returncode == 0
    for moment in moments:
        moment.join()
    health = lab.health(mark)
    (reason,) = [reason for reason in health.reasons if reason.startswith("a-b:a.router>b.router")][:1]
    assert "late, at most 1000 us is allowed" in reason or "most packets were late" in reason
    (way,) = (each for each in health.directions if each.name == "a-b:a.router>b.router")
    assert 300_000 <= way.lateness_max_us <= 600_000
    assert way.packets >= 2500
    assert way.unused_share is not None
    assert 0.9 < way.unused_share <= 1


def test_a_full_queue_has_its_peak_and_its_second_and_verification_before_does_not_count(lab):
    lab.exec("a-0", [sys.executable, "-c", SEND.replace("; time.sleep(0.001)", "")], timeout=30)
    time.sleep(0.3)
    mark = lab.mark()
    assert lab.exec("a-0", ["ping", "-c", "3", "-i", "0.1", "b-0"], timeout=20).returncode == 0
    quiet = {each.name: each for each in lab.health(mark).directions}["a-b:a.router>b.router"]
    assert 0 < quiet.queue_peak_bytes <= 122  # one echo at a time
    assert quiet.drops_queue == 0
    mark = lab.mark()
    time.sleep(1.1)
    lab.exec("a-0", [sys.executable, "-c", SEND.replace("; time.sleep(0.001)", "")], timeout=30)
    busy = {each.name: each for each in lab.health(mark).directions}["a-b:a.router>b.router"]
    assert busy.queue_peak_bytes > 10_000
    assert busy.queue_peak_s is not None
    assert busy.queue_peak_s >= 0.9


def test_processors_that_are_full_are_told_and_alone_are_no_reason(lab):
    spin = [sys.executable, "-c", "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass"]
    mark = lab.mark()
    running = [subprocess.Popen(spin) for _ in os.sched_getaffinity(0)]
    for process in running:
        process.wait()
    health = lab.health(mark)
    assert health.machine.busy > 0.9
    assert health.machine.busiest_busy >= health.machine.busy
    assert max(sample.machine.busy for sample in health.samples) > 0.95
    assert not [reason for reason in health.reasons if "CPU" in reason and "late" not in reason]


def test_a_relay_that_is_killed_is_a_reason(lab):
    mark = lab.mark()
    os.kill(relay_of(lab), signal.SIGKILL)
    time.sleep(0.2)
    assert "the relay has ended" in lab.health(mark).reasons
