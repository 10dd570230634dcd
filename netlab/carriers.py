"""Which carrier a lab uses, and why: kernel netem where the kernel has it and can honour the links, else our relay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from netlab.errors import PlanError
from netlab.impairment import Impairment
from netlab.links import netem
from netlab.operations import Carrier
from netlab.schedule import foreseen
from netlab.topology import Topology, carried

TUN_DEVICE = "/dev/net/tun"


def probe_relay() -> tuple[bool, str]:
    """Whether the relay can work here, and why (not)."""
    if not os.path.exists(TUN_DEVICE):  # noqa: PTH110 - a device node, not a file of ours
        return False, f"{TUN_DEVICE} does not exist; load the kernel module tun (modprobe tun)"
    if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        return False, f"{TUN_DEVICE} cannot be opened by this user"
    try:
        from netlab.links import _relay  # noqa: F401
    except ImportError as error:
        return (
            False,
            f"its compiled core is missing ({error}); reinstall with a C compiler present (make setup)",
        )
    return True, "TUN devices and the compiled core are there"


def unsupported_by_netem(topology: Topology, *, seeded: bool = True) -> str | None:
    """Why netem cannot carry this topology, or None. `seeded`: random effects have to follow the profile's seeds."""
    for joint in topology.joints:
        if joint.kind == "access":
            return f"{joint.name}: netem would have to shape the LAN on the worker itself, where it distorts TCP"
    for name, impairment in _states(topology):
        reason = netem.supported(impairment, seeded=seeded)
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _states(topology: Topology) -> Iterator[tuple[str, Impairment]]:
    """Every state that a direction has: at the start, and then as far as the schedule can be foreseen."""
    for joint in topology.joints:
        for name, _, _, impairment in joint.directions:
            yield name, impairment
    for link, way, impairment in foreseen(topology.profile):
        yield carried(topology, link, way, impairment)


def choose(
    wanted: Literal["auto", "relay", "netem"], topology: Topology, *, packet_log: bool = False
) -> tuple[Carrier, str]:
    """The carrier to use and the reason in words; `packet_log`: every packet's fate has to be told.

    Raises PlanError when what was demanded is not possible here.
    """
    if packet_log and wanted == "netem":
        raise PlanError("a packet log: netem keeps no record of single packets; the relay carrier does")
    if packet_log and wanted == "auto":
        return choose("relay", topology)[0], "the packet log needs it"
    if wanted == "relay":
        works, why = probe_relay()
        if not works:
            raise PlanError(f"carrier relay is not available on this machine: {why}")
        return "relay", "as asked"
    works, why = netem.probe()
    problem = unsupported_by_netem(topology) if works else None
    if wanted == "netem":
        if not works:
            raise PlanError(f"carrier netem is not available on this machine: {why}")
        if problem is None:
            return "netem", "as asked"
        problem = unsupported_by_netem(topology, seeded=False)
        if problem is not None:
            raise PlanError(f"carrier netem cannot carry this profile: {problem}")
        return "netem", "as asked; it draws random effects by itself, the profile's seeds have no part in them"
    if works and problem is None:
        return "netem", "this kernel has sch_netem"
    relay_works, relay_why = probe_relay()
    if not relay_works:
        raise PlanError(f"no carrier can carry this profile here: netem: {problem or why}; relay: {relay_why}")
    return "relay", f"netem cannot: {problem}" if problem else "this kernel has no sch_netem (netlab doctor says more)"
