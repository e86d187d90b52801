"""Several axes in one network: each is the one that stands alone elsewhere, and a point may name several."""

import random

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from supple import FULL, Point, cost, load
from supple.backbones.dims import blocks_of
from supple.backbones.fastnet import FastNet
from supple.backbones.resnet import ResNetV1
from supple.backbones.vit import Vit
from supple.cost import profile
from supple.errors import PointError, RecipeError
from supple.methods.elastic import Elastic
from supple.methods.exits import Exits
from supple.methods.ranking import magnitudes
from supple.recipe import make_recipe
from supple.sampling import sandwich
from supple.training.loop import train

SHAPE = (3, 16, 16)
FACTS = {"num_classes": 4, "input_shape": SHAPE}
SMALL = {"patch_size": 4, "embed_dim": 24, "depth": 6}  # 17 tokens, heads of 8


def convolutional(**settings) -> Elastic:
    torch.manual_seed(0)
    network = FastNet(**FACTS, widths=(8, 16, 16), head=8)
    network.start_from(torch.randn(16, *SHAPE))
    return Elastic(network, **{"widths": (0.5, 1.0), "divisor": 4, **FACTS, **settings}).eval()


def transformer(**settings) -> Elastic:
    torch.manual_seed(0)
    network = Vit(**FACTS, model="vit_tiny_patch16_224", args=SMALL)
    given = {"widths": (0.5, 1.0), "at": ("blocks.1", "blocks.3"), "layers": True, "tokens": (2,)}
    return Elastic(network, **{**given, **FACTS, **settings}).eval()


MAKERS = [convolutional, transformer]


@pytest.fixture(params=MAKERS)
def model(request) -> Elastic:
    return request.param()


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


# --- points -----------------------------------------------------------------------------------------------------------


def test_a_dozen_points_are_published_from_the_cheapest_mixture_to_the_full_network(model):
    assert len(model.points) <= 12
    assert model.points[-1] == FULL
    assert model.points[0].exit == 1
    assert model.points[0].width == 0.5
    alone = {Point(width=0.5), *model.inner.points}
    assert alone <= set(model.points)
    macs = [row.macs for row in profile(model)]
    assert macs == sorted(macs)


@pytest.mark.parametrize(
    "settings",
    [{"tokens": tuple(range(1, 9))}, {"tokens": tuple(range(1, 9)), "widths": (0.25, 0.5, 0.75, 1.0)}, {}],
    ids=["many alone", "many of both", "few"],
)
@pytest.mark.parametrize("widths", [True, False])
def test_never_more_than_a_dozen_are_published_whatever_the_axes(settings, widths):
    model = transformer(**settings if widths else {**settings, "widths": (1.0,)})
    cheapest = min(model.inner.points, key=model.rank)._replace(width=(*model.widths, 1.0)[0])
    assert len(model.points) <= 12
    assert model.points[0] == cheapest
    assert model.points[-1] == FULL


def test_points_that_are_not_published_can_be_run_all_the_same():
    model, x = transformer(), images()
    point = Point(exit=2, width=0.5, layers=(1, 3, 4), tokens=1)
    assert point not in model.points
    assert_close(model.extract(point)(x), model(x, point))


def test_named_points_are_the_published_ones_and_must_rise_in_cost():
    model = convolutional(points=("exit=1,width=0.5", "exit=2", "full"))
    assert list(map(str, model.points)) == ["exit=1,width=0.5", "exit=2", "full"]
    with pytest.raises(RecipeError, match="must rise in cost") as caught:
        convolutional(points=("exit=2", "exit=1,width=0.5", "full"))
    assert "exit=1,width=0.5, exit=2, full" in caught.value.cure


def test_there_is_one_spelling_of_each_point():
    model = transformer()
    assert model.check("exit=3,width=0.5") == Point(width=0.5)
    assert model.check("exit=2,layers=1-2-3-4") == Point(exit=2)
    assert model.check(Point(layers=range(1, 7))) == FULL


@pytest.mark.parametrize(
    ("make", "point", "said"),
    [
        (convolutional, "width=0.3", "it has the widths 0.5, 1"),
        (convolutional, "exit=9,width=0.5", "it has 4 exits"),
        (convolutional, "layers=1-2", "no axis layers, its points differ in exit, width"),
        (convolutional, "width=0.5,tokens=2", "no axis tokens"),
        (transformer, "exit=1,layers=1-2-3", "from 1 to 2 here"),
        (transformer, "layers=2-1", "in order"),
        (transformer, "skip=0.5", "no axis skip"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_can(make, point, said):
    with pytest.raises(PointError, match=said):
        make().check(point)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"widths": (0.5,)}, "method.widths"),
        ({"layers": True}, "method.layers is for transformers"),
        ({"tokens": (2,)}, "method.tokens is for transformers"),
        ({"at": ("blocks.0",)}, "blocks.0"),
    ],
)
def test_settings_that_a_network_cannot_have_are_refused(settings, said):
    with pytest.raises(RecipeError, match=said):
        Elastic(ResNetV1(**{k: v for k, v in FACTS.items() if k == "num_classes"}, layers=(1, 1, 1, 1), width=8,
                         stem="cifar"), **{**FACTS, **settings})  # fmt: skip


