"""A worker with an access of its own: a line from its gateway to its site's router, and what follows from it."""

from __future__ import annotations

import json

import pytest

from netlab import carriers, environment, topology
from netlab.errors import ProfileError, UserError
from netlab.live import set_now
from netlab.operations import AddAddress, AttachPort, MakeTun, MakeVeth, Shape
from netlab.plan import make
from netlab.profile import parse_profile
from netlab.schedule import changes
from netlab.topology import Route, Topology, build, carried
from netlab.units import Duration

TEXT = """\
name: t
sites:
  campus:
    workers: 3
    access:
      2: {rtt: 25ms, rate: 20mbit, queue: 100ms, backward: {rate: 100mbit}}
  cloud: {workers: 1}
links: [{between: [campus, cloud], rtt: 10ms, rate: 200mbit}]
"""


def laid_out(text: str = TEXT) -> Topology:
    return build(parse_profile(text, "t.yaml"))


def faults(access: str, rest: str = "") -> list[str]:
    text = f"sites:\n  a: {{workers: 2, access: {access}}}\n  b: {{workers: 1}}\n"
    links = "links: [{between: [a, b], rtt: 1ms}]\n" if "links" not in rest else ""
    with pytest.raises(ProfileError) as caught:
        parse_profile(text + links + rest, "t.yaml")
    return list(caught.value.problems)


def test_forward_leads_from_the_worker_and_backward_to_it():
    (line,) = parse_profile(TEXT, "t.yaml").access
    assert (line.a, line.b, line.name) == ("campus-2", "campus", "campus-2.access")
    assert line.forward.rate is not None
    assert line.backward.rate is not None
    assert (line.forward.rate.bps, line.backward.rate.bps) == (20_000_000, 100_000_000)
    assert line.forward.delay.ns == line.backward.delay.ns == 12_500_000
    assert line.forward.queue is not None
    assert line.forward.queue.bytes == 250_000  # 100 ms at 20 Mbit/s


def test_the_worker_sits_behind_a_gateway_of_its_own_and_not_on_the_lan():
    found = laid_out()
    worker = found.workers[2]
    assert (worker.address, worker.prefix, worker.gateway) == ("100.64.64.10", 30, "100.64.64.9")
    (port,) = (port for port in found.ports if port.worker == "campus-2")
    assert (port.node, port.address) == ("campus-2.gateway", "100.64.64.9/30")
    (line,) = (joint for joint in found.joints if joint.kind == "line")
    assert (line.a.node, line.b.node) == ("campus-2.gateway", "campus.router")


def test_other_sites_reach_all_homes_of_a_site_by_one_route_and_its_router_each_by_its_own():
    routes = laid_out().routes
    assert Route("cloud.router", "100.64.64.0/18", "172.16.0.1", "wan-0") in routes
    assert Route("campus.router", "100.64.64.8/30", "172.16.0.5", "line-0") in routes
    assert Route("campus-2.gateway", "default", "172.16.0.6", "access") in routes
    assert Route("campus-2", "default", "100.64.64.9", "eth0") in routes


def test_sites_without_homes_get_no_routes_for_them():
    plain = laid_out("sites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 1ms}]\n")
    assert not [route for route in plain.routes if route.destination.startswith("100.")]


def test_a_packet_crosses_the_access_on_its_way_to_a_neighbour_of_the_same_site_too():
    found = laid_out()
    names = [joint.name for joint, _ in found.path("campus-2", "campus-0")]
    assert names == ["campus-2.access"]
    there = found.path("campus-2", "cloud-0")
    back = found.path("cloud-0", "campus-2")
    assert [joint.name for joint, _ in there] == ["campus-2.access", "campus-cloud"]
    assert [step.rate.bps for _, step in back if step.rate] == [200_000_000, 100_000_000]


def test_a_program_is_told_that_the_home_is_farther_than_its_neighbours():
    found = laid_out()
    state = {name: step for joint in found.joints for name, _, _, step in joint.directions}
    paths = environment.paths(found, "cloud-0", state)
    assert [paths[f"campus-{index}"]["rtt_ns"] for index in range(3)] == [10e6, 10e6, 35e6]
    assert paths["campus-2"]["bytes_per_s"] == pytest.approx(20e6 * 1448 / 1538 / 8, rel=1e-6)


@pytest.mark.parametrize("carrier", ["relay", "netem"])
@pytest.mark.parametrize("hosts", ["process", "docker"])
def test_each_carrier_shapes_the_access_between_gateway_and_router_never_on_the_worker(carrier, hosts):
    plan = make(laid_out(), carrier, hosts)
    shaped = [op for op in plan.operations if isinstance(op, Shape) and op.direction.startswith("campus-2.access")]
    assert [(op.node, op.carrier, op.layer) for op in shaped] == [
        ("campus-2.gateway", carrier, "ip"),
        ("campus.router", carrier, "ip"),
    ]
    assert AddAddress("campus-2", "eth0", "100.64.64.10/30") in plan.operations
    assert AddAddress("campus-2.gateway", "lan", "100.64.64.9/30") in plan.operations
    assert not [op for op in plan.operations if isinstance(op, AttachPort) and op.node == "campus-2.gateway"]
    kind = MakeTun if carrier == "relay" else MakeVeth
    ends = [op for op in plan.operations if isinstance(op, kind) and "access" in vars(op).values()]
    assert len(ends) == 1
    line = next(link for link in plan.to_json()["links"] if link["link"] == "campus-2.access")
    assert (line["kind"], json.dumps(line)[:1]) == ("line", "{")


