"""A worker behind an access line of its own, in a real lab."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from netlab.cli import main
from netlab.lab import Lab
from netlab.profile import parse_profile
from netlab.top import watch

pytestmark = pytest.mark.lab

TEXT = """\
name: t
sites:
  campus:
    workers: 3
    access:
      2: {delay: 8ms, rate: 20mbit, backward: {delay: 4ms, rate: 100mbit}}
  cloud: {workers: 1}
links: [{between: [campus, cloud], rtt: 10ms}]
"""


@pytest.fixture(scope="module")
def lab():
    with Lab.start(parse_profile(TEXT, "t.yaml"), carrier="relay") as running:
        yield running


def ping_ms(lab: Lab, source: str, target: str) -> float:
    done = lab.exec(source, ["ping", "-n", "-c", "10", "-i", "0.02", target], timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr
    return statistics.median(float(value) for value in re.findall(rb"time=([0-9.]+)", done.stdout))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("campus-0", "campus-1", 0),
        ("campus-0", "campus-2", 12),
        ("campus-2", "cloud-0", 22),
        ("cloud-0", "campus-1", 10),
    ],
)
def test_every_pair_meets_the_lines_between_them_and_no_others(lab, source, target, expected):
    sent = 122 * 8 / 20e6 + 122 * 8 / 100e6 if "campus-2" in (source, target) else 0
    assert expected <= ping_ms(lab, source, target) <= expected + 1000 * sent + 0.5


def test_the_line_achieves_its_figures_and_alone_is_measured_when_asked(lab):
    found = lab.verify("quick", ["campus-2.access"])
    assert {row.link for row in found.links} == {"campus-2.access"}
    assert [row.quantity for row in found.links] == ["rtt", "rate", "rate"]
    assert found.ok, found.describe()


def test_a_line_changes_by_hand_while_the_lab_runs(lab):
    assert lab.set("campus-2.access", "forward.delay=28ms") == ["campus-2.access:campus-2.gateway>campus.router"]
    assert 32 <= ping_ms(lab, "campus-2", "campus-0") <= 32.6
    assert ping_ms(lab, "campus-1", "campus-0") < 0.5
    lab.set("campus-2.access", "forward.delay=8ms")


def test_a_marked_interval_has_a_timeline_with_each_direction(lab):
    mark = lab.mark()
    ping_ms(lab, "campus-2", "cloud-0")
    health = lab.health(mark).to_json()
    assert health["valid"], health["reasons"]
    ways = health["timeline"]["directions"]
    assert sum(ways["campus-2.access:campus-2.gateway>campus.router"]["packets"]) >= 10
    assert 0 <= health["machine"]["busy"] <= 1


def test_verify_refuses_a_link_that_there_is_not_before_it_builds_anything(tmp_path, capsys):
    path = tmp_path / "t.yaml"
    path.write_text(TEXT)
    assert main(["verify", str(path), "--link", "campus-1.access"]) == 2
    said = capsys.readouterr().err
    assert "'campus-1.access' is not a link of t (links: campus-cloud, campus-2.access)".replace("'", '"') in (
        said.replace("'", '"')
    )
    assert main(["verify", str(path), "--link", "campus-cloud", "--level", "rtt", "--json", "--carrier", "relay"]) == 0
    assert {row["link"] for row in json.loads(capsys.readouterr().out)["links"]} == {"campus-cloud"}


def test_top_sees_the_round_trip_of_line_and_link_by_real_packets(lab, monkeypatch):
    seen = []
    monkeypatch.setattr("netlab.top.render", lambda view: seen.append(dict(view.rtt_ms)))
    monkeypatch.setattr("netlab.top._Plain.update", lambda self, table: None)
    watch(lab, 1.0, 3)
    assert 12 <= seen[-1]["campus-2.access"] <= 12.7
    assert 10 <= seen[-1]["campus-cloud"] <= 10.5
