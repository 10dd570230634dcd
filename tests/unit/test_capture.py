"""The pcapng files that a capture writes: blocks as the format asks for them, and tcpdump reads them."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess

import pytest

from netlab.links.capture import Tap, interface_block, packet_block, run, section, statistics_block

AT_NS = 1_700_000_000_123_456_789
ECHO = bytes.fromhex("4500001c0001000040010000" + "0a010002" + "0a020002" + "0800f7ff00000000")


def test_every_block_is_whole_words_and_says_its_size_at_both_ends():
    blocks = [section("x"), interface_block("a.router/wan-0", 64), packet_block(0, AT_NS, b"abc", 3, True)]
    for block in (*blocks, statistics_block(0, AT_NS, 5, 1)):
        size = struct.unpack_from("=I", block, 4)[0]
        assert size == len(block) == struct.unpack_from("=I", block, len(block) - 4)[0]
        assert size % 4 == 0


def test_a_packet_has_its_time_in_nanoseconds_its_full_length_and_its_direction():
    block = packet_block(1, AT_NS, b"abcde", 1000, outgoing=False)
    kind, _, number, high, low, kept, length = struct.unpack_from("=IIIIIII", block)
    assert (kind, number, high << 32 | low, kept, length) == (6, 1, AT_NS, 5, 1000)
    assert block[28:36] == b"abcde\0\0\0"
    assert struct.unpack_from("=HHI", block, 36) == (2, 4, 1)


def test_tcpdump_reads_packets_of_two_interfaces(tmp_path):
    if shutil.which("tcpdump") is None:
        pytest.skip("no tcpdump here (Debian: apt-get install tcpdump)")
    path = tmp_path / "x.pcapng"
    packets = [packet_block(0, AT_NS, ECHO, 28, True), packet_block(1, AT_NS + 10**7, ECHO, 28, False)]
    ends = [interface_block(name, 128) for name in ("a.router/wan-0", "b.router/wan-0")]
    path.write_bytes(b"".join([section("netlab"), *ends, *packets, statistics_block(0, AT_NS, 1, 0)]))
    rights = ["-Z", "root"] if os.geteuid() == 0 else []  # without them it could not read a file of ours
    argv = ["tcpdump", *rights, "-n", "-tt", "--nano", "-r", str(path)]
    lines = subprocess.run(argv, capture_output=True, check=True, timeout=30).stdout.decode().splitlines()
    assert [line.split(" IP ")[0] for line in lines] == ["1700000000.123456789", "1700000000.133456789"]
    assert all("10.1.0.2 > 10.2.0.2: ICMP echo request" in line for line in lines)


class Fake:
    """A packet socket that has so many packets, and lost so many before."""

    def __init__(self, count: int, lost: int = 0, protocol: int = 0x0800) -> None:
        self.count, self._lost, self.protocol = count, lost, protocol
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def recvmsg_into(self, buffers, _space, _flags):
        if not self.count:
            raise BlockingIOError
        self.count -= 1
        buffers[0][: len(ECHO)] = ECHO
        seconds, rest = divmod(AT_NS, 10**9)
        return len(ECHO), [(socket.SOL_SOCKET, 35, struct.pack("=qq", seconds, rest))], 0, ("x", self.protocol, 4)

    def getsockopt(self, *_):
        found, self._lost = self._lost, 0
        return struct.pack("=II", 0, found)


def test_what_is_over_the_limit_or_was_lost_by_the_kernel_is_counted(tmp_path):
    taps = [Tap(0, Fake(5)), Tap(1, Fake(10, lost=3))]
    read, write = os.pipe()
    os.write(write, b"x")
    for tap in taps:
        os.write(tap.sock._write, b"x")
    # An emptied Fake stays readable as a pipe; a socket would not: empty the pipes with the first look.
    take = Tap.take

    def once(self, buffer, room):
        os.read(self.sock._read, 1)
        return take(self, buffer, room)

    with pytest.MonkeyPatch.context() as patch, (tmp_path / "x").open("wb") as out:
        patch.setattr(Tap, "take", once)
        assert run(out, taps, 64, 7, read) == (7, 8 + 3)


def test_frames_that_are_not_ipv4_are_passed_over():
    tap = Tap(0, Fake(4, protocol=0x0806))
    assert tap.take(bytearray(64), 100) == ([], 0)
    assert (tap.written, tap.over) == (0, 0)
