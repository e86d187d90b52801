"""One checkpoint for every ratio: widths that share weights, sort them first, train together and run at once."""

import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from supple import FULL, Point, load
from supple.backbones.dims import blocks_of, shape_of
from supple.cost import count_params, profile
from supple.errors import PointError, RecipeError
from supple.methods.nested import Nested
from supple.methods.ranking import keep
from supple.methods.static import Static
from supple.recipe import load_recipe
from supple.surgery.prune import Plan, nest, prune
from supple.training.loop import train
from tiny_transformers import INPUT, NETWORKS, PATHS, SHAPES, images, network_of, recipe_of, save_run, searched

EQUAL = {"atol": 1e-10, "rtol": 1e-10}
WIDTHS = (0.3, 0.6)


def nested_of(name: str = "swin", fused: bool = True) -> Nested:
    return Nested(network_of(name, fused), widths=WIDTHS).eval()


def narrow_of(model: Nested, width: float):
    return model.extract(Point(width=width))


# --- widths of one network --------------------------------------------------------------------------------------------


def test_points_are_the_shares_of_dimensions_kept():
    model = nested_of()
    assert model.points == (Point(width=0.3), Point(width=0.6), FULL)
    # All scores are equal: every block keeps the same share, 126 and 252 of 420 in all.
    assert {width: sum(map(sum, shape)) for width, shape in model.shapes.items()} == {0.3: 126, 0.6: 252}
    for width, shape in model.shapes.items():
        for pair, full in zip(shape, SHAPES["swin"]):
            assert all(abs(kept - width * size) <= 1 for kept, size in zip(pair, full))


@PATHS
@torch.inference_mode()
def test_every_width_equals_the_network_cut_to_its_shape(name, fused):
    model, x = nested_of(name, fused), images()
    assert torch.equal(model(x), network_of(name, fused)(x))
    for width in WIDTHS:
        small = narrow_of(model, width)
        assert shape_of(small) == model.shapes[width]
        assert_close(model(x, Point(width=width)), small(x), **EQUAL)
        assert (small(x) - model(x)).abs().max() > 0.01


@PATHS
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.floats(0.15, 0.95), ranking=st.sampled_from(["global", "per_type"]))
def test_every_width_is_the_pruned_network_of_its_ratio(name, fused, seed, width, ranking):
    model, x = searched(name, fused, seed), images(2)
    network, kept = nest(model, (width,), Plan(ranking))
    nested = Nested(network, widths=(width,), shapes=tuple(one.shape for one in kept)).eval()
    pruned, _ = prune(model, 1 - width, Plan(ranking))
    assert_close(nested(x), model(x), **EQUAL)  # sorting changes nothing
    assert_close(nested(x, Point(width=width)), pruned(x), **EQUAL)


def test_widths_have_the_costs_of_their_shapes():
    model = nested_of().float()
    model.input_shape = INPUT
    rows = profile(model)
    assert [row.point for row in rows] == ["width=0.3", "width=0.6", "full"]
    assert [row.params for row in rows] == [
        *(count_params(narrow_of(model, width).parameters()) for width in WIDTHS),
        count_params(model.parameters()),
    ]
    assert rows[0].macs < rows[1].macs < rows[2].macs


def test_samples_may_leave_between_widths():
    model, x = nested_of(), images(4)
    run = model.run(x, model.points)
    next(run)
    assert_close(run.send(torch.tensor([3, 1])).logits, model(x, Point(width=0.6))[[3, 1]], **EQUAL)


# --- shared weights ---------------------------------------------------------------------------------------------------


@PATHS
def test_a_narrow_width_teaches_the_weights_that_it_uses_and_no_others(name, fused):
    model, x = nested_of(name, fused), images(2)
    small = narrow_of(model, 0.3)
    model(x, Point(width=0.3)).square().sum().backward()
    small(x).square().sum().backward()
    for block, cut in zip(blocks_of(model.backbone), blocks_of(small)):
        fc1, few = block.mlp.fc1, cut.hidden
        assert_close(fc1.weight.grad[:few], cut.mlp.fc1.weight.grad, **EQUAL)
        assert not fc1.weight.grad[few:].any()
        assert_close(block.mlp.fc2.weight.grad[:, :few], cut.mlp.fc2.weight.grad, **EQUAL)
        used = block.attention.qkv.weight.grad.view(3, block.heads, block.head_dims, -1)
        own = cut.attention.qkv.weight.grad.view(3, block.heads, cut.head_dims, -1)
        assert_close(used[1:, :, : cut.head_dims], own[1:], **EQUAL)
        stretch = (cut.head_dims / block.head_dims) ** 0.5  # that of q, which keeps the scale of the whole network
        assert_close(used[0, :, : cut.head_dims], own[0] * stretch, **EQUAL)
        assert not used[:, :, cut.head_dims :].any()


@pytest.mark.parametrize("name", NETWORKS)
def test_changed_weights_reach_every_width_at_once(name):
    model, x = nested_of(name), images()
    ask = lambda: [model(x, point) for point in model.points]
    with torch.inference_mode():
        before = ask()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ask()[0].square().sum().backward()
    optimizer.step()
    for changed in (None, network_of(name, seed=9).state_dict()):
        if changed is not None:
            model.backbone.load_state_dict(changed)
        with torch.inference_mode():
            after = ask()
            for point, old, new in zip(model.points, before, after):
                assert (old - new).abs().max() > 1e-4
                assert_close(new, model.extract(point)(x), **EQUAL)
        before = after


