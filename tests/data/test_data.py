"""Data sets: what is read, how it is split, prepared and augmented, and what is refused."""

import hashlib
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

import supple.data._io.paths as archive_module
from supple.data._io.decode import decode
from supple.data._io.paths import find
from supple.data.augment import POLICIES, Augmentation, random_crop, random_flip
from supple.data.classification.folder import folder
from supple.data.classification.pictures import measure
from supple.data.images import ImageSet
from supple.data.parts import labelled
from supple.data.preprocess import Preprocess
from supple.data.registry import DATASETS, load
from supple.data.splits import Splits, same_number_each, set_aside
from supple.errors import DataError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def picture(colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, kind)
    return buffer.getvalue()


def class_folders(root: Path, counts: dict[str, int], size: tuple[int, int] = (8, 8)) -> Path:
    """Files whose colour tells class and number apart: red is the class, green the number."""
    for label, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number:03}.png").write_bytes(picture((50 * label, number, 7), size))
    return root


def zipped(root: Path, target: Path, prefix: str = "", method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, prefix + path.relative_to(root).as_posix())
    return target


def silent(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def identities(part: ImageSet) -> set[tuple[int, int]]:
    return {(int(part.raw(i)[0, 0, 0]), int(part.raw(i)[1, 0, 0])) for i in range(len(part))}


def counts(part: ImageSet) -> list[int]:
    return torch.bincount(part.targets, minlength=len(part.classes)).tolist()


# Preprocessing


def test_image_of_the_right_size_passes_through_unchanged() -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    assert torch.equal(Preprocess(5, 3, (0,) * 3, (1,) * 3).image(array), torch.from_numpy(array).permute(2, 0, 1))


def test_shorter_side_is_resized_then_the_centre_cut_out() -> None:
    array = np.random.default_rng(0).integers(0, 256, (20, 50, 3), dtype=np.uint8)
    prepared = Preprocess(8, 3, (0,) * 3, (1,) * 3).image(array)
    whole = np.asarray(Image.fromarray(array).resize((20, 8), Image.Resampling.BILINEAR))  # 50 / 20 * 8 = 20
    assert torch.equal(prepared, torch.from_numpy(whole[:, 6:14].copy()).permute(2, 0, 1))


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255  # without antialiasing every pixel would be 0 or 255
    assert (Preprocess(8, 3, (0,) * 3, (1,) * 3).image(stripes).float() - 127.5).abs().max() < 6


def test_very_long_image_is_prepared_without_a_very_long_copy() -> None:
    assert Preprocess(64, 3, (0,) * 3, (1,) * 3).image(np.full((1, 2_000_000, 3), 9, np.uint8)).unique().tolist() == [9]


def test_one_channel_is_itu_luma_and_keeps_grey() -> None:
    grey = Preprocess(1, 1, (0,), (1,))
    for colour, luma in (((255, 0, 0), 76), ((0, 255, 0), 150), ((0, 0, 255), 29), ((255,) * 3, 255), ((93,) * 3, 93)):
        assert grey.image(np.array([[colour]], np.uint8)).tolist() == [[[luma]]]  # 0.299, 0.587, 0.114 times 255


def test_normalisation_by_hand() -> None:
    prepare = Preprocess(1, 3, (0.0, 0.5, 0.2), (1.0, 0.25, 0.4))
    batch = torch.tensor([[255, 51, 102]], dtype=torch.uint8).view(1, 3, 1, 1)
    result = prepare.normalise(batch)  # 1; (0.2 - 0.5) / 0.25; (0.4 - 0.2) / 0.4
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    assert_close(result.flatten(), torch.tensor([1.0, -1.2, 0.5]))
    assert_close(prepare.normalise(batch[0]), result[0])


def test_open_decodes_prepares_and_respects_the_pixel_limit() -> None:
    prepare = Preprocess(4, 3, (0,) * 3, (1,) * 3, max_pixels=64)
    assert prepare.open(picture()).tolist() == [[[v] * 4] * 4 for v in (10, 20, 30)]
    with pytest.raises(DataError, match="limit is 64"):
        prepare.open(picture(size=(9, 8)))


def test_preprocess_survives_json() -> None:
    prepare = Preprocess(32, 3, (0.1, 0.2, 1 / 3), (0.5, 0.25, 1.0), 1000)
    assert Preprocess.from_json(json.loads(json.dumps(prepare.to_json()))) == prepare


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"size": 8193},
        {"size": "32"},
        {"size": True},
        {"size": 32.0},
        {"channels": 2, "mean": [0, 0], "std": [1, 1]},
        {"mean": [0.5]},
        {"mean": "abc"},
        {"mean": [0, 0, float("nan")]},
        {"std": [1, 1, 0]},
        {"std": [1, 1, -1]},
        {"std": None},
        {"max_pixels": 0},
        {"surprise": 1},
    ],
)
def test_bad_saved_preprocessing_is_refused(change: dict[str, Any]) -> None:
    good = {"size": 32, "channels": 3, "mean": [0, 0, 0], "std": [1, 1, 1]}
    assert Preprocess.from_json(good).size == 32
    with pytest.raises(DataError):
        Preprocess.from_json({**good, **change})


@pytest.mark.parametrize("key", ["size", "channels", "mean", "std"])
def test_saved_preprocessing_needs_every_key_but_the_limit(key: str) -> None:
    saved = Preprocess(32, 3, (0,) * 3, (1,) * 3).to_json()
    del saved["max_pixels"]
    assert Preprocess.from_json(saved).max_pixels == 50_000_000
    del saved[key]
    with pytest.raises(DataError, match=key):
        Preprocess.from_json(saved)


