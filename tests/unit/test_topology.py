"""The layout follows from the profile by fixed rules."""

from __future__ import annotations

import pytest

from netlab import topology
from netlab.errors import PlanError
from netlab.operations import MakeTun, Shape
from netlab.plan import make
from netlab.profile import parse_profile


def laid_out(text: str) -> topology.Topology:
    return topology.build(parse_profile(text, "test.yaml"))


PAIR = "name: p\nsites: {a: {workers: 2}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 20ms, rate: 100mbit}]\n"

TRIANGLE = """\
name: t
sites:
  a: {workers: 1, uplink: {rate: 1gbit}}
  b: {workers: 1}
  c: {workers: 1}
links:
  - {between: [a, b], rtt: 100ms, rate: 10gbit}
  - {between: [a, c], rtt: 20ms, rate: 10gbit}
  - {between: [c, b], rtt: 30ms, rate: 10gbit}
"""


def test_ranks_follow_the_order_of_sites_and_workers() -> None:
    workers = laid_out(PAIR).workers
    assert [(w.name, w.rank, w.address) for w in workers] == [
        ("a-0", 0, "10.1.0.2"),
        ("a-1", 1, "10.1.0.3"),
        ("b-0", 2, "10.2.0.2"),
    ]


def test_the_hosts_file_names_every_worker_and_no_loopback_name_for_it() -> None:
    lines = [line.split() for line in laid_out(PAIR).hosts_file.splitlines()]
    assert ["10.2.0.2", "b-0"] in lines
    assert all(
        names == ["localhost"] or "::1" in address for address, *names in lines if address.startswith(("127", ":"))
    )


def test_an_uplink_of_a_site_with_one_link_is_folded_into_that_link_with_a_queue_of_its_own() -> None:
    text = (
        "name: p\nsites: {a: {workers: 1, uplink: {rate: 1gbit}}, b: {workers: 1}}\n"
        "links: [{between: [a, b], rtt: 16.6ms, rate: 10gbit}]\n"
    )
    (joint,) = laid_out(text).joints
    for impairment in (joint.forward, joint.backward):
        assert impairment.rate is not None
        assert impairment.queue is not None
        assert impairment.rate.bps == 1_000_000_000
        assert impairment.queue.bytes == 2_075_000  # 1 Gbit/s x 16.6 ms / 8


def test_an_uplink_of_a_site_with_two_links_is_crossed_by_both() -> None:
    built = laid_out(TRIANGLE)
    for target in ("b-0", "c-0"):
        names = [joint.name for joint, _ in built.path("a-0", target)]
        assert names[0] == "a.uplink"
        back = [joint.name for joint, _ in built.path(target, "a-0")]
        assert back[-1] == "a.uplink"
    assert [joint.kind for joint in built.joints].count("uplink") == 1


def test_routes_follow_the_least_delay_and_not_the_fewest_links() -> None:
    names = [joint.name for joint, _ in laid_out(TRIANGLE).path("a-0", "b-0")]
    assert names == ["a.uplink", "a-c", "c-b"]  # 50 ms over c beat 100 ms direct


def test_a_lan_delay_is_split_over_the_two_access_links_between_two_hosts() -> None:
    text = PAIR.replace("a: {workers: 2}", "a: {workers: 2, lan: {delay: 50us, rate: 1gbit}}")
    crossed = laid_out(text).path("a-0", "a-1")
    assert [joint.kind for joint, _ in crossed] == ["access", "access"]
    assert sum(impairment.delay.ns for _, impairment in crossed) == 50_000


def test_the_same_profile_gives_the_same_plan() -> None:
    assert make(laid_out(TRIANGLE), "relay").to_json() == make(laid_out(TRIANGLE), "relay").to_json()


def test_offload_is_on_from_200_mbit_and_off_below() -> None:
    for rate, expected in (("200mbit", True), ("199mbit", False)):
        plan = make(laid_out(PAIR.replace("100mbit", rate)), "relay")
        assert {op.offload for op in plan.operations if isinstance(op, MakeTun)} == {expected}


def test_both_directions_of_a_link_are_shaped_where_its_packets_leave_a_router() -> None:
    shapes = [op for op in make(laid_out(PAIR), "netem").operations if isinstance(op, Shape)]
    assert [(op.node, op.to_node) for op in shapes] == [("a.router", "b.router"), ("b.router", "a.router")]


def test_netem_refuses_a_shaped_lan_and_names_the_carrier_that_can() -> None:
    text = PAIR.replace("a: {workers: 2}", "a: {workers: 2, lan: {rate: 1gbit}}")
    with pytest.raises(PlanError, match="--carrier relay can"):
        make(laid_out(text), "netem")


def test_names_of_interfaces_do_not_grow_with_names_of_sites() -> None:
    text = (
        "name: p\nsites: {datacenter-paris-north: {workers: 12}, datacenter-paris-south: {workers: 12}}\n"
        "links: [{between: [datacenter-paris-north, datacenter-paris-south], rtt: 1ms, rate: 1gbit}]\n"
    )
    built = laid_out(text)
    ends = [end.interface for joint in built.joints for end in (joint.a, joint.b)]
    assert all(len(name) <= 15 for name in [*ends, *(port.interface for port in built.ports)])
    assert "datacenter-paris-north-11" in built.hosts_file
