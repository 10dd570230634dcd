"""Every packet's fate in a file, and packets themselves in another: held against counters, arithmetic, each other."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netlab import read_packets
from netlab.cli import main
from netlab.errors import PlanError, UserError
from netlab.lab import Lab
from netlab.packets import FATES, read_header
from netlab.profile import parse_profile

pytestmark = pytest.mark.lab

HEAD = "name: t\nsites: {a: {workers: 1}, b: {workers: 1}}\n"
LOSSY = HEAD + (
    "links: [{between: [a, b], rtt: 20ms, rate: 10mbit, queue: 20packets, loss: 10%, duplicate: 10%, corrupt: 5%}]\n"
)
FORWARD = "a-b:a.router>b.router"
SEND = (
    "import socket,sys,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
    "for n in range(int(sys.argv[1])):\n s.sendto(bytes(972),('b-0',9)); time.sleep(float(sys.argv[2]))\n"
)
PACKET_S = 1038 * 8 / 10e6  # 972 of payload, 28 of headers, 38 of framing, at 10 Mbit/s


def send(lab: Lab, count: int, gap_s: float) -> None:
    done = lab.exec("a-0", [sys.executable, "-c", SEND, str(count), str(gap_s)], timeout=60)
    assert done.returncode == 0, done.stderr


def start(text: str, path: Path, limit: int = 100_000) -> Lab:
    profile = parse_profile(text, "t.yaml")
    return Lab.start(profile, carrier="relay", packet_log=path, packet_log_limit=limit)


def test_the_log_agrees_with_the_counters_packet_by_packet(tmp_path):
    with start(LOSSY, tmp_path / "log") as lab:
        send(lab, 500, 0.0005)
        time.sleep(0.3)
        (stats,) = (each for each in lab.statistics() if each.name == FORWARD)
    table = read_packets(tmp_path / "log")
    table = table[table["direction"] == FORWARD]
    counts = table["fate"].value_counts().to_dict()
    assert counts["passed"] == stats.packets_out
    assert counts["loss"] == stats.drops_loss > 0
    assert counts["queue"] == stats.drops_queue > 0
    assert table["copy"].sum() == stats.copies > 0
    assert table.loc[table["fate"] == "passed", "corrupted"].sum() == stats.corrupted > 0
    assert len(table) == stats.packets_in + stats.copies
    assert sorted(set(table["number"])) == list(range(1, stats.packets_in + 1))


def test_each_passed_packet_took_the_time_that_the_model_says(tmp_path):
    quiet = HEAD + "links: [{between: [a, b], rtt: 20ms, rate: 10mbit}]\n"
    with start(quiet, tmp_path / "log") as lab:
        send(lab, 100, 0.003)
        time.sleep(0.1)
    table = read_packets(tmp_path / "log")
    mine = table[(table["direction"] == FORWARD) & (table["ip_bytes"] == 1000)]
    assert len(mine) == 100
    modelled = (mine["release_ns"] - mine["arrival_ns"]) / 1e9
    assert modelled.min() == pytest.approx(0.010 + PACKET_S, abs=1e-8)
    assert modelled.median() == pytest.approx(0.010 + PACKET_S, abs=1e-6)
    assert (mine["late_ns"] >= 0).all()
    assert mine["late_ns"].median() < 500_000
    assert set(mine["wire_bytes"]) == {1038}


def test_packets_under_way_when_the_lab_ends_are_in_the_log_too(tmp_path):
    with start(HEAD + "links: [{between: [a, b], rtt: 10s}]\n", tmp_path / "log") as lab:
        send(lab, 7, 0)
    table = read_packets(tmp_path / "log")
    assert (table[table["direction"] == FORWARD]["fate"] == "held").sum() == 7


def test_a_full_log_counts_what_it_leaves_out(tmp_path):
    with start(HEAD + "links: [{between: [a, b], rtt: 2ms}]\n", tmp_path / "log", limit=40) as lab:
        send(lab, 100, 0.0001)
        time.sleep(0.1)
        carried = sum(stats.packets_in for stats in lab.statistics())
    header = read_header(tmp_path / "log")
    assert len(read_packets(tmp_path / "log")) == header.records == 40
    assert header.left_out == carried - 40


def test_a_link_that_is_down_says_so_of_each_packet(tmp_path):
    with start(HEAD + "links: [{between: [a, b], rtt: 2ms, state: down}]\n", tmp_path / "log") as lab:
        send(lab, 5, 0)
        time.sleep(0.1)
    assert read_packets(tmp_path / "log")["fate"].value_counts()["down"] == 5


def test_a_killed_command_leaves_a_log_that_can_be_read(tmp_path):
    profile = tmp_path / "t.yaml"
    profile.write_text(HEAD + "links: [{between: [a, b], rtt: 2ms}]\n")
    argv = [sys.executable, "-m", "netlab.cli", "run", str(profile), "--no-verify", "--packet-log", str(tmp_path)]
    argv += ["--", sys.executable, "-c", SEND, "100000", "0.001"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, deadline = tmp_path / "packets.netlab", time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > 10_000) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    table = read_packets(path)
    assert len(table) >= 100
    assert set(table["fate"]) == {"passed"}


def test_netem_is_refused_and_auto_takes_the_relay_and_says_why(tmp_path):
    profile = parse_profile(HEAD + "links: [{between: [a, b], rtt: 2ms}]\n", "t.yaml")
    with pytest.raises(PlanError, match="netem keeps no record of single packets"):
        Lab.start(profile, carrier="netem", packet_log=tmp_path / "log")
    with Lab.start(profile, packet_log=tmp_path / "log") as lab:
        assert "carrier relay: the packet log needs it" in lab.choices


# --- capture ------------------------------------------------------------------------------------------------------


def blocks(data: bytes):
    """(kind, body) of each block of a pcapng file, an independent reading of draft-ietf-opsawg-pcapng."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("=II", data, at)
        assert size % 4 == 0
        assert struct.unpack_from("=I", data, at + size - 4)[0] == size
        yield kind, data[at + 8 : at + size - 4]
        at += size


