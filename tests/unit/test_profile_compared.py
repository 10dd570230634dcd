"""A compared run's exposed time by cause: the same analysis as a profiled script's, on numbers made by hand."""

import pytest

from cpdp import analysis
from cpdp.events import EventLog, Operation, Span, StartEvent, StepEvent
from cpdp.profiler import compared
from tests.unit.fake_run import HIDDEN, MS, PAPER, TRAVERSAL, FakeRun

NETWORK = {
    "links": [
        {"quantity": "rtt", "unit": "ms", "achieved": 10.0},
        {"quantity": "rate", "unit": "Mbit/s", "achieved": 800.0},
    ]
}


def log(rank, *, late=0, bytes_=1_000_000, count=1):
    """Steps of 200 ms: issued at 50 (rank 1 `late`), there at 150 + late, exposed; updates 10."""
    steps = []
    for n in range(3):
        begin, issued, end = n * 400 * MS, 50 + late * rank, 150 + late
        spans = (Span("forward", begin, begin + issued * MS),
                 Span("exposed.parameters", begin + issued * MS, begin + end * MS),
                 Span("update", begin + end * MS, begin + (end + 10) * MS))  # fmt: skip
        op = Operation("all_reduce", "parameters", bytes_, begin + issued * MS, begin + end * MS)
        steps.append(StepEvent(n + 1, 0, n == 0, True, begin, begin + 400 * MS, spans, (op,) * count))
    start = StartEvent(rank, 2, "localsgd", 0, "host", details={"gloo_contexts": 4})
    return EventLog(None, (start, *steps))


def test_a_late_rank_the_floors_and_the_rest_are_told_apart():
    """1 MB at 100 MB/s takes 10 ms, four trips of 5 ms 20; rank 0 waits 60 for rank 1: half of that on average."""
    found = compared.parts([log(0, late=60), log(1, late=60)], NETWORK)
    assert found == pytest.approx(
        {"queue": 0, "peer": 30, "latency": 20, "bytes": 10, "traffic": 0, "protocol": 70, "copy": 0}
    )


def test_without_a_network_record_the_floors_are_in_protocol():
    found = compared.parts([log(0), log(1)], None)
    assert (found["latency"], found["bytes"], found["protocol"]) == (0, 0, 100)


def test_ranks_that_issued_different_operations_are_not_taken_apart():
    assert compared.parts([log(0), log(1, count=2)], NETWORK) is None
    assert compared.parts([], NETWORK) is None


def test_show_has_the_parts_of_every_cell_and_they_sum_to_its_exposed_communication(tmp_path):
    run = FakeRun(tmp_path / "run", training=PAPER).write()
    cells = analysis.to_json(analysis.open_run(run))["cells"]
    assert cells
    for cell in cells:
        wanted = cell["exposed_ms"] - cell["exposed_by_cause"].get("update", 0.0)
        assert sum(cell["exposed_by_network"].values()) == pytest.approx(wanted, abs=1e-3)
    ddp = next(cell for cell in cells if cell["strategy"] == "ddp" and cell["repeat"] == 2 and cell["exposed_ms"])
    # 94.8 MB each way at 998 Mbit/s, of which the exposed share of the operation's time counts.
    floor = 94_800_000 * 8 / 998e6 * 1e3 * (TRAVERSAL - HIDDEN) / TRAVERSAL
    assert ddp["exposed_by_network"]["bytes"] == pytest.approx(min(floor, ddp["exposed_ms"]), rel=0.05)


def test_show_prints_one_line_per_strategy_with_the_causes_that_are_there():
    apart = dict.fromkeys(("queue", "peer", "latency", "bytes", "traffic", "protocol", "copy"), 0.0)
    cells = [
        {"phase": "exposure", "label": "ddp", "exposed_by_network": apart | {"peer": 30.0, "bytes": 10.0}},
        {"phase": "exposure", "label": "ddp", "exposed_by_network": apart | {"peer": 10.0, "bytes": 10.0}},
        {"phase": "exposure", "label": "hierarchical", "exposed_by_network": None},
    ]
    told = compared.sentences(cells)
    assert told == ["exposed communication by cause, ms per step:", "  exposure, ddp: peer 20.0, bytes 10.0"]
    assert compared.sentences(cells[2:]) == []
