"""`cpdp record-compute`: a model timed on this machine becomes a timeline that replayed computation reads."""

import json
import time

import pytest
import torch

from cpdp.cli import main
from cpdp.errors import WorkloadError
from cpdp.workloads import models, timelines

PARAMETERS = {"resnet18": 11_220_132, "resnet20": 275_572, "resnet50": 23_705_252}


class Slow(torch.nn.Module):
    """A layer whose time is known: it sleeps forward."""

    def __init__(self, seconds):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x @ self.weight


def slow_model():
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 4), Slow(0.02), Slow(0.04)
    )


def record(tmp_path, model, *flags):
    out = tmp_path / "made.json"
    code = main(
        ["record-compute", model, "--out", str(out), "--steps", "3", "--warmup", "1", "--device", "cpu", *flags]
    )
    return code, out


def test_layers_get_the_time_they_took_and_the_file_is_a_timeline(tmp_path, capsys):
    code, out = record(tmp_path, "tests.unit.test_record_compute:slow_model", "--batch", "2", "--classes", "4")
    assert code == 0
    made = timelines.load(str(out))
    assert made.batch == 2
    named = {layer.name: layer.forward_ns / 1e6 for layer in made.layers}
    assert list(named) == ["2", "3", "4"]
    assert 19 < named["3"] < 35
    assert 39 < named["4"] < 60
    assert made.parameters == 12 * 4 + 4 + 2 * 16
    assert "3 layers" in capsys.readouterr().out
    raw = json.loads(out.read_text())
    assert "record-compute" in raw["source"]
    assert "torch" in raw["device"]


def test_the_payload_can_stand_for_a_larger_model(tmp_path):
    code, out = record(tmp_path, "tests.unit.test_record_compute:slow_model", "--payload-scale", "10", "--classes", "4")
    assert code == 0
    assert timelines.load(str(out)).parameters == 10 * (12 * 4 + 4 + 2 * 16)


def test_a_users_mistake_is_named(tmp_path, capsys):
    for model, words in (
        ("resnet19", "'resnet19' does not exist; valid: cnn, resnet18"),
        ("nowhere:f", "No module named"),
    ):
        assert record(tmp_path, model)[0] == 2
        assert words in capsys.readouterr().err
    assert record(tmp_path, "vgg16", "--image", "16")[0] == 2
    assert "images of 16 pixels are too small; at least 32" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(models.MODELS))
def test_every_model_takes_a_small_image_and_has_the_published_number_of_parameters(name):
    image = 32
    model = models.make(name, channels=3, classes=100, image=image)
    assert model(torch.zeros(2, 3, image, image)).shape == (2, 100)
    count = sum(p.numel() for p in model.parameters())
    assert count == PARAMETERS.get(name, count)
    if name == "vit-s":
        assert 21e6 < count < 22.5e6  # Touvron et al.'s DeiT-S: 22 M
    if name == "vgg16":
        assert 14.7e6 < count < 14.9e6  # the convolutions' 14.7 M


def test_a_model_that_does_not_exist_is_named():
    with pytest.raises(WorkloadError, match="valid: cnn, resnet18"):
        models.make("alexnet", channels=3, classes=10, image=32)
