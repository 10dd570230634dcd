"""The relay between two bare network namespaces: real packets, bounds from arithmetic.

Other programs may use the processors meanwhile, so an upper bound on a time is wide; a lower bound is exact: the relay
may be late, never early.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netlab.errors import NetlabError
from netlab.links.relay import Direction, Relay
from netlab.links.tun import open_tun
from tests.conftest import ROOT
from tests.lab.bare_pair import ADDRESSES, BarePair, Shape

pytestmark = pytest.mark.lab

MS = 1_000_000
MBIT = 1_000_000
WIRE = 1538  # a 1500-byte packet and its Ethernet framing
UDP_SEGMENT = 103


def eventually(holds, seconds: float = 5.0) -> bool:
    """Whether it comes true within the time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def receiver(pair: BarePair, seconds: float = 5) -> Iterator[socket.socket]:
    """A UDP socket in b."""
    with pair.socket("b", socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        sock.bind((ADDRESSES["b"], 5001))
        sock.settimeout(seconds)
        yield sock


# ---- time ----


def test_a_round_trip_takes_both_delays_and_is_never_early():
    with BarePair(Shape(delay_ns=8_300_000)) as pair:
        times = pair.ping_ms(100)
        assert 16.6 <= min(times) <= 16.9
        assert 16.6 <= statistics.median(times) <= 17.6
        for stats in pair.relay.stats():
            assert stats.packets_in == stats.packets_out + stats.drops_other
            assert stats.lateness_quantile(0.5) < 1 * MS


def test_delays_of_the_two_directions_add_up():
    with BarePair(Shape(delay_ns=2 * MS), backward=Shape(delay_ns=13 * MS)) as pair:
        assert 15.0 <= min(pair.ping_ms(20)) <= 15.3


def test_a_slow_link_adds_the_time_that_a_packet_takes_to_send():
    # 56 bytes of ping are 84 IP bytes, 122 on the wire: 15.25 ms at 64 kbit/s, each way
    shape = Shape(delay_ns=10 * MS, rate_bps=64_000, queue_bytes=2 * WIRE, offload=False)
    with BarePair(shape) as pair:
        assert 50.5 <= min(pair.ping_ms(5, interval_s=0.1)) <= 50.9


def test_ethernet_frames_are_carried_with_the_same_times():
    shape = Shape(delay_ns=10 * MS, rate_bps=64_000, queue_bytes=4 * WIRE, offload=False, layer="ethernet")
    with BarePair(shape) as pair:
        assert 50.5 <= min(pair.ping_ms(5, interval_s=0.2)) <= 50.9


# ---- rate and queue ----


@pytest.mark.parametrize("offload", [True, False])
def test_tcp_gets_the_rate_less_its_headers(offload: bool):
    # of 1538 bytes on the wire, 1448 are payload: 94.15 % of 200 Mbit/s
    rate = 200 * MBIT
    shape = Shape(delay_ns=2 * MS, rate_bps=rate, queue_bytes=256 << 10, offload=offload)
    with BarePair(shape) as pair:
        goodput = pair.goodput_bps("-O", "1", "-C", "cubic", seconds=2)
        forward = pair.relay.stats()[0]
    assert 0.80 * rate <= goodput <= 0.945 * rate, "never more; less when a busy machine makes TCP lose"
    assert forward.queue_bytes_peak <= 256 << 10
    assert (forward.units_in < forward.packets_in / 4) == offload, "offloaded units stand for many packets"


def test_a_flood_leaves_at_the_rate_and_the_rest_is_dropped_by_the_queue():
    rate = 10 * MBIT
    with BarePair(Shape(rate_bps=rate, queue_bytes=20 * WIRE, offload=False)) as pair, receiver(pair) as sink:
        with pair.socket("a", socket.SOCK_DGRAM) as source:
            end = time.monotonic() + 1.0
            sent = 0
            while time.monotonic() < end:  # four times the rate: 40 Mbit/s
                source.sendto(bytes(1472), (ADDRESSES["b"], 5001))
                sent += 1
                time.sleep(WIRE * 8 / rate / 4)
        stamps = []
        sink.settimeout(0.5)
        while True:
            try:
                sink.recv(2000)
            except TimeoutError:
                break
            stamps.append(time.monotonic())
        forward = pair.relay.stats()[0]
    assert forward.drops_queue > sent / 4
    assert len(stamps) == forward.packets_out == sent - forward.drops_queue
    assert forward.drops_other == 0
    assert 19 * WIRE < forward.queue_bytes_peak <= 20 * WIRE
    assert forward.busy_ns * rate // 8_000_000_000 == pytest.approx(forward.wire_bytes_out, abs=WIRE)


def test_what_is_in_flight_does_not_fill_the_queue():
    # 100 ms at 10 Mbit/s hold 81 packets; the queue has room for four
    shape = Shape(delay_ns=100 * MS, rate_bps=10 * MBIT, queue_bytes=4 * WIRE, offload=False)
    with BarePair(shape) as pair, receiver(pair) as sink, pair.socket("a", socket.SOCK_DGRAM) as source:
        for number in range(80):
            source.sendto(number.to_bytes(1472, "big"), (ADDRESSES["b"], 5001))
            time.sleep(WIRE * 8 / (10 * MBIT) * 1.2)
        received = [int.from_bytes(sink.recv(2000), "big") for _ in range(80)]
        assert received == list(range(80))
        assert pair.relay.stats()[0].drops_queue == 0


# ---- content ----


@pytest.mark.parametrize(
    "shape",
    [
        Shape(delay_ns=1 * MS),
        Shape(offload=False),
        Shape(layer="ethernet"),
        Shape(layer="ethernet", offload=False, mtu=9000),
        Shape(delay_ns=1 * MS, rate_bps=500 * MBIT, queue_bytes=1 << 20),
    ],
    ids=["offload", "packets", "ethernet", "jumbo", "rate"],
)
def test_a_stream_arrives_as_it_was_sent(shape: Shape):
    payload = os.urandom(8 << 20)
    with BarePair(shape) as pair, pair.socket("b", socket.SOCK_STREAM) as listener:
        listener.bind((ADDRESSES["b"], 5002))
        listener.listen()
        with pair.socket("a", socket.SOCK_STREAM) as client:
            client.settimeout(20)
            client.connect((ADDRESSES["b"], 5002))
            server, _ = listener.accept()
            sender = threading.Thread(target=lambda: (client.sendall(payload), client.shutdown(socket.SHUT_WR)))
            sender.start()
            digest = hashlib.sha256()
            with server:
                server.settimeout(20)
                while chunk := server.recv(1 << 20):
                    digest.update(chunk)
            sender.join()
        assert digest.digest() == hashlib.sha256(payload).digest()
        assert all(stats.drops_malformed == stats.drops_write_bad == 0 for stats in pair.relay.stats())


def test_segmented_udp_arrives_as_the_datagrams_it_stands_for():
    with BarePair(Shape(delay_ns=1 * MS)) as pair, receiver(pair) as sink:
        with pair.socket("a", socket.SOCK_DGRAM) as source:
            source.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
            payload = os.urandom(10_500)
            source.sendto(payload, (ADDRESSES["b"], 5001))
        datagrams = [sink.recv(2000) for _ in range(11)]
        forward = pair.relay.stats()[0]
    assert [len(datagram) for datagram in datagrams] == 10 * [1000] + [500]
    assert b"".join(datagrams) == payload
    assert forward.packets_out >= 11


# ---- changes while packets flow ----


def test_changes_lose_and_reorder_nothing():
    shape = Shape(delay_ns=5 * MS, rate_bps=50 * MBIT, queue_bytes=8 << 20, offload=False)
    count = 4000
    with BarePair(shape) as pair, receiver(pair) as sink:

        def send() -> None:
            with pair.socket("a", socket.SOCK_DGRAM) as source:
                for number in range(count):
                    source.sendto(number.to_bytes(500, "big"), (ADDRESSES["b"], 5001))
                    time.sleep(0.0002)

        sender = threading.Thread(target=send)
        sender.start()
        for turn in range(20):
            delay_ns, rate_bps = (1 + 17 * turn % 10) * MS, (20 + 10 * (turn % 3)) * MBIT
            before = time.monotonic_ns()
            held_since = pair.relay.change("a>b", delay_ns=delay_ns, rate_bps=rate_bps)
            assert before <= held_since <= time.monotonic_ns()
            time.sleep(0.04)
        sender.join()
        received = [int.from_bytes(sink.recv(2000), "big") for _ in range(count)]
        assert received == list(range(count))
        assert pair.relay.stats()[0].drops_other == 0


def test_a_changed_delay_is_the_delay_of_the_next_packet():
    with BarePair(Shape(delay_ns=1 * MS)) as pair:
        pair.ping_ms(1)
        pair.relay.change("a>b", delay_ns=30 * MS)
        assert 31.0 <= min(pair.ping_ms(5)) <= 31.3
        pair.relay.change("a>b", delay_ns=3 * MS)
        assert 4.0 <= min(pair.ping_ms(5)) <= 4.3


def test_a_rate_falls_for_packets_that_already_wait():
    # 100 packets of 1538 wire bytes at 1 Mbit/s take 1.23 s; raised to 100 Mbit/s at once they are out in 13 ms
    shape = Shape(rate_bps=1 * MBIT, queue_bytes=1 << 20, offload=False)
    with BarePair(shape) as pair, receiver(pair) as sink, pair.socket("a", socket.SOCK_DGRAM) as source:
        started = time.monotonic()
        for _ in range(100):
            source.sendto(bytes(1472), (ADDRESSES["b"], 5001))
        pair.relay.change("a>b", rate_bps=100 * MBIT)
        for _ in range(100):
            sink.recv(2000)
        assert 0.012 <= time.monotonic() - started <= 0.6


def test_an_unknown_direction_or_quantity_cannot_change():
    with BarePair() as pair:
        with pytest.raises(NetlabError, match="directions are a>b, b>a"):
            pair.relay.change("a>c", delay_ns=1)
        with pytest.raises(NetlabError, match="what can change is delay_ns"):
            pair.relay.change("a>b", colour=1)
        with pytest.raises(NetlabError, match="rate_bps"):
            pair.relay.change("a>b", rate_bps=-1)


# ---- the process ----


def test_what_the_kernel_granted_is_what_is_reported():
    names = {"fifo": os.SCHED_FIFO, "nice": os.SCHED_OTHER, "normal": os.SCHED_OTHER}
    for realtime in (True, False):
        with BarePair(Shape(delay_ns=1 * MS), realtime=realtime) as pair:
            # by age: the main thread, one for each direction, the one that brings memory
            threads = sorted(int(entry.name) for entry in Path(f"/proc/{pair.relay.pid}/task").iterdir())[1:3]
            policies = [os.sched_getscheduler(thread) for thread in threads]
            assert policies == [names[pair.relay.scheduling(name)] for name in ("a>b", "b>a")]
            assert pair.relay.realtime == (policies == [os.SCHED_FIFO] * 2)
            assert realtime or not pair.relay.realtime


def test_a_direction_without_delay_or_rate_does_not_run_in_real_time():
    with BarePair() as pair:
        assert pair.relay.scheduling("a>b") in ("nice", "normal")
        pair.relay.change("a>b", delay_ns=1 * MS)
        granted = pair.relay.scheduling("a>b")
    with BarePair(Shape(delay_ns=1 * MS)) as pair:
        assert pair.relay.scheduling("a>b") == granted


def test_a_device_that_goes_away_ends_its_threads_and_is_named():
    with BarePair() as pair:
        assert pair.relay.alive()
        pair.run("a", ["ip", "link", "del", "wan0"])
        assert eventually(lambda: not pair.relay.alive())
        assert "a>b" in pair.relay.ended()
        pair.relay.stats()


def test_a_device_that_is_down_loses_packets_by_that_name_and_recovers():
    with BarePair(Shape(delay_ns=1 * MS)) as pair:
        pair.ping_ms(1)
        before = pair.relay.stats()[0].drops_write_down
        pair.run("b", ["ip", "link", "set", "wan0", "down"])
        with pair.socket("a", socket.SOCK_DGRAM) as source:
            source.sendto(b"lost", (ADDRESSES["b"], 5001))
        assert eventually(lambda: pair.relay.stats()[0].drops_write_down == before + 1)
        pair.run("b", ["ip", "link", "set", "wan0", "up"])
        assert 2.0 <= min(pair.ping_ms(3)) <= 2.3


def test_the_relay_dies_with_its_parent():
    program = (
        "import os, sys\n"
        "from netlab.links.relay import Relay, Direction\n"
        "from netlab.links.tun import open_tun\n"
        "from netlab.namespaces import unshare, CLONE_NEWNET\n"
        "unshare(CLONE_NEWNET, 'test')\n"
        "a, b = (open_tun(name, layer='ip', offload=True) for name in ('x0', 'x1'))\n"
        "relay = Relay.start([Direction('a>b', a, b, 0, 0, 0, 0, 38, 84)])\n"
        "print(relay.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}/comm").read_text() == "netlab-relay\n"
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_stopped_relay_leaves_no_process_and_keeps_its_counters():
    with BarePair() as pair:
        pair.ping_ms(3)
        relay = pair.relay
        relay.stop()
        relay.stop()
        assert not relay.alive()
        assert not Path(f"/proc/{relay.pid}").exists()
        assert relay.stats()[0].packets_out >= 4


def test_two_directions_of_one_name_are_refused():
    direction = Direction("x", 0, 1, 0, 0, 0, 0, 38, 84)
    with pytest.raises(NetlabError, match="two directions of one name"):
        Relay.start([direction, direction])


def test_a_name_too_long_for_an_interface_is_refused():
    with pytest.raises(NetlabError, match="1 to 15 bytes"):
        open_tun("a-name-of-16-byt", layer="ip", offload=True)