def test_arrays_that_are_no_rgb_images_are_refused() -> None:
    for array in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(DataError, match="expected uint8"):
            Preprocess(4, 3, (0,) * 3, (1,) * 3).image(array)


# Augmentation


def test_crop_of_two_by_two_by_hand() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    by_offset = {
        (down, right): [
            [int(image[0, 0, y, x]) if 0 <= y < 2 and 0 <= x < 2 else 0 for x in (right - 1, right)]
            for y in (down - 1, down)
        ]
        for down in range(3)
        for right in range(3)
    }
    assert by_offset[0, 0] == [[0, 0], [0, 1]]  # up and to the left: only the 1 is still inside
    assert by_offset[1, 1] == [[1, 2], [3, 4]]
    seen = set()
    for seed in range(100):
        down, right = torch.randint(0, 3, (2, 1), generator=seeded(seed)).flatten().tolist()
        assert random_crop(image, 1, seeded(seed))[0, 0].tolist() == by_offset[down, right]
        seen.add((down, right))
    assert len(seen) == 9


def test_crop_moves_all_channels_together_and_every_image_apart() -> None:
    images = torch.randint(1, 256, (64, 3, 5, 7), generator=seeded(), dtype=torch.uint8)
    moved = random_crop(images, 2, seeded(1))
    down, right = torch.randint(0, 5, (2, 64), generator=seeded(1))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for i, (y, x) in enumerate(zip(down.tolist(), right.tolist())):
        assert torch.equal(moved[i], padded[i, :, y : y + 5, x : x + 7])
    same = random_crop(images[:1].expand(64, -1, -1, -1), 2, seeded(1))
    assert len({tuple(image.flatten().tolist()) for image in same}) > 15  # of 25 places
    assert torch.equal(random_crop(images.to(memory_format=torch.channels_last), 2, seeded(1)), moved)


def test_crop_without_padding_and_augmentation_of_the_input_change_nothing() -> None:
    images = torch.randint(0, 256, (8, 3, 4, 4), generator=seeded(), dtype=torch.uint8)
    before = images.clone()
    assert torch.equal(random_crop(images, 0, seeded()), before)
    random_crop(images, 1, seeded())
    random_flip(images, seeded())
    applied(images, "randaugment", seeded())
    assert torch.equal(images, before)


def test_flip_by_hand_and_half_of_the_time() -> None:
    images = torch.tensor([[[[1, 2, 3], [4, 5, 6]]]], dtype=torch.uint8).expand(1000, -1, -1, -1)
    flipped = [image == [[3, 2, 1], [6, 5, 4]] for image in random_flip(images, seeded())[:, 0].tolist()]
    kept = [image == [[1, 2, 3], [4, 5, 6]] for image in random_flip(images, seeded())[:, 0].tolist()]
    assert all(a != b for a, b in zip(flipped, kept))
    assert 430 < sum(flipped) < 570  # 4.4 deviations


def applied(images: Tensor, name: str, rng: torch.Generator) -> Tensor:
    """A policy on a batch of images."""
    channels = images.shape[1]
    prepare = Preprocess(images.shape[-1], channels, (0.5,) * channels, (0.5,) * channels)
    return Augmentation(augment=name).of_batch(images, prepare, rng)