def packets_of(path: Path) -> list[tuple[int, int, bool, int, bytes]]:
    """(interface, ns since 1970, outgoing, original length, data)."""
    found = []
    for kind, body in blocks(path.read_bytes()):
        if kind == 6:
            number, high, low, kept, length = struct.unpack_from("=IIIII", body)
            flags = struct.unpack_from("=HHI", body, 20 + kept + (-kept % 4))
            assert flags[:2] == (2, 4)
            found.append((number, high << 32 | low, flags[2] == 2, length, body[20 : 20 + kept]))
    return found


def test_a_capture_shows_each_packet_at_both_ends_with_the_delay_between_them(tmp_path):
    path = tmp_path / "wan.pcapng"
    with Lab.start(parse_profile(HEAD + "links: [{between: [a, b], rtt: 20ms}]\n", "t.yaml"), carrier="relay") as lab:
        before = time.time_ns()
        handle = lab.capture("a-b", path, snaplen=64)
        send(lab, 50, 0.002)
        time.sleep(0.1)
        found = lab.end_capture(handle)
        after = time.time_ns()
    kinds = [kind for kind, _ in blocks(path.read_bytes())]
    assert kinds[:3] == [0x0A0D0D0A, 1, 1]
    assert kinds[-2:] == [5, 5]
    seen = packets_of(path)
    assert (found.packets, found.left_out) == (len(seen), 0)
    mine = [packet for packet in seen if packet[3] == 1000]
    left = {data[4:6]: at for number, at, outgoing, _, data in mine if (number, outgoing) == (0, True)}
    arrived = {data[4:6]: at for number, at, outgoing, _, data in mine if (number, outgoing) == (1, False)}
    assert len(left) == 50
    assert left.keys() == arrived.keys()  # by the IP header's identification
    delays = sorted(arrived[key] - left[key] for key in left)
    assert 10_000_000 <= delays[25] <= 10_400_000
    assert all(before <= at <= after for _, at, _, _, _ in seen)
    assert all(len(data) == 64 and data[0] == 0x45 for _, _, _, _, data in mine)
    assert {socket.inet_ntoa(data[12:16]) for *_, data in mine} == {"10.1.0.2"}


