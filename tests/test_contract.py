"""The contract that every method keeps. A method joins by being registered; so does a backbone by a line in TINY."""

import random
import threading
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from supple import checkpoint
from supple.backbones import BACKBONES
from supple.backbones.protocols import starts_from_data
from supple.cost import count_macs, count_params, profile
from supple.errors import PointError, RecipeError
from supple.methods import METHODS, build
from supple.model import FlexibleModel, Shape, as_output, example, select
from supple.point import FULL, Point
from supple.recipe import make_recipe
from tiny_coco import DETECTOR, scenes

TINY = {
    "msdnet": {
        "blocks": 3,
        "base": 1,
        "step": 1,
        "channels": 4,
        "growth_rate": 4,
        "growth_factors": [1, 2],
        "bottleneck_factors": [1, 2],
        "head_channels": 8,
    },
    "mobilenet_v1": {"channels": [16, 32, 32], "strides": [2, 1]},
    "fastnet": {"widths": [8, 16, 16], "head": 8},
    "resnet_v1": {"layers": [1, 1, 1, 1], "width": 8, "stem": "cifar"},
    "densenet": {"growth_rate": 4, "blocks": [2, 2, 2], "init_features": 8},
    "inception_v3": {},
    "audiocsrnet": {"front": [4, 4, 8, 8], "audio_channels": [4, 4, 8, 8], "back": [8, 8, 4]},
    "vit": {"model": "vit_tiny_patch16_224", "args": {"patch_size": 4, "embed_dim": 24, "depth": 4}},
    "vit_cifar": {"width": 24, "mlp": 16, "heads": 3, "layers": 4, "grid": 4},
    "cascade_rcnn": {
        **{key: value for key, value in DETECTOR.items() if key != "name"},
        "detections": 5,
        "anchor_samples": 1024,
    },
    "timm": {"model": "vit_tiny_patch16_224", "args": {"patch_size": 4, "embed_dim": 24, "depth": 3}},
    "torchvision": {"model": "squeezenet1_1"},
}
CUTS = {  # where a network without exits of its own gets them
    "mobilenet_v1": ["2", "8"],
    "resnet_v1": ["layer1", "layer2.0.relu"],
    "densenet": ["features.transition1"],
    "inception_v3": ["Mixed_5b"],
    "audiocsrnet": ["vision", "audio", "fusion1"],
    "timm": ["blocks.0", "blocks.1.norm1"],
    "vit": ["network.blocks.0"],
    "vit_cifar": ["blocks.1"],
    "torchvision": ["features.4"],
}
SETTINGS = {  # others have few points as they are
    "nested": {"widths": [0.5]},
    "merge_tokens": {"tokens": [2, 4]},
    "elastic": {"widths": [0.5, 1.0], "divisor": 4},
}
TRUNKS = {"at": ["blocks.1"], "layers": True, "tokens": [2]}  # elastic, beside the widths
SIZES = {"inception_v3": 75, "torchvision": 32, "cascade_rcnn": 64}  # pixels; others are content with 16


def shape_of(backbone: str) -> Shape:
    picture = (3, SIZES.get(backbone, 16), SIZES.get(backbone, 16))
    return (picture, (1, 96, 64)) if backbone == "audiocsrnet" else picture


def classes_of(backbone: str) -> tuple[str, ...]:
    return ("people",) if backbone == "audiocsrnet" else ("a", "b", "c", "d")


def turned(x: Any) -> Any:
    """The samples the other way round."""
    return select(x, torch.arange(5, -1, -1))


def recipe_of(method: str, backbone: str):
    settings = dict(SETTINGS.get(method, {}))
    if method == "elastic" and backbone == "vit":
        settings |= TRUNKS
    elif method in ("exits", "elastic") and backbone in CUTS:
        settings |= {"at": CUTS[backbone]}
    sections = {"backbone": {"name": backbone, **TINY[backbone]}, "method": {"name": method, **settings}}
    return make_recipe({"data": {"name": "generated"}, **sections})


def fits(method: str, backbone: str) -> bool:
    try:
        recipe = recipe_of(method, backbone)
        with torch.device("meta"):
            build(recipe.backbone, recipe.method, len(classes_of(backbone)), shape_of(backbone))
    except RecipeError:
        return False
    return True


PAIRS = [(method, backbone) for method in METHODS for backbone in TINY if fits(method, backbone)]