@pytest.mark.parametrize("name", [*POLICIES, "rand-m9-mstd0.5-inc1", "augmix-m3-w3", "original-mstd0.5"])
@pytest.mark.parametrize("channels", [1, 3])
def test_policies_depend_on_the_generator_alone_and_leave_the_global_one(name: str, channels: int) -> None:
    images = torch.randint(0, 256, (1, channels, 16, 16), generator=seeded(), dtype=torch.uint8).expand(16, -1, -1, -1)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = applied(images, name, seeded(5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(applied(images, name, seeded(5)), one)
    assert not torch.equal(applied(images, name, seeded(6)), one)
    assert one.dtype == torch.uint8
    assert len({tuple(image.flatten().tolist()) for image in one}) > 4  # equal images, changed each in its own way


# Image sets


def small_set(**options: Any) -> ImageSet:
    images = torch.randint(0, 256, (12, 3, 6, 6), generator=seeded(), dtype=torch.uint8)
    prepare = Preprocess(6, 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    change = Augmentation(**options)
    return ImageSet(labelled(images, torch.arange(12) % 3), ("a", "b", "c"), prepare, augmentation=change)


def test_single_image_equals_batch_of_it() -> None:
    data = small_set()
    x, y = data.batch(torch.arange(12))
    for i in range(12):
        one, label = data.batch(torch.tensor([i]))
        assert torch.equal(one[0], x[i])
        assert label.tolist() == [y[i]]
        assert torch.equal(data.preprocess.normalise(data.raw(i)), x[i])
    assert (len(data), data.shape, data.classes, y.dtype) == (12, (3, 6, 6), ("a", "b", "c"), torch.int64)


def test_augmented_only_with_a_generator_and_repeatable_with_it() -> None:
    data, plain = small_set(crop=2, flip=True, augment="trivialaugment"), small_set()
    every = torch.arange(12)
    assert torch.equal(data.batch(every)[0], plain.batch(every)[0])
    augmented = data.batch(every, seeded(3))[0]
    assert not torch.equal(augmented, plain.batch(every)[0])
    assert torch.equal(augmented, data.batch(every, seeded(3))[0])
    assert torch.equal(plain.batch(every, seeded(3))[0], plain.batch(every)[0])


def test_files_on_demand_equal_the_same_images_in_memory(tmp_path: Path) -> None:
    files = []
    for i in range(5):
        files.append(tmp_path / f"{i}.png")
        files[-1].write_bytes(picture((i, 2 * i, 3 * i)))
    prepare = Preprocess(8, 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    labels = torch.tensor([0, 1, 0, 1, 0])
    pixels = torch.stack([prepare.open(file) for file in files])
    memory, demand = (
        ImageSet(labelled(images, labels), ("a", "b"), prepare, augmentation=Augmentation(crop=1, flip=True))
        for images in (pixels, files)
    )
    for indices in (torch.tensor([4, 0, 3]), torch.tensor([2])):
        assert torch.equal(demand.batch(indices, seeded())[0], memory.batch(indices, seeded())[0])
        assert torch.equal(demand.batch(indices[:1])[0], memory.batch(indices[:1])[0])
    files[1].write_bytes(b"gone bad")
    with pytest.raises(DataError, match=r"1\.png"):
        demand.batch(torch.arange(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(0, 3, 6, 6, dtype=torch.uint8), "targets": torch.zeros(0).long()}, "without images"),
        ({"targets": torch.tensor([0])}, "2 images but 1 targets"),
        ({"targets": torch.tensor([0.0, 1.0])}, "float32"),
        ({"targets": torch.tensor([0, 2])}, r"0\.\.2 with 2 classes"),
        ({"images": torch.zeros(2, 1, 6, 6, dtype=torch.uint8)}, "expected uint8"),
        ({"images": torch.zeros(2, 3, 6, 6)}, "expected uint8"),
    ],
)
def test_image_sets_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "images": torch.zeros(2, 3, 6, 6, dtype=torch.uint8),
        "targets": torch.tensor([0, 1]),
        "classes": ("a", "b"),
        "preprocess": Preprocess(6, 3, (0,) * 3, (1,) * 3),
    }

    def made(images: Tensor, targets: Tensor, **others: Any) -> ImageSet:
        return ImageSet(labelled(images, targets), **others)

    assert len(made(**good)) == 2
    with pytest.raises(DataError, match=message):
        made(**{**good, **change})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": -1}, "crop"),
        ({"augment": "autoagument"}, 'Did you mean "autoaugment"'),
        ({"augment": "rand-q9"}, "refused by timm"),
        ({"crop_scale": (0.5, 0.3)}, "two shares"),
        ({"jitter": 2.0}, "between 0 and 1"),
        ({"erase": -0.1}, "between 0 and 1"),
    ],
)
def test_augmentations_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Augmentation(**settings)


def test_small_images_stay_as_they_are_in_memory_and_are_enlarged_as_files_are(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (4, 3, 8, 8), generator=rng, dtype=torch.uint8)
    prepare = Preprocess(24, 3, (0.5,) * 3, (0.5,) * 3, crop_share=0.875, interpolation="bicubic")
    data = ImageSet(labelled(stored, torch.tensor([0, 1, 0, 1])), ("a", "b"), prepare)
    file = tmp_path / "x.png"
    Image.fromarray(stored[2].permute(1, 2, 0).numpy()).save(file)
    assert data.shape == (3, 24, 24)
    assert torch.equal(data.batch(torch.tensor([2]))[0], prepare.input(file))
    whole = np.asarray(Image.fromarray(stored[2].permute(1, 2, 0).numpy()).resize((24, 24), Image.Resampling.BICUBIC))
    assert torch.equal(data.raw(2), torch.from_numpy(whole.transpose(2, 0, 1).copy()))  # no crop: it was smaller


def test_the_crop_share_and_interpolation_are_those_of_torchvision(tmp_path: Path) -> None:
    from torchvision.transforms import v2

    rng = torch.Generator().manual_seed(0)
    photo = Image.fromarray(torch.randint(0, 256, (200, 150, 3), generator=rng, dtype=torch.uint8).numpy())
    photo = photo.resize((300, 400), Image.Resampling.BICUBIC)
    prepare = Preprocess(112, 3, (0.5,) * 3, (0.5,) * 3, crop_share=0.875, interpolation="bicubic")
    theirs = v2.Compose([v2.Resize(128, v2.InterpolationMode.BICUBIC), v2.CenterCrop(112)])(photo)
    off = np.abs(prepare.pixels(np.asarray(photo)).astype(int) - np.asarray(theirs).transpose(2, 0, 1).astype(int))
    assert off.max() <= 2  # theirs rounds once more between resizing and cropping