def test_widths_that_leave_nothing_of_a_block_are_refused():
    with pytest.raises(RecipeError, match="leaves"):
        transformer(widths=(0.001, 1.0))


@pytest.mark.parametrize(
    ("widths", "said"),
    [((0.5, 0.51, 1.0), "0.5 and 0.51 keep the same"), ((0.5, 0.999, 1.0), "0.999 and 1 keep the same")],
)
@pytest.mark.parametrize("make", MAKERS)
def test_widths_that_differ_in_nothing_are_refused(make, widths, said):
    with pytest.raises(RecipeError, match=said):
        make(widths=widths)


# --- what a point computes --------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_the_full_point_is_the_network_as_it_was(model):
    assert_close(model(images()), model.backbone(images()))


@torch.inference_mode()
def test_at_full_width_it_is_the_method_that_stands_alone():
    model = convolutional()
    alone = Exits(model.backbone).eval()
    for output in alone.run(images(), alone.points):
        assert torch.equal(model(images(), output.point), output.logits)


@torch.inference_mode()
def test_a_mixed_point_is_an_exit_of_the_narrow_network():
    """The narrow network is a plain one: its exits are those of a model that has no widths."""
    model = convolutional()
    narrow = model._narrowing.cut(model.inner, 0.5)
    for exit in (1, 2, 3):
        expected = narrow(images(), Point(exit=exit))
        assert_close(model(images(), Point(exit=exit, width=0.5)), expected)
    assert narrow.backbone.blocks[1][0][0].out_channels == 8  # of 16


@torch.inference_mode()
def test_points_of_several_widths_run_together_and_samples_may_leave_in_between(model):
    x = images(6)
    run = model.run(x, model.points)
    output, going = next(run), torch.arange(6)
    for leave in ([5, 3, 0, 1, 2], [4, 2, 0], [1, 2], [0, 1]):
        assert_close(output.logits, model(x, output.point)[going])
        output, going = run.send(torch.tensor(leave)), going[torch.tensor(leave)]
    assert_close(output.logits, model(x, output.point)[going])


def test_a_narrow_point_teaches_the_leading_weights_and_no_others():
    model = convolutional().train()
    model(images(8), Point(exit=2, width=0.5)).square().sum().backward()
    conv = model.backbone.blocks[1][0][0]  # 8 -> 16 channels
    assert conv.weight.grad[:8, :4].abs().sum() > 0
    assert not conv.weight.grad[8:].any()
    assert not conv.weight.grad[:, 4:].any()
    used = {name for name, part in model.named_parameters() if part.grad is not None}
    assert {name for name in used if name.startswith("norms.")}
    assert not any("BiasNorm" in type(model.get_submodule(name.rpartition(".")[0])).__name__
                   for name in used if name.startswith("backbone."))  # fmt: skip


def test_norms_of_narrow_widths_learn_at_the_rate_of_the_network_s_own():
    model = convolutional()
    own = {name: rate for name, rate in model.rates().items() if name.startswith("backbone.")}
    narrow = {name: rate for name, rate in model.rates().items() if name.startswith("norms.")}
    assert len(narrow) == len(own)
    assert set(narrow.values()) == set(own.values()) == {64.0}
    assert set(narrow) <= dict(model.named_parameters()).keys()


# --- training ---------------------------------------------------------------------------------------------------------


def test_any_mixture_may_be_drawn_and_outputs_come_in_the_order_of_their_costs(model):
    rng = random.Random(0)
    drawn = {model.draw(rng) for _ in range(30)}
    assert len(drawn) > 5
    assert all(model.check(point) == point for point in drawn)
    chosen = sandwich(model.points, rng, model.draw)
    assert chosen[0] == model.points[0]
    assert chosen[-1] == FULL
    outputs = model(images(2), chosen)
    costs = [model.rank(output.point) for output in outputs]
    assert costs == sorted(costs)
    assert outputs[-1].point == FULL


def test_of_equal_layers_it_is_counted_how_many_run_and_not_which(monkeypatch):
    model, rng, counts = transformer(widths=(0.25, 0.5, 1.0)), random.Random(0), []
    drawn = [model.draw(rng) for _ in range(60)]
    counted = cost.count_macs
    monkeypatch.setattr(cost, "count_macs", lambda call: counts.append(1) or counted(call))
    ranks = [model.rank(point) for point in drawn]
    kinds = {(point.exit, point.width, point.tokens, len(model.layers_run(point))) for point in drawn}
    assert len(counts) <= len(kinds) < len(set(drawn))
    exact = cost.PointCosts()
    assert ranks == [exact.macs(model, point) for point in drawn]


