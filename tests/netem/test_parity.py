"""The same lab on both carriers, in one kernel: held to the model, packet by packet, and to each other.

One carrier after the other, because two labs at once would share one slow processor. The rates are low for the same
reason: what is compared is the model (see reference.py), not how much a carrier can take.
"""

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from netlab import Lab
from tests.netem.reference import Link, median_error_ms, spacing_ns
from tests.netem.traffic import Arrival, Flood

pytestmark = pytest.mark.netem

CARRIERS = ("netem", "relay")
ATTEMPTS = 3
TRAFFIC = str(Path(__file__).with_name("traffic.py"))
IP_BYTES = 1500
QUEUE = 30
LINKS = {
    ("a-0", "b-0"): Link(8_000_000, 8_300_000, QUEUE),
    ("b-0", "a-0"): Link(4_000_000, 8_300_000, QUEUE),
}

PROFILE = f"""
name: parity
sites:
  a: {{workers: 1}}
  b: {{workers: 1}}
links:
  - between: [a, b]
    rtt: 16.6ms
    rate: 8mbit
    queue: {QUEUE}packets
    backward: {{rate: 4mbit}}
"""


@dataclass(frozen=True)
class Measured:
    """What a lab did on one carrier; `crossed` counts one more flood from a to b, and the echoes."""

    rtts_ms: list[float]
    floods: dict[tuple[str, str], Flood]
    crossed: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[str, Measured]:
    """By carrier."""
    profile = tmp_path_factory.mktemp("parity") / "parity.yaml"
    profile.write_text(PROFILE)
    return {carrier: measure(profile, carrier) for carrier in CARRIERS}


def measure(profile: Path, carrier: str) -> Measured:
    with Lab.start(profile, carrier=carrier) as lab:
        assert lab.carrier == carrier
        floods = {ends: flood(lab, *ends) for ends in LINKS}
        before = lab.traffic()
        flood_once(lab, "a-0", "b-0")
        done = lab.exec("a-0", ["ping", "-n", "-c", "60", "-i", "0.02", "b-0"], timeout=30)
        after = lab.traffic()
        crossed = {name: {key: after[name][key] - before[name][key] for key in before[name]} for name in before}
        return Measured(round_trips(done.stdout.decode()), floods, crossed)


def round_trips(text: str) -> list[float]:
    return [float(line.split("time=")[1].split()[0]) for line in text.splitlines() if "time=" in line]


def flood(lab: Lab, source: str, target: str) -> Flood:
    """A burst larger than the queue; once more, up to three times, where the machine stalled in the middle of it."""
    busy_ns = LINKS[source, target].busy_ns(IP_BYTES)
    for _ in range(ATTEMPTS):
        seen = flood_once(lab, source, target)
        times = [one.received for one in seen.arrivals]
        if all(later - earlier < 3 * busy_ns for earlier, later in pairwise(times)):
            break
    return seen


def flood_once(lab: Lab, source: str, target: str) -> Flood:
    python = [sys.executable, "-I", "-S", TRAFFIC]
    address = next(worker.address for worker in lab.workers if worker.name == target)
    with ThreadPoolExecutor(2) as pool:
        receiver = pool.submit(lab.exec, target, [*python, "receive", "5001"], timeout=40)
        sender = pool.submit(
            lab.exec, source, [*python, "send", address, "5001", "150", str(IP_BYTES), "0"], timeout=40
        )
        sent, arrived = sender.result(), receiver.result()
    assert sent.returncode == 0, sent.stderr
    assert arrived.returncode == 0, arrived.stderr
    return Flood(json.loads(sent.stdout), [Arrival(*one) for one in json.loads(arrived.stdout)])


@pytest.mark.parametrize("ends", LINKS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_queue_lets_through_the_packets_that_the_model_lets_through(measured, carrier, ends):
    """As many, to within two (netem's limit is rounded up to whole packets under way), and all that the queue can hold.

    Not the same later ones: which packet finds the place that has just become free is a matter of microseconds.
    """
    flood = measured[carrier].floods[ends]
    predicted = LINKS[ends].predict(flood.sent, IP_BYTES)
    assert QUEUE < len(predicted) < 150
    assert len(predicted) == pytest.approx(len(flood.arrivals), abs=2)
    assert flood.numbers == sorted(flood.numbers)
    assert flood.numbers[:QUEUE] == list(range(QUEUE))


@pytest.mark.parametrize("ends", LINKS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_packets_arrive_when_the_model_says(measured, carrier, ends):
    flood = measured[carrier].floods[ends]
    assert -0.1 <= median_error_ms(flood.arrivals, LINKS[ends].predict(flood.sent, IP_BYTES)) <= 1.0


@pytest.mark.parametrize("ends", LINKS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_rate_is_the_profiles_to_half_a_percent(measured, carrier, ends):
    spacing = spacing_ns(measured[carrier].floods[ends].arrivals)
    assert spacing == pytest.approx(LINKS[ends].busy_ns(IP_BYTES), rel=0.005)


def test_the_round_trips_agree_with_arithmetic_and_with_each_other(measured):
    """84 IP bytes are 122 on the wire: 0.122 ms at 8 Mbit/s, 0.244 ms at 4 Mbit/s, beside twice 8.3 ms."""
    expected = 16.6 + 0.122 + 0.244
    medians = {carrier: statistics.median(one.rtts_ms) for carrier, one in measured.items()}
    assert all(len(one.rtts_ms) == 60 for one in measured.values())
    assert all(expected <= median <= expected + 0.8 for median in medians.values()), medians
    assert medians["relay"] == pytest.approx(medians["netem"], abs=0.5)


def test_both_count_what_crossed_alike(measured):
    """There, 60 echoes of 84 bytes and of 150 full packets those that found room; back, the echoes. A few more for the
    greetings of sender and receiver.
    """
    for carrier, one in measured.items():
        there, back = one.crossed.values()
        assert there["packets_out"] + there["drops_queue"] == pytest.approx(210, abs=8), carrier
        assert there["bytes_out"] == pytest.approx((there["packets_out"] - 60) * 1500 + 60 * 84, abs=12_000), carrier
        assert there["packets_out"] > 60 + QUEUE, carrier
        assert (back["packets_out"], back["drops_queue"]) == (pytest.approx(60, abs=8), 0), carrier


def ping_over_published_wan(carrier: str) -> float:
    """Median in ms. Not verified first: the emulated kernel cannot send the gigabit per second that would take.

    Nor need every packet be on time there: the command then says so and ends with 3, which is right.
    """
    command = [sys.executable, "-m", "netlab.cli", "run", "grid5000-nancy-sophia", "--carrier", carrier, "--no-verify"]
    script = "[ $RANK = 1 ] || ping -n -c 50 -i 0.02 sophia-0"
    done = subprocess.run([*command, "--", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    late = done.returncode == 3 and "of packets left more than" in done.stderr
    assert done.returncode == 0 or late, done.stdout + done.stderr
    times = round_trips(done.stdout)
    assert len(times) == 50
    return statistics.median(times)


def test_netlab_run_gives_the_published_wan_its_round_trip_on_both_carriers():
    """122 wire bytes take 1 us at 1 Gbit/s: 16.602 ms."""
    netem, relay = (ping_over_published_wan(carrier) for carrier in CARRIERS)
    assert 16.602 <= netem <= 17.4
    assert 16.602 <= relay <= 17.4
    assert relay == pytest.approx(netem, abs=0.5)