def test_random_resized_crops_of_a_file_are_those_of_its_pixels(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    photo = np.stack([np.tile(ramp, (384, 1)), np.tile(ramp[:384, None], (1, 512)), np.full((384, 512), 128)], 2)
    Image.fromarray(photo.astype(np.uint8)).save(tmp_path / "x.jpg", quality=95)
    prepare = Preprocess(32, 3, (0.5,) * 3, (0.5,) * 3)
    change = Augmentation(crop_scale=(0.2, 1.0), flip=True)
    files = ImageSet(labelled([tmp_path / "x.jpg"] * 8, torch.arange(8) % 2), ("a", "b"), prepare, augmentation=change)
    x, _ = files.batch(torch.arange(8), seeded(1))
    assert torch.equal(x, files.batch(torch.arange(8), seeded(1))[0])
    assert not torch.equal(x, files.batch(torch.arange(8), seeded(2))[0])
    pixels = torch.from_numpy(photo.astype(np.uint8)).permute(2, 0, 1)[None].expand(8, -1, -1, -1)
    memory = ImageSet(labelled(pixels, torch.arange(8) % 2), ("a", "b"), prepare, augmentation=change)
    assert (x - memory.batch(torch.arange(8), seeded(1))[0]).abs().max() < 0.06  # decoded at a lower resolution
    assert x[:, 0].mean((1, 2)).std() > 0.05


def test_worker_processes_give_the_same_batches() -> None:
    from supple.data.loaders import as_batches

    alone = small_set(crop=2, flip=True, augment="rand-m9-mstd0.5-inc1", jitter=0.4, erase=0.5)
    many = small_set(crop=2, flip=True, augment="rand-m9-mstd0.5-inc1", jitter=0.4, erase=0.5)
    alone._workers, many._workers = 0, 2
    one, other = (list(as_batches(data).training(3, 1, 1, 4)) for data in (alone, many))
    assert len(one) == len(other) == 2  # of three steps, from the second on
    for (x, y), (x2, y2) in zip(one, other):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


# Splitting


def test_set_aside_is_proportional_disjoint_complete_and_repeatable() -> None:
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)[torch.randperm(100, generator=seeded())]
    taken, rest = set_aside(labels, 20, seed=1)
    assert torch.bincount(labels[taken]).tolist() == [12, 6, 2]
    assert sorted(taken.tolist() + rest.tolist()) == list(range(100))
    assert taken.tolist() == sorted(taken.tolist())
    assert torch.equal(set_aside(labels, 20, seed=1)[0], taken)
    assert not torch.equal(set_aside(labels, 20, seed=2)[0], taken)


def test_set_aside_settles_fractions_and_leaves_one_of_each_class() -> None:
    labels = torch.tensor([0] * 5 + [1] * 4 + [2])
    assert torch.bincount(labels[set_aside(labels, 3, 0)[0]], minlength=3).tolist() == [2, 1, 0]  # 1.5, 1.2, 0.3
    assert torch.bincount(labels[set_aside(labels, 99, 0)[1]]).tolist() == [1, 1, 1]


def test_same_number_of_each_class_as_far_as_it_goes() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 50)
    for count, expected in ((9, [3, 3, 3]), (10, [4, 3, 3]), (23, [10, 3, 10]), (1000, [50, 3, 50]), (2, [1, 1, 0])):
        chosen = same_number_each(labels, count, 0)
        assert torch.bincount(labels[chosen], minlength=3).tolist() == expected
        assert len(set(chosen.tolist())) == len(chosen)


# Loading


def test_unknown_data_set_names_the_nearest_and_all() -> None:
    with pytest.raises(DataError) as caught:
        load("cifer10")
    assert 'Did you mean "cifar10"?' in caught.value.cure
    with pytest.raises(DataError) as caught:
        load("photographs of my cat")
    assert all(name in caught.value.cure for name in DATASETS)


def test_digits_are_scaled_split_and_stratified() -> None:
    from sklearn.datasets import load_digits

    data = load("digits", seed=3)
    assert data.train.shape == (1, 8, 8)
    assert len(data.train) + len(data.val) + len(data.test) == 1797
    assert len(data.test) == 359
    assert len(data.val) == 144  # a tenth of 1438
    for part in (data.train, data.val, data.test):
        share = torch.tensor(counts(part)) / len(part)
        assert (share - 0.1).abs().max() < 0.02
    original = {
        tuple(np.floor(image * 255 / 16 + 0.5).astype(int).flatten().tolist()) for image in load_digits().images
    }
    assert {tuple(data.test.raw(i).flatten().tolist()) for i in range(50)} <= original
    assert max(int(data.train.raw(i).max()) for i in range(20)) == 255
    assert torch.equal(load("digits", seed=4).test.targets, data.test.targets)  # the test part is always the same
    assert not torch.equal(load("digits", seed=4).train.targets, data.train.targets)


def test_measured_mean_and_deviation_standardise_the_training_images() -> None:
    data = load("generated")
    x, _ = data.train.batch(torch.arange(len(data.train)))
    assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert data.val.preprocess == data.test.preprocess == data.train.preprocess


def test_measure_by_hand_and_for_a_constant_channel() -> None:
    images = torch.tensor([[[[0, 255]], [[51, 51]]]], dtype=torch.uint8)
    mean, std = measure(images)
    assert mean == pytest.approx((0.5, 0.2))
    assert std == pytest.approx((0.5, 1.0))


def test_digits_at_another_size_and_in_colour_equal_what_serving_prepares() -> None:
    small, large = load("digits"), load("digits", size=20, channels=3)
    assert large.train.shape == (3, 20, 20)
    array = small.test.raw(5).permute(1, 2, 0).expand(-1, -1, 3).numpy()
    assert torch.equal(large.test.preprocess.image(np.ascontiguousarray(array)), large.test.raw(5))


def test_given_mean_and_deviation_are_used() -> None:
    prepare = load("digits", mean=(0.1,), std=(0.2,)).train.preprocess
    assert (prepare.mean, prepare.std) == ((0.1,), (0.2,))
    assert load("digits", mean=(0.1,)).train.preprocess.std != (0.2,)
    with pytest.raises(DataError, match="3 values for 1 channels"):
        load("digits", mean=(0.1, 0.2, 0.3))


def test_limit_counts_training_images_after_the_holdout() -> None:
    data = load("digits", limit=100, holdout=0.2, test_limit=30)
    assert (len(data.train), len(data.val), len(data.test)) == (100, 20, 30)
    assert counts(data.train) == [10] * 10
    assert counts(data.test) == [3] * 10
    assert len(load("digits", holdout=50).val) == 50


