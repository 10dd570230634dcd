"""What a worker's program finds in its environment: what training launchers set, and what it is told of the network.

Pure; ``Lab.environment`` adds the caller's own variables below and above.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from netlab.impairment import Impairment
from netlab.plan import MASTER_PORT, Plan
from netlab.topology import Topology, Worker

Way = dict[str, float | None]
"""A way there and back: ``rtt_ns``, and ``bytes_per_s`` of TCP payload on its slowest link (None: no rate limit)."""


def of_worker(plan: Plan, worker: Worker, state: Mapping[str, Impairment]) -> dict[str, str]:
    """The variables that netlab sets for a worker; ``state`` is what each direction does now."""
    workers = plan.topology.workers
    return {
        "RANK": str(worker.rank),
        "WORLD_SIZE": str(len(workers)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": workers[0].address,
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": worker.interface,
        # All workers run on one machine: without these NCCL would find that out and bypass the emulated link.
        "NCCL_SOCKET_IFNAME": worker.interface,
        "NCCL_HOSTID": worker.name,
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "Socket",
        "NETLAB_LAB": plan.topology.profile.name,
        "NETLAB_WORKER": worker.name,
        "NETLAB_SITE": worker.site,
        "NETLAB_CARRIER": plan.carrier,
        "NETLAB_WORKERS": str(len(workers)),
        "NETLAB_PATHS": json.dumps(paths(plan.topology, worker.name, state)),
    }


def paths(topology: Topology, name: str, state: Mapping[str, Impairment]) -> dict[str, Way]:
    """From one worker to each other, as the links are in ``state``."""
    at_home = {link.a for link in topology.profile.access}
    place_of = {each.name: each.name if each.name in at_home else f"{each.site} LAN" for each in topology.workers}
    found: dict[str, Way] = {}
    for other, place in place_of.items():  # all workers on a site's LAN are equally far
        if other != name and place not in found:
            found[place] = _way(topology, name, other, state)
    return {other: found[place] for other, place in place_of.items() if other != name}


def _way(topology: Topology, source: str, target: str, state: Mapping[str, Impairment]) -> Way:
    delay, rates = 0, []
    for near, far in ((source, target), (target, source)):
        for joint, planned in topology.path(near, far):
            direction = next((way for way, _, _, found in joint.directions if found is planned), None)
            now = state.get(direction, planned) if direction is not None else planned
            delay += now.delay.ns
            goodput = now.goodput(joint.mtu)
            rates += [] if goodput is None else [goodput.bps / 8]
    return {"rtt_ns": float(delay), "bytes_per_s": min(rates, default=None)}