def make(method: str, backbone: str) -> FlexibleModel:
    """An untrained model with norm statistics that are not the initial ones, in eval mode."""
    torch.manual_seed(0)
    recipe = recipe_of(method, backbone)
    shape = shape_of(backbone)
    model = build(recipe.backbone, recipe.method, len(classes_of(backbone)), shape)
    model.classes = classes_of(backbone)
    if (own := starts_from_data(model.backbone)) is not None:
        own.start_from(torch.randn(16, *shape))
    model.train()(example(shape, 4 if shape[-1] == 75 else 32, torch.randn), model.points)
    return model.eval()


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request):
    return request.param


@pytest.fixture(scope="module")
def model(pair) -> FlexibleModel:
    return make(*pair)


@pytest.fixture(scope="module")
def x(pair) -> Any:
    return example(shape_of(pair[1]), 6, torch.randn, generator=torch.Generator().manual_seed(1))


def test_every_method_and_every_backbone_takes_part():
    assert set(METHODS) == {method for method, _ in PAIRS}, "a method that no tiny backbone fits: add one to TINY"
    assert set(BACKBONES) == set(TINY) == {backbone for _, backbone in PAIRS}


def test_all_points_that_can_be_run_are_found_each_once_in_its_one_spelling(model):
    found = list(islice(model.mixtures(), 300))
    assert len(set(found)) == len(found)
    assert [model.check(point) for point in found] == found
    if len(found) < 300:
        assert {*model.points, *model.settled} <= {*found}
        drawn = [model.draw(random.Random(seed)) for seed in range(50)]
        assert {model.check(point) for point in drawn if point is not None} <= {*found}
    if model.publishes:
        before, some = model.points, {point for point in found[:5] if model.rank(point) < model.rank(FULL)}
        model.publish(some)
        assert {*model.points} == {*some, FULL}
        model.publish(before)
        assert model.points == before


def test_points_are_distinct_and_end_with_the_full_model(model):
    assert model.points[-1] == FULL
    assert len(set(model.points)) == len(model.points)
    assert [model.check(point) for point in model.points] == list(model.points)
    assert [Point.parse(str(point)) for point in model.points] == list(model.points)


@torch.inference_mode()
def test_run_agrees_with_forward_point_by_point(model, x):
    together = list(model.run(x, model.points))
    assert [output.point for output in together] == list(model.points)
    for output in together:
        assert_close(output.logits, model(x, output.point))
    for output, same in zip(together, model(x, model.points)):
        assert_close(output.logits, same.logits)


@torch.inference_mode()
def test_only_asked_points_come_and_in_execution_order(model, x):
    asked = [model.points[-1], model.points[0], model.points[0]]
    outputs = list(model.run(x, asked))
    assert [output.point for output in outputs] == list(dict.fromkeys([model.points[0], model.points[-1]]))
    assert list(model.run(x, [])) == []


@torch.inference_mode()
@pytest.mark.parametrize("keep", [torch.tensor([4, 1]), torch.tensor([False, True, False, False, True, False])])
def test_samples_that_leave_do_not_change_those_that_stay(model, x, keep):
    run = model.run(x, [model.points[0], FULL])
    next(run)
    if len(model.points) > 1:
        rest = run.send(keep)
        assert_close(rest.logits, model(x, FULL)[keep])
    with pytest.raises(StopIteration):
        run.send(None)


@torch.inference_mode()
def test_a_run_ends_when_every_sample_has_left(model, x):
    run = model.run(x, model.points)
    next(run)
    with pytest.raises(StopIteration):
        run.send(torch.tensor([], dtype=torch.long))


@torch.inference_mode()
def test_two_interleaved_runs_do_not_disturb_each_other(model, x):
    first, second = model.run(x, model.points), model.run(turned(x), reversed(model.points))
    for a, b in zip(first, second, strict=True):
        assert_close(a.logits, model(x, a.point))
        assert_close(b.logits, model(turned(x), b.point))


def test_threads_with_different_points_do_not_disturb_each_other(model, x):
    expected = {point: model(x, point).detach() for point in model.points}
    wrong = []

    def ask(point: Point) -> None:
        with torch.inference_mode():
            wrong.extend(point for _ in range(10) if not torch.allclose(model(x, point), expected[point], atol=1e-6))

    threads = [threading.Thread(target=ask, args=(point,)) for point in model.points]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@torch.inference_mode()
