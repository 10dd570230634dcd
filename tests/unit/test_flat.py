"""Flat buffers change where tensors live and nothing else."""

import pytest
import torch
from torch import nn

from cpdp.errors import UsageError
from cpdp.flat import flatten, float_buffers, trained_parameters


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))


def test_values_outputs_and_gradients_are_what_they_were():
    plain, flat = small_model(), small_model()
    flatten(trained_parameters(flat))
    x = torch.randn(2, 3, 8, 8)
    for model in (plain, flat):
        model(x).square().sum().backward()
    for a, b in zip(plain.parameters(), flat.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)


def test_the_buffer_and_the_parameters_share_their_memory():
    model = small_model()
    (buffer,) = flatten(trained_parameters(model))
    assert buffer.data.numel() == sum(p.numel() for p in model.parameters())
    buffer.data.zero_()
    assert all(not p.any() for p in model.parameters())
    model.load_state_dict(small_model().state_dict())
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), buffer.data)
    buffer.check()


def test_one_buffer_for_each_dtype():
    tensors = [
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(2, dtype=torch.float64)),
        nn.Parameter(torch.ones(4)),
    ]
    buffers = flatten(tensors)
    assert [(b.data.dtype, b.data.numel()) for b in buffers] == [(torch.float32, 7), (torch.float64, 2)]


def test_channels_last_weights_stay_channels_last():
    model = small_model().to(memory_format=torch.channels_last)
    before = model[0].weight.detach().clone()
    flatten(trained_parameters(model))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("tie", ["same parameter", "same memory"])
def test_tied_weights_stay_tied_and_count_once(tie):
    embedding, decoder = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
    decoder.weight = embedding.weight if tie == "same parameter" else nn.Parameter(embedding.weight.data)
    model = nn.ModuleDict({"embedding": embedding, "decoder": decoder})
    (buffer,) = flatten(trained_parameters(model))
    assert buffer.data.numel() == 21
    assert embedding.weight.data_ptr() == decoder.weight.data_ptr() == buffer.data.data_ptr()
    model.load_state_dict(model.state_dict())
    assert embedding.weight.data_ptr() == decoder.weight.data_ptr()


def test_memory_shared_in_part_is_refused():
    whole = torch.ones(10)
    with pytest.raises(UsageError, match="shares only part of its memory"):
        flatten([nn.Parameter(whole[:6]), nn.Parameter(whole[4:])])


def test_a_model_moved_after_wrapping_is_noticed():
    model = small_model()
    (buffer,) = flatten(trained_parameters(model))
    model[3].weight.data = torch.zeros(5, 144)
    with pytest.raises(UsageError, match=r"shape \(5, 144\) was moved"):
        buffer.check()


def test_frozen_parameters_and_counters_are_left_alone():
    model = small_model()
    model[0].weight.requires_grad_(False)
    assert len(trained_parameters(model)) == len(list(model.parameters())) - 1
    assert [b.numel() for b in float_buffers(model)] == [4, 4]  # running mean and variance, no counter


def test_empty_tensors_and_no_tensors_are_harmless():
    assert flatten([]) == ()
    (buffer,) = flatten([nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2))])
    assert buffer.data.numel() == 2
    buffer.check()
