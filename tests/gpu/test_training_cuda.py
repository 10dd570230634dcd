"""On a CUDA device: the event clock against a known duration, and strategies whose model lives on the GPU.

Written without a device at hand; nothing here has run yet on one.
"""

import time

import pytest
import torch
from torch import nn

import cpdp
from cpdp.clock import CudaEventClock, clock_for
from cpdp.exposure import break_down
from cpdp.recorder import StepRecorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_device_decides_the_clock():
    assert isinstance(clock_for("cuda"), CudaEventClock)
    assert clock_for("cpu").name == "monotonic"


def test_an_event_measures_the_device_not_the_host():
    clock = CudaEventClock()
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    host = time.monotonic_ns()
    start = clock.mark()
    for _ in range(50):
        matrix = matrix @ matrix * 1e-4
    end = clock.mark()
    issued = time.monotonic_ns() - host
    assert clock.resolve(end) is None, "the device cannot have finished before the host is done issuing"
    clock.settle()
    took = time.monotonic_ns() - host
    measured = clock.resolve(end) - clock.resolve(start)
    assert issued < measured <= took * 1.02
    assert abs(clock.resolve(start) - host) < 5e6


@pytest.mark.parametrize("strategy", ["ddp", "localsgd:k=2", "cpdp:k=2"])
def test_a_lone_worker_trains_and_is_recorded_on_the_device(strategy):
    events = []
    net = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    recorder = StepRecorder(events.append, clock_for("cuda"))
    model = cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=4, recorder=recorder)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 512, device="cuda")).square().mean()
        loss.backward()
        recorder.set_loss(loss.detach())
        optimizer.step()
    recorder.close()
    assert [event.n for event in events] == [1, 2, 3, 4]
    for event in events:
        parts = break_down(event)
        assert parts.computation_ns > 0
        assert parts.step_ns == parts.computation_ns + parts.exposed_ns + parts.rest_ns
        assert event.loss is not None
