"""How a plan makes room for kernel netem, and when netem is chosen."""

import pytest

from netlab import carriers
from netlab.errors import PlanError
from netlab.operations import CutUnits, MakeTun, MakeVeth
from netlab.plan import make
from netlab.profile import parse_profile
from netlab.topology import build

PROFILE = """
name: two
sites:
  a: {workers: 2}
  b: {workers: 1}
links:
  - between: [a, b]
    rtt: 20ms
    rate: 100mbit
"""


def topology(extra: str = ""):
    return build(parse_profile(PROFILE + extra, "two.yaml"))


@pytest.fixture
def netem_here(monkeypatch):
    monkeypatch.setattr(carriers.netem, "probe", lambda: (True, "this kernel has sch_netem"))


def test_workers_cut_their_units_before_a_router_with_netem_sees_them():
    plan = make(topology(), "netem")
    cuts = [op for op in plan.operations if isinstance(op, CutUnits)]
    assert [(op.node, op.interface) for op in cuts] == [("a-0", "eth0"), ("a-1", "eth0"), ("b-0", "eth0")]
    assert cuts[0].describe() == "[a-0] ip link set eth0 gso_max_segs 1"
    assert not any(isinstance(op, MakeTun) for op in plan.operations)
    assert sum(isinstance(op, MakeVeth) for op in plan.operations) == 3 + 1


def test_the_relay_gets_whole_units():
    assert not any(isinstance(op, CutUnits) for op in make(topology(), "relay").operations)


def test_netem_is_chosen_where_the_kernel_has_it(netem_here):
    assert carriers.choose("auto", topology()) == ("netem", "this kernel has sch_netem")
    assert carriers.choose("netem", topology()) == ("netem", "as asked")


def test_random_effects_on_netem_are_for_those_who_demand_netem_and_are_told(netem_here):
    lossy = topology("    loss: 1%\n")
    assert "seed" in (carriers.unsupported_by_netem(lossy) or "")
    carrier, why = carriers.choose("netem", lossy)
    assert carrier == "netem"
    assert "seeds have no part" in why


def test_what_netem_distorts_is_refused_also_when_netem_is_demanded(netem_here):
    with pytest.raises(PlanError, match=r"cannot carry this profile: .*corrupts the Ethernet header.*relay"):
        carriers.choose("netem", topology("    corrupt: 1%\n"))
