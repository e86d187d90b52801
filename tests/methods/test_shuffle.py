"""LayerShuffle: layers in any order, by hand and against the arithmetic of the paper (arithmetic 4)."""

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from supple import checkpoint
from supple.backbones import BACKBONES
from supple.backbones.vit_cifar import VitCifar
from supple.cost import count_params, mean_macs, profile
from supple.errors import PointError, RecipeError
from supple.methods import build
from supple.methods.shuffle import Position, Shuffle, groups_of, position_loss, quarters, spread
from supple.model import Output
from supple.point import FULL, Point
from supple.recipe import make_recipe
from supple.training.build import skeleton
from toy import Toy, numbers

X = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
STEM, HEAD, BLOCK = 115_605_504, 768_000, 1_453_954_560  # MACs of ViT-B/16 with 1000 classes


def small(layers: int = 4) -> VitCifar:
    torch.manual_seed(0)
    net = VitCifar(num_classes=5, width=24, mlp=16, heads=3, layers=layers, grid=4, input_shape=(3, 16, 16))
    return net.eval()


def moved(model: Shuffle) -> Shuffle:
    """With tables of position embeddings that are no longer zero."""
    for name, parameter in model.named_parameters():
        if name.endswith("table"):
            nn.init.normal_(parameter)
    return model.eval()


def calls(model: Shuffle) -> list[int]:
    return [block.calls for block in model.trunk.blocks]


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "result"),
    [
        ((1, 2, 3), (1 * 2 + 3) * 5),
        ((3, 1, 2), 1 * 5 * 2 + 3),
        ((2, 3, 1), (1 + 3) * 5 * 2),
        ((2, 1), (1 + 3) * 2),
        ((3,), 5),
    ],
)
def test_an_order_is_obeyed(layers, result):
    model = Shuffle(Toy((2, 0), (1, 3), (5, 0)))
    assert model(numbers(1), Point(layers=layers)).item() == result
    assert model.extract(Point(layers=layers))(numbers(1)).item() == result
    assert sum(calls(model)) == len(layers)  # the extract's blocks are copies


def test_the_full_model_takes_all_layers_in_order():
    model = Shuffle(Toy((2, 0), (1, 3), (5, 0)))
    assert model(numbers(1)).item() == 25
    assert model(numbers(1, -1)).squeeze().tolist() == [25, 5]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("backbone", ["vit_cifar", "vit"])
def test_the_identity_order_equals_the_untouched_network_exactly(backbone, training):
    net: Any = small()
    if backbone == "vit":
        args = {"patch_size": 4, "embed_dim": 24, "num_heads": 3, "depth": 4}
        net = BACKBONES["vit"](num_classes=5, input_shape=(3, 16, 16), model="deit_tiny_patch16_224", args=args)
    model = Shuffle(net).train(training)
    expected = net(X)
    assert torch.equal(model(X), expected)
    assert torch.equal(model(X, Point(layers=(1, 2, 3, 4))), expected)
    assert torch.equal(model.extract(FULL)(X), expected)


@pytest.mark.parametrize("variant", ["plain", "position", "predict"])
def test_any_order_can_be_extracted_and_shuffled_orders_differ(variant):
    model = moved(Shuffle(small(), variant=variant))
    for layers in [(4, 2, 1, 3), (3, 1), (2,)]:
        assert_close(model.extract(Point(layers=layers))(X), model(X, Point(layers=layers)))
    assert not torch.allclose(model(X, Point(layers=(4, 2, 1, 3))), model(X))


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_points_that_share_a_beginning_share_its_computation():
    model = Shuffle(Toy((2, 0), (1, 3), (5, 0)))
    points = [FULL, Point(layers=(1,)), Point(layers=(1, 3)), Point(layers=(3, 1)), Point(layers=(1, 2))]
    outputs = list(model.run(numbers(1), points))
    assert {str(output.point): output.logits.item() for output in outputs} == {
        "layers=1": 2,
        "layers=1-2": 5,
        "layers=1-3": 10,
        "layers=3-1": 10,
        "full": 25,
    }
    assert calls(model) == [2, 1, 3]  # beginnings 1, 3-1; 1-2; 1-3, 3, 1-2-3
    assert model.backbone.stems == 1


