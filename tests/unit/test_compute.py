"""Replayed computation takes the time it took, in the right order, with tensors of the right size."""

import json
import time

import pytest
import torch

from cpdp.compute import InertOptimizer, LayerTime, Pace, ReplayedModel, Timeline, apportion
from cpdp.errors import WorkloadError
from cpdp.workloads import timelines

MS = 1_000_000


def small():
    layers = tuple(
        LayerTime(f"layer{n}", 5 * MS, 10 * MS, ((n + 1, 3), (3,)), (("float32", (3,)), ("int64", ())))
        for n in range(4)
    )
    return Timeline("small", "a test", 1, layers)


def test_the_shipped_resnet50_is_torchvisions_with_a_cifar_stem():
    import torchvision

    timeline = timelines.load("resnet50-cifar100")
    model = torchvision.models.resnet50(num_classes=100)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    assert timeline.parameters == sum(p.numel() for p in model.parameters()) == 23_705_252
    assert 4 * timeline.parameters == 94_821_008  # the 94.8 MB that the paper sends
    shapes = [list(shape) for layer in timeline.layers for shape in layer.parameters]
    assert sorted(shapes) == sorted(list(p.shape) for p in model.parameters())
    assert sum(len(layer.buffers) for layer in timeline.layers) == len(list(model.buffers()))
    assert timeline.step_ns == 185 * MS
    assert sum(layer.forward_ns for layer in timeline.layers) == pytest.approx(185 * MS / 3, abs=1)
    derived = timelines.derive(model, torch.zeros(3, 32, 32), step_ns=185 * MS)
    assert [layer["name"] for layer in derived] == [layer.name for layer in timeline.layers]
    assert [layer["backward_ns"] for layer in derived] == [layer.backward_ns for layer in timeline.layers]


def test_layers_share_a_pass_in_proportion_to_their_multiply_accumulates():
    # Per image: 8 x 8 outputs x 27 x 4 = 6912 for the convolution, 256 x 10 = 2560 for the linear layer.
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(256, 10))
    first, second = timelines.derive(model, torch.zeros(3, 8, 8), step_ns=3 * 9472)
    assert (first["forward_ns"], second["forward_ns"]) == (6912, 2560)
    assert (first["backward_ns"], second["backward_ns"]) == (2 * 6912, 2 * 2560)


@pytest.mark.parametrize(("total", "weights"), [(10, [1, 1, 1]), (7, [5, 0, 2]), (0, [3, 4]), (10**9, [1, 10**6, 7])])
def test_parts_sum_to_the_whole_exactly(total, weights):
    parts = apportion(total, weights)
    assert sum(parts) == total
    assert all(abs(part - total * weight / sum(weights)) <= 1 for part, weight in zip(parts, weights, strict=True))


@pytest.mark.measures
def test_a_step_takes_the_timelines_time():
    model = ReplayedModel(small())
    times = []
    for _ in range(5):
        began = time.monotonic_ns()
        model(None).sum().backward()
        times.append(time.monotonic_ns() - began)
    assert min(times) >= 60 * MS - 2 * MS  # backward may begin up to the slack earlier than on a late forward pass
    assert sorted(times)[2] < 75 * MS


@pytest.mark.measures
def test_work_between_layers_is_absorbed_by_the_next_wait():
    model = ReplayedModel(small())
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: time.sleep(0.003))  # 2 per layer, 6 of its 10 ms
    times = []
    for _ in range(5):
        began = time.monotonic_ns()
        model(None).sum().backward()
        times.append(time.monotonic_ns() - began)
        model.zero_grad()
    assert sorted(times)[2] < 60 * MS + 6 * MS + 15 * MS  # not 60 + 24: only the last layer has no wait behind it


def test_a_pause_before_backward_moves_its_deadlines():
    model = ReplayedModel(small())
    loss = model(None).sum()
    time.sleep(0.05)
    began = time.monotonic_ns()
    loss.backward()
    assert 36 * MS < time.monotonic_ns() - began < 60 * MS


def test_gradients_arrive_in_reverse_order_of_layers_when_each_layer_is_done():
    model = ReplayedModel(small())
    seen = []
    began = 0
    for number, layer in enumerate(model.layers):
        layer.weights[0].register_post_accumulate_grad_hook(lambda _, n=number: seen.append((n, time.monotonic_ns())))
    loss = model(None).sum()
    began = time.monotonic_ns()
    loss.backward()
    assert [n for n, _ in seen] == [3, 2, 1, 0]
    for position, (_, moment) in enumerate(seen, start=1):
        assert 10 * position - 3 < (moment - began) / MS < 10 * position + 15


def test_gradients_are_handed_over_without_a_copy_and_do_not_change():
    model = ReplayedModel(small())
    before = [g.clone() for layer in model.layers for g in layer.gradients]
    for _ in range(2):
        model.zero_grad()
        model(None).sum().backward()
        for layer in model.layers:
            for parameter, gradient in zip(layer.weights, layer.gradients, strict=True):
                assert parameter.grad.shape == parameter.shape
                assert parameter.grad.data_ptr() == gradient.data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(before, [g for x in model.layers for g in x.gradients], strict=True))


def test_the_inert_optimizer_changes_nothing_and_calls_its_hooks():
    model = ReplayedModel(small())
    optimizer = InertOptimizer(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    model(None).sum().backward()
    optimizer.step()
    assert called == [1]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_wait_that_ended_late_is_remembered():
    pace = Pace()
    pace.start()
    time.sleep(0.01)
    pace.wait_forward(1 * MS)
    assert 8 * MS < pace.worst_late_ns < 100 * MS


def test_a_timeline_can_be_any_file(tmp_path):
    layer = {"name": "a", "forward_ns": 1, "backward_ns": 2, "parameters": [[2, 2]], "buffers": []}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine", "source": "me", "batch": 3, "layers": [layer]}))
    timeline = timelines.load(str(path))
    assert (timeline.step_ns, timeline.parameters, timeline.batch) == (3, 4, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "TypeError"),
        ('{"name": "x", "source": "y", "batch": 1, "layers": []}', "needs layers"),
        ('{"name": "x", "source": "y", "batch": 1}', "KeyError: 'layers'"),
        (
            '{"name": "x", "source": "y", "batch": 1, "layers": '
            '[{"name": "a", "forward_ns": -1, "backward_ns": 1, "parameters": [], "buffers": []}]}',
            "at least 0",
        ),
    ],
)
def test_a_broken_timeline_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        timelines.load(str(path))


def test_an_unknown_timeline_names_the_shipped_ones():
    with pytest.raises(WorkloadError, match=r"'vgg' does not exist; shipped: .*resnet50-cifar100"):
        timelines.load("vgg")