@pytest.mark.parametrize(
    "options",
    [
        {"holdout": 0},
        {"holdout": -1},
        {"holdout": 1.5},
        {"holdout": float("inf")},
        {"size": -3},
        {"size": 10_000},
        {"limit": 0},
        {"test_limit": 0},
        {"size": 0},
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        load("digits", **options)


def test_channels_other_than_one_and_three_are_refused() -> None:
    for channels in (-1, 0, 2, 4):
        with pytest.raises(DataError, match="expected 3"):
            load("generated", channels=channels)


def test_generated_set_is_repeatable_learnable_and_of_the_promised_size() -> None:
    data = load("generated")
    assert (len(data.train), len(data.val), len(data.test)) == (256, 64, 64)
    assert data.train.shape == (3, 16, 16)
    assert load("generated", size=12).train.shape == (3, 12, 12)
    assert torch.equal(load("generated").train.raw(3), data.train.raw(3))
    assert not torch.equal(load("generated", seed=1).train.raw(3), data.train.raw(3))

    def spectrum(part: ImageSet) -> Tensor:
        grey = part.batch(torch.arange(len(part)))[0].mean(1)
        return torch.fft.rfft2(grey).abs().flatten(1)

    # The direction of stripes is plain in the spectrum: the nearest class mean there recognises it.
    centres = torch.stack([spectrum(data.train)[data.train.targets == label].mean(0) for label in range(4)])
    guess = torch.cdist(spectrum(data.test), centres).argmin(1)
    assert (guess == data.test.targets).float().mean() > 0.9


def test_only_training_images_are_augmented() -> None:
    data = load("generated", crop=2, flip=True, augment="randaugment")
    some = torch.arange(8)
    assert not torch.equal(data.train.batch(some, seeded())[0], data.train.batch(some)[0])
    for part in (data.val, data.test):
        assert torch.equal(part.batch(some, seeded())[0], part.batch(some)[0])


# Finding


def test_relative_roots_are_looked_for_here_in_the_variable_and_in_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "shared/data/pets").mkdir(parents=True)  # lies beside, but nobody named it
    named = [tmp_path / "named", tmp_path / "also"]
    monkeypatch.setenv("SUPPLE_DATA", os.pathsep.join(map(str, named)))
    with pytest.raises(DataError) as caught:
        find("pets")
    assert all(place in caught.value.cause for place in ("pets,", *map(str, named), "data/pets"))
    found = []
    for place in (here / "data", *reversed(named), here):
        (place / "pets").mkdir(parents=True)
        found.append(find("pets").resolve())
        assert found[-1] == (place / "pets").resolve()  # each earlier place goes before the later ones
    assert find(str(tmp_path / "named/pets")) == tmp_path / "named/pets"


# Folders


def test_images_are_read_in_inference_mode_too(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"cat": 20, "dog": 20})
    with torch.inference_mode():
        assert len(load("folder", root=str(root)).train) > 0


def test_plain_class_folders_are_split_without_overlap(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"cat": 40, "dog": 20, "owl": 20})
    data = load("folder", root=str(root), holdout=0.25, warn=silent)
    assert data.train.classes == ("cat", "dog", "owl")
    assert (counts(data.test), counts(data.val), counts(data.train)) == ([8, 4, 4], [8, 4, 4], [24, 12, 12])
    parts = [identities(part) for part in (data.train, data.val, data.test)]
    assert len(parts[0] | parts[1] | parts[2]) == 80
    for part in (data.train, data.val, data.test):
        assert [int(part.raw(i)[0, 0, 0]) // 50 for i in range(len(part))] == part.targets.tolist()
    again = load("folder", root=str(root), holdout=0.25, warn=silent)
    assert [identities(part) for part in (again.train, again.val, again.test)] == parts
    other = load("folder", root=str(root), holdout=0.25, seed=1, warn=silent)
    assert identities(other.test) != parts[2]


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["0", "1", "10", "100", "2"], ("0", "1", "2", "10", "100")),
        (["007", "10", "7"], ("007", "7", "10")),
        (["1", "10", "2", "other"], ("1", "10", "2", "other")),
    ],
    ids=["numbers", "twice-the-same", "one-is-no-number"],
)
def test_class_folders_that_are_all_numbers_are_sorted_as_numbers(tmp_path: Path, names: list[str], classes) -> None:
    found = folder(root=str(class_folders(tmp_path, dict.fromkeys(names, 2))))
    assert found.classes == classes
    for part in (found.train, found.test):
        named = [Path(str(source)).parent.name for source in part.images]
        assert named == [classes[label] for label in part.targets.tolist()]


@pytest.mark.parametrize("second", ["test", "val"])
def test_train_and_test_folders_are_taken_as_they_are(tmp_path: Path, second: str) -> None:
    class_folders(tmp_path / "train", {"a": 10, "b": 10})
    class_folders(tmp_path / second, {"a": 3, "b": 2})
    data = load("folder", root=str(tmp_path), warn=silent)
    assert (counts(data.train), counts(data.val), counts(data.test)) == ([9, 9], [1, 1], [3, 2])


def test_a_validation_folder_beside_train_and_test_is_the_validation_part(tmp_path: Path) -> None:
    for name, count in (("train", 5), ("val", 2), ("test", 3)):
        class_folders(tmp_path / name, {"a": count, "b": count})
    data = load("folder", root=str(tmp_path), warn=silent)
    assert (len(data.train), len(data.val), len(data.test)) == (10, 4, 6)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("prefix", ["", "photos/"])