@pytest.mark.parametrize("seed", range(10))
def test_as_many_layers_run_as_there_are_different_beginnings(seed):
    rng = random.Random(seed)
    model = Shuffle(Toy((2, 0), (1, 3), (5, -1), (3, 2)))
    sequences = [tuple(rng.sample(range(1, 5), rng.randint(1, 4))) for _ in range(6)]
    outputs = list(model.run(numbers(1, 2), [Point(layers=layers) for layers in sequences]))
    assert sum(calls(model)) == len({layers[: k + 1] for layers in sequences for k in range(len(layers))})
    for output in outputs:
        assert torch.equal(output.logits, model(numbers(1, 2), output.point))


def test_a_joint_run_costs_what_its_beginnings_cost():
    model = Shuffle(small())
    model.input_shape = (3, 16, 16)
    rows = {row.point: row for row in profile(model)}
    assert list(rows) == ["layers=1", "layers=1-2", "layers=1-2-3", "full"]
    heads = 24 * 5
    assert rows["full"].macs_through == rows["full"].macs + 3 * heads


@pytest.mark.parametrize("variant", ["plain", "predict"])
@pytest.mark.parametrize("seed", range(5))
def test_samples_that_leave_do_not_change_those_that_stay(variant, seed):
    rng = random.Random(seed)
    model = Shuffle(small(), variant=variant).eval()
    points = [Point(layers=rng.sample(range(1, 5), rng.randint(1, 4))) for _ in range(5)]
    left = torch.arange(len(X))
    run = model.run(X, points)
    keep = None
    with torch.inference_mode():
        for point in model.order(points):
            output = run.send(keep)
            [alone] = model(X, [point])
            assert output.point == point
            assert_close(output.logits, alone.logits[left])
            if variant == "predict":
                assert_close(output.aux["position"], alone.aux["position"][left])
            keep = None
            if len(left) > 1 and rng.random() < 0.7:
                keep = torch.tensor(rng.sample(range(len(left)), len(left) - 1))
                left = left[keep]
    run.close()


# --- variants ---------------------------------------------------------------------------------------------------------


