"""Measures a path from inside a namespace: ``python -m netlab.probe rtt|flood|sink|train|hear|echo ...``; prints JSON.

Run by ``netlab.verify`` in the lab. Standard library only and nothing from the rest of netlab, so that it starts
quickly.

The rate is measured with a UDP overload: what arrives is counted by the kernel (datagrams that find the receiver's
small buffer full), so a slow receiving program cannot lower the figure, nor can TCP's own start-up.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import struct
import sys
import time
from pathlib import Path

_ECHO_REQUEST = 8
_ICMP_HEADER = struct.Struct("!BBHHH")
_UDP_SEGMENT = 103
_SO_TIMESTAMPNS = 35
_TRAIN = struct.Struct("!Qq")


def rtt(address: str, count: int, interval_s: float, payload: int, wait_s: float) -> dict[str, object]:
    """Round trips of ``count`` ICMP echoes of ``payload`` bytes, in ns; ``None`` for a lost one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.connect((address, 0))
        sent: dict[int, int] = {}
        seen: dict[int, int] = {}
        start = time.monotonic()
        for number in range(count):
            _receive_until(sock, start + number * interval_s, sent, seen)
            sent[number] = time.monotonic_ns()
            sock.send(_ICMP_HEADER.pack(_ECHO_REQUEST, 0, 0, 0, number) + bytes(payload))
        deadline = time.monotonic() + wait_s
        while len(seen) < count and time.monotonic() < deadline:
            _receive_until(sock, min(deadline, time.monotonic() + 0.05), sent, seen)
    return {"rtt_ns": [seen.get(number) for number in range(count)]}