def test_a_zip_gives_what_the_folder_gives(tmp_path: Path, method: int, prefix: str) -> None:
    root = class_folders(tmp_path / "all", {"a": 10, "b": 12})
    archive = zipped(root, tmp_path / "all.zip", prefix, method)
    for memory_limit in (2**31, 0):
        one = load("folder", root=str(root), warn=silent)
        two = load("folder", root=str(archive), warn=silent, memory_limit=memory_limit)
        for name in ("train", "val", "test"):
            x, y = getattr(one, name), getattr(two, name)
            every = torch.arange(len(x))
            assert torch.equal(x.batch(every)[0], y.batch(every)[0])
            assert torch.equal(x.targets, y.targets)


def test_a_wrapped_zip_with_train_and_test(tmp_path: Path) -> None:
    for name in ("train", "test"):
        class_folders(tmp_path / "all" / name, {"a": 4, "b": 4})
    data = load("folder", root=str(zipped(tmp_path / "all", tmp_path / "all.zip", "deep/er/")), warn=silent)
    assert data.train.classes == ("a", "b")
    assert len(data.test) == 8


def test_hidden_files_other_suffixes_and_macosx_are_not_looked_at(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "all", {"a": 5, "b": 5})
    for extra in ("__MACOSX/a/x.png", ".git/a/x.png", "a/._000.png", "a/notes.txt", "classes.tsv", "a/.DS_Store"):
        (root / extra).parent.mkdir(parents=True, exist_ok=True)
        (root / extra).write_bytes(b"no image")
    for source in (root, zipped(root, tmp_path / "all.zip")):
        found = folder(root=str(source))
        assert found.classes == ("a", "b")
        assert len(found.train) + len(found.test) == 10


def test_only_the_limited_images_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import supple.data.classification.pictures as reading

    root = class_folders(tmp_path, {"a": 50, "b": 50})
    decoded = []
    monkeypatch.setattr(reading, "decode", lambda *given: decoded.append(given[0]) or decode(*given))
    data = load("folder", root=str(root), limit=10, holdout=4, test_limit=6, warn=silent)
    assert (counts(data.train), counts(data.val), counts(data.test)) == ([5, 5], [2, 2], [3, 3])
    assert len(decoded) == 20


def test_above_the_memory_limit_files_are_read_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import supple.data.preprocess as prepare

    root = class_folders(tmp_path, {"a": 10, "b": 10})
    opened = []
    monkeypatch.setattr(prepare, "decode", lambda *given: opened.append(given[0]) or decode(*given))
    bytes_needed = 20 * 3 * 8 * 8
    load("folder", root=str(root), memory_limit=bytes_needed, warn=silent).train.batch(torch.arange(3))
    assert opened == []
    data = load("folder", root=str(root), memory_limit=bytes_needed - 1, warn=silent, crop=1)
    in_memory = load("folder", root=str(root), warn=silent, crop=1)
    opened.clear()
    assert torch.equal(
        data.train.batch(torch.arange(3), seeded())[0], in_memory.train.batch(torch.arange(3), seeded())[0]
    )
    assert len(opened) == 3


def test_images_of_different_sizes_need_data_size(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"a": 5, "b": 5})
    (root / "b/big.png").write_bytes(picture(size=(10, 12)))
    for memory_limit in (2**31, 0):
        with pytest.raises(DataError, match=r"big\.png is 10 x 12") as caught:
            load("folder", root=str(root), memory_limit=memory_limit, warn=silent, test_share=0.1)
        assert "data.size" in caught.value.cure
    assert load("folder", root=str(root), size=6, warn=silent).train.shape == (3, 6, 6)