def test_a_position_by_hand():
    """A norm of two numbers leaves a sign each: (z, e) becomes (1, -1) where z > e, and (-1, 1) where z < e."""
    told = Position(width=1, own=0, embedding=1, dropout=0.0)
    with torch.no_grad():
        told.project.weight.copy_(torch.tensor([[0.5, -1.5]]))
        told.project.bias.fill_(0.25)
    state = torch.tensor([[[3.0]]])
    expected = [3 + F.gelu(torch.tensor(number)).item() for number in (0.5 + 1.5 + 0.25, -0.5 - 1.5 + 0.25)]
    table = torch.tensor([[-9.0], [9.0]])
    assert [told(state, table, position).item() for position in (0, 1)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("table", ["shared", "per_layer"])
def test_a_layer_is_told_where_it_stands_among_those_that_run(table):
    model = Shuffle(small(), variant="position", table=table).eval()
    state = model.trunk.stem(X)
    assert torch.equal(model.layer(state, 2, 0), model.layer(state, 2, 3))  # tables begin at zero
    moved(model)
    assert not torch.allclose(model.layer(state, 2, 0), model.layer(state, 2, 3))
    first, third = model.positions[0], model.positions[2]
    tables = [model.table] * 2 if table == "shared" else [model.positions[2].table, model.positions[0].table]
    by_hand = model.trunk.blocks[0](first(model.trunk.blocks[2](third(state, tables[0], 0)), tables[1], 1))
    assert torch.equal(model(X, Point(layers=(3, 1))), model.trunk.head(by_hand))
    assert sum(name.endswith("table") for name in model.state_dict()) == (1 if table == "shared" else 4)


@pytest.mark.parametrize("table", ["shared", "per_layer"])
def test_a_table_survives_save_and_load(table, tmp_path):
    recipe = make_recipe(
        {
            "data": {"name": "generated"},
            "backbone": {"name": "vit_cifar", "width": 24, "mlp": 16, "heads": 3, "layers": 4, "grid": 4},
            "method": {"name": "shuffle", "variant": "position", "table": table},
        }
    )
    model = moved(build(recipe.backbone, recipe.method, 4, (3, 16, 16)))
    model.classes = ("a", "b", "c", "d")
    checkpoint.save(tmp_path, model, recipe)
    point = Point(layers=(3, 1, 2))
    assert torch.equal(checkpoint.load(tmp_path)(X, point), model(X, point))


def test_a_projection_of_zero_tells_nothing():
    model = moved(Shuffle(small(), variant="position"))
    for part in model.positions:
        nn.init.zeros_(part.project.weight)
        nn.init.zeros_(part.project.bias)
    for point in (FULL, Point(layers=(3, 1, 2))):
        assert torch.equal(model(X, point), Shuffle(model.backbone)(X, point))


def test_the_position_loss_by_hand():
    # First place: 1/3 for itself. Second place: 2/4 for itself.
    guesses = torch.tensor([[[0.0, 0, 0], [0, math.log(2), 0]]])
    assert position_loss(guesses).item() == pytest.approx((math.log(3) + math.log(2)) / 2)
    assert position_loss(guesses.flip(1)).item() == pytest.approx((math.log(4) + math.log(3)) / 2)
    assert position_loss(guesses[:, :1]).item() == pytest.approx(math.log(3))


def test_the_penalty_is_the_weighted_mean_over_outputs():
    model = Shuffle(small(), variant="predict", weight=3.0)
    sure = torch.full((2, 2, 4), -1e4)
    sure[:, 0, 0] = sure[:, 1, 1] = 0
    outputs = [Output(FULL, torch.zeros(2, 5), {"position": guess}) for guess in (torch.zeros(2, 4, 4), sure)]
    assert model.penalty(outputs[:1]).item() == pytest.approx(3 * math.log(4))
    assert model.penalty(outputs).item() == pytest.approx(3 * math.log(4) / 2)
    assert model.penalty(outputs[1:]).item() == 0
    assert Shuffle(small()).penalty([Output(FULL, torch.zeros(2, 5))]).item() == 0


def test_each_layer_that_ran_guesses_from_the_mean_of_its_tokens():
    model = Shuffle(small(), variant="predict").eval()
    [output] = model(X, [Point(layers=(3, 1))])
    first = model.trunk.blocks[2](model.trunk.stem(X))
    second = model.trunk.blocks[0](first)
    expected = [model.predictors[2](first.mean(1)), model.predictors[0](second.mean(1))]
    assert_close(output.aux["position"], torch.stack(expected, 1))  # (batch, places, layers)
    assert Shuffle(small())(X, [FULL])[0].aux == {}


def test_guessing_does_not_change_the_answer():
    model = Shuffle(small(), variant="predict").eval()
    assert torch.equal(model(X), model.backbone(X))


# --- groups -----------------------------------------------------------------------------------------------------------


def drawn(name: str, count: int = 12, drop: float = 0.2, draws: int = 300) -> list[tuple[int, ...]]:
    group = {group.name: group for group in groups_of(count, drop)}[name]
    rng = random.Random(0)
    return [group.sample(rng).layers for _ in range(draws)]


def test_the_groups_are_those_that_the_paper_evaluates():
    sizes = [name for kept in (3, 6, 9) for name in ("first {}, arbitrary", "spread {}", "spread {}, arbitrary")]
    names = [name.format(kept) for name, kept in zip(sizes, (3, 3, 3, 6, 6, 6, 9, 9, 9))]
    names += [f"any {kept}{order}" for kept in (3, 6, 9) for order in ("", ", arbitrary")]
    model = Shuffle(Toy(*[(1, 1)] * 12))
    assert set(model.groups) == {"arbitrary", "layerdrop", *names}
    assert set(model.sampled) <= set(model.groups)
    assert [str(point) for point in model.points[:2]] == ["layers=1-2-3", "layers=1-2-3-4-5-6"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_every_point_of_every_group_can_be_run(count):
    model = Shuffle(Toy(*[(1, 1)] * count))
    rng = random.Random(0)
    for group in model.groups.values():
        for _ in range(50):
            point = model.check(group.sample(rng))
            assert model(numbers(0), point).item() == len(model.sequence(point))
    assert model.points[-1] == FULL
    assert len(set(model.points)) == len(model.points)


def test_arbitrary_is_every_order_alike():
    assert {tuple(sorted(layers)) for layers in drawn("arbitrary")} == {tuple(range(1, 13))}
    found = drawn("arbitrary", count=3, draws=6000)
    for order in itertools.permutations((1, 2, 3)):
        assert found.count(order) / 6000 == pytest.approx(1 / 6, abs=0.03)


def test_layerdrop_keeps_the_order_and_its_share_of_layers_and_is_never_empty():
    found = drawn("layerdrop", draws=4000)
    assert all(list(layers) == sorted(set(layers)) for layers in found)
    assert sum(map(len, found)) / 4000 == pytest.approx(12 * 0.8, abs=0.1)
    for layer in range(1, 13):
        assert sum(layer in layers for layers in found) / 4000 == pytest.approx(0.8, abs=0.03)
    assert {len(layers) for layers in drawn("layerdrop", count=2, drop=0.99)} >= {1}
    assert set(drawn("layerdrop", count=4, drop=0.0)) == {(1, 2, 3, 4)}


def test_the_other_groups_draw_what_they_say():
    assert set(drawn("first 3, arbitrary")) == set(itertools.permutations((1, 2, 3)))
    assert set(drawn("spread 3")) == {(1, 5, 9)} == {spread(3, 12)}
    assert set(drawn("spread 6")) == {(1, 3, 5, 7, 9, 11)}
    assert set(drawn("spread 3, arbitrary")) == set(itertools.permutations((1, 5, 9)))
    some, any_order = drawn("any 6"), drawn("any 6, arbitrary")
    assert {len(set(layers)) for layers in some + any_order} == {6}
    assert all(list(layers) == sorted(layers) for layers in some)
    assert not all(list(layers) == sorted(layers) for layers in any_order)
    assert len(set(some)) > 200  # of 924


def test_quarters_of_few_layers():
    assert [quarters(count) for count in (1, 2, 3, 4, 12)] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [3, 6, 9, 12]]


# --- points -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point(layers=(1, 5)), "layers from 1 to 4"),
        (Point(layers=(1, 2, 1)), "only once"),
        (Point(exit=1), "its points differ in layers"),
        (Point(width=0.5), "its points differ in layers"),
        (Point(layers=(2, 1), skip=0.5), "its points differ in layers"),
    ],
)
def test_an_impossible_order_is_refused(point, words):
    with pytest.raises(PointError, match=words) as caught:
        Shuffle(small()).check(point)
    assert repr(point) in caught.value.cause
    assert "layers=1-2-3" in caught.value.cure or "layers=2-1-3" in caught.value.cure


