"""Exports hold what their readers look for: Holistic Trace Analysis its keys and names, Perfetto its counters."""

import itertools
import json
import re

import numpy as np
import pytest

from cpdp.profiler import analysis, kineto, network, perfetto
from cpdp.profiler.network import Counters, Network
from cpdp.profiler.split import merge
from tests.unit.test_profile_split import MS, one_bucket

NOTHING = Network({}, (), {})


@pytest.fixture
def trace(tmp_path):
    """Rank 1's Kineto-style trace of the step of `one_bucket`, as it is written."""
    world = analysis.take_apart("profile", one_bucket(tmp_path, late=50), NOTHING)
    return json.dumps(kineto.trace(world, 1))


def test_hta_finds_the_rank_of_a_file(trace):
    """hta/common/trace_file.py looks for this expression, line by line, with white space after the colon."""
    assert re.search(r'"rank":\s+(\d+)', trace).group(1) == "1"


def test_hta_finds_the_keys_of_every_event(trace):
    """hta/configs: name, cat, ts, dur, pid, tid; of a device's events stream and correlation."""
    events = [event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in events} == {"kernel", "cuda_runtime", "user_annotation"}
    for event in events:
        assert {"name", "cat", "ts", "dur", "pid", "tid", "args"} <= set(event)
        assert isinstance(event["tid"], int)
        assert event["dur"] > 0
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert all(isinstance(event["args"]["stream"], int) for event in kernels)
    launched = {e["args"]["correlation"] for e in events if e["cat"] == "cuda_runtime"}
    assert [event["args"]["correlation"] for event in kernels] == sorted(launched)
    assert any(re.fullmatch(r"ProfilerStep#\d+", event["name"]) for event in events)


def test_hta_tells_computation_from_communication_and_the_overlap_is_ours(trace):
    """HTA counts kernels named ^nccl.*Kernel as communication, all others as computation, and measures the overlap."""
    kernels = [e for e in json.loads(trace)["traceEvents"] if e.get("cat") == "kernel"]
    spans = {True: [], False: []}
    for event in kernels:
        named = bool(re.match(r"^nccl.*Kernel", event["name"]))
        spans[named].append((round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)))
    total = {}
    for kind, pairs in spans.items():
        begin, end = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
        _, _, low, high = merge(begin, begin, begin, end)
        total[kind] = int((high - low).sum())
    # Rank 1 issues at 80 ms; computes until then, stands still to 182 with the copy, then optimises for 3 ms.
    assert total[True] == pytest.approx(100 * MS, abs=2)
    assert total[False] == pytest.approx((80 + 3) * MS, abs=2)


@pytest.mark.filterwarnings("ignore")  # HTA's own, about pandas
def test_hta_itself_reads_the_trace_where_it_is_installed(trace, tmp_path):
    why = "needs HolisticTraceAnalysis to read with"
    parser = pytest.importorskip("hta.common.trace_parser", reason=why)
    configs = pytest.importorskip("hta.configs.parser_config", reason=why)
    path = tmp_path / "rank-1.json"
    path.write_text(trace)
    _, frame, symbols = parser.parse_trace_dataframe(str(path), configs.ParserConfig.get_default_cfg())
    names = symbols.get_sym_table()
    streams = {names[name]: stream for name, stream in zip(frame["name"], frame["stream"], strict=True)}
    assert streams["backward"] == kineto.COMPUTE_STREAM
    assert any(name.startswith("ncclDevKernel_AllReduce") and stream >= 20 for name, stream in streams.items())


def test_perfetto_shows_the_links_rate_and_its_queue_as_counters():
    ways = {"b-0": {"rtt_ns": 20.0 * MS, "bytes_per_s": 12.5e6}}
    later = {"a-0": {"b-0": {"rtt_ns": 20.0 * MS, "bytes_per_s": 1.25e6}}}
    known = Network({"a-0": {"worker": "a-0", "paths": ways}}, ((50 * MS, later),), {})
    events = list(perfetto.path_events(known, "a-0", 7, 0))
    rates = [(event["ts"], event["args"]["value"]) for event in events if event["name"] == "link rate Mbit/s to b-0"]
    assert rates == [(0.0, 100.0), (50_000.0, 10.0)]
    times = np.array([0, 100 * MS, 200 * MS])
    counters = Counters(
        times=times, received=times, sent=times, tcp_times=times, rtt_us=np.array([20e3, 60e3, 25e3]),
        min_rtt_us=np.array([20e3, 20e3, 20e3]), retransmits=np.zeros(3, dtype=np.int64), delivery_rate=np.zeros(3),
    )  # fmt: skip
    drawn = list(perfetto.counter_events(counters, 7, 0))
    queue = [event["args"]["value"] for event in drawn if event["name"].startswith("queue ms")]
    assert queue == [0, 40, 5]
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(e for e in drawn if e["name"].startswith("queue")))


def test_counters_of_a_launch_move_with_its_clock():
    times = np.array([0, 100])
    empty = np.zeros(2)
    one = Counters(times, times, times, times, empty, empty, times, empty)
    moved = network.shifted(Network({}, (), {"a": one, "b": one}), {"a": -1e12, "b": 0.0})
    assert moved.counters["a"].times.tolist() == [-(10**12), 100 - 10**12]
    assert moved.counters["b"].times.tolist() == [0, 100]
