"""Data sets as they are declared: their settings, what is refused, sets and tasks that come from elsewhere."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from supple.backbones import BACKBONES
from supple.data.classification.folder import split_by_seed
from supple.data.images import ImageSet
from supple.data.parts import Collection, Part, labelled
from supple.data.preprocess import Preprocess
from supple.data.registry import DATASETS, DataSet, load
from supple.data.splits import choose
from supple.errors import DataError, RecipeError
from supple.losses import OBJECTIVES
from supple.model import Output
from supple.recipe import Data, make_recipe
from supple.tasks import TASKS
from supple.tasks.task import Metric, Task
from supple.training.build import load_data, skeleton
from tiny import tiny_document

COMMON = set(Data.model_fields)


def refused(data: dict[str, Any]) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        make_recipe(tiny_document("slim") | {"data": data})
    return caught.value


# Settings


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("digits", "root"),
        ("cifar10", "sigma"),
        ("cifar10", "test_share"),
        ("folder", "rate"),
        ("sounds", "flip"),
        ("sounds", "fold"),
        ("crowd", "crop"),
        ("disco", "test_share"),
        ("coco", "size"),
        ("generated", "repeat"),
        ("generated", "colour"),
    ],
)
def test_a_setting_that_a_set_does_not_have_is_refused_with_those_that_it_has(name: str, key: str) -> None:
    """Or, where other sets have it, with these."""
    error = refused({"name": name, key: 1})
    assert f'unknown key "data.{key}"' in error.cause
    others = {other for other, entry in DATASETS.items() if key in entry.settings()}
    after = f"data.{key} is for " if others else f"{name} takes "
    listed = set(error.cure.partition(after)[2].rstrip(".").split(", "))
    assert listed == (others or COMMON | set(DATASETS[name].settings()))
    with pytest.raises(DataError, match=rf"data\.{key} is not for {name}"):
        load(name, **{key: 1})


@pytest.mark.parametrize(
    ("name", "key", "inside", "outside"),
    [
        ("folder", "size", (1, 8192), (0, 8193)),
        ("folder", "channels", (1, 3), (0, 2, 4)),
        ("folder", "limit", (1,), (0,)),
        ("folder", "test_limit", (1,), (0,)),
        ("folder", "holdout", (0.1, 5), (0, -1)),
        ("folder", "test_share", (0.01, 0.99), (0, 1)),
        ("folder", "crop", (0, 64), (-1, 65)),
        ("folder", "max_pixels", (1,), (0,)),
        ("folder", "seed", (0,), (-1,)),
        ("folder", "batch_size", (1,), (0,)),
        ("folder", "classes", (1,), (0,)),
        ("sounds", "rate", (1000, 384_000), (999, 384_001)),
        ("sounds", "seconds", (0.1, 600), (0, 601)),
        ("sounds", "mels", (1, 512), (0, 513)),
        ("sounds", "features", ("stft", "mel", "three"), ("mfcc",)),
        ("esc", "fold", (1, 5), (0, 6)),
        ("crowd", "sigma", (0.1, 100), (0, 101)),
        ("crowd", "size", (8, [8, 16]), (0, [8], [8, 0], [8, 16, 24])),
        ("coco", "sizes", ([8], [8, 16]), ([0], 8)),
        ("coco", "longest", (1, 8192), (0, 8193)),
        ("coco", "repeat", (1, 10_000), (0, 10_001)),
    ],
)
def test_the_range_of_a_setting_ends_where_it_says(name: str, key: str, inside: Any, outside: Any) -> None:
    for value in inside:
        given = {"name": name, key: value}
        found = getattr(make_recipe(tiny_document("slim") | {"data": given}).data, key)
        assert found == (tuple(value) if isinstance(value, list) else value)
    for value in outside:
        assert f"data.{key} is {value!r}" in refused({"name": name, key: value}).cause


def test_usual_settings_of_a_set_are_written_into_its_recipe() -> None:
    data = make_recipe(tiny_document("slim") | {"data": {"name": "gtzan"}}).data
    found = {key: getattr(data, key) for key in ("rate", "seconds", "features", "mels", "size")}
    assert found == {"rate": 22_050, "seconds": 3.0, "features": "three", "mels": 128, "size": 224}
    assert make_recipe(tiny_document("slim") | {"data": {"name": "esc"}}).resolved()["data"]["seconds"] == 5.0


# A set that comes with --import

MODULE = """
import torch

from supple.data.parts import Collection, labelled
from supple.data.registry import DATASETS, DataSet