def test_no_layers_at_all_are_no_point():
    with pytest.raises(PointError, match="layers are whole numbers from 1"):
        Point(layers=())


def test_the_identity_order_is_spelt_full_and_short_orders_come_first():
    model = Shuffle(small())
    assert model.check(Point(layers=(1, 2, 3, 4))) == FULL
    assert model.check(Point(layers=(1, 2, 4, 3))) == Point(layers=(1, 2, 4, 3))
    asked = [FULL, Point(layers=(4, 3, 2, 1)), Point(layers=(2, 1)), Point(layers=(1, 2, 3, 4)), Point(layers=(4,))]
    assert list(map(str, model.order(asked))) == ["layers=4", "layers=2-1", "full", "layers=4-3-2-1"]


@pytest.mark.parametrize(
    "settings", [{"drop": 1.0}, {"drop": -0.1}, {"dropout": 1.0}, {"embedding": 0}, {"weight": -1.0}]
)
def test_bad_settings_are_refused(settings):
    [(name, value)] = settings.items()
    with pytest.raises(RecipeError, match=f"method.{name} is {value}"):
        Shuffle(small(), **settings)


def test_a_network_without_layers_is_refused():
    with pytest.raises(RecipeError, match="has no layers"):
        Shuffle(Toy())


def test_a_backbone_whose_layers_cannot_change_places_is_refused():
    with pytest.raises(RecipeError, match="shuffle cannot hold this MobileNetV1") as caught:
        Shuffle(BACKBONES["mobilenet_v1"](num_classes=5))
    assert "vit_cifar" in caught.value.cure


