"""The live view: readable at 80 columns, whatever the names and figures."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from netlab.echoes import targets
from netlab.links import netem
from netlab.processors import Load
from netlab.profile import load_profile
from netlab.shipped import shipped_documents
from netlab.top import View, render
from netlab.topology import Topology, build
from tests.unit.test_relay_stats import ZERO


def shown(topology: Topology, rtt_ms: dict[str, float | None], **counted: int) -> list[str]:
    state = {name: step for joint in topology.joints for name, _, _, step in joint.directions}
    changes = [replace(ZERO, name=name, updated_ns=10**9, **counted) for name in state]
    out = io.StringIO()
    view = View("lab (relay)", changes, state, rtt_ms, Load(busy=0.5, stolen=0.01))
    Console(file=out, width=80, highlight=False).print(render(view))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("name", shipped_documents("networks"))
def test_no_figure_is_cut_off_at_80_columns_even_where_all_are_large(name):
    topology = build(load_profile(name))
    rtt = {joint.name: 600_000.0 for joint in topology.joints}
    large = {"wire_bytes_out": 1_250_000_000, "packets_out": 812_743, "queue_bytes": 3_000_000_000}
    lines = shown(topology, rtt, **large, drops_queue=99_999, lateness=((9_999_000, 5),))
    text = "\n".join(lines)
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text
    for figure in ("10000", "812743", "3000 MB", "99999", "9999 us", "600000"):
        assert text.count(figure) >= 1, figure


def test_the_round_trip_stands_beside_a_links_first_direction_only():
    lines = shown(build(load_profile("volunteer-at-home")), {"cluster-3.access": 25.061})
    assert [line.split()[-1] for line in lines if "cluster-3" in line] == ["25.06", "-"]
    assert "CPUs 50% busy, 1% stolen" in lines[0]


def test_losses_that_nobody_asked_for_stand_out_from_those_of_the_profile():
    lines = shown(build(load_profile("lan")), {}, drops_queue=3, drops_loss=4, drops_memory=2)
    assert "7 +2!" in lines[2]


def test_an_echo_leaves_from_the_first_end_of_every_link_and_line():
    found = targets(build(load_profile("aws-ten-regions")))
    assert sum(len(links) for links in found.values()) == 45
    assert targets(build(load_profile("volunteer-at-home"))) == {
        "cluster-3.gateway": {"172.16.0.2": "cluster-3.access"}
    }


def test_what_netem_does_differently_is_told_once_with_where():
    notes = {"queue of 250000 B is kept as 162 packets": ["a", "b", "c"], "rate 1mbit is kept as 2mbit": ["d"]}
    assert netem.told(notes) == [
        "netem: queue of 250000 B is kept as 162 packets (a, b and 1 more)",
        "netem: rate 1mbit is kept as 2mbit (d)",
    ]
