"""Image workloads: shards, skew, augmentation, evaluation, and what is said when a set is not there."""

import pickle

import pytest
import torch
from PIL import Image

from cpdp import workloads
from cpdp.errors import WorkloadError
from cpdp.workloads import datasets, images
from cpdp.workloads.base import Place
from cpdp.workloads.images import augmented, shard


def build(name="synthetic", rank=0, world=2, seed=1, **options):
    small = {"images": 240, "side": 16, "classes": 6, "batch": 10, "model": "cnn"} if name == "synthetic" else {}
    return workloads.build({"name": name, **small, **options}, Place(rank, world, seed))


def test_the_mnist_of_a_package_has_4000_images_to_train_and_1000_to_test():
    one = build("mnist5k", world=4, batch=32)
    assert one.steps_per_epoch == 4000 // 128
    batch, _ = next(one.batches(0))
    assert (tuple(batch.shape), batch.min().item(), batch.max().item()) == ((32, 1, 28, 28), -1.0, 1.0)
    assert torch.cat([one._set.train[1], one._set.test[1]]).bincount().tolist() == [500] * 10
    assert one.module(batch).shape == (32, 10)


def test_workers_shards_are_disjoint_and_an_epochs_order_is_the_seeds():
    def seen(**more):
        return [tuple(x.flatten().tolist()) for b, _ in build(**more).batches(0) for x in b]

    first, second = seen(rank=0), seen(rank=1)
    assert len(first) == len(second) == 120
    assert not set(first) & set(second)
    assert seen(rank=0) == first
    assert seen(rank=0, seed=2) != first


def test_skew_gives_workers_classes_of_their_own():
    labels = torch.arange(1000) % 10
    whole = [labels[shard(labels, Place(rank, 5, 1), 1.0)].bincount(minlength=10) for rank in range(5)]
    assert all(int((counts > 0).sum()) == 2 for counts in whole)  # 10 classes sorted, cut into 5
    assert all(int(counts.sum()) == 200 for counts in whole)
    half = labels[shard(labels, Place(0, 5, 1), 0.5)].bincount(minlength=10)
    assert int((half > 0).sum()) == 10
    assert int(half.max()) > 40 > 20 > int(half.min())
    assert shard(labels, Place(0, 5, 1), 0.0) is None
    apart = [set(shard(labels, Place(rank, 3, 1), 0.4).tolist()) for rank in range(3)]
    assert sum(len(one) for one in apart) == len(set.union(*apart)) == 999


def test_augmentation_crops_and_flips_and_is_the_same_again():
    image = torch.arange(1.0, 65.0).reshape(1, 1, 8, 8).repeat(200, 3, 1, 1)
    first, again = (augmented(image, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == image.shape
    flipped = [i for i in range(200) if first[i, 0, 3, 3] > 0 and first[i, 0, 3, 4] == first[i, 0, 3, 3] - 1]
    assert 70 < len(flipped) < 130
    assert torch.equal(first[:, 0], first[:, 1])  # channels together
    assert len({tuple(one.flatten().tolist()) for one in first}) > 80  # of 81 places, each flipped or not


def test_training_losses_of_all_workers_are_the_whole_training_set():
    parts = [build(rank=rank, world=3, seed=4) for rank in range(3)]
    sums, counts = zip(*(one.training_loss(one.module) for one in parts), strict=True)
    assert sum(counts) == 240
    alone = build(world=1, seed=4)
    assert sum(sums) == pytest.approx(alone.training_loss(alone.module)[0], rel=1e-5)
    assert alone.module.training


def test_a_model_learns_the_made_up_images():
    one = build(world=1)
    optimizer = one.optimizer({"lr": 0.05, "momentum": 0.9})
    before, _ = one.evaluate(one.module)
    for epoch in range(4):
        for batch in one.batches(epoch):
            optimizer.zero_grad()
            one.loss(one.module, batch).backward()
            optimizer.step()
    after, _ = one.evaluate(one.module)
    assert before < 0.5 < after


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar10", r"cifar10: .*none/cifar-10-batches-py does not exist. Put the contents of cifar-10-python.tar.gz"),
        ("cifar100", r"none/cifar-100-python does not exist"),
        ("tinyimagenet", r"none/tiny-imagenet-200 does not exist.*nothing is downloaded"),
    ],
)
def test_a_set_that_is_not_there_is_named_with_what_belongs_there(tmp_path, name, words):
    with pytest.raises(WorkloadError, match=words):
        build(name, root=str(tmp_path / "none"))


def test_a_damaged_set_is_refused_by_its_checksum(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps({}))
    with pytest.raises(WorkloadError, match="cifar-10-batches-py: Dataset not found or corrupted"):
        build("cifar10", root=str(tmp_path))


def test_tinyimagenet_is_read_from_its_folders(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    (root / "val/images").mkdir(parents=True)
    (root / "wnids.txt").write_text("n2\nn1\n")
    lines = []
    for index, name in enumerate(("n2", "n1")):
        (root / "train" / name / "images").mkdir(parents=True)
        shade = Image.new("RGB", (64, 64), (40 + 170 * index,) * 3)
        for number in range(6):
            shade.save(root / "train" / name / "images" / f"{name}_{number}.JPEG")
        shade.save(root / "val/images" / f"val_{index}.JPEG")
        lines.append(f"val_{index}.JPEG\t{name}\t0\t0\t1\t1\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    found = datasets.load("tinyimagenet", str(tmp_path), (0, 0, 0))
    assert found.train[0].shape == (12, 3, 64, 64)
    assert found.train[1].tolist() == [0] * 6 + [1] * 6
    assert found.test[1].tolist() == [0, 1]
    assert found.classes == 2
    assert datasets.floats(found.test[0])[0].mean() == pytest.approx(40 / 127.5 - 1, abs=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skew": 2}, "skew: 2 is not allowed; a share from 0 to 1"),
        ({"augment": "maybe"}, "augment: 'maybe' is not allowed"),
        ({"batch": 400}, "batch 400 on 2 workers needs 800 images per step; there are 240"),
        ({"model": "resnet19"}, "'resnet19' does not exist; valid: cnn"),
    ],
)
def test_what_is_wrong_is_named(options, words):
    with pytest.raises(WorkloadError, match=words):
        build(**options)


def test_evaluation_is_batched_without_changing_a_digit(monkeypatch):
    one = build(world=1)
    whole = one.evaluate(one.module)
    monkeypatch.setattr(images, "EVALUATED_AT_ONCE", 7)
    assert one.evaluate(one.module) == pytest.approx(whole, rel=1e-5)
