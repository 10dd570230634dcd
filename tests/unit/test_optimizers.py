"""The local optimizers that an experiment can name are torch's own with torch's defaults."""

import pytest
import torch
from torch import nn

from cpdp.errors import WorkloadError
from cpdp.workloads import optimizers


@pytest.mark.parametrize(
    ("options", "kind", "given"),
    [
        ({"name": "sgd", "lr": 0.2, "momentum": 0.9, "nesterov": True}, torch.optim.SGD, {"nesterov": True}),
        ({"name": "adam"}, torch.optim.Adam, {"betas": (0.9, 0.999)}),
        ({"name": "adamw", "lr": 4e-4, "beta2": 0.95}, torch.optim.AdamW, {"betas": (0.9, 0.95), "lr": 4e-4}),
    ],
)
def test_an_optimizer_mapping_makes_torchs_optimizer(options, kind, given):
    made = optimizers.make(nn.Linear(2, 2).parameters(), options)
    assert type(made) is kind
    assert {key: made.defaults[key] for key in given} == given


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_defaults_are_torchs(name):
    made = optimizers.make(nn.Linear(2, 2).parameters(), {"name": name})
    plain = type(made)(nn.Linear(2, 2).parameters())
    assert made.defaults == plain.defaults


def test_what_torch_refuses_is_refused_with_its_words():
    with pytest.raises(WorkloadError, match="optimizer: Invalid learning rate: -1"):
        optimizers.make(nn.Linear(2, 2).parameters(), {"lr": -1})