def test_what_netem_lacks_is_noticed_on_an_access_too():
    text = TEXT.replace("rtt: 25ms,", "rtt: 25ms, jitter: 2ms,")
    assert "campus-2.access:campus-2.gateway>campus.router" in (
        carriers.unsupported_by_netem(laid_out(text), seeded=False) or ""
    )
    assert carriers.unsupported_by_netem(laid_out(), seeded=True) is None


def test_slow_lines_carry_single_packets_also_where_only_the_schedule_makes_them_slow():
    fast = TEXT.replace("rate: 20mbit, queue: 100ms, backward: {rate: 100mbit}", "rate: 1gbit")
    entry = "schedule: [{at: 1s, link: campus-2.access, set: {rate: 10mbit}}]\n"
    joints = [next(j for j in laid_out(text).joints if j.kind == "line") for text in (fast, fast + entry)]
    assert [joint.single_packets for joint in joints] == [False, True]


def test_an_access_changes_by_hand_and_by_schedule_like_any_link():
    profile = parse_profile(TEXT + "schedule: [{at: 5s, link: campus-2.access, set: {state: down}}]\n", "t.yaml")
    (first, *_) = changes(profile)
    assert (first.link, first.at.ns, first.impairment.up) == ("campus-2.access", 5_000_000_000, False)
    _, (change,) = set_now(profile, "campus-2.access", ["backward.rate=50mbit"], [], Duration(0))
    direction, impairment = carried(topology.build(profile), change.link, change.way, change.impairment)
    assert direction == "campus-2.access:campus.router>campus-2.gateway"
    assert impairment.rate is not None
    assert impairment.rate.bps == 50_000_000
    with pytest.raises(UserError, match=r'links: campus-cloud, campus-2.access\); did you mean "campus-2.access"'):
        set_now(profile, "campus-1.access", ["state=down"], [], Duration(0))


def test_a_partition_of_sites_leaves_the_access_of_workers_alone():
    profile = parse_profile(TEXT + "schedule: [{at: 1s, partition: [[campus], [cloud]]}]\n", "t.yaml")
    assert {change.link for change in changes(profile)} == {"campus-cloud"}


def test_a_trace_drives_an_access_and_its_seed_is_its_own():
    text = TEXT.replace("rtt: 25ms, rate: 20mbit, queue: 100ms, ", "delay: 5ms, loss: 1%, trace: {csv: f.csv}, ")
    profile = parse_profile(text, "t.yaml", lambda name: "time_s,rate_mbit\n0,50\n1,20\n")
    (line,) = profile.access
    assert line.forward.rate is not None
    assert line.forward.rate.bps == 50_000_000
    assert {target.link for entry in profile.schedule for target in entry.targets} == {"campus-2.access"}
    assert len({line.forward.seed, line.backward.seed, profile.links[0].forward.seed}) == 3


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ("{2: {rtt: 1ms}}", "t.yaml:2: sites.a.access.2: '2' is no worker of a: an index from 0 to 1 is wanted"),
        ("{01: {rtt: 1ms}}", "is no worker of a"),
        ("{a-0: {rtt: 1ms}}", "is no worker of a"),
        ("{0: {rate: 1mbit}}", "no delay: write rtt (both ways together) or delay (one way)"),
        ("{0: {rtt: 1ms, up: {rate: 1mbit}}}", "write forward: {...}: it leads from the worker"),
        ("{0: {rtt: 1ms, download: 1mbit}}", "write backward: {...}: it leads to the worker"),
        ("{0: {rtt: 1ms, between: [a, b]}}", "unknown key"),
        ("{0: {delay: 1ms, jitter: 5ms}}", "access.0.jitter: '5ms"),
        ("[0]", "a list found where a mapping is wanted"),
        ("{0: 1ms}", "found where a mapping is wanted"),
    ],
)
def test_a_faulty_access_is_told_with_its_line_its_key_and_what_is_allowed(access, words):
    (fault,) = faults(access)
    assert words.replace("'", '"') in fault.replace("'", '"')
    assert fault.startswith("t.yaml:2: sites.a.access")


def test_a_link_may_not_have_the_name_of_an_access():
    (fault,) = faults("{0: {rtt: 1ms}}", "links: [{between: [a, b], name: a-0.access, rtt: 1ms}]\n")
    assert "already the name of the link in line 4" in fault


def test_a_site_of_homes_needs_no_other_site():
    found = laid_out("sites: {homes: {workers: 2, access: {0: {rtt: 20ms}, 1: {rtt: 30ms}}}}\n")
    assert [joint.name for joint, _ in found.path("homes-0", "homes-1")] == ["homes-0.access", "homes-1.access"]
    assert len({worker.address for worker in found.workers}) == 2