def test_converting_and_copying_reach_every_width():
    model, x = nested_of(), images()
    expected = [model(x, point) for point in model.points]
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for point, before in zip(twin.points, expected):
        assert_close(twin(x, point), before, **EQUAL)
        assert_close(twin.float()(x.float(), point), before.float(), atol=1e-4, rtol=1e-4)
        assert twin.double()(x, point).dtype == torch.float64


def test_dropout_is_on_while_training_and_off_afterwards_at_every_width():
    model, x = Nested(network_of("vit", proj_drop_rate=0.5), widths=WIDTHS), images()
    for point in model.points:
        model.eval()
        assert torch.equal(model(x, point), model(x, point))
        model.train()
        assert not torch.equal(model(x, point), model(x, point))


# --- at once ----------------------------------------------------------------------------------------------------------


def test_two_threads_at_different_widths_are_right_1000_times_of_1000():
    model, x = nested_of("vit"), images(1)
    expected = {width: narrow_of(model, width)(x).detach() for width in WIDTHS}
    assert not torch.allclose(expected[0.3], expected[0.6])
    model = nested_of("vit")  # nothing is made yet: the threads meet there too
    right = dict.fromkeys(WIDTHS, 0)
    start = threading.Barrier(len(WIDTHS))

    def ask(width: float) -> None:
        start.wait()
        with torch.inference_mode():
            for _ in range(1000):
                right[width] += torch.allclose(model(x, Point(width=width)), expected[width], atol=1e-10)

    threads = [threading.Thread(target=ask, args=(width,)) for width in WIDTHS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == {0.3: 1000, 0.6: 1000}


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_searched_run_becomes_one_checkpoint_of_many_widths_and_trains_on(command, tmp_path):
    run, out = save_run(tmp_path / "search", recipe_of("vit")), tmp_path / "nested"
    said = command("prune", run, "--widths", "0.3,0.6", "--out", out, "--json").json
    source, model = load(run), load(out)
    x = torch.randn(3, *INPUT)
    assert [str(point) for point in model.points] == ["width=0.3", "width=0.6", "full"]
    assert [row["point"] for row in said["points"]] == ["width=0.3", "width=0.6", "full"]
    assert all(row["accuracy"] is not None and row["n"] == 64 for row in said["points"])
    with torch.inference_mode():
        assert_close(model(x), source(x), atol=1e-5, rtol=1e-5)
        for width in WIDTHS:
            network, kept = prune(source, 1 - width, Plan())
            assert tuple(map(tuple, said["shapes"][str(width)])) == kept.shape == model.shapes[width]
            assert_close(model(x, Point(width=width)), network(x), atol=1e-5, rtol=1e-5)
    recipe = load_recipe(out / "recipe.yaml", ["loss.teachers=largest", "train.sample=sandwich"])
    tuned = load(train(recipe, tmp_path / "tuned", quiet=True))
    assert tuned.shapes == model.shapes
    assert tuned.backbone.blocks[0].mlp.fc1.weight.sub(model.backbone.blocks[0].mlp.fc1.weight).abs().max() > 1e-4


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"widths": ()}, "method.widths is []"),
        ({"widths": (0.6, 0.3)}, "they must rise"),
        ({"widths": (0.5, 0.5)}, "they must rise"),
        ({"widths": (0.5, 1.0)}, "between 0 and 1"),
        ({"widths": (0.0, 0.5)}, "between 0 and 1"),
        ({"widths": (0.3, 0.6), "shapes": (((4, 48), (4, 48)),)}, "1 shapes for 2 widths"),
        ({"widths": (0.5,), "shapes": (((4, 48),),)}, "the network has 2 blocks, kept dimensions are given for 1"),
        ({"widths": (0.5,), "shapes": (((9, 48), (4, 48)),)}, "block 1 cannot keep 9 and 48"),
        ({"widths": (0.01,)}, "leaves 2 for 4 groups"),
        (
            {"widths": (0.3, 0.6), "shapes": (((4, 48), (4, 60)), ((4, 48), (6, 48)))},
            "width 0.3 is larger somewhere than 0.6",
        ),
    ],
)
def test_widths_and_shapes_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(RecipeError, match=said.replace("[", r"\[")):
        Nested(network_of("vit"), **settings)


def test_a_width_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(PointError, match="it has the widths 0.3, 0.6, 1"):
        nested_of()(images(), Point(width=0.5))


def test_widths_of_a_run_without_scores_may_follow_the_weights():
    plain = Static(network_of("vit"))
    network, (kept,) = nest(plain, (0.5,), Plan(by="magnitude"))
    assert (
        kept.shape
        == prune(plain, 0.5, Plan(by="magnitude"))[1].shape
        != keep(searched("vit").pruning_scores(), 0.5).shape
    )
    assert_close(network(images()), plain(images()), **EQUAL)
    with pytest.raises(RecipeError, match="never searched"):
        nest(plain, (0.5,), Plan())