# --- the paper's networks, without weights ----------------------------------------------------------------------------


def paper(classes: int = 1000, backbone: dict[str, Any] | None = None, **method: Any) -> Any:
    return skeleton(
        make_recipe(
            {
                "data": {"name": "folder", "root": "nowhere", "classes": classes, "size": 224},
                "backbone": {"name": "vit", "model": "vit_base_patch16_224", **(backbone or {})},
                "method": {"name": "shuffle", **method},
            }
        )
    )


DEIT = {"model": "deit_base_distilled_patch16_224"}


@pytest.mark.parametrize(
    ("classes", "backbone", "params"),
    [
        (1000, {}, 86_567_656),
        (100, {}, 85_875_556),
        (1000, DEIT, 87_338_192),
        (100, DEIT, 85_953_992),
        (1000, {**DEIT, "readout": "class"}, 87_338_192 - 769_000),
        (100, {**DEIT, "readout": "class"}, 85_953_992 - 76_900),
    ],
)
def test_the_networks_have_the_parameters_of_the_arithmetic(classes, backbone, params):
    model = paper(classes, backbone)
    assert count_params(model.parameters()) == params
    assert count_params(model.trunk.blocks[0].parameters()) == 7_087_872


def test_macs_with_some_of_the_layers():
    points = [Point(layers=(7,)), Point(layers=(12, 1, 7)), Point(layers=(1, 3, 5, 7, 9, 11)), FULL]
    rows = profile(paper(), points)
    assert [row.macs for row in rows] == [STEM + HEAD + k * BLOCK for k in (1, 3, 6, 12)]
    assert rows[-1].macs == 17_563_828_224
    assert [row.params for row in rows] == [86_567_656 - (12 - k) * 7_087_872 for k in (1, 3, 6, 12)]


def test_the_mean_cost_of_a_group_is_that_of_its_points():
    points = [Point(layers=(1, 2)), Point(layers=(2, 1)), Point(layers=(5, 6, 7, 8))]
    assert mean_macs(paper(), points) == round(STEM + HEAD + BLOCK * 8 / 3)


@pytest.mark.parametrize(("table", "extra"), [("per_layer", 7_405_824), ("shared", 12 * 616_768 + 384)])
def test_position_adds_the_parameters_and_macs_of_the_arithmetic(table, extra):
    model = paper(variant="position", table=table)
    one = model.positions[0]
    assert count_params([*one.norm.parameters(), *one.project.parameters()]) == 616_768
    assert count_params(model.parameters()) == 86_567_656 + extra
    three, full = profile(model, [Point(layers=(2, 3, 1)), FULL])
    assert three.macs == STEM + HEAD + 3 * (BLOCK + 121_036_800)
    assert full.macs == STEM + HEAD + 12 * (BLOCK + 121_036_800)
    assert (full.params, full.extra_params) == (86_567_656 + extra, 0)


def test_predict_adds_parameters_for_training_alone():
    model = paper(variant="predict")
    assert {count_params(part.parameters()) for part in model.predictors} == {10_764}
    [full] = profile(model, [FULL])
    assert (full.params, full.extra_params) == (86_567_656, 12 * 10_764)
    assert count_params(model.auxiliary_parameters()) == 12 * 10_764
    assert full.macs == 17_563_828_224