def test_tcpdump_reads_a_capture_with_its_nanoseconds(tmp_path):
    if shutil.which("tcpdump") is None:
        pytest.skip("no tcpdump here (Debian: apt-get install tcpdump)")
    path = tmp_path / "wan.pcapng"
    with Lab.start(parse_profile(HEAD + "links: [{between: [a, b], rtt: 2ms}]\n", "t.yaml"), carrier="relay") as lab:
        handle = lab.capture("a-b", path)
        assert lab.exec("a-0", ["ping", "-c", "2", "-i", "0.05", "b-0"], timeout=20).returncode == 0
        assert lab.end_capture(handle).packets == 8
    # It drops its rights, and could then not read a file of ours.
    rights = ["-Z", "root"] if os.geteuid() == 0 else []
    argv = ["tcpdump", *rights, "-n", "-tt", "--nano", "-r", str(path)]
    lines = subprocess.run(argv, capture_output=True, check=True, timeout=30).stdout.decode().splitlines()
    assert len(lines) == 8
    assert sum("10.1.0.2 > 10.2.0.2: ICMP echo request" in line for line in lines) == 4
    times = [tuple(map(int, line.split()[0].split("."))) for line in lines]
    expected = sorted(packet[1] for packet in packets_of(path))
    assert sorted(seconds * 10**9 + rest for seconds, rest in times) == expected


def test_a_capture_that_reaches_its_limit_counts_the_rest(tmp_path):
    with Lab.start(parse_profile(HEAD + "links: [{between: [a, b], rtt: 2ms}]\n", "t.yaml"), carrier="relay") as lab:
        handle = lab.capture("a-b", tmp_path / "x", limit=10)
        send(lab, 30, 0.001)
        time.sleep(0.1)
        found = lab.end_capture(handle)
        at_both_ends = sum(stats.packets_in + stats.packets_out for stats in lab.statistics())
        assert at_both_ends >= 60
        assert (found.packets, found.left_out) == (10, at_both_ends - 10)
        with pytest.raises(UserError, match="not a link"):
            lab.capture("a-c", tmp_path / "y")
        with pytest.raises(UserError, match="20 to 262144 bytes"):
            lab.capture("a-b", tmp_path / "y", snaplen=1)


def test_run_writes_log_and_capture_and_says_what_is_in_them(tmp_path, capfd):
    profile = tmp_path / "t.yaml"
    profile.write_text(HEAD + "links: [{between: [a, b], rtt: 2ms}]\n")
    log, wan = tmp_path / "p.log", tmp_path / "wan.pcapng"
    argv = ["run", str(profile), "--no-verify", "--packet-log", str(log), "--capture", f"a-b={wan}", "--"]
    assert main([*argv, "ping", "-c", "3", "-i", "0.05", "b-0"]) == 0
    said = capfd.readouterr().err
    # a-0's 3 echoes and their 3 answers; b-0 pings itself. A capture sees each at both ends.
    assert f"packet log: 6 packets in {log}" in said
    assert f"capture: 12 packets in {wan}" in said
    assert main(["packets", str(log), "--head", "2"]) == 0
    shown = capfd.readouterr().out
    assert "passed after 1.0" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert main(["run", str(profile), "--capture", "a-b", "--", "true"]) == 2
    assert "LINK=FILE is wanted" in capfd.readouterr().err


def test_fates_are_all_named_once():
    assert len(set(FATES)) == len(FATES)