def test_images_that_are_not_square_need_data_size(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"a": 5, "b": 5}, size=(8, 6))
    with pytest.raises(DataError, match="8 x 6 pixels, not square"):
        load("folder", root=str(root))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no images"),
        (["notes.txt"], "no images"),
        (["1.png", "2.png"], "no class folders"),
        (["cat/1.png", "cat/2.png"], "one class only: cat"),
        (["cat/1.png", "dog/1.png", "owl/"], "owl has no images"),
        (["cat/1.png", "dog/1.png", "owl/notes.txt"], "owl has no images"),
        (["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/owl/1.png"], "differ: dog, owl"),
        (["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/"], "dog has no images"),
        (["train/cat/1.png", "train/dog/1.png", "test/"], "no class folders"),
    ],
)
def test_folders_that_are_no_data_set_are_refused(tmp_path: Path, files: list[str], message: str) -> None:
    root = tmp_path / "all"
    root.mkdir()
    for name in files:
        if name.endswith("/"):
            (root / name).mkdir(parents=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(picture())
    for source in (root, zipped(root, tmp_path / "all.zip")):
        with pytest.raises(DataError, match=message) as caught:
            load("folder", root=str(source))
        assert caught.value.cure


def test_missing_folder_no_root_and_a_file_that_is_no_zip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="looked at"):
        load("folder", root=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="needs data.root"):
        load("folder")
    (tmp_path / "a.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match="not a readable zip"):
        load("folder", root=str(tmp_path / "a.zip"))


@pytest.mark.parametrize("memory_limit", [2**31, 0])
def test_one_unreadable_file_is_left_out_and_named(tmp_path: Path, memory_limit: int) -> None:
    root = class_folders(tmp_path / "all", {"a": 10, "b": 10})
    (root / "a/005.png").write_bytes(b"broken")
    said: list[str] = []
    data = load("folder", root=str(root), warn=said.append, memory_limit=memory_limit)
    assert len(data.train) + len(data.val) + len(data.test) == 19
    assert len(said) == 1
    assert "1 of 20" in said[0]
    assert "005.png" in said[0]
    _, y = data.train.batch(torch.arange(len(data.train)))
    assert [int(data.train.raw(i)[0, 0, 0]) // 50 for i in range(len(y))] == y.tolist()  # labels still belong


def test_more_unreadable_files_are_an_error_naming_three_and_the_count(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "all", {"a": 10, "b": 10})
    for number in range(4):
        (root / f"a/{number:03}.png").write_bytes(b"broken")
    for source in (root, zipped(root, tmp_path / "all.zip")):
        with pytest.raises(DataError, match="4 of 20 images cannot be read") as caught:
            load("folder", root=str(source))
        assert caught.value.cause.count("/a/00") == 3


def test_a_thousandth_of_the_files_may_be_unreadable(tmp_path: Path) -> None:
    root = class_folders(tmp_path, {"a": 2, "b": 2})
    for number in range(2996):
        os.link(root / "a/000.png", root / f"a/more{number}.png")
    for number in range(3):
        (root / f"b/broken{number}.png").write_bytes(b"broken")
    said: list[str] = []
    data = load("folder", root=str(root), warn=said.append)
    assert len(data.train) + len(data.val) + len(data.test) == 3000
    (root / "b/broken3.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="up to 3 would be left out"):
        load("folder", root=str(root))


def test_files_are_never_touched(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "all", {"a": 6, "b": 6})
    archive = zipped(root, tmp_path / "all.zip")

    def fingerprint() -> dict[str, tuple[int, str]]:
        files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
        return {str(p): (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files}

    before = fingerprint()
    for source in (root, archive):
        for memory_limit in (2**31, 0):
            load("folder", root=str(source), memory_limit=memory_limit).train.batch(torch.arange(2), seeded())
    assert fingerprint() == before


def test_zip_members_that_declare_too_much_lie_or_are_damaged_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = class_folders(tmp_path / "all", {"a": 6, "b": 6})
    archive = zipped(root, tmp_path / "all.zip", method=zipfile.ZIP_STORED)
    data = bytearray(archive.read_bytes())
    data[data.find(b"IDAT") + 6] ^= 0xFF
    (tmp_path / "damaged.zip").write_bytes(data)
    said: list[str] = []
    load("folder", root=str(tmp_path / "damaged.zip"), warn=said.append)
    assert "damaged.zip/a/000.png is damaged" in said[0]

    files, _ = archive_module.members(zipped(root, tmp_path / "deflated.zip"))
    from dataclasses import replace

    with pytest.raises(DataError, match="is damaged"):
        replace(files[0], size=files[0].size - 1).read()  # more comes out than was declared: stopped there
    monkeypatch.setattr(archive_module, "MAX_MEMBER", 10)
    with pytest.raises(DataError, match="the limit is 10"):
        load("folder", root=str(archive))


# CIFAR


def cifar_files(classes: int, binary: bool, rng: np.random.Generator) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Official file names with a few random images each, and what they hold."""
    train = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    test = "test_batch" if classes == 10 else "test"
    names = [f"class{i}" for i in range(classes)]
    files, held = {}, {}
    for name in [*train, test]:
        count = 20 if classes == 10 else 200
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = [i % classes for i in range(count)]
        held[name] = (pixels, labels)
        if binary:
            columns = np.array(labels, np.uint8)[:, None]
            coarse = [] if classes == 10 else [columns // 5]
            files[name + ".bin"] = np.concatenate([*coarse, columns, pixels], axis=1).tobytes()
        else:
            key = b"labels" if classes == 10 else b"fine_labels"
            files[name] = pickle.dumps({b"data": pixels, key: labels, b"coarse_labels": [0] * count}, protocol=2)
    meta = {b"label_names" if classes == 10 else b"fine_label_names": [name.encode() for name in names]}
    if binary:
        files["batches.meta.txt" if classes == 10 else "fine_label_names.txt"] = "\n".join(names).encode()
    else:
        files["batches.meta" if classes == 10 else "meta"] = pickle.dumps(meta, protocol=2)
    return files, {"train": [held[name] for name in train], "test": held[test]}


FOLDERS = {
    (10, False): ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    (10, True): ("cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    (100, False): ("cifar-100-python", "cifar-100-python.tar.gz"),
    (100, True): ("cifar-100-binary", "cifar-100-binary.tar.gz"),
}


@pytest.mark.parametrize(("classes", "binary"), FOLDERS)
def test_cifar_is_read_from_folder_and_archive_however_it_is_pointed_at(
    tmp_path: Path, classes: int, binary: bool
) -> None:
    files, held = cifar_files(classes, binary, np.random.default_rng(0))
    name, archive = FOLDERS[classes, binary]
    (tmp_path / "one" / name).mkdir(parents=True)
    (tmp_path / "two").mkdir()
    for file, data in files.items():
        (tmp_path / "one" / name / file).write_bytes(data)
    for target in (tmp_path / "two" / archive, tmp_path / "renamed.tgz"):
        with tarfile.open(target, "w:gz") as tar:
            tar.add(tmp_path / "one" / name, name)
    pixels = np.concatenate([part for part, _ in held["train"]]).reshape(-1, 3, 32, 32)
    for root in ("one", f"one/{name}", "two", f"two/{archive}", "renamed.tgz"):
        found = DATASETS[f"cifar{classes}"].read(root=str(tmp_path / root))
        assert found.classes == tuple(f"class{i}" for i in range(classes))
        np.testing.assert_array_equal(found.train.images, pixels)
        assert found.train.targets.tolist() == [label for _, part in held["train"] for label in part]
        np.testing.assert_array_equal(found.test.images, held["test"][0].reshape(-1, 3, 32, 32))
    data = load(f"cifar{classes}", root=str(tmp_path / "one"), holdout=classes)
    assert data.train.shape == (3, 32, 32)
    assert len(data.val) == len(set(data.val.targets.tolist())) == classes


def official(folder_path: Path, change: Callable[[dict[str, bytes]], None] = lambda files: None) -> str:
    files, _ = cifar_files(10, False, np.random.default_rng(0))
    change(files)
    folder_path.mkdir()
    for name, data in files.items():
        (folder_path / name).write_bytes(data)
    return str(folder_path)


def test_cifar_without_root_is_looked_for_and_the_places_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPPLE_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError, match="named") as caught:
        load("cifar10")
    assert "cifar-10-batches-py" in caught.value.cure
    (tmp_path / "named").mkdir()
    official(tmp_path / "named/cifar-10-batches-py")
    assert len(load("cifar10").test) == 20


def test_cifar_pickled_by_python_2_is_read(tmp_path: Path) -> None:
    # Protocol 0, as Python 2 wrote it: the array's bytes stand as an 8-bit string, the names as numpy.core.
    pixels = bytes(range(256)) * 12
    quoted = "".join(f"\\x{byte:02x}" for byte in pixels)
    text = (
        "(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntp4\nS'b'\np5\ntp6\nRp7\n"
        "(I1\n(I1\nI3072\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\nI1\ntp11\nRp12\n"
        "(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS'" + quoted + "'\np15\ntp16\nbsS'labels'\np17\n(lp18\nI4\nas."
    )

    def change(files: dict[str, bytes]) -> None:
        files["test_batch"] = text.encode()

    found = DATASETS["cifar10"].read(root=official(tmp_path / "old", change))
    assert found.test.targets.tolist() == [4]
    assert found.test.images[0].flatten().tolist() == list(pixels)


def test_cifar_without_class_names_numbers_them(tmp_path: Path) -> None:
    found = DATASETS["cifar10"].read(root=official(tmp_path / "x", lambda files: files.pop("batches.meta") and None))
    assert found.classes == tuple("0123456789")


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    target = tmp_path / "owned"
    bomb = pickle.dumps({b"data": Malicious(target), b"labels": [0]})
    with pytest.raises(DataError, match=r"data_batch_2.*refused.*mkdir"):
        load("cifar10", root=official(tmp_path / "x", lambda files: files.update(data_batch_2=bomb)))
    assert not target.exists()
    pickle.loads(bomb)  # it would have run
    assert target.exists()


@pytest.mark.parametrize(
    "code", ["cbuiltins\neval\n", "cos\nsystem\n", "cnumpy\nload\n", "cnumpy.core.multiarray\nscalar\n"]
)
def test_every_other_name_in_a_pickle_is_refused(tmp_path: Path, code: str) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["batches.meta"] = code.encode() + b"(S'1'\ntR."

    with pytest.raises(DataError, match="refused"):
        load("cifar10", root=official(tmp_path / "x", change))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.float32), b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["0"]}),
        pickle.dumps({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}),
    ],
)
def test_cifar_files_with_other_content_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="data_batch_3"):
        load("cifar10", root=official(tmp_path / "x", lambda files: files.update(data_batch_3=content)))


def test_missing_and_damaged_cifar_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file data_batch_4"):
        load("cifar10", root=official(tmp_path / "x", lambda files: files.pop("data_batch_4") and None))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"not a readable tar\.gz"):
        load("cifar10", root=str(tmp_path / "cifar-10-python.tar.gz"))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(bytes(3074))
    with pytest.raises(DataError, match="not a multiple of 3073"):
        load("cifar10", root=str(tmp_path / "cifar-10-batches-bin"))


# The real thing


def test_real_cifar10_images_from_a_zip(real_data: Callable[[str], str]) -> None:
    data: Splits = load("folder", root=real_data("cifar10-imagefolder.zip"), limit=500, holdout=100, test_limit=100)
    assert data.train.shape == (3, 32, 32)
    assert (counts(data.train), counts(data.val), counts(data.test)) == ([50] * 10, [10] * 10, [10] * 10)
    assert data.train.classes[0] == "airplane"
    assert_close(torch.tensor(data.train.preprocess.mean), torch.tensor([0.491, 0.482, 0.447]), atol=0.03, rtol=0)
    train = {data.train.raw(i).numpy().tobytes() for i in range(500)}
    assert not train & {data.val.raw(i).numpy().tobytes() for i in range(100)}


def test_real_photographs_of_64_pixels_resized_and_on_demand(real_data: Callable[[str], str]) -> None:
    options: dict[str, Any] = {"root": real_data("tiny-imagenet-part.zip"), "size": 48, "limit": 200, "holdout": 200}
    memory = load("folder", test_limit=200, **options)
    demand = load("folder", test_limit=200, memory_limit=0, **options)
    assert len(memory.train.classes) == 200
    assert memory.train.shape == (3, 48, 48)
    some = torch.arange(0, 200, 20)
    assert torch.equal(memory.test.read(some), demand.test.read(some))
