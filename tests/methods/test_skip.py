"""The Dynamic Transformer: who skips which layer, what that costs, and which loss teaches the oracles."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from supple import checkpoint
from supple.backbones.vit_cifar import VitCifar
from supple.cost import count_macs, count_params, profile
from supple.errors import PointError, RecipeError
from supple.methods import build
from supple.methods.gates import Gates, blend, regroup, straight_through
from supple.methods.skip import SHARES, Skip
from supple.model import Output
from supple.point import FULL, Point
from supple.recipe import make_recipe
from toy import Affine, Toy, numbers

SHAPE = (3, 16, 16)
X = torch.randn(12, *SHAPE, generator=torch.Generator().manual_seed(1))
HALF = Point(skip=0.5)


def small(layers: int = 5) -> VitCifar:
    torch.manual_seed(0)
    net = VitCifar(num_classes=5, width=24, mlp=16, heads=3, layers=layers, grid=4, input_shape=SHAPE)
    return net.eval()


def skipping(layers: int = 5, **settings) -> Skip:
    """A small one whose samples differ in what they skip: half of them run the layer of each oracle."""
    model = Skip(small(layers), input_shape=SHAPE, **settings).eval()
    for place, oracle in enumerate(model.gates.oracles):
        nn.init.normal_(oracle.weight)
        nn.init.zeros_(oracle.bias)
        with torch.no_grad():
            logits = model.gates.follow(model.trunk, X, 0.5, regroup).logits
            oracle.bias -= logits[:, place].quantile(0.5)
    return model


def always(model: Skip, logit: float) -> Skip:
    """Every oracle says the same of every sample."""
    for oracle in model.gates.oracles:
        nn.init.zeros_(oracle.weight)
        nn.init.constant_(oracle.bias, logit)
    return model


def toy(*layers: tuple[float, float], **settings) -> Skip:
    """Scores above one half for tokens above 0, whatever the history."""
    model = Skip(Toy(*layers), input_shape=(1,), **settings).eval()
    for oracle in model.gates.oracles:
        oracle.weight.data = torch.tensor([[1.0] + [0.0] * (oracle.in_features - 1)])
        nn.init.zeros_(oracle.bias)
    return model


# --- parameters (arithmetic 3.2) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "last_always_on", "weights", "biases"),
    [(10, False, 3_501, 9), (10, True, 3_108, 8), (16, False, 5_880, 15), (16, True, 5_481, 14)],
)
def test_oracles_have_the_parameters_of_eq_15(layers, last_always_on, weights, biases):
    with torch.device("meta"):
        gates = Gates(VitCifar(num_classes=100, layers=layers), "own", "chain", 0.25, "class", last_always_on)
    assert sum(oracle.weight.numel() for oracle in gates.oracles) == weights
    assert sum(oracle.bias.numel() for oracle in gates.oracles) == biases
    assert count_params(gates.parameters()) == weights + biases
    assert weights + biases == {3_501: 3_510, 5_880: 5_895}.get(weights, weights + biases)


def test_the_shared_oracle_does_not_grow_with_the_network():
    with torch.device("meta"):
        nets = [VitCifar(num_classes=100, layers=layers) for layers in (4, 10, 16)]
        gates = [Gates(net, "shared", "chain", 0.25, "class", True) for net in nets]
    assert [count_params(one.parameters()) for one in gates] == [384 + 2 + 1] * 3


# --- who runs what ----------------------------------------------------------------------------------------------------


def test_a_sample_runs_the_layers_whose_score_reaches_the_threshold_and_gets_its_place_back():
    model = toy((2, 0), (1, 3), (5, 0))
    x = numbers(1, -1, 2, -2)
    assert model(x, HALF).squeeze(1).tolist() == [(2 + 3) * 5, -2 * 5, (4 + 3) * 5, -4 * 5]
    [output] = model(x, [HALF])
    assert output.aux["ran"].tolist() == [[True, True, True], [True, False, True]] * 2
    assert output.aux["gates"].squeeze(1).tolist() == [2, -2, 4, -4]  # of the one gated layer: its class token
    assert model(x).squeeze(1).tolist() == [(2 * value + 3) * 5 for value in (1, -1, 2, -2)]


def test_a_score_equal_to_the_threshold_runs():
    model = toy((1, 0), (1, 3), (1, 0))
    assert model(numbers(0), HALF).item() == 3


def test_only_those_who_run_enter_the_layer():
    model = toy((2, 0), (1, 3), (5, 0))
    sizes = []
    model.trunk.blocks[1].register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    model(numbers(1, -1, 2, 3), HALF)
    model(numbers(-1, -2), HALF)  # nobody: the layer does not run at all
    assert sizes == [3]


def test_the_history_is_the_scores_so_far_beginning_with_1():
    model = toy((1, 0), (1, 0), (1, 0), (1, 0))
    first, second = model.gates.oracles
    assert (first.in_features, second.in_features) == (2, 3)  # class token, then one score for each layer so far
    first.weight.data = torch.tensor([[0.0, 2.0]])  # twice the score of layer 1
    second.weight.data = torch.tensor([[0.0, 10.0, 100.0]])
    [output] = model(numbers(7), [HALF])
    expected = [2.0, 10 + 100 / (1 + math.exp(-2))]
    assert output.aux["gates"][0].tolist() == pytest.approx(expected)


def test_the_shared_oracle_is_told_the_mean_score_and_the_depth():
    model = toy((1, 0), (1, 0), (1, 0), (1, 0), oracle="shared")
    model.gates.oracles[0].weight.data = torch.tensor([[0.0, 10.0, 3.0]])
    [output] = model(numbers(7), [HALF])
    first = 10 * 1 + 3 * 1 / 3
    second = 10 * (1 + 1 / (1 + math.exp(-first))) / 2 + 3 * 2 / 3
    assert output.aux["gates"][0].tolist() == pytest.approx([first, second])


@pytest.mark.parametrize("oracle", ["own", "shared"])
@pytest.mark.parametrize("training", [False, True])
def test_threshold_0_is_the_untouched_network_exactly(oracle, training):
    model = skipping(oracle=oracle).train(training)
    expected = model.backbone(X)
    assert torch.equal(model(X), expected)
    assert torch.equal(model(X, Point(skip=0.0)), expected)
    assert torch.equal(model.extract(FULL)(X), expected)
    for obey in (regroup, blend):  # the gates are asked, and everybody passes
        way = model.gates.follow(model.trunk, X, 0.0, obey)
        assert way.ran.all()
        assert torch.equal(model.trunk.head(way.state), expected)


@pytest.mark.parametrize(("last_always_on", "left"), [(True, [0, 4]), (False, [0])])
def test_skipping_everything_still_runs_the_first_and_the_last_layer(last_always_on, left):
    model = always(skipping(last_always_on=last_always_on), -4.0)
    state = model.trunk.stem(X)
    for layer in left:
        state = model.trunk.blocks[layer](state)
    assert torch.equal(model(X, HALF), model.trunk.head(state))
    [output] = model(X, [HALF])
    assert output.aux["ran"].nonzero()[:, 1].unique().tolist() == left


@pytest.mark.parametrize("settings", [{}, {"oracle": "shared"}, {"inputs": "dense"}, {"last_always_on": False}])
def test_the_three_ways_to_obey_agree(settings):
    model = skipping(**settings)
    for threshold in (0.1, 0.5, 0.9):
        ways = [model.gates.follow(model.trunk, X, threshold, obey) for obey in (regroup, blend, straight_through)]
        assert threshold != 0.5 or ways[0].ran[:, 1].float().mean() == 0.5  # some skip, some do not
        for way in ways[1:]:
            assert_close(way.state, ways[0].state, atol=1e-4, rtol=1e-4)
            assert_close(way.logits, ways[0].logits, atol=1e-4, rtol=1e-4)
            assert torch.equal(way.ran, ways[0].ran)
        assert_close(model.extract(Point(skip=threshold))(X), model(X, Point(skip=threshold)), atol=1e-4, rtol=1e-4)


def test_a_sample_is_answered_alike_alone_and_in_company():
    model = skipping()
    together = model(X, HALF)
    for place in range(len(X)):
        assert_close(together[place], model(X[place : place + 1], HALF)[0], atol=1e-5, rtol=1e-5)


def test_in_evaluation_the_straight_gate_skips_for_real():
    model = toy((2, 0), (1, 3), (5, 0), gate="straight")
    model(numbers(-1, -2), HALF)
    assert model.trunk.blocks[1].calls == 0
    model.train()(numbers(-1, -2), HALF)
    assert model.trunk.blocks[1].calls == 1


# --- learning ---------------------------------------------------------------------------------------------------------


def oracle_gradients(model: Skip, loss: Tensor) -> list[bool]:
    """Which oracles a loss reaches."""
    model.zero_grad()
    loss.backward()
    return [oracle.weight.grad is not None and bool(oracle.weight.grad.any()) for oracle in model.gates.oracles]


def test_under_the_papers_gate_only_eq_13_teaches_the_oracles():
    model = skipping().train()
    [output] = model(X, [HALF])
    assert oracle_gradients(model, output.logits.square().mean()) == [False] * 3
    [output] = model(X, [HALF])
    assert oracle_gradients(model, model.penalty([output])) == [True] * 3


def test_eq_13_reaches_the_earlier_oracles_through_the_history():
    model = skipping().train()
    [output] = model(X, [HALF])
    assert oracle_gradients(model, output.aux["gates"][:, 2].square().mean()) == [True] * 3
    [output] = model(X, [HALF])
    assert oracle_gradients(model, output.aux["gates"][:, 0].square().mean()) == [True, False, False]


def test_under_the_straight_gate_the_task_loss_teaches_them():
    model = skipping(gate="straight").train()
    [output] = model(X, [HALF])
    assert oracle_gradients(model, output.logits.square().mean()) == [True] * 3


def test_the_straight_gate_by_hand():
    """Backward, the decision is the score: the gradient of s + score * (block(s) - s) is block(s) - s."""
    score = torch.tensor([0.75, 0.25], requires_grad=True)
    state = torch.tensor([2.0, 3.0])[:, None, None]
    result = straight_through(Affine(5, 0), state, score, 0.5)
    assert result.flatten().tolist() == pytest.approx([10, 3])
    result.sum().backward()
    assert score.grad.tolist() == pytest.approx([5 * 2 - 2, 5 * 3 - 3])


def test_the_penalty_by_hand():
    logits = torch.tensor([[0.0, 2.0], [-4.0, 0.0]])
    outputs = [Output(HALF, torch.zeros(2, 5), {"gates": logits}), Output(FULL, torch.zeros(2, 5))]
    assert skipping(weight=0.5).penalty(outputs).item() == pytest.approx(0.5 * (4 + 16) / 4)
    mean = (0.5 + 1 / (1 + math.exp(-2)) + 1 / (1 + math.exp(4)) + 0.5) / 4
    assert skipping(target=0.3, weight=2.0).penalty(outputs).item() == pytest.approx(2 * (mean - 0.3) ** 2)
    assert skipping().penalty(outputs[1:]).item() == 0  # the full model has no gates


def test_a_target_of_half_is_reached_by_scores_of_half():
    model = always(skipping(target=0.5), 0.0)
    assert model.penalty(model(X, [HALF])).item() == 0


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"oracle": "shared"}, {"inputs": "dense"}, {"last_always_on": False}])
def test_the_cost_of_a_sample_is_that_of_what_it_ran(settings):
    model = skipping(**settings)
    for point in (HALF, FULL):
        [output] = model(X, [point])
        counted = [count_macs(lambda x=x: model(x[None], point)) for x in X]  # noqa: B023
        assert output.cost.tolist() == counted
    assert len(set(model(X, [HALF])[0].cost.tolist())) > 1
    assert len(set(model(X, [FULL])[0].cost.tolist())) == 1


def test_a_profile_knows_only_the_worst():
    model = skipping()
    model.input_shape = SHAPE
    half, full = profile(model)
    state = model.trunk.stem(X[:1])
    layers = [count_macs(lambda block=block: block(state)) for block in model.trunk.blocks]
    oracles = sum(oracle.in_features for oracle in model.gates.oracles)
    assert half.macs == half.macs_worst == full.macs + oracles
    assert full.macs == full.macs_worst == count_macs(lambda: model.backbone(X[:1]))
    [output] = always(model, -4.0)(X, [HALF])
    assert set(output.cost.tolist()) == {half.macs - sum(layers[1:4])}


# --- settling ---------------------------------------------------------------------------------------------------------


def batches(count: int) -> list[tuple[Tensor, None]]:
    rng = torch.Generator().manual_seed(2)
    return [(torch.randn(50, *SHAPE, generator=rng), None) for _ in range(count)]


@pytest.fixture(scope="module")
def settled() -> Skip:
    recipe = settled_recipe()
    torch.manual_seed(0)
    model = build(recipe.backbone, recipe.method, 4, SHAPE).eval()
    for oracle in model.gates.oracles:
        nn.init.normal_(oracle.weight, std=0.2)
    model.classes = ("a", "b", "c", "d")
    model.settle(batches(4), [Point(skip=0.125)])
    return model


def settled_recipe():
    backbone = {"name": "vit_cifar", "width": 24, "mlp": 16, "heads": 3, "layers": 8, "grid": 4}
    return make_recipe({"data": {"name": "generated"}, "backbone": backbone, "method": {"name": "skip"}})


def test_settle_finds_the_thresholds_at_which_these_shares_of_the_layers_run(settled):
    assert Point(skip=0.125) in settled.settled
    found = [point for point in settled.settled if point.skip != 0.125]
    assert len(found) == len(SHARES)
    thresholds = [point.skip for point in found]
    assert thresholds == sorted(thresholds, reverse=True)  # cheapest first
    x = torch.cat([x for x, _ in batches(4)])
    with torch.inference_mode():
        for point, share in zip(found, SHARES):
            [output] = settled(x, [point])
            assert output.aux["ran"].double().mean().item() == pytest.approx(share, abs=0.05)


def test_shares_below_what_always_runs_are_not_settled():
    model = skipping(layers=4)  # the first and the last layer are half of all
    model.settle(batches(1))
    ran = [float(model(batches(1)[0][0], [point])[0].aux["ran"].double().mean()) for point in model.settled]
    assert ran == pytest.approx([0.5, 0.75], abs=0.05)


def test_thresholds_above_all_scores_of_the_full_network_are_found():
    """Who skips a layer may score higher later: the second layer makes all tokens 0, the third wants them negative."""
    model = toy((1, 0), (0, 0), (1, 0), (1, 0))
    model.gates.oracles[1].weight.data *= -1
    x = torch.linspace(-2, 0, 101)[:, None]
    found = model._threshold(x, 0.6)
    assert found > model.gates.follow(model.trunk, x, 0.0, regroup).scores.max()
    assert model.gates.follow(model.trunk, x, found, regroup).ran.double().mean() == pytest.approx(0.6, abs=0.01)


def test_settling_leaves_training_mode_as_it_was_and_is_content_with_no_images():
    model = skipping().train()
    model.settle([(X, None)])
    assert model.training
    assert model.settled
    nothing = skipping()
    nothing.settle([], [Point(skip=0.3)])
    assert nothing.settled == (Point(skip=0.3),)


def test_points_and_settled_survive_save_and_load(settled, tmp_path):
    checkpoint.save(tmp_path, settled, settled_recipe())
    again = checkpoint.load(tmp_path)
    assert (again.points, again.settled) == (settled.points, settled.settled)
    with torch.inference_mode():
        for point in (*settled.points, *settled.settled):
            assert Point.parse(str(point)) == point
            assert torch.equal(again(X, point), settled(X, point))


def test_a_margin_is_the_distance_of_the_nearest_score_from_the_threshold():
    """Layers add 1 and nothing; the scores of layers 2 and 3 are sigmoids of the token before them."""
    model = toy((1, 1), (1, 1), (1, 0), (1, 0))
    x = numbers(-1.0, 1.0)  # the tokens are 0, then 1 where layer 2 ran (a score of 0.5 reaches 0.5); and 2, then 3
    near, far = next(model.run(x, [HALF])).margin.tolist()
    assert near == pytest.approx(0.0)
    assert far == pytest.approx(1 / (1 + math.exp(-2)) - 0.5)
    assert next(model.run(x, ["skip=0.6"])).margin.tolist() == pytest.approx([0.1, 1 / (1 + math.exp(-2)) - 0.6])
    assert next(model.run(x, [FULL])).margin is None


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [Point(exit=1), Point(layers=(1, 2)), Point(skip=0.5, width=0.5)])
def test_other_points_are_refused(point):
    with pytest.raises(PointError, match="its points differ in skip") as caught:
        skipping().check(point)
    assert "skip=0.5" in caught.value.cure


def test_a_threshold_of_0_is_spelt_full_and_high_thresholds_come_first():
    model = skipping()
    assert model.check(Point(skip=0.0)) == FULL
    assert model.order([FULL, Point(skip=0.25), HALF]) == [HALF, Point(skip=0.25), FULL]


@pytest.mark.parametrize(
    "settings",
    [{"target": 0.0}, {"target": 1.0}, {"weight": -1.0}, {"weight": math.nan}, {"dropout": 1.0}, {"dropout": -0.5}],
)
def test_bad_settings_are_refused(settings):
    [(name, value)] = settings.items()
    with pytest.raises(RecipeError, match=f"method.{name} is {value}"):
        skipping(**settings)


@pytest.mark.parametrize(("layers", "last_always_on"), [(1, True), (2, True), (1, False)])
def test_a_network_without_a_layer_to_skip_is_refused(layers, last_always_on):
    with pytest.raises(RecipeError, match=f"a network of {layers} layers has none to skip"):
        Skip(small(layers), input_shape=SHAPE, last_always_on=last_always_on)


def test_a_backbone_without_a_class_token_is_offered_the_mean():
    bare = small()
    bare.class_token = False
    with pytest.raises(RecipeError, match="skip reads the class token") as caught:
        Skip(bare, input_shape=SHAPE)
    assert "method.read=mean" in caught.value.cure
    model = Skip(bare, input_shape=SHAPE, read="mean").eval()
    state = model.trunk.blocks[0](model.trunk.stem(X))
    [output] = model(X, [HALF])
    oracle = model.gates.oracles[0]
    expected = oracle(torch.cat([state.mean(1), torch.ones(len(X), 1)], 1)).squeeze(1)
    assert_close(output.aux["gates"][:, 0], expected)
