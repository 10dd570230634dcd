"""The profiler's arithmetic: every expected number can be computed by hand from the lines that are written here."""

import itertools
import json
import os
import socket
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpdp.errors import EventError
from cpdp.profiler import columns, hang, proof, split, tcp, watch
from cpdp.profiler.split import PARTS, Changing, Path
from cpdp.profiler.tracer import Tracer, encode, start_line
from cpdp.rundir import RunDir

MS = 1_000_000
BYTES = 1_000_000


def write(folder, rank, steps, *, threads=2, ranks=(0, 1), tail=b""):
    """A rank's file. A step is (begin, end, spans, waits, ops), times in ms after its begin."""
    path = folder / f"rank-{rank}.events.jsonl"
    first = start_line(rank=rank, world=len(ranks), clock="monotonic", boot="x", launch=f"w{rank}", worker=f"w{rank}")
    group = {"k": "group", "g": 0, "name": "0", "ranks": list(ranks), "backend": "gloo", "threads": threads}
    lines = [first, group, {"k": "op", "h": 0, "g": 0, "kind": "all_reduce", "bytes": BYTES}]
    for n, (begin, end, spans, waits, ops) in enumerate(steps, start=1):
        flat = [
            [value if i in (0, 1) else value * MS if value >= 0 else -1 for i, value in enumerate(op)] for op in ops
        ]
        lines.append(
            {
                "k": "step", "n": n, "t": [begin * MS, end * MS], "c": 0,
                "s": [value * (1 if i % 3 == 0 else MS) for i, value in enumerate(spans)],
                "w": [value * (1 if i % 3 == 0 else MS) for i, value in enumerate(waits)],
                "o": [value for op in flat for value in op],
            }
        )  # fmt: skip
    path.write_bytes(b"".join(map(encode, lines)) + tail)
    return columns.read(path)


def one_bucket(folder, *, late=0, transfer=100):
    """Two ranks, one operation each: forward 10, backward to 30, then 30..(30 + late + transfer) exposed, copy 2.

    Rank 1 issues `late` ms after rank 0, which issues at 30.
    """
    end = 30 + late + transfer
    logs = []
    for rank in (0, 1):
        issued = 30 + late * rank
        spans = [1, 0, 10, 2, 10, end + 2, 3, end + 2, end + 5]
        logs.append(
            write(
                folder,
                rank,
                [(1000, 1000 + end + 5, spans, [1, issued, end + 2], [(0, 0, issued, issued, end, -1, -1)])],
            )
        )
    return logs


def parts(logs, rank, path=None):
    paths = {} if path is None else {"0": Changing(paths=(path,))}
    found = split.split(logs[rank], split.exposure(logs[rank]), split.match(logs)[rank], paths)
    return {name: float(values[0]) / MS for name, values in found.parts.items()}


def test_time_before_the_last_rank_issued_is_waiting_for_a_peer(tmp_path):
    logs = one_bucket(tmp_path, late=50)
    assert parts(logs, 0) == pytest.approx(dict.fromkeys(PARTS, 0.0) | {"peer": 50, "protocol": 100, "copy": 2})
    assert parts(logs, 1) == pytest.approx(dict.fromkeys(PARTS, 0.0) | {"protocol": 100, "copy": 2})


def test_the_floors_of_rate_and_delay_come_before_protocol(tmp_path):
    """1 MB at 20 MB/s takes 50 ms; gloo's two ranks take four trips of 5 ms; 30 of 100 ms are left."""
    path = Path(rtt_ns=10.0 * MS, bytes_per_s=20e6)
    expected = dict.fromkeys(PARTS, 0.0) | {"bytes": 50, "latency": 20, "protocol": 30, "copy": 2}
    assert parts(one_bucket(tmp_path), 0, path) == pytest.approx(expected)


def test_a_path_that_changes_counts_as_it_was_when_the_operation_began(tmp_path):
    changing = Changing((0, 1010 * MS), (Path(bytes_per_s=20e6), Path(bytes_per_s=10e6)))
    logs = one_bucket(tmp_path, transfer=150)
    found = split.split(logs[0], split.exposure(logs[0]), split.match(logs)[0], {"0": changing})
    assert found.parts["bytes"][0] == pytest.approx(100 * MS)


