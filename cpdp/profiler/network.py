"""What a run knows of its network: the ways between workers over time, and counters joined to steps. Reads files.

launches/NAME.json holds what the lab said when the command started; paths.jsonl, written by `record`, what it became
later; network/NAME.jsonl the interface's and TCP's counters. Outside a lab the round trip comes from TCP's own smallest
measurement, and no rate is known.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpdp import jsonfile
from cpdp.profiler.columns import Ints, RankLog
from cpdp.profiler.split import Changing, Path
from cpdp.rundir import RunDir
from netlab import Lab

LAB, TCP = "the lab's profile", "TCP's smallest round trip"


@dataclass(frozen=True)
class Counters:
    """A worker's samples: bytes received and sent on its WAN-side interfaces, smoothed RTT and retransmits of TCP."""

    times: Ints
    received: Ints
    sent: Ints
    tcp_times: Ints
    rtt_us: NDArray[np.float64]
    min_rtt_us: NDArray[np.float64]
    retransmits: Ints
    delivery_rate: NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """All of it."""

    launches: Mapping[str, Mapping[str, Any]]
    changes: tuple[tuple[int, Mapping[str, Any]], ...]
    counters: Mapping[str, Counters]


def paths_of(lab: Lab) -> dict[str, dict[str, dict[str, float | None]]]:
    """Worker -> other worker -> round trip and payload rate, as the links are at this moment."""
    return {worker.name: lab.paths(worker.name) for worker in lab.workers}


def record(run: File, lab: Lab) -> None:
    """Note the present state of the lab's links in a run's folder; call it after every change."""
    line = {"t": time.monotonic_ns(), "paths": paths_of(lab)}
    fd = os.open(run / "paths.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


def read(run: RunDir) -> Network:
    """Everything a run's folder says of its network."""
    launches = {path.stem: jsonfile.read(path) for path in sorted((run.path / "launches").glob("*.json"))}
    changes = tuple((int(line["t"]), line["paths"]) for line in _lines(run.path / "paths.jsonl"))
    counters = {name: read_counters(run.path / "network" / f"{name}.jsonl") for name in launches}
    return Network(launches, changes, {name: found for name, found in counters.items() if found is not None})


def shifted(network: Network, offsets: Mapping[str, float]) -> Network:
    """The same with every launch's counters on the clock onto which its ranks' times were brought."""
    counters = {
        name: replace(found, times=found.times + round(by), tcp_times=found.tcp_times + round(by))
        if (by := offsets.get(name))
        else found
        for name, found in network.counters.items()
    }
    return replace(network, counters=counters)


def _lines(path: File) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield jsonfile.parse(line, path)


def read_counters(path: File) -> Counters | None:
    """One worker's samples; None when there are none."""
    samples = list(_lines(path))
    if not samples:
        return None
    wan = [[counts for name, counts in sample["dev"].items() if name != "lo"] for sample in samples]
    asked = [sample for sample in samples if sample.get("tcp")]
    values = [np.array([one[2:] for one in sample["tcp"]], dtype=np.float64) for sample in asked]
    busiest = [value[np.argmax(value[:, 4] + value[:, 5])] for value in values]
    table = np.array(busiest) if busiest else np.zeros((0, 7))
    return Counters(
        times=np.array([sample["t"] for sample in samples], dtype=np.int64),
        received=np.array([sum(counts[0] for counts in sample) for sample in wan], dtype=np.int64),
        sent=np.array([sum(counts[1] for counts in sample) for sample in wan], dtype=np.int64),
        tcp_times=np.array([sample["t"] for sample in asked], dtype=np.int64),
        rtt_us=table[:, 0],
        min_rtt_us=np.array([value[:, 1][value[:, 1] > 0].min(initial=np.inf) for value in values]),
        retransmits=np.array([value[:, 3].sum() for value in values], dtype=np.int64),
        delivery_rate=table[:, 6],
    )


def paths_for(log: RankLog, logs: Sequence[RankLog], network: Network) -> tuple[dict[str, Changing], str | None]:
    """What is known of the way between the members of each of a rank's groups, and where from."""
    place = {other.rank: str(other.start.get("launch")) for other in logs}
    worker = {name: str(launch.get("worker")) for name, launch in network.launches.items()}
    here = place[log.rank]
    found: dict[str, Changing] = {}
    source = None
    for group in log.groups.values():
        others = sorted({place[rank] for rank in group["ranks"] if rank in place} - {here})
        if not others:
            continue
        changing, source = _changing(here, others, worker, network)
        if changing is not None:
            found[str(group["name"])] = changing
    return found, source


def _changing(
    here: str, others: Sequence[str], worker: Mapping[str, str], network: Network
) -> tuple[Changing | None, str | None]:
    targets = [worker.get(other, other) for other in others]
    states = [(0, network.launches.get(here, {}).get("paths") or {})]
    states += [(t, paths.get(worker.get(here, here), {})) for t, paths in network.changes]
    known = [(t, _worst([state[name] for name in targets if name in state])) for t, state in states if state]
    if known:
        return Changing(tuple(t for t, _ in known), tuple(path for _, path in known)), LAB
    counters = network.counters.get(here)
    if counters is not None and len(counters.min_rtt_us) and np.isfinite(counters.min_rtt_us.min()):
        return Changing(paths=(Path(rtt_ns=float(counters.min_rtt_us.min()) * 1e3),)), TCP
    return None, None


def _worst(ways: Sequence[Mapping[str, Any]]) -> Path:
    """The longest round trip and the lowest rate: a collective waits for its slowest member."""
    trips = [way["rtt_ns"] for way in ways if way.get("rtt_ns") is not None]
    rates = [way["bytes_per_s"] for way in ways if way.get("bytes_per_s") is not None]
    return Path(max(trips, default=None), min(rates, default=None))


def at(times: Ints, values: Any, moments: Ints) -> NDArray[np.float64]:
    """A counter at some moments; NaN outside its samples."""
    if len(times) < 2:
        return np.full(len(moments), np.nan)
    found: NDArray[np.float64] = np.interp(moments, times, values, left=np.nan, right=np.nan)
    return found
