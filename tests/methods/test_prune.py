"""SiDT, the search: scores that scale, fold and are pulled down; the counts of a pruned shape without training."""

import json
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.testing import assert_close

from supple import FULL
from supple.backbones.dims import blocks_of, cut_block, shape_of
from supple.cost import count_params
from supple.errors import RecipeError
from supple.losses import distill_objective
from supple.methods import build
from supple.methods.prune import Prune, Scored, folded
from supple.surgery.prune import Plan, prune
from supple.training.step import set_up, training_step
from tiny_transformers import INPUT, NETWORKS, PATHS, SHAPES, drop, images, network_of, recipe_of, searched

EQUAL = {"atol": 1e-10, "rtol": 1e-10}


@pytest.mark.parametrize(("update", "learn"), [("together", {0: "ab", 1: "ab"}), ("alternate", {0: "a", 1: "b"})])
def test_weights_and_scores_learn_together_or_in_turn(update, learn):
    model = Prune(network_of("swin").float(), update=update)
    wrapped, optimizer = set_up(fabric := Fabric(accelerator="cpu"), settings := recipe_of().train, model)
    parts = {"a": lambda: model.backbone.state_dict(), "b": lambda: model.scores.state_dict()}
    for step, expected in learn.items():
        before = {name: {key: value.clone() for key, value in part().items()} for name, part in parts.items()}
        batch = images().float(), torch.arange(len(images())) % 2
        training_step(fabric, settings, wrapped, optimizer, distill_objective(model.points), batch, [FULL], step)
        changed = {
            name for name, part in parts.items() if any(not torch.equal(v, before[name][k]) for k, v in part().items())
        }
        assert changed == set(expected)


# --- scores -----------------------------------------------------------------------------------------------------------


@PATHS
def test_scores_of_one_change_nothing(name, fused):
    assert torch.equal(searched(name, fused, seed=None)(images()), network_of(name, fused)(images()))


def test_there_is_one_vector_for_the_heads_of_a_block_and_one_for_its_mlp():
    model = searched("swin", seed=None)
    assert [len(score) for score in model.scores] == [size for pair in SHAPES["swin"] for size in pair]
    assert all(torch.equal(score, torch.ones_like(score)) for score in model.scores)
    plain = set(network_of("swin").state_dict())
    assert set(model.state_dict()) == {f"backbone.{key}" for key in plain} | {f"scores.{i}" for i in range(6)}


def test_a_score_scales_weights_and_biases_by_hand():
    linear = nn.Linear(2, 4)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]))
        linear.bias.copy_(torch.tensor([1.0, 1.0, 10.0, 10.0]))
    scored = Scored(linear, nn.Parameter(torch.tensor([2.0, -1.0])))
    x = torch.tensor([[1.0, 1.0]])  # x W + b: 4, 8, 21, 25
    assert_close(scored(x), torch.tensor([[8.0, -8.0, 42.0, -25.0]]))
    assert_close(scored.fold()(x), scored(x))
    assert type(scored.fold()) is nn.Linear


@PATHS
def test_folding_changes_nothing(name, fused):
    model = searched(name, fused)
    plain = folded(model.backbone)
    assert not any(isinstance(part, Scored) for part in plain.modules())
    assert set(plain.state_dict()) == set(network_of(name).state_dict())
    assert_close(plain(images()), model(images()), **EQUAL)
    assert (plain(images()) - network_of(name, fused)(images())).abs().max() > 0.01  # the scores did something
    assert any(isinstance(part, Scored) for part in model.modules())  # a copy was folded


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_in_single_precision_everything_agrees_to_1e_5(name, fused):
    model = searched(name, fused).float()
    x = images().float()
    network, kept = prune(model, 0.4, Plan())
    drop(model, kept)
    assert_close(network(x), model(x), atol=1e-5, rtol=1e-5)
    assert_close(folded(model.backbone)(x), model(x), atol=1e-5, rtol=1e-5)


