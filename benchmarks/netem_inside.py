"""What bench_netem runs inside the user-mode kernel: ``python -m benchmarks.netem_inside OUT.json``.

Bulk TCP through the same lab on both carriers, and through a bare veth, in one kernel: payload rate, and processor time
of the whole machine (sender and receiver included) for each Gbit/s.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_relay import _busy_s
from netlab import Lab, parse_profile
from tests.netem import chain as net

PROFILE = "name: bulk\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 2ms}]\n"
ROUNDS = 3


def bulk(iperf: Callable[[], float]) -> tuple[float, float]:
    """Gbit/s of one transfer, and processor seconds per Gbit."""
    busy, began = _busy_s(), time.monotonic()
    gbits = iperf()
    return gbits, (_busy_s() - busy) / (time.monotonic() - began) / gbits


def in_lab(lab: Lab) -> float:
    """One cubic flow for 4 s, the first second left out."""
    server = threading.Thread(target=lab.exec, args=("b-0", ["iperf3", "-s", "-1"]), kwargs={"timeout": 60})
    server.start()
    time.sleep(1.0)
    argv = ["iperf3", "-c", lab.worker("b-0").address, "-t", "4", "-O", "1", "-C", "cubic", "-J"]
    printed = lab.exec("a-0", argv, timeout=60).stdout
    server.join()
    return float(json.loads(printed)["end"]["sum_received"]["bits_per_second"]) / 1e9


def main() -> None:
    """Take turns, and write what was found, by carrier."""
    found: dict[str, list[tuple[float, float]]] = {"veth": [], "netem": [], "relay": []}
    for _ in range(ROUNDS):
        with net.chain(2) as pair:
            found["veth"].append(bulk(lambda pair=pair: net.tcp_goodput(pair, 1.0, 4.0) / 1e9))  # type: ignore[misc]
        for carrier in ("netem", "relay"):
            with Lab.start(parse_profile(PROFILE, "bulk.yaml"), carrier=carrier) as lab:
                found[carrier].append(bulk(lambda lab=lab: in_lab(lab)))  # type: ignore[misc]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