def test_where_layers_differ_each_choice_of_them_is_counted():
    model = transformer(widths=(1.0,))
    block = blocks_of(model)[1].module
    block.mlp.fc1, block.mlp.fc2 = nn.Linear(24, 8), nn.Linear(8, 24)
    model.refresh()
    assert model.rank(Point(layers=(1, 2))) < model.rank(Point(layers=(1, 3)))


def test_dimensions_are_sorted_once_and_the_network_computes_what_it_did():
    model, x = transformer(), images()
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    before, narrow = model(x), model(x, "width=0.5")
    model.start(["sorted"])
    assert_close(model(x), before, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(x, "width=0.5"), narrow, atol=1e-4)
    for heads, hidden in magnitudes(blocks_of(model.backbone)):
        assert torch.equal(heads, heads.sort(descending=True).values)
        assert torch.equal(hidden, hidden.sort(descending=True).values)
    assert model.sorted
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    narrow = model(x, "width=0.5")
    model.start([])  # a training goes on from weights that were sorted: their order is what the widths have learnt
    assert torch.equal(model(x, "width=0.5"), narrow)


@pytest.mark.parametrize("width", [0.5, 1.0])
def test_settling_finds_the_statistics_of_every_width_and_its_exits(width):
    model = convolutional()
    batches = [(torch.randn(16, *SHAPE), None) for _ in range(2)]
    model.settle(batches)
    network = model.view(width).backbone
    seen = [network.blocks[0][0](x) for x, _ in batches]
    conv = network.blocks[0][1]
    means = torch.stack([conv[1](conv[0](x)).mean((0, 2, 3)) for x in seen]).mean(0)
    assert_close(conv[2].running_mean, means, atol=1e-5, rtol=1e-4)
    norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(norms) == 6 + 3  # two in each group, one in the head of each early exit
    assert all(int(norm.num_batches_tracked) == 2 for norm in norms)


RECIPE = {
    "data": {"name": "generated", "batch_size": 32},
    "backbone": {"name": "fastnet", "widths": [8, 16, 16], "head": 8},
    "method": {"name": "elastic", "widths": [0.5, 1.0], "divisor": 4},
    "loss": {"name": "distill", "teachers": "all", "lam": 0.5, "tau": 2, "warmup": 1},
    "train": {"epochs": 2, "lr": 0.05, "sample": "sandwich", "threads": 1, "ema": 0.9},
}


def test_it_trains_from_a_recipe_and_another_training_starts_from_it(tmp_path):
    run = train(make_recipe(RECIPE), tmp_path / "run", quiet=True)
    model = load(run)
    assert [row.point for row in model.ladder] == [str(point) for point in model.points]
    assert all(row.score is not None for row in model.ladder)
    x = torch.randn(4, *model.input_shape)
    assert_close(model.extract("exit=2,width=0.5")(x), model(x, "exit=2,width=0.5"))
    again = make_recipe(RECIPE, [f"train.init={run}", "train.epochs=1", "train.lr=1e-9"])
    on = load(train(again, tmp_path / "on", quiet=True))
    assert_close(
        on(x, "width=0.5"), model(x, "width=0.5"), atol=0.2, rtol=0.1
    )  # settled on other batches, hardly moved
    exits = {**RECIPE, "method": {"name": "exits"}, "train": {"epochs": 1, "threads": 1, "init": str(run)}}
    narrowed = load(train(make_recipe(exits), tmp_path / "exits", quiet=True))
    assert list(map(str, narrowed.points)) == ["exit=1", "exit=2", "exit=3", "full"]


def test_a_resumed_training_is_bit_equal(tmp_path, monkeypatch):
    whole = train(make_recipe(RECIPE), tmp_path / "whole", quiet=True)
    from supple.training import loop

    real, calls = loop.training_step, []

    def broken(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(loop, "training_step", broken)
    half = make_recipe(RECIPE, ["train.save_every_s=0.001"])
    with pytest.raises(KeyboardInterrupt):
        train(half, tmp_path / "half", quiet=True)
    monkeypatch.setattr(loop, "training_step", real)
    resumed = load(train(None, tmp_path / "half", resume=True, quiet=True))
    for name, value in load(whole).state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_network_with_no_layer_norms_or_batch_norms_has_none_to_keep():
    model = transformer()
    assert model.norms is None
    assert not any(isinstance(part, nn.BatchNorm2d) for part in model.modules())