def test_the_penalty_is_gamma_times_the_sum_of_absolute_scores():
    model = Prune(network_of("vit"), gamma=0.01)
    outputs = model(images(), [FULL])
    assert_close(model.penalty(outputs), torch.tensor(0.01 * 2 * (8 + 96)))
    with torch.no_grad():
        model.scores[0].fill_(-3.0)
        model.scores[1].zero_()
    assert_close(model.penalty(outputs), torch.tensor(0.01 * (3 * 8 + 8 + 96)))
    model.penalty(outputs).backward()
    assert_close(model.scores[0].grad, torch.full((8,), -0.01))
    assert model.backbone.blocks[0].attn.qkv.weight.grad is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_weight_decay_leaves_the_scores_alone(optimizer):
    recipe = recipe_of(train={"optimizer": optimizer, "lr": 0.1, "weight_decay": 0.5, "threads": 1})
    model = build(recipe.backbone, recipe.method, 4, INPUT)
    _, steps = set_up(Fabric(accelerator="cpu", devices=1), recipe.train, model)
    assert sum(len(group["params"]) for group in steps.param_groups) == len(list(model.parameters()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    steps.step()
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("scores."))
    weight = "backbone.layers.0.blocks.0.mlp.fc1.weight"
    assert not torch.equal(after[weight], before[weight])


# --- shapes without a search ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_a_ratio_gives_the_pruned_shape_at_once(name):
    model = Prune(network_of(name), ratio=0.4, ranking="per_layer")
    assert shape_of(model.backbone) == tuple((int(0.6 * dims), int(0.6 * hidden)) for dims, hidden in SHAPES[name])
    assert len(model.scores) == 0
    assert model.penalty(model(images(), [FULL])) == 0
    assert shape_of(Prune(network_of(name), ratio=0.4, multiple=8).backbone)[0] == (8, 56)


def test_an_explicit_shape_is_taken_as_it_is():
    shape = ((3, 10), (12, 96), (1, 1))
    assert shape_of(Prune(network_of("swin"), kept=shape).backbone) == shape


@pytest.mark.parametrize(
    "given",
    [
        *({"ratio": ratio} for ratio in (1.0, -0.1, 2, float("nan"))),
        *({"gamma": gamma} for gamma in (-1, float("nan"), float("inf"))),
        {"multiple": 0},
        {"ratio": 0.4, "kept": ((8, 96), (8, 96))},
    ],
)
def test_settings_out_of_range_are_refused(given):
    with pytest.raises(RecipeError) as caught:
        Prune(network_of("vit"), **given)
    assert f"method.{next(iter(given))}" in caught.value.cause


# --- profile ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "prune.yaml"
    path.write_text(recipe_of(data={"size": 16, "classes": 4}).to_yaml())
    return path


def params_of(network: nn.Module, kept) -> int:
    for block, (dims, hidden) in zip(blocks_of(network), kept):
        cut_block(block, torch.arange(dims), torch.arange(hidden))
    return count_params(network.parameters()) - 49  # five classes here, four there


def test_profile_counts_a_pruned_shape_without_training(command, page, tmp_path):
    counts = lambda *words: command("profile", page, "--json", *words).json["points"][0]
    assert counts()["params"] == params_of(network_of("swin"), SHAPES["swin"])
    shape = ((7, 57), (7, 57), (7, 115))  # floors of 0.6 x 12, 96 and 192
    found = counts("method.ratio=0.4", "method.ranking=per_layer")
    assert found["params"] == params_of(network_of("swin"), shape)
    (tmp_path / "kept.json").write_text(json.dumps(shape))
    assert counts(f"method.kept={tmp_path / 'kept.json'}") == found
    rounded = counts("method.ratio=0.4", "method.ranking=per_layer", "method.multiple=8")
    assert rounded["params"] == params_of(network_of("swin"), ((8, 56), (8, 56), (8, 112)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[7, 57], [7, 57]]", ("the network has 3 blocks, kept dimensions are given for 2", "Give 3 pairs")),
        ("[[7, 57], [7, 57], [13, 1]]", ("block 3 cannot keep 13 and 1", "it has 12 and 192")),
        ("[[7, 57], [7, 57], [0, 1]]", ("block 3 cannot keep 0 and 1",)),
        ("[]", ("method.kept", "a pair for each block")),
        ("[1, 2, 3]", ("method.kept",)),
        ('{"a": 1}', ("method.kept",)),
        ("[[7, 57], [7, 57], [7.5, 1]]", ("method.kept",)),
        ("[[7, 57], [7, 57], [true, 1]]", ("[True, 1] is not a pair of whole numbers",)),
        ('[[7, 57], [7, 57], ["7", 1]]', ("is not a pair of whole numbers",)),
        ("[" * 100_000, ("method.kept", "cannot be read")),
        (" " * 2_000_000, ("it is larger than",)),
        ("not json", ("method.kept", "cannot be read", "a pair for each block")),
    ],
)
def test_a_kept_file_that_does_not_fit_is_refused(command, page, tmp_path, text, named):
    (tmp_path / "kept.json").write_text(text)
    command("profile", page, f"method.kept={tmp_path / 'kept.json'}").refused(2, *named)


def test_a_kept_file_that_is_not_there_is_refused(command, page):
    command("profile", page, "method.kept=nowhere.json").refused(2, "nowhere.json", "cannot be read")
    command("profile", page, "method.kept=/dev/zero").refused(2, "/dev/zero", "it is not a file")


def test_a_backbone_takes_a_kept_file_too(command, page, tmp_path):
    (tmp_path / "kept.json").write_text("[[7, 57], [7, 57], [7, 115]]")
    files = [f"{section}.kept={tmp_path / 'kept.json'}" for section in ("backbone", "method")]
    one, other = (command("profile", page, file, "--json").json["points"][0]["params"] for file in files)
    assert one == other


@pytest.mark.parametrize("ratio", ["1", "-0.1", "1.5"])
def test_profile_refuses_a_ratio_outside_0_and_1(command, page, ratio):
    command("profile", page, f"method.ratio={ratio}").refused(2, "method.ratio is", "from 0 to below 1")


def test_a_network_that_cannot_be_pruned_is_refused_in_a_recipe(command, page):
    words = ("profile", page, "backbone.args={}", "backbone.model=resnet18")
    command(*words).refused(2, "ResNet", "no block with `attn` and `mlp` was found", "ViT, DeiT or Swin")
