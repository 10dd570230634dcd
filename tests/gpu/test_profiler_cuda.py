"""The profiler on a GPU: its marks are CUDA events, and what it exposes agrees with torch.profiler's trace."""

import json
import time

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_phases_by_events_agree_with_kineto_within_two_percent(tmp_path):
    from cpdp.clock import CudaEventClock
    from cpdp.profiler.tracer import Tracer

    lines = []
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(512, 4096, device="cuda")
    for _ in range(3):
        model(batch).sum().backward()
    tracer = Tracer(lines.append, CudaEventClock())
    with torch.profiler.profile() as kineto:
        for _ in range(10):
            tracer.begin_if_over()
            tracer.forward(training=True)
            loss = model(batch).sum()
            before = tracer.backward()
            loss.backward()
            tracer.backward_over(before)
            tracer.optimizer()
            optimizer.step()
            tracer.optimizer_over()
        torch.cuda.synchronize()
    tracer.close(ok=True)
    steps = [line for line in lines if line["k"] == "step"]
    assert len(steps) == 10
    by_events = sum(line["t"][1] - line["t"][0] for line in steps[1:-1])
    path = tmp_path / "trace.json"
    kineto.export_chrome_trace(str(path))
    kernels = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "kernel"]
    busy = sum(event["dur"] for event in kernels) * 1e3 * len(steps[1:-1]) / len(steps)
    assert by_events == pytest.approx(busy, rel=0.02)
    assert time.monotonic_ns() > steps[-1]["t"][1]
