"""The process group of a rank: rendezvous, gloo's connections, time limits.

Flow: worker -> `open_group` -> `collectives.Collectives`. gloo opens one TCP connection per pair of ranks and
*context*, keeps about two 1 MiB segments in flight per operation, and runs as many operations at once as it
has threads (two per context). One operation on one connection therefore cannot fill a fast link with a long
RTT; several on several can. Naming an interface N times in GLOO_SOCKET_IFNAME gives N contexts and 2 N
threads. Every strategy runs on the same group, so none has better connections than another.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from cpdp.errors import CellError, PeerLost

INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Transport:
    """How a rank reaches the others. `timeout_s` bounds the rendezvous and every single collective."""

    contexts: int = 4
    timeout_s: float = 120.0
    backend: str = "gloo"
    init_method: str = "env://"


def interface_list(value: str, contexts: int) -> str:
    """The interface of GLOO_SOCKET_IFNAME named once per context. Raises CellError for more than one
    interface.
    """
    interfaces = {name.strip() for name in value.split(",") if name.strip()}
    if len(interfaces) != 1:
        raise CellError(f"{INTERFACE}={value!r}: expected one interface, such as eth0")
    if contexts < 1:
        raise CellError(f"gloo_contexts: {contexts} is not allowed; a whole number from 1")
    return ",".join([interfaces.pop()] * contexts)


@contextmanager
def open_group(transport: Transport, rank: int, world: int) -> Iterator[None]:
    """Join the process group for the length of the block.

    Raises PeerLost when the others do not appear in time, CellError when the interface is not known. On the
    way out after an error the group is left to the operating system: its destructor would wait for peers that
    are gone.
    """
    if transport.backend == "gloo":
        os.environ[INTERFACE] = interface_list(os.environ.get(INTERFACE, ""), transport.contexts)
    try:
        dist.init_process_group(
            transport.backend,
            init_method=transport.init_method,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=transport.timeout_s),
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise PeerLost(
            f"rank {rank}: rendezvous of {world} ranks through {_meeting_point(transport)} failed within "
            f"{transport.timeout_s:g} s: {first_line(error)}"
        ) from error
    yield
    dist.destroy_process_group()


def _meeting_point(transport: Transport) -> str:
    if transport.init_method != "env://":
        return transport.init_method
    return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"


_SOURCE = re.compile(r"^\[[^\]]*:[0-9]+\]\s*")
_ADVICE = re.compile(r"\s*This is typically caused by.*")
_ADDRESS = re.compile(r"\[([0-9A-Fa-f.:]+)\]:[0-9]+")
_NETWORK = re.compile(
    r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|Timed out waiting|Application timeout|Socket", re.I
)


def is_network_failure(error: BaseException) -> bool:
    """Whether an error that torch raised speaks of the network, not of the program: gloo raises plain RuntimeError."""
    return isinstance(error, dist.DistError) or bool(_NETWORK.search(str(error)))


def first_line(error: BaseException) -> str:
    """What an error says in its first line, without gloo's file name and advice, and with the peer's name if known.

    torch appends C++ stack traces to its own errors.
    """
    lines = str(error).strip().splitlines()
    text = _ADVICE.sub("", _SOURCE.sub("", lines[0])) if lines else type(error).__name__
    return _ADDRESS.sub(lambda found: _name_of(found[1]), text)


def _name_of(address: str) -> str:
    try:
        return f"{socket.gethostbyaddr(address)[0]} [{address}]"
    except OSError:
        return f"[{address}]"