def _receive_until(sock: socket.socket, moment: float, sent: dict[int, int], seen: dict[int, int]) -> None:
    while (left := moment - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            reply = sock.recv(65535)
        except TimeoutError:
            return
        number = _ICMP_HEADER.unpack_from(reply)[4]
        if number in sent and number not in seen:
            seen[number] = time.monotonic_ns() - sent[number]


def flood(address: str, port: int, ip_bytes: int, rate_bps: int, seconds: float, burst: int) -> dict[str, object]:
    """Send UDP datagrams of ``ip_bytes`` (IP header included) at ``rate_bps`` of IP bytes, at most ``burst`` of them at
    once; returns how many left.
    """
    payload = ip_bytes - 28
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        sock.connect((address, port))
        batch = _batch(sock, payload, rate_bps, burst)
        chunk = bytes(payload * batch)
        step = ip_bytes * batch * 8 / rate_bps
        start = time.monotonic()
        number = 0
        while (now := time.monotonic()) < start + seconds:
            due = start + number * step
            if due > now:
                time.sleep(due - now)
            try:
                sock.send(chunk)
            except (ConnectionRefusedError, OSError):
                pass  # nobody listens yet, or a full device queue: both show in what arrives
            number += 1
    return {"sent": number * batch, "end": time.monotonic()}


def _batch(sock: socket.socket, payload: int, rate_bps: int, burst: int) -> int:
    """Datagrams per send: one below 20 Mbit/s, else a UDP-GSO unit of about 2 ms, of at most 64 KB and 60 segments."""
    if rate_bps < 20_000_000 or burst == 1:
        return 1
    try:
        sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, payload)
    except OSError:
        return 1
    return max(1, min(60, burst, 65_000 // payload, rate_bps // 8 // 500 // payload))


def sink(port: int, seconds: float, interval_s: float) -> dict[str, object]:
    """Count datagrams that arrive on ``port``: samples of (monotonic s, datagrams so far)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        sock.bind(("0.0.0.0", port))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        start = time.monotonic()
        first = _dropped()
        samples = []
        while (now := time.monotonic()) < start + seconds:
            samples.append((now, _dropped() - first))
            time.sleep(interval_s)
    return {"samples": samples}


def train(address: str, port: int, count: int, interval_s: float, ip_bytes: int) -> dict[str, object]:
    """Send ``count`` numbered, time-stamped datagrams, one every ``interval_s``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        padding = bytes(ip_bytes - 28 - _TRAIN.size)
        start = time.monotonic()
        for number in range(count):
            due = start + number * interval_s
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            sock.sendto(_TRAIN.pack(number, time.monotonic_ns()) + padding, (address, port))
    return {"sent": count}


def hear(port: int, patience_s: float, quiet_s: float) -> dict[str, object]:
    """What arrives of a train, until it stays quiet: (number, one-way delay in ns) in the order of arrival.

    Waits ``patience_s`` for the first, so that it does not matter how long the sender takes to start.
    """
    arrived = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sock.bind(("0.0.0.0", port))
        # The kernel stamps arrivals with the wall clock, which here is at a fixed offset from the monotonic one.
        offset = time.time_ns() - time.monotonic_ns()
        sock.settimeout(patience_s)
        while True:
            try:
                data, extra, _, _ = sock.recvmsg(2048, 64)
            except TimeoutError:
                break
            sock.settimeout(quiet_s)
            number, sent = _TRAIN.unpack_from(data)
            seconds_ns, rest = struct.unpack("qq", extra[0][2])
            arrived.append((number, seconds_ns * 1_000_000_000 + rest - offset - sent))
    return {"arrived": arrived}


def echo(interval_s: float, addresses: list[str]) -> None:
    """Send an echo to each address every ``interval_s`` and print, each time, the newest round trip of each in ns, as a
    line of JSON, until nobody reads it; null where no answer came.
    """
    found: dict[str, int | None] = dict.fromkeys(addresses)
    sent: dict[tuple[str, int], int] = {}
    with selectors.DefaultSelector() as ready:
        for address in addresses:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
            sock.connect((address, 0))
            ready.register(sock, selectors.EVENT_READ, address)
        start = time.monotonic()
        for number in itertools.count():
            sent = {key: at for key, at in sent.items() if number - key[1] < 10_000}
            for key in list(ready.get_map().values()):
                sent[key.data, number % 65536] = time.monotonic_ns()
                with contextlib.suppress(OSError):  # the far end is not there at the moment
                    key.fileobj.send(_ICMP_HEADER.pack(_ECHO_REQUEST, 0, 0, 0, number % 65536) + bytes(56))  # type: ignore[union-attr]
            _answers(ready, start + (number + 1) * interval_s, sent, found)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
            found = dict.fromkeys(addresses)


def _answers(
    ready: selectors.BaseSelector, moment: float, sent: dict[tuple[str, int], int], found: dict[str, int | None]
) -> None:
    """Note every answer that comes before ``moment``, also to echoes of earlier rounds."""
    while (left := moment - time.monotonic()) > 0:
        for key, _ in ready.select(left):
            try:
                reply = key.fileobj.recv(2048)  # type: ignore[union-attr]
            except OSError:
                continue
            began = sent.pop((key.data, _ICMP_HEADER.unpack_from(reply)[4]), None)
            if began is not None:
                found[key.data] = time.monotonic_ns() - began


def _dropped() -> int:
    """UDP datagrams that this namespace could not queue, so far."""
    rows = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Udp:")]
    return int(dict(zip(rows[0], rows[1], strict=True))["RcvbufErrors"])


def main(arguments: list[str]) -> int:
    """Entry of ``python -m netlab.probe``."""
    kind, rest = arguments[0], arguments[1:]
    if kind == "echo":
        with contextlib.suppress(BrokenPipeError):
            echo(float(rest[0]), rest[1:])
        return 0
    if kind == "rtt":
        result = rtt(rest[0], int(rest[1]), float(rest[2]), int(rest[3]), float(rest[4]))
    elif kind == "flood":
        result = flood(rest[0], int(rest[1]), int(rest[2]), int(rest[3]), float(rest[4]), int(rest[5]))
    elif kind == "train":
        result = train(rest[0], int(rest[1]), int(rest[2]), float(rest[3]), int(rest[4]))
    elif kind == "hear":
        result = hear(int(rest[0]), float(rest[1]), float(rest[2]))
    else:
        result = sink(int(rest[0]), float(rest[1]), float(rest[2]))
    json.dump(result, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skips interpreter teardown: a probe's end should not cost the next one its start
