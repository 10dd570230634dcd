"""Workloads by name, and the digits: same images held back, shards without overlap, an order that a seed decides."""

import pytest
import torch

from cpdp import workloads
from cpdp.errors import WorkloadError
from cpdp.workloads.base import Place
from cpdp.workloads.digits import TEST_IMAGES, Digits, load_images
from cpdp.workloads.optimizers import make


def digits(rank=0, world=2, seed=1, batch=64):
    return Digits(Place(rank, world, seed), batch=batch, width=8)


def labels_of(workload, epoch):
    return [labels.tolist() for _, labels in workload.batches(epoch)]


def rows(images):
    return {tuple(image.flatten().tolist()) for image in images}


def test_an_epoch_has_the_steps_that_the_data_give():
    # 1797 - 360 = 1437 images, 2 workers of 64: 11 whole steps, the rest is dropped.
    assert digits().steps_per_epoch == 11
    assert [images.shape for images, _ in digits().batches(0)] == [(64, 1, 8, 8)] * 11
    assert digits(world=1).steps_per_epoch == 22


def test_shards_do_not_overlap_and_never_hold_a_test_image():
    first, second = digits(0), digits(1)
    seen = [torch.cat([images for images, _ in workload.batches(0)]) for workload in (first, second)]
    assert len(seen[0]) == len(seen[1]) == 704
    held_back = rows(first._test[0])
    assert len(first._test[0]) == TEST_IMAGES
    assert not rows(seen[0]) & rows(seen[1])
    assert not (rows(seen[0]) | rows(seen[1])) & held_back


def test_the_order_depends_on_seed_and_epoch_only():
    assert labels_of(digits(), 0) == labels_of(digits(), 0)
    assert labels_of(digits(), 0) != labels_of(digits(), 1)
    assert labels_of(digits(seed=1), 0) != labels_of(digits(seed=2), 0)
    assert torch.equal(digits(seed=1)._test[1], digits(seed=2)._test[1])


def test_every_worker_starts_from_the_same_model():
    a, b = digits(0).module.state_dict(), digits(1).module.state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_images_are_scaled_to_one_around_zero():
    images, labels = load_images()
    assert images.shape == (1797, 1, 8, 8)
    assert (images.min(), images.max()) == (-1.0, 1.0)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_an_untrained_model_guesses_and_training_does_better():
    workload = digits(world=1)
    before, _ = workload.evaluate(workload.module)
    optimizer = workload.optimizer({"lr": 0.05, "momentum": 0.9})
    workload.module.train()
    for epoch in range(2):
        for batch in workload.batches(epoch):
            optimizer.zero_grad()
            workload.loss(workload.module, batch).backward()
            optimizer.step()
    after, loss = workload.evaluate(workload.module)
    assert before < 0.3
    assert 0.9 < after <= 1.0
    assert 0.0 < loss < 0.5
    assert workload.module.training  # as it was


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(WorkloadError, match="batch 800 on 2 workers needs 1600 images per step; there are 1437"):
        digits(batch=800)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"name": "digit"}, r"'digit' does not exist; valid: .*did you mean 'digits'"),
        ({}, "None does not exist"),
        ({"name": "digits", "bach": 1}, r"no option 'bach'; valid: .*did you mean 'batch'"),
        ({"name": "digits", "batch": 0}, "batch: 0 is not allowed; a whole number from 1"),
        ({"name": "digits", "batch": 1.5}, "batch: 1.5 is not allowed"),
        ({"name": "digits", "batch": True}, "batch: True is not allowed"),
        ({"name": "digits", "compute": "replayed"}, "'replayed' is not supported by this version; supported: real"),
    ],
)
def test_what_is_wrong_with_a_workload_is_named(mapping, message):
    with pytest.raises(WorkloadError, match=message):
        workloads.check(mapping)


def test_defaults_are_filled_in_and_numbers_may_be_spelled_as_floats():
    assert workloads.check({"name": "digits", "batch": 32.0})["batch"] == 32
    assert workloads.check({"name": "resnet50-cifar100"})["timeline"] == "resnet50-cifar100"


def test_a_replayed_batch_other_than_the_timed_one_is_refused():
    with pytest.raises(WorkloadError, match="batch: 64 is not what was timed; timeline resnet50-cifar100 has 128"):
        workloads.build({"name": "resnet50-cifar100", "batch": 64}, Place(0, 2, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adamm"}, "'adamm' does not exist here; valid: sgd, adam, adamw"),
        ({"learning_rate": 1}, "no option 'learning_rate'"),
        ({"lr": -1}, "optimizer: Invalid learning rate"),
    ],
)
def test_what_is_wrong_with_an_optimizer_is_named(options, message):
    with pytest.raises(WorkloadError, match=message):
        make([torch.nn.Parameter(torch.ones(1))], options)