def test_an_operation_behind_others_is_started_when_a_thread_is_free(tmp_path):
    """Three operations on one thread, issued at 10, 11, 12, done at 40, 70, 100: started at 10, 40, 70."""
    ops = [(0, i, 10 + i, 10 + i, 40 + 30 * i, -1, -1) for i in range(3)]
    log = write(tmp_path, 0, [(0, 110, [2, 0, 110], [1, 20, 100], ops)], threads=1)
    assert split.started(log).tolist() == [10 * MS, 40 * MS, 70 * MS]
    two = write(tmp_path, 0, [(0, 110, [2, 0, 110], [1, 20, 100], ops)], threads=2)
    assert split.started(two).tolist() == [10 * MS, 11 * MS, 40 * MS]


def test_hidden_time_is_communication_less_what_was_exposed(tmp_path):
    """On its way 10..60, exposed 40..60: hidden 30; the phases lose what was exposed."""
    step = (0, 80, [1, 0, 10, 2, 10, 60, 3, 60, 80], [1, 40, 60], [(0, 0, 10, 10, 60, -1, -1)])
    seen = split.exposure(write(tmp_path, 0, [step]))
    assert (seen.exposed[0], seen.hidden[0]) == (20 * MS, 30 * MS)
    assert (seen.phases[0] / MS).tolist() == [0, 10, 30, 20, 0]


def test_overlapping_waits_are_counted_once(tmp_path):
    step = (0, 80, [2, 0, 80], [0, 10, 30, 1, 20, 50, 0, 25, 28], [])
    assert split.exposure(write(tmp_path, 0, [step])).exposed[0] == 40 * MS


moments = st.integers(0, 200)


@given(
    waits=st.lists(st.tuples(moments, moments).map(sorted), max_size=6),
    ops=st.lists(st.tuples(moments, moments).map(sorted), max_size=8),
    late=st.integers(0, 100),
    rate=st.one_of(st.none(), st.floats(1e5, 1e9)),
)
def test_parts_are_never_negative_and_sum_to_the_exposed_time(tmp_path_factory, waits, ops, late, rate):
    folder = tmp_path_factory.mktemp("any")
    flat = [value for a, b in waits for value in (1, a, b)]
    logs = [
        write(folder, rank, [(0, 400, [2, 0, 400], flat, [(0, i, a + late * rank, a, b + late, -1, -1)
                                                         for i, (a, b) in enumerate(ops)])])
        for rank in (0, 1)
    ]  # fmt: skip
    for rank in (0, 1):
        got = parts(logs, rank, Path(rtt_ns=3.0 * MS, bytes_per_s=rate))
        assert sum(got.values()) == pytest.approx(split.exposure(logs[rank]).exposed[0] / MS, abs=1e-6)
        assert min(got.values()) >= -1e-9


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    log = write(tmp_path, 0, [(0, 10, [1, 0, 10], [], [])], tail=b'{"k":"step","n":2,"t":[1')
    assert len(log.steps) == 1
    assert "torn" in log.problem


def test_a_file_of_another_kind_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rank-0.events.jsonl"
    path.write_text('{"k":"start","v":99}\n')
    with pytest.raises(EventError, match=r"rank-0\.events\.jsonl:1.*format 99"):
        columns.read(path)


@pytest.mark.parametrize(
    ("kind", "world", "round_trips"),
    [("all_reduce", 2, 2), ("all_reduce", 3, 4), ("all_gather", 2, 1), ("all_gather", 3, 2), ("reduce_scatter", 2, 2),
     ("broadcast", 2, 1), ("broadcast", 3, 1), ("barrier", 2, 1), ("barrier", 3, 2)],
)  # fmt: skip
def test_gloos_trips_are_those_measured_across_a_long_link(kind, world, round_trips):
    assert split.trips(kind, world, 4096, "gloo") == 2 * round_trips


def test_a_world_of_one_moves_and_waits_for_nothing():
    assert split.wire_share("all_reduce", 1) == 0
    assert split.trips("all_reduce", 1, 4096, "gloo") == 0