def test_extract_gives_a_plain_module_with_equal_outputs(model, x):
    for point in model.points:
        small = model.extract(point)
        assert not any(isinstance(part, FlexibleModel) for part in small.modules())
        assert all(parameter.is_contiguous() for parameter in small.parameters())
        assert_close(as_output(point, small(x)).logits, model(x, point))
        for parameter in small.parameters():
            parameter.zero_()  # its weights are copies
        assert not torch.equal(as_output(point, small(x)).logits, model(x, point))


@torch.inference_mode()
def test_extract_for_deployment_is_equal_to_1e_5(model, x):
    for point in model.points:
        fast = as_output(point, model.extract(point, deploy=True)(x)).logits
        assert_close(fast, model(x, point), atol=1e-5, rtol=1e-5)


def test_cost_never_falls_along_the_points_and_equals_that_of_the_extract(model, x):
    rows = profile(model)
    assert [row.point for row in rows] == [str(point) for point in model.points]
    with torch.inference_mode():
        spent = [output.cost for output in model.run(x, model.points)]  # known where it depends on the sample
    costs = [row.macs if each is None else float(each.double().mean()) for row, each in zip(rows, spent)]
    assert costs == sorted(costs)
    assert len(rows) == 1 or costs[0] < costs[-1]
    assert all(each is None or each.max() <= row.macs == row.macs_worst for row, each in zip(rows, spent))
    one = example(model.input_shape, make=torch.empty, device="meta")
    for row, point in zip(rows, model.points):
        small = model.extract(point).to("meta")
        assert row.macs == count_macs(lambda small=small: small(one))
        assert row.params == count_params(small.parameters()) <= count_params(model.parameters())
        assert row.macs <= row.macs_through <= sum(r.macs for r in rows)


def test_a_model_without_weights_has_the_same_cost(pair, model):
    recipe = recipe_of(*pair)
    with torch.device("meta"):
        skeleton = build(recipe.backbone, recipe.method, len(classes_of(pair[1])), shape_of(pair[1]))
    assert profile(skeleton) == profile(model)


@torch.inference_mode()
def test_every_stage_answers_the_point_that_it_names_and_the_last_one_is_the_full_model(model, x):
    stages, state = model.stages(), x
    for stage in stages:
        state, logits = stage(state)
        assert (logits is None) == (stage.point is None)
        if stage.point is not None:
            assert_close(logits, model(x, stage.point))
    assert stages[-1].point == FULL
    answered = [stage.point for stage in stages if stage.point is not None]
    assert answered == model.order(answered)


@torch.inference_mode()
def test_points_may_be_given_in_their_short_form(model, x):
    short = [str(point) for point in model.points]
    assert [model.check(text) for text in short] == list(model.points)
    assert [output.point for output in model.run(x, short)] == list(model.points)
    assert_close(model(x, short[0]), model(x, model.points[0]))
    assert_close(as_output(FULL, model.extract(short[0])(x)).logits, model(x, model.points[0]))
    assert [row.point for row in profile(model, short)] == short


@torch.inference_mode()
def test_a_margin_is_given_for_every_sample_or_for_none(model, x):
    for output in model.run(x, model.points):
        assert output.margin is None or (output.margin.shape == (6,) and bool((output.margin >= 0).all()))


def test_every_parameter_learns_when_all_points_are_trained(pair):
    model = make(*pair).train()
    finds = pair[1] == "cascade_rcnn"
    x = scenes(8, model.input_shape[-1]) if finds else example(model.input_shape, 8, torch.randn)
    outputs = model(x, model.points)
    own = [loss for output in outputs for loss in (output.losses or {"": output.logits.square().mean()}).values()]
    loss = sum(own) + model.penalty(outputs)
    loss.backward()
    idle = {id(parameter) for parameter in model.auxiliary_parameters()}
    silent = [
        name for name, p in model.named_parameters() if id(p) not in idle and (p.grad is None or not p.grad.any())
    ]
    assert silent == []


@pytest.mark.parametrize("text", ["exit=99", "width=0.123", "layers=9-9-9", "exit=1,width=0.5,layers=2-1,skip=0.1"])
def test_an_impossible_point_is_refused_with_what_is_possible(model, x, text):
    with pytest.raises(PointError) as caught:
        model(x, Point.parse(text))
    assert repr(Point.parse(text)) in caught.value.cause
    assert caught.value.cure


def test_save_and_load_change_nothing(pair, model, x, tmp_path):
    checkpoint.save(tmp_path, model, recipe_of(*pair))
    again = checkpoint.load(tmp_path)
    assert again.points == model.points
    assert again.classes == model.classes
    with torch.inference_mode():
        for point in model.points:
            assert torch.equal(again(x, point), model(x, point))
