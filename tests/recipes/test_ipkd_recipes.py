"""IPKD-TA: its sixteen recipes and their pocket twins; every recipe builds its model without data, with its counts."""

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from supple.cost import profile
from supple.ladder import Row
from supple.point import FULL, Point
from supple.recipe import Recipe, load_recipe
from supple.training import build as assemble

ROOT = Path(__file__).parents[2] / "recipes"
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.yaml") if path.parent.name != "claims")
NETS, SETS = ("msdnet", "mobilenet"), ("cifar10", "cifar100")
SCHEMES = {"none": "none", "ipkd": "largest", "ta1": "next", "tam": "all"}
PAPER = [(net, data, suffix) for net in NETS for data in SETS for suffix in SCHEMES]


@cache
def recipe_at(name: str) -> Recipe:
    return load_recipe(ROOT / name)


def published(net: str, data: str, suffix: str) -> str:
    return f"ipkd_ta/{net}_{data}_{suffix}.yaml"


def twin(net: str, data: str, suffix: str) -> str:
    """The pocket twin; the stand-in for CIFAR-100 is a part of Tiny-ImageNet."""
    return f"pocket/{net}_{data.replace('cifar100', 'tiny100')}_{suffix}.yaml"


def architectures() -> dict[str, list[str]]:
    """The files by what they build: profiling is for each network once. (Of the papers named here, others do it:
    test_sl_vit_recipes.py and test_depth_recipes.py.)
    """
    found = defaultdict(list)
    for name in (name for name in FILES if not name.startswith(("sl_vit/", "layershuffle/", "dynamic/"))):
        recipe = recipe_at(name)
        data = [(key, getattr(recipe.data, key, None)) for key in ("name", "classes", "size", "sizes", "channels")]
        found[repr((data, recipe.backbone, recipe.method))].append(name)
    return {names[0]: names for names in found.values()}


def test_the_files_are_the_sixteen_of_the_paper_their_twins_and_the_demo() -> None:
    expected = {place(*which) for which in PAPER for place in (published, twin)}
    assert expected | {"pocket/digits.yaml"} <= set(FILES)
    assert len([name for name in FILES if name.startswith("ipkd_ta/")]) == 16


@pytest.mark.parametrize("name", architectures())
def test_a_recipe_builds_its_model_without_its_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "load_data", lambda recipe: pytest.fail("data were looked for"))
    recipe = recipe_at(name)
    model = assemble.skeleton(recipe)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.points[-1] == FULL
    assert len(set(model.points)) == len(model.points)
    if recipe.method["name"] == "exits":
        exits = len(recipe.method["at"]) + 1 if recipe.method["at"] else len(model.backbone.blocks)
        assert model.points[:-1] == tuple(Point(exit=place) for place in range(1, exits))
    if recipe.method["name"] in ("slim", "nested"):
        assert {*model.points} == {FULL, *(Point(width=width) for width in recipe.method["widths"])}


# MACs alone, MACs with all classifiers passed, parameters; CIFAR-10 and CIFAR-100.
COUNTS = {
    ("msdnet", "cifar10"): {
        "exit=1": (14_955_776, 14_955_776, 422_266),
        "exit=3": (28_780_800, 36_745_984, 517_670),
        "exit=4": (34_789_632, 45_926_400, 616_118),
        "exit=6": (46_326_016, 66_460_160, 713_638),
    },
    ("msdnet", "cifar100"): {
        "exit=1": (14_967_296, 14_967_296, 433_876),
        "exit=3": (28_792_320, 36_780_544, 529_280),
        "exit=4": (34_801_152, 45_972_480, 627_728),
        "exit=6": (46_337_536, 66_529_280, 725_248),
    },
    ("mobilenet", "cifar10"): {
        "width=0.25": (3_331_072, 3_331_072, 215_642),
        "width=0.75": (26_508_288, None, 1_824_250),
        "full": (46_354_432, None, 3_217_226),
    },
    ("mobilenet", "cifar100"): {
        "width=0.25": (3_354_112, 3_354_112, 238_772),
        "width=0.75": (26_577_408, None, 1_893_460),
        "full": (46_446_592, None, 3_309_476),
    },
}


@pytest.mark.parametrize("name", architectures())
def test_a_profile_has_one_row_per_point_and_the_counts_of_the_paper(name: str) -> None:
    model = assemble.skeleton(recipe_at(name))
    rows: dict[str, Row] = {row.point: row for row in profile(model)}
    assert list(rows) == [str(point) for point in model.points]
    macs = [row.macs for row in rows.values()]
    assert macs[:-1] == sorted(macs[:-1])  # a branch may cost more than the rest of its network: an 11x11 kernel does
    folder, _, file = name.partition("/")
    counts = COUNTS[tuple(file.split("_")[:2])] if folder == "ipkd_ta" else {}  # type: ignore[index]
    for point, (alone, through, params) in counts.items():
        assert (rows[point].macs, rows[point].params) == (alone, params)
        assert through is None or rows[point].macs_through == through


@pytest.mark.parametrize(("net", "data", "suffix"), PAPER)
def test_a_pocket_twin_differs_in_no_loss_setting_and_keeps_points_and_classes(
    net: str, data: str, suffix: str
) -> None:
    large, small = recipe_at(published(net, data, suffix)), recipe_at(twin(net, data, suffix))
    assert small.loss == large.loss
    assert small.method == large.method
    assert small.backbone.get("blocks") == large.backbone.get("blocks")
    assert small.data.classes == {"cifar10": 10, "cifar100": 100}[data]
    for key in ("lr", "sample"):
        assert getattr(small.train, key) == getattr(large.train, key)
    assert small.train.optimizer["name"] == large.train.optimizer["name"]
    assert small.train.epochs < large.train.epochs
    assert small.data.limit < 50_000  # the training images of CIFAR


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("pocket/")])
def test_pocket_recipes_that_are_compared_train_in_the_same_precision_everywhere(name):
    assert recipe_at(name).train.precision == "fp32"


@pytest.mark.parametrize("place", [published, twin])
@pytest.mark.parametrize(("net", "data"), [(net, data) for net in NETS for data in SETS])
def test_the_four_objectives_differ_only_in_who_teaches(place: Any, net: str, data: str) -> None:
    documents = [recipe_at(place(net, data, suffix)).resolved() for suffix in SCHEMES]
    for document, teachers in zip(documents, SCHEMES.values()):
        assert document["loss"].pop("teachers") == teachers
    assert all(document == documents[0] for document in documents)


@pytest.mark.parametrize(("net", "data", "suffix"), PAPER)
def test_a_published_recipe_and_its_twin_name_each_other(net: str, data: str, suffix: str) -> None:
    large, small = published(net, data, suffix), twin(net, data, suffix)
    assert f"recipes/{small}" in (ROOT / large).read_text()
    assert f"recipes/{large}" in (ROOT / small).read_text()