def test_the_tracer_ends_a_step_where_the_next_begins():
    lines = []
    tracer = Tracer(lines.append)
    for _ in range(3):
        tracer.data()
        tracer.got_data()
        tracer.forward(training=True)
        before = tracer.backward()
        tracer.backward_over(before)
        tracer.optimizer()
        tracer.optimizer_over()
    tracer.close(ok=True)
    steps = [line for line in lines if line["k"] == "step"]
    assert [step["n"] for step in steps] == [1, 2, 3]
    assert all(a["t"][1] == b["t"][0] for a, b in itertools.pairwise(steps))
    for step in steps:
        spans = np.array(step["s"]).reshape(-1, 3)
        assert (spans[1:, 1] == spans[:-1, 2]).all(), "no time lies between two phases"
        assert spans[-1, 2] == step["t"][1] - step["t"][0]
    assert lines[-1]["k"] == "end"


def test_an_evaluation_belongs_to_no_step():
    lines = []
    tracer = Tracer(lines.append)
    for evaluating in (False, True, True, False):
        tracer.data()
        time.sleep(0.02)
        tracer.got_data()
        tracer.forward(training=not evaluating)
        if not evaluating:
            tracer.backward_over(tracer.backward())
            tracer.optimizer()
            tracer.optimizer_over()
    tracer.close(ok=True)
    lengths = [step["t"][1] - step["t"][0] for step in lines if step["k"] == "step"]
    assert len(lengths) == 2
    assert all(20 * MS <= length < 38 * MS for length in lengths)


def test_watch_names_the_rank_that_is_behind_and_what_the_others_wait_for(tmp_path):
    tails = []
    for rank, issued in ((0, 5), (1, 4)):
        write(tmp_path, rank, [(0, 10, [1, 0, 10], [], [(0, 3, 1, 1, 2, -1, -1)])])
        path = tmp_path / f"rank-{rank}.events.jsonl"
        now = {"k": "now", "t": 20 * MS, "n": 2, "phase": "backward", "counts": [[0, issued, 4]], "begin": 0}
        now["open"] = [[0, 4, 12 * MS]] if rank == 0 else []
        with path.open("ab") as file:
            file.write(encode(now))
        tails.append(watch.Tail(path))
        tails[-1].read()
    told = watch.lines(tails, 30 * MS)
    assert told[-1] == "rank 1 is late by 1 operation: the others wait on all_reduce number 4 of group 0"


def test_the_kernel_tells_of_a_connection_what_was_sent_through_it():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.sendall(bytes(10_000))
            taken = 0
            while taken < 10_000:
                taken += len(theirs.recv(1 << 16))
            time.sleep(0.05)
            name = "{}:{}".format(*ours.getsockname())
            found = next(one for one in tcp.connections() if one.local == name)
    assert found.bytes_acked in (10_000, 10_001)  # the SYN counts in some kernels
    assert 0 < found.rtt_us < 1_000_000
    assert found.retransmits == 0
    received, sent = tcp.interfaces()["lo"]
    assert received == sent > 10_000


def test_lines_hold_no_token_that_is_not_json():
    with pytest.raises(ValueError, match="Out of range"):
        encode({"k": "step", "t": float("nan")})
    assert json.loads(encode({"k": "end", "t": 1, "ok": True})) == {"k": "end", "t": 1, "ok": True}
    assert os.linesep == "\n"


def world(folder, heads, places, *, count=1, ranks=None):
    """The logs of ranks that each did every kind of operation `count` times; `places[rank]` is its launch."""
    logs = []
    for rank, launch in enumerate(places):
        first = start_line(rank=rank, world=len(places), clock="monotonic", boot="x", launch=launch)
        group = {"k": "group", "g": 0, "name": "0", "ranks": ranks or list(range(len(places))), "backend": "gloo"}
        ops = [v for n in range(count) for h in range(len(heads)) for v in (h, n, 1, 2, 3, -1, -1)]
        lines = [first, group, *({"k": "op", "h": h, "g": 0, **head} for h, head in enumerate(heads))]
        lines.append({"k": "step", "n": 1, "t": [0, 9], "s": [1, 0, 9], "w": [], "o": ops, "c": 0})
        path = folder / f"rank-{rank}.events.jsonl"
        path.write_bytes(b"".join(map(encode, lines)))
        logs.append(columns.read(path))
    return logs


