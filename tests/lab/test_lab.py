"""What a program finds in a lab: names, addresses, TCP settings, the launcher's environment, and the links as asked."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

import pytest

from netlab import Lab, UserError, parse_profile

pytestmark = pytest.mark.lab


def text_of(lab: Lab, worker: str, *argv: str) -> str:
    done = lab.exec(worker, argv, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_worker_s_own_names_lead_to_its_lab_address(lab: Lab) -> None:
    code = "import socket as s; print(s.gethostbyname(s.gethostname()), s.gethostbyname(s.getfqdn()))"
    assert text_of(lab, "a-0", sys.executable, "-c", code).split() == ["10.1.0.2"] * 2
    assert text_of(lab, "b-0", sys.executable, "-c", code).split() == ["10.2.0.2"] * 2


def test_workers_reach_each_other_by_name_after_the_asked_round_trip(lab: Lab) -> None:
    printed = text_of(lab, "a-0", "ping", "-c", "20", "-i", "0.05", "-q", "b-0")
    found = re.search(r"= ([\d.]+)/([\d.]+)/", printed)
    assert found is not None, printed
    assert "20 received" in printed
    # 20 ms and twice the 9.76 us that 122 wire bytes take at 100 Mbit/s; never early, and not two milliseconds late.
    assert 20.0195 <= float(found[1]) <= float(found[2]) <= 22.0


def test_the_environment_is_what_training_launchers_set(lab: Lab) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_HOSTID", "NETLAB_SITE")
    printed = text_of(lab, "b-0", sys.executable, "-c", f"import os; print(*(os.environ[n] for n in {names!r}))")
    assert printed.split() == ["1", "2", "0", "10.1.0.2", "eth0", "b-0", "b"]


def test_a_worker_sees_its_own_devices_only(lab: Lab) -> None:
    assert set(text_of(lab, "a-0", "ls", "/sys/class/net").split()) == {"lo", "eth0"}


def test_nothing_leads_out_of_the_lab(lab: Lab) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 9), timeout=3)"
    done = lab.exec("a-0", [sys.executable, "-c", code], timeout=30)
    assert done.returncode != 0
    assert b"unreachable" in done.stderr.lower() or b"no route" in done.stderr.lower()


def test_the_host_s_interfaces_and_mounts_are_as_before() -> None:
    def seen() -> tuple[str, str, str]:
        return (
            Path("/proc/net/dev").read_text().count(":"),
            Path("/proc/mounts").read_text(),
            Path("/etc/hosts").read_text(),
        )

    before = seen()
    with Lab.start("grid5000-nancy-sophia"):
        assert seen() == before
    assert seen() == before


@pytest.mark.parametrize("algorithm", Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())
def test_tcp_settings_of_the_profile_really_hold_on_a_connection(algorithm: str) -> None:
    # A kernel lets a namespace set only some algorithms by sysctl; the others must reach the connection by the route.
    text = (
        "name: tcp\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 2ms, rate: 100mbit}]\n"
        f"tcp: {{congestion_control: {algorithm}, slow_start_after_idle: false,\n"
        "      rmem: [4096B, 65536B, 123456B], wmem: [4096B, 16384B, 234567B]}\n"
    )
    server = (
        "import socket as s; k = s.create_server(('', 7000)); c, _ = k.accept();"
        "print(c.getsockopt(6, 13, 16).rstrip(b'\\0').decode()); c.recv(1)"
    )
    client = (
        "import socket as s, time\n"
        "for _ in range(100):\n"
        "    try: c = s.create_connection(('a-0', 7000)); break\n"
        "    except OSError: time.sleep(0.05)\n"
        "print(c.getsockopt(6, 13, 16).rstrip(b'\\0').decode(), c.getpeername()[0])\n"
        "for key in ('tcp_rmem', 'tcp_wmem', 'tcp_slow_start_after_idle'):\n"
        "    print(*open('/proc/sys/net/ipv4/' + key).read().split())"
    )
    printed: dict[str, bytes] = {"a-0": b"", "b-0": b""}

    def collect(worker: str, data: bytes) -> None:
        printed[worker] += data

    with Lab.start(parse_profile(text, "tcp.yaml")) as lab:
        code = f"import os; exec({server!r} if os.environ['RANK'] == '0' else {client!r})"
        result = lab.run([sys.executable, "-c", code], output=collect, timeout=30)
    assert result.ok, (result.describe(), printed)
    assert printed["a-0"].decode().split() == [algorithm]
    assert printed["b-0"].decode().splitlines() == [
        f"{algorithm} 10.1.0.2",
        "4096 65536 123456",
        "4096 16384 234567",
        "0",
    ]


def test_workers_of_a_site_share_its_uplink() -> None:
    text = (
        "name: shared\n"
        "sites: {a: {workers: 2, uplink: {rate: 50mbit}}, b: {workers: 1}, c: {workers: 1}}\n"
        "links: [{between: [a, b], rtt: 4ms, rate: 1gbit}, {between: [a, c], rtt: 4ms, rate: 1gbit}]\n"
    )
    code = (
        "import os, sys; from netlab import probe; rank = int(os.environ['RANK'])\n"
        "if rank < 2: print(probe.flood(['10.2.0.2', '10.3.0.2'][rank], 9, 1500, 60_000_000, 1.0, 60))\n"
        "else: s = probe.sink(9, 1.6, 0.01)['samples']; print(s[-1][1])"
    )
    counts: dict[str, bytes] = {}

    def collect(worker: str, data: bytes) -> None:
        counts[worker] = counts.get(worker, b"") + data

    with Lab.start(parse_profile(text, "shared.yaml")) as lab:
        result = lab.run([sys.executable, "-c", code], output=collect, timeout=60)
    assert result.ok, (result.describe(), counts)
    arrived = [int(counts[name].split()[-1]) for name in ("b-0", "c-0")]
    # Two floods of 60 Mbit/s into one 50 Mbit/s port for a second: 50e6 / (1538 * 8) datagrams, and the queue's.
    assert 0.95 <= sum(arrived) / 4064 <= 1.12
    assert min(arrived) > 0


def test_a_verified_lab_reports_every_direction_within_bounds(lab: Lab) -> None:
    verification = lab.verify("quick")
    assert verification.ok, verification.describe()
    assert [(row.direction, row.quantity) for row in verification.links] == [
        ("round trip", "rtt"),
        ("a-0>b-0", "rate"),
        ("b-0>a-0", "rate"),
    ]


def test_verification_fails_when_the_network_is_not_the_one_asked_for() -> None:
    text = "name: v\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 20ms, rate: 50mbit}]\n"
    asked = parse_profile(text.replace("20ms", "30ms").replace("50mbit", "60mbit"), "v.yaml")
    with Lab.start(parse_profile(text, "v.yaml")) as lab:
        from netlab import plan, topology

        lab.plan = plan.make(topology.build(asked), lab.carrier)
        verification = lab.verify("quick")
    assert [row.ok for row in verification.links] == [False, False, False]
    achieved = [row.achieved or 0.0 for row in verification.links]
    assert 20.0 <= achieved[0] <= 21.0
    assert all(48.5 <= rate <= 51.5 for rate in achieved[1:])


def test_a_queue_of_two_packets_is_not_taken_for_a_slower_link() -> None:
    text = "name: q\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 1ms, rate: 20mbit}]\n"
    profile = parse_profile(text, "q.yaml")
    assert profile.links[0].forward.queue.bytes == 2 * 1538  # one bandwidth-delay product would be 2500
    with Lab.start(profile) as lab:
        found = lab.verify("quick")
        assert found.ok, found.rows


def test_a_link_slower_than_its_packets_still_carries_them() -> None:
    text = "name: s\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 20ms, rate: 64kbit}]\n"
    with Lab.start(parse_profile(text, "s.yaml")) as lab:
        (joint,) = lab.topology.joints
        assert joint.forward.queue is not None
        assert (joint.forward.queue.bytes or 0) >= 1538
        verification = lab.verify("quick")
        assert verification.ok, verification.describe()
        # 20 ms and twice 122 wire bytes (56 of payload, 28 of ICMP and IP, 38 of Ethernet) at 64 kbit/s: 15.25 ms each
        assert verification.links[0].asked == pytest.approx(50.5)
        assert 50.4 <= (verification.links[0].achieved or 0) <= 51.5
        code = (
            "import os, socket as s, time\n"
            "if os.environ['RANK'] == '0':\n"
            "    k = s.create_server(('', 7000)); c, _ = k.accept(); got = 0; first = None\n"
            "    while d := c.recv(65536):\n"
            "        got += len(d); first = first or (time.monotonic(), got)\n"
            "    print((got - first[1]) * 8 / (time.monotonic() - first[0]))\n"
            "else:\n"
            "    time.sleep(0.3); c = s.create_connection(('a-0', 7000)); c.sendall(bytes(60_000))\n"
        )
        printed = bytearray()
        result = lab.run([sys.executable, "-c", code], output=lambda _, data: printed.extend(data), timeout=60)
    assert result.ok, result.describe()
    # TCP payload of full frames: 1448 of 1538 bytes of 64 kbit/s is 60.3 kbit/s
    assert 57_000 <= float(printed) <= 61_500


def test_an_unknown_worker_is_refused_with_the_known_ones(lab: Lab) -> None:
    with pytest.raises(UserError, match="a-0, b-0"):
        lab.environment("c-0")


def test_long_site_names_of_one_beginning_stay_apart() -> None:
    north, south = "datacenter-paris-north", "datacenter-paris-south"
    text = (
        f"name: long\nsites: {{{north}: {{workers: 12}}, {south}: {{workers: 12}}}}\n"
        f"links: [{{between: [{north}, {south}], rtt: 2ms, rate: 100mbit}}]\n"
    )
    with Lab.start(parse_profile(text, "long.yaml")) as lab:
        names = [worker.name for worker in lab.workers]
        assert len(set(names)) == 24
        code = f"import socket; print(len({{socket.gethostbyname(n) for n in {names!r}}}))"
        printed = dict.fromkeys(names, b"")
        result = lab.run(
            [sys.executable, "-c", code],
            output=lambda worker, data: printed.update({worker: printed[worker] + data}),
            timeout=60,
        )
        assert result.ok, result.describe()
        assert set(printed.values()) == {b"24\n"}
        assert lab.verify("rtt").ok


def test_traffic_counts_what_crossed_the_link(lab: Lab) -> None:
    before = lab.traffic()
    text_of(lab, "a-0", "ping", "-c", "10", "-i", "0.02", "-s", "1000", "-q", "b-0")
    after = lab.traffic()
    for direction in before:
        crossed = after[direction]["bytes_out"] - before[direction]["bytes_out"]
        assert 10 * 1028 <= crossed <= 10 * 1028 + 500


def test_an_idle_lab_s_packets_leave_on_time(lab: Lab) -> None:
    mark = lab.mark()
    text_of(lab, "a-0", "ping", "-c", "50", "-i", "0.01", "-q", "b-0")
    health = lab.health(mark)
    assert health.valid, health.reasons
    medians = [direction.lateness_p50_us or 0 for direction in health.directions]
    assert 0 < statistics.mean(medians) < 500
