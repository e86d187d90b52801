"""LayerShuffle and Dynamic Transformer: every recipe against its paper, and its counts without weights or data."""

import re
from functools import cache
from pathlib import Path

import pytest

from supple.cost import count_params, profile
from supple.ladder import Row
from supple.recipe import Recipe, load_recipe
from supple.training.build import skeleton

ROOT = Path(__file__).parents[2] / "recipes"
KINDS = ("baseline", "shuffle", "position", "predict", "layerdrop")
NETS, SETS = ("vit_b16", "deit_b"), {"imagenet": 1000, "cifar100": 100}
SHUFFLED = [(data, net, kind) for data in SETS for net in NETS for kind in KINDS]
MODELS, DEPTHS = ("base", "wdc", "wsdc", "dt"), (10, 16)
DYNAMIC = [(kind, layers) for kind in MODELS for layers in DEPTHS]


def shuffle_name(data: str, net: str, kind: str) -> str:
    return f"layershuffle/{data}_{net}_{kind}"


def dynamic_name(kind: str, layers: int) -> str:
    return f"dynamic/cifar100_{kind}_{layers}"


FILES = [*(shuffle_name(*one) for one in SHUFFLED), *(dynamic_name(*one) for one in DYNAMIC)]


@cache
def recipe(name: str, *changes: str) -> Recipe:
    return load_recipe(ROOT / f"{name}.yaml", changes)


def rows_of(name: str, *changes: str) -> dict[str, Row]:
    return {row.point: row for row in profile(skeleton(recipe(name, *changes)))}


# --- the files --------------------------------------------------------------------------------------------------------


def test_there_is_a_recipe_for_every_experiment():
    found = [
        path.relative_to(ROOT).with_suffix("")
        for part in ("layershuffle", "dynamic")
        for path in (ROOT / part).iterdir()
    ]
    assert sorted(map(str, found)) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_its_table_or_figure(name):
    text = (ROOT / f"{name}.yaml").read_text()
    assert re.search(
        r"^# .* (LayerShuffle|Dynamic Transformer), section \S+ and (table|figure) 1\.$|tables 1 and 2\.$", text, re.M
    )


@pytest.mark.parametrize("net", NETS)
def test_images_are_scaled_as_for_the_published_weights(net):
    timm = pytest.importorskip("timm")
    one = recipe(shuffle_name("imagenet", net, "shuffle"))
    published = timm.get_pretrained_cfg(one.backbone["model"])
    assert (one.data.mean, one.data.std) == (published.mean, published.std)


# --- counts (arithmetic 3 and 4) --------------------------------------------------------------------------------------

BLOCK = 1_453_954_560  # MACs of a layer of ViT-B/16
PARAMS = {
    ("vit_b16", 1000): 86_567_656,
    ("vit_b16", 100): 85_875_556,
    ("deit_b", 1000): 87_338_192 - 769_000,  # without the head of the distillation token
    ("deit_b", 100): 85_953_992 - 76_900,
}


def layer_macs(net: str, told: bool) -> int:
    tokens = 197 if net == "vit_b16" else 198
    layer = 12 * tokens * 768 * 768 + 2 * tokens * tokens * 768
    assert net == "deit_b" or layer == BLOCK
    return layer + (tokens * 800 * 768 if told else 0)


@pytest.mark.parametrize(("data", "net", "kind"), SHUFFLED)
def test_layershuffle_has_the_parameters_and_macs_of_the_arithmetic(data, net, kind):
    one, told, classes = recipe(shuffle_name(data, net, kind)), kind == "position", SETS[data]
    if kind in ("baseline", "layerdrop"):  # trained otherwise, not built otherwise
        same = recipe(shuffle_name(data, net, "shuffle"))
        assert (one.backbone, one.method, one.data) == (same.backbone, same.method, same.data)
        return
    model = skeleton(one)
    params = PARAMS[net, classes] + (12 * 616_768 + 12 * 32 if told else 0)
    assert count_params(model.extract().parameters()) == params
    [three] = profile(model, model.points[:1])
    assert three.macs == 115_605_504 + 768 * classes + 3 * layer_macs(net, told)
    assert three.params == params - 9 * (7_087_872 + (616_768 + 32 if told else 0))
    assert three.extra_params == (12 * 10_764 if kind == "predict" else 0)


def test_layershuffle_profiles_a_quarter_half_three_quarters_and_all_of_the_layers():
    rows = rows_of(shuffle_name("imagenet", "vit_b16", "predict"))
    assert list(rows) == ["layers=1-2-3", "layers=1-2-3-4-5-6", "layers=1-2-3-4-5-6-7-8-9", "full"]
    assert [row.macs for row in rows.values()] == [115_605_504 + 768_000 + kept * BLOCK for kept in (3, 6, 9, 12)]
    assert rows["full"].macs == 17_563_828_224


BASE = {10: 8_969_188, 16: 8_969_188 + 6 * 888_576}
ORACLES = {"base": {10: 0, 16: 0}, "dt": {10: 3_108 + 8, 16: 5_481 + 14}}
ORACLES |= {kind: {10: 385 * 54, 16: 385 * 135} for kind in ("wdc", "wsdc")}  # Linear(384, j) for j = 2..L


@pytest.mark.parametrize(("kind", "layers"), DYNAMIC)
def test_dynamic_has_the_parameters_of_the_arithmetic(kind, layers):
    model = skeleton(recipe(dynamic_name(kind, layers)))
    assert count_params(model.parameters()) == BASE[layers] + ORACLES[kind][layers]
    full = BASE[layers] + (0 if kind == "dt" else ORACLES[kind][layers])  # who skips nothing asks no oracle
    assert count_params(model.extract().parameters()) == full


@pytest.mark.parametrize("kind", MODELS)
def test_dynamic_has_the_macs_of_the_arithmetic(kind):
    rows = rows_of(dynamic_name(kind, 10))
    plain = 64 * 48 * 384 + 10 * 60_752_640 + 38_400
    dense = sum(j * (384 + 65 * 384) for j in range(2, 11))  # layer j: its oracle, and the mean of j activations
    assert rows["full"].macs == plain + (dense if kind in ("wdc", "wsdc") else 0)
    if kind == "dt":
        assert rows["skip=0.5"].macs_worst == plain + 3_108


def test_the_other_reading_of_16_layers_has_the_printed_size():
    model = skeleton(recipe(dynamic_name("base", 16), "backbone.grid=16"))
    assert count_params(model.parameters()) == 14_360_548  # 14.4 M


def test_profile_prints_the_same(command):
    name = shuffle_name("imagenet", "vit_b16", "shuffle")
    [row] = command("profile", f"recipes/{name}.yaml", "--point", "layers=12-1", "--json").json["points"]
    assert (row["point"], row["macs"]) == ("layers=12-1", 115_605_504 + 768_000 + 2 * BLOCK)