def bright(
    *,
    level: int = 100,  # of the bright images
    seed: int = 0,  # of the noise
) -> Collection:
    def part(count):
        labels = torch.arange(count) % 2
        noise = torch.randint(0, 20, (count, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
        return labelled((noise + level * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels)

    return Collection(train=part(40), test=part(20), classes=("dark", "bright"), channels=1)


DATASETS["bright"] = DataSet(bright, classes=2, shape=(1, 8, 8))
"""


def test_an_imported_set_has_settings_of_its_own(command: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bright_set.py").write_text(MODULE)
    document = tiny_document("slim", train={"epochs": 1}) | {"data": {"name": "bright", "batch_size": 8, "holdout": 8}}
    (tmp_path / "r.yaml").write_text(json.dumps(document))
    command("profile", "r.yaml").refused(2, 'data "bright" is unknown', "--import MODULE")
    use = ("--import", "bright_set")
    try:
        command("train", "r.yaml", "data.levle=3", *use, "--out", "no").refused(2, 'Did you mean "data.level"?')
        command("train", "r.yaml", "data.level=high", *use, "--out", "no").refused(2, "data.level is 'high'", "integer")
        assert command("train", "r.yaml", "data.level=200", *use, "--out", "run").status == 0
        rows = command("evaluate", "run", "--json", *use).json["points"]
        assert [row["point"] for row in rows] == ["width=0.5", "full"]
        saved = json.loads((tmp_path / "run" / "manifest.json").read_text())["recipe"]["data"]
        assert (saved["level"], saved["classes"], saved["size"]) == (200, 2, 8)
        parts = load_data(make_recipe({**document, "data": saved}))
        assert (len(parts.train), len(parts.val), len(parts.test)) == (32, 8, 20)
        assert all(int(parts.test.raw(i).float().mean()) // 190 == i % 2 for i in range(4))
    finally:
        DATASETS.pop("bright", None)


def test_a_setting_that_reader_and_family_share_goes_to_both(monkeypatch: Any) -> None:
    seen = []

    def own(*, size: int = 4, seed: int) -> Collection:
        seen.append((size, seed))
        part = Part(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.arange(10) % 2)
        return Collection(part, part, ("a", "b"))

    monkeypatch.setitem(DATASETS, "own", DataSet(own, usual={"size": 6}))
    assert load("own", seed=2).train.shape == (3, 6, 6)
    assert load("own", seed=3, size=5).train.shape == (3, 5, 5)
    assert seen == [(6, 2), (5, 3)]
    assert "data.seed" in refused({"name": "own"}).cause  # the reader has no default for it


# Targets of any shape


def rows(count: int) -> Tensor:
    """Every second image has the first label, every third the second."""
    numbers = torch.arange(count)
    return torch.stack([numbers % 2 == 0, numbers % 3 == 0], 1).float()


def stripes(targets: Tensor) -> Tensor:
    """The upper half is bright if an image has the first label, the lower one if it has the second."""
    halves = (200 * targets).to(torch.uint8)
    return halves.repeat_interleave(4, 1)[:, None, :, None].expand(-1, 3, -1, 8).contiguous()


def tags(
    *,
    count: int = 48,  # images to train on
) -> Collection:
    def part(targets: Tensor) -> Part:
        return Part(stripes(targets), targets, strata=targets[:, 0].long())

    return Collection(part(rows(count)), part(rows(24)), ("upper", "lower"))


def each_loss(output: Output, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output.logits.float(), target, reduction="none").mean(1)


def each_right(output: Output, target: Tensor) -> Tensor:
    return ((output.logits > 0).float() == target).float().mean(1)


def bce_objective(points: Sequence[Any]) -> Any:
    return lambda outputs, target: torch.stack([each_loss(output, target).mean() for output in outputs]).sum()


@pytest.fixture
def multi_label(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("tags", (Metric("share_right", each=each_right),), each_loss, lambda logits, classes: [], ("bce",))
    monkeypatch.setitem(TASKS, "tags", task)
    monkeypatch.setitem(OBJECTIVES, "bce", bce_objective)
    monkeypatch.setitem(DATASETS, "tags", DataSet(tags, task="tags"))


def test_several_labels_of_a_sample_are_split_by_strata_and_come_in_batches(multi_label: None) -> None:
    splits = load("tags", holdout=12, limit=20, test_limit=6)
    assert splits.train.task == "tags"
    for part, count in ((splits.train, 20), (splits.val, 12), (splits.test, 6)):
        _, y = part.batch(torch.arange(len(part)))
        assert y.shape == (count, 2)
        assert y.dtype == torch.float32
        assert int(y[:, 0].sum()) == count // 2  # half of all have the first label: so have all parts
        assert torch.equal((part.read(torch.arange(len(part)))[:, 0, ::4, 0] > 0).float(), y)


def test_several_labels_of_a_sample_are_trained_and_scored(multi_label: None, command: Any, tmp_path: Path) -> None:
    document = tiny_document("slim", train={"epochs": 8, "lr": 0.1, "select": "loss"})
    document |= {"data": {"name": "tags", "batch_size": 12, "holdout": 12}, "loss": {"name": "bce"}}
    (tmp_path / "r.yaml").write_text(json.dumps(document))
    said = command("train", tmp_path / "r.yaml", "--out", tmp_path / "run")
    assert said.status == 0, said.err
    points = command("evaluate", tmp_path / "run", "--json").json["points"]
    assert [row["metric"] for row in points] == ["share_right", "share_right"]
    assert points[-1]["score"] > 0.8  # by chance one half
    assert points[-1]["n"] == 24


def test_the_fingerprint_tells_targets_and_strata_apart(monkeypatch: Any) -> None:
    images = torch.zeros(8, 3, 4, 4, dtype=torch.uint8)
    labels, floats = torch.arange(8) % 2, torch.arange(16).view(8, 2).float()

    def seen(targets: Any, strata: Tensor | None = None) -> str:
        part = Part(images, targets, strata)
        monkeypatch.setitem(DATASETS, "own", DataSet(lambda: Collection(part, part, ("a", "b")), task="tags"))
        return load("own", holdout=2).fingerprint

    monkeypatch.setitem(TASKS, "tags", Task("tags", (Metric("x"),), each_loss, lambda logits, classes: [], ()))
    assert seen(labels, labels) == seen(labels)  # the classes are their own strata
    assert len({seen(labels), seen(floats), seen(floats + 1), seen(floats, labels)}) == 4


def test_without_strata_parts_are_drawn_at_random_by_the_seed() -> None:
    part = Part([f"{i}.png" for i in range(40)], torch.arange(40.0))

    def drawn(seed: int, strata: Tensor | None = None) -> list[float]:
        found = Collection(Part(part.images, part.targets, strata), part, ())
        return list(choose(found, None, 10, None, seed)[1].targets.tolist())

    assert len(set(drawn(0))) == 10
    assert drawn(0) == drawn(0) != drawn(1)
    assert drawn(0) == drawn(0, torch.zeros(40, dtype=torch.int64))  # one stratum of all
    balanced = drawn(0, torch.arange(40) // 20)
    assert sum(value < 20 for value in balanced) == 5


def test_labels_are_checked_only_where_the_task_is_their_class(multi_label: None) -> None:
    prepare = Preprocess(8, 3, (0,) * 3, (1,) * 3)
    part = Part(stripes(rows(4)), rows(4))
    assert len(ImageSet(part, ("a", "b"), prepare, "tags")) == 4
    with pytest.raises(DataError, match=r"labels are torch.float32 \(4, 2\)"):
        ImageSet(part, ("a", "b"), prepare)


def test_an_error_in_a_reader_of_the_users_names_the_set_and_its_module(monkeypatch: Any) -> None:
    def broken() -> Collection:
        raise KeyError("label")

    monkeypatch.setitem(DATASETS, "broken", DataSet(broken))
    with pytest.raises(DataError, match='"broken" cannot be read: KeyError: .label') as caught:
        load("broken")
    assert "test_sets; --debug" in caught.value.cure


def test_grey_images_that_are_split_stay_grey() -> None:
    part = labelled(torch.zeros(20, 1, 8, 8, dtype=torch.uint8), torch.arange(20) % 2)
    assert split_by_seed(part, ("a", "b"), 0.2, 0, channels=1).channels == 1


def test_a_set_of_an_unknown_task_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setitem(DATASETS, "own", DataSet(tags, task="clases"))
    with pytest.raises(DataError, match='unknown task "clases"') as caught:
        load("own")
    assert '"classes"' in caught.value.cure


# What backbones answer


def test_backbones_answer_the_task_that_they_declare(monkeypatch: Any) -> None:
    own = type("Own", (BACKBONES["mobilenet_v1"],), {"task": "count"})  # type: ignore[misc]
    monkeypatch.setitem(BACKBONES, "own", own)
    slim = tiny_document("slim", backbone={"name": "own"})
    with pytest.raises(
        RecipeError, match="the backbone own answers count, but the task of generated is classes"
    ) as caught:
        skeleton(make_recipe(slim))
    assert "data.name=crowd or disco" in caught.value.cure
    counting = tiny_document("slim") | {"data": {"name": "crowd", "size": 16}, "loss": {"name": "count"}}
    with pytest.raises(RecipeError, match="does not answer count, the task of crowd") as caught:
        skeleton(make_recipe(counting))
    assert "backbone.name=own" in caught.value.cure


def test_pictures_of_two_sides_are_known_without_their_files() -> None:
    crowd = {**tiny_document("slim"), "data": {"name": "disco"}}
    assert skeleton(make_recipe(crowd)).input_shape == (3, 576, 1024)
    assert skeleton(make_recipe({**crowd, "data": {"name": "digits", "channels": 3}})).input_shape == (3, 8, 8)


def picture(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (level, level, level)).save(file, "PNG")
    return file.getvalue()


def test_targets_may_be_anything_that_a_tensor_can_index() -> None:
    class Words:
        """Words by numbers."""

        def __init__(self, words: list[str]) -> None:
            self.words = words

        def __len__(self) -> int:
            return len(self.words)

        def __getitem__(self, indices: Tensor) -> "Words":
            return Words([self.words[i] for i in indices.tolist()])

    part = Part([picture(i) for i in range(4)], Words(["a", "b", "c", "d"]))
    assert part.pick(torch.tensor([2, 0])).targets.words == ["c", "a"]