@pytest.mark.parametrize(
    ("kind", "places", "entered", "left"),
    [
        ("all_reduce", ("a", "b"), 1200, 1200),
        ("all_reduce", ("a", "a", "b"), 1200, 1200),  # two ranks of one worker share what arrives
        ("all_gather", ("a", "b"), 600, 600),  # half of the result is elsewhere
        ("all_gather", ("a", "a", "b"), 400, 800),
        ("reduce_scatter", ("a", "b"), 600, 600),
        ("reduce_scatter", ("a", "a", "b"), 800, 400),
        ("all_reduce", ("a", "a"), 0, 0),
        ("broadcast", ("a", "b"), 0, 0),  # who sends is not known: nothing can be asked for
    ],
)
def test_what_must_at_least_cross_a_workers_interface(tmp_path, kind, places, entered, left):
    logs = world(tmp_path, [{"kind": kind, "bytes": 1200}], places, count=3)
    assert proof.least_crossing(logs, "a") == (3 * entered, 3 * left)


def test_sends_leave_and_receives_enter_and_peers_at_home_do_not_count(tmp_path):
    heads = [{"kind": "send", "bytes": 10, "peer": 1}, {"kind": "recv", "bytes": 7, "peer": 1}]
    assert proof.least_crossing(world(tmp_path, heads, ("a", "b")), "a") == (7, 10)
    assert proof.least_crossing(world(tmp_path, heads, ("a", "a")), "a") == (0, 0)


def test_sharded_training_that_bypassed_the_interface_is_not_valid(tmp_path):
    """Only all-gathers and reduce-scatters, as FSDP has them: 8 MB, of which nothing crossed eth0."""
    heads = [{"kind": "all_gather", "bytes": 8_000_000}, {"kind": "reduce_scatter", "bytes": 8_000_000}]
    folder = tmp_path / "cells" / "profile"
    folder.mkdir(parents=True)
    world(folder, heads, ("a-0", "b-0"))
    environment = {"NETLAB_WORKER": "a-0", "NETLAB_WORKERS": "2"}
    bypassed = proof.judge(RunDir(tmp_path), "a-0", {"lo": (9_000_000, 9_000_000), "eth0": (9_000, 9_000)}, environment)
    assert len(bypassed.reasons) == 2
    assert "its collectives need at least 8.0 MB: they went another way, over loopback (18.0 MB" in bypassed.reasons[0]
    crossed = proof.judge(RunDir(tmp_path), "a-0", {"lo": (0, 0), "eth0": (8_300_000, 8_300_000)}, environment)
    assert crossed.reasons == ()
    assert crossed.least_bytes == 8_000_000


def test_a_hang_names_the_operation_and_who_has_not_issued_it(tmp_path):
    """Two ranks whose fifth all-reduce was issued by rank 0 only; both were killed 8 ms after that."""
    logs = world(tmp_path, [{"kind": "all_reduce", "bytes": 64}], ("a", "b"), count=4)
    for log in logs:
        now = {"k": "now", "t": 20 * MS, "n": 2, "phase": "backward", "counts": [], "begin": 0}
        with log.path.open("ab") as file:
            file.write(encode(now | {"open": [[0, 4, 12 * MS]] if log.rank == 0 else []}))
    (found,) = hang.waiting([columns.read(log.path) for log in logs])
    assert found == hang.Waiting(0, "all_reduce", "0", 4, 64, 0.008, (1,))
    assert hang.sentence(vars(found)).endswith("of group 0 (64 bytes), without an end: rank 1 had not issued it")


def test_an_operation_that_timed_out_is_told_and_one_of_a_rank_that_ended_well_is_not(tmp_path):
    log = write(tmp_path, 0, [(0, 10, [1, 0, 10], [], [(0, 0, 1, 1, -1, -1, -1)])])
    for ok, count in ((False, 1), (True, 0)):
        with log.path.open("ab") as file:
            file.write(encode({"k": "end", "t": 3_000 * MS, "ok": ok}))
        found = hang.waiting([columns.read(log.path)])
        assert len(found) == count
        assert not found or found[0].seconds == pytest.approx(2.999)
