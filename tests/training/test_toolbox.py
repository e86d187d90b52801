"""Averaging, mixing, layer-wise rates, accumulation, warm-up of distillation: what each does; resuming is exact."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train import EXITS, interrupted, recipe, weights
from torch import Tensor, nn
from torch.testing import assert_close

import supple
from supple import checkpoint
from supple.backbones.networks import timm_network
from supple.errors import RecipeError
from supple.losses import distill, distill_objective, make_objective, teach_from
from supple.model import Output
from supple.point import FULL, Point
from supple.recipe import Train, make_recipe
from supple.training.groups import parameter_groups, rate_factors
from supple.training.loop import train
from supple.training.mixing import mixed
from supple.training.step import make_fabric, set_up, split, training_step

TOOLBOX: dict[str, Any] = {
    "epochs": 3,
    "ema": 0.9,
    "mixup": 0.4,
    "cutmix": 1.0,
    "accumulate": 2,
    "decay_all": False,
    "schedule": {"name": "one_cycle"},
}
LOSS = {"name": "distill", "teachers": "largest", "lam": 0.5, "warmup": 2}
POINTS = (Point(exit=1), FULL)


def with_everything(**settings: Any) -> Any:
    data = {"name": "generated", "batch_size": 32, "crop_scale": [0.5, 1], "flip": True, "workers": 2}
    data |= {"augment": "rand-m5-mstd0.5", "jitter": 0.2, "erase": 0.2}
    document = {"data": data, **EXITS, "loss": LOSS, "train": {"lr": 0.05, "threads": 1, **TOOLBOX, **settings}}
    return make_recipe(document)


@pytest.mark.parametrize("steps", [5, 13])
def test_a_training_with_every_tool_resumes_bit_identically(monkeypatch: Any, tmp_path: Path, steps: int) -> None:
    monkeypatch.setattr("test_train.recipe", with_everything)
    whole = train(with_everything(), tmp_path / "whole", quiet=True)
    interrupted(monkeypatch, tmp_path / "run", steps)
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert weights(tmp_path / "run") == weights(whole)


def test_the_averaged_weights_are_the_ones_kept(tmp_path: Path) -> None:
    """With a decay so near 1 that hardly anything but the warm-up moves it, the average stays behind the last step."""
    plain = train(recipe(epochs=1, lr=0.05), tmp_path / "plain", quiet=True)
    averaged = train(recipe(epochs=1, lr=0.05, ema=0.99), tmp_path / "averaged", quiet=True)
    one, other = (checkpoint.read_tensors(run / checkpoint.WEIGHTS) for run in (plain, averaged))
    floating = [name for name, value in one.items() if value.is_floating_point()]
    assert any(not torch.equal(one[name], other[name]) for name in floating)


def test_mixed_labels_are_shares_of_the_two_classes_and_go_through_the_teacher_matrix() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(8, 3, 6, 6), torch.arange(8) % 4
    for settings in (Train(mixup=0.4), Train(cutmix=1.0), Train(mixup=0.4, cutmix=1.0)):
        images, shares = mixed(settings, x, y, 4)
        assert images.shape == x.shape
        assert_close(shares.sum(1), torch.ones(8))
        assert ((shares > 0).sum(1) <= 2).all()
        assert (shares.gather(1, y[:, None]) >= 0).all()
    assert mixed(Train(), x, y, 4) == (x, y)
    logits = [torch.randn(8, 4), torch.randn(8, 4)]
    hard = distill(logits, y, teach_from("largest", 2), 0.5)
    assert_close(distill(logits, nn.functional.one_hot(y, 4).float(), teach_from("largest", 2), 0.5), hard)
    with pytest.raises(RecipeError, match="one class each"):
        mixed(Train(mixup=0.4), x, torch.rand(8, 4), 4)


def test_distillation_rises_from_nothing_over_the_warm_up() -> None:
    """lam / 2 half-way, lam from the end of the warm-up on; without warm-up, lam from the start."""
    outputs = [Output(point, torch.randn(3, 4)) for point in POINTS]
    target = torch.tensor([0, 1, 2])

    def loss(epoch: float, **settings: Any) -> Tensor:
        return distill_objective(POINTS, teachers="largest", epoch=epoch, **settings)(outputs, target)

    matrix, logits = teach_from("largest", 2), [output.logits for output in outputs]
    for epoch, lam in ((0, 0.0), (1, 0.3), (2, 0.6), (9, 0.6), (math.inf, 0.6)):
        assert_close(loss(epoch, lam=0.6, warmup=2), distill(logits, target, matrix, lam))
    assert_close(loss(0, lam=0.6), distill(logits, target, matrix, 0.6))
    section = {"name": "distill", "teachers": "largest", "lam": 0.6, "warmup": 2}
    assert_close(make_objective(section, POINTS, "classes", 1)(outputs, target), distill(logits, target, matrix, 0.3))
    with pytest.raises(RecipeError, match="loss.warmup=-1"):
        distill_objective(POINTS, warmup=-1)


def test_a_batch_in_parts_gives_the_gradient_of_the_whole() -> None:
    """For a network without norms over the batch, up to rounding."""
    model = supple.static(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), input_shape=(3, 2, 2))
    x, y = torch.randn(10, 3, 2, 2), torch.arange(10) % 5
    found = []
    for parts in (1, 3):
        settings = Train(lr=1e-3, accumulate=parts, threads=1)
        fabric = make_fabric(settings)
        wrapped, optimizer = set_up(fabric, settings, model)
        objective = distill_objective((FULL,))
        outputs, value = training_step(fabric, settings, wrapped, optimizer, objective, (x, y), (FULL,))
        assert outputs[0].logits.shape == (10, 5)
        gradient = model.backbone[1].weight.grad  # type: ignore[index]
        found.append((value, gradient.clone()))
        with torch.no_grad():
            model.backbone[1].weight += 1e-3 * gradient  # type: ignore[index]
            model.backbone[1].bias += 1e-3 * model.backbone[1].bias.grad  # type: ignore[index]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)
    assert [len(part) for part, _, _ in split((x, y), 3)] == [4, 4, 2]
    assert [share for _, _, share in split((x, y), 3)] == [0.4, 0.4, 0.2]
    with pytest.raises(RecipeError, match="accumulate"):
        split(((x, x), y), 2)


def test_layers_learn_the_slower_the_earlier_they_are_and_new_parts_at_full_rate() -> None:
    vit = timm_network(
        num_classes=5, model="vit_tiny_patch16_224", input_shape=(3, 32, 32), args={"depth": 2, "embed_dim": 24}
    )
    model = supple.exits(vit, at=["blocks.0"], input_shape=(3, 32, 32))
    factors = rate_factors(model, 0.5)
    assert factors["backbone.blocks.1.mlp.fc1.weight"] == 2 * factors["backbone.blocks.0.mlp.fc1.weight"]
    assert factors["backbone.patch_embed.proj.weight"] < factors["backbone.blocks.0.mlp.fc1.weight"]
    assert factors["backbone.head.weight"] == 1
    assert not any(name.startswith("heads.0") for name in factors)
    groups = parameter_groups(model, Train(lr=0.1, layer_decay=0.5, decay_all=False))
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    rates = {round(group.get("lr", 0.1), 6) for group in groups}
    assert {0.1, 0.05} <= rates
    spared = {id(vit.pos_embed), id(vit.cls_token)}
    free = {id(p) for group in groups if group.get("weight_decay") == 0 for p in group["params"]}
    assert free == {id(p) for p in model.parameters() if p.dim() <= 1} | spared
    decaying = parameter_groups(model, Train(lr=0.1))
    assert not any(group.get("weight_decay") == 0 for group in decaying)
    plain = supple.static(nn.Linear(4, 2), input_shape=(4,))
    with pytest.raises(RecipeError, match="does not say what its layers are"):
        rate_factors(plain, 0.5)
    with pytest.raises(RecipeError, match="puts no branches on its network"):
        rate_factors(plain, 1.0, branch_rate=4.0)


def test_branches_learn_at_a_rate_of_their_own() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 2))
    model = supple.exits(network, at=["0"], num_classes=2, input_shape=(3, 8, 8))
    factors = rate_factors(model, 1.0, branch_rate=4.0)
    branches = {name for name, _ in model.named_parameters() if name.startswith("heads.")}
    assert branches
    assert dict(factors) == dict.fromkeys(branches, 4.0)
    rates = {id(p): group.get("lr", 0.1) for group in parameter_groups(model, Train(lr=0.1, branch_rate=4.0))
             for p in group["params"]}  # fmt: skip
    assert rates == {
        id(parameter): pytest.approx(0.4 if name in branches else 0.1) for name, parameter in model.named_parameters()
    }
