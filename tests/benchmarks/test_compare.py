"""The comparison: what is compared has the same size, and the tables are what the results say."""

import argparse
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import TensorDataset

import compare
import compare_measure
from compare import SHELF, jobs, scaled
from compare_networks import Plain, early, merging, narrow, pruned, shelf, sizes, wrapped
from compare_table import Line, against, draw, lines, page, static_at
from supple.errors import RecipeError
from supple.experiments.results import pack, unpack
from supple.methods import build
from supple.methods.static import Static
from supple.point import FULL, Point
from supple.policy.policy import Policy
from supple.recipe import make_recipe
from supple.training.build import fresh_model, load_data

FAST = {
    "data": {"name": "generated", "batch_size": 32},
    "backbone": {"name": "fastnet", "widths": [16, 32, 32], "head": 16},
    "method": {"name": "elastic", "widths": [0.5, 0.75, 1.0]},
    "train": {"epochs": 20, "warmup": 4},
    "loss": {"name": "distill", "teachers": "largest", "warmup": 5, "smoothing": 0.2},
}
VIT = {
    "data": {"name": "generated"},
    "backbone": {"name": "vit", "model": "vit_tiny_patch16_224",
                 "args": {"patch_size": 4, "embed_dim": 48, "depth": 4}},
    "method": {"name": "elastic", "widths": [0.5, 0.75, 1.0], "at": ["blocks.1"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def fast():
    recipe = make_recipe(FAST)
    return recipe, load_data(recipe)


def random_norms(network: nn.Module) -> nn.Module:
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
            nn.init.normal_(part.bias, std=0.1)
    return network.eval()


# --- networks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [FAST, VIT], ids=["convolutional", "transformer"])
@pytest.mark.parametrize("point", SHELF)
def test_a_static_network_of_the_shelf_has_the_size_of_its_point(document, point):
    recipe = make_recipe(document)
    splits = load_data(recipe)
    alone, extracted = shelf(recipe, splits, point, 0), fresh_model(recipe, splits).extract(point)
    shapes = [sorted(tuple(p.shape) for p in network.parameters()) for network in (alone, extracted)]
    assert shapes[0] == shapes[1]
    held = Static(extracted)
    held.input_shape = splits.train.shape
    assert sizes(alone)["full"] == sizes(held)["full"]
    assert alone(torch.randn(2, *splits.train.shape)).shape == (2, 4)


def test_another_seed_gives_another_network(fast):
    first, same, other = (shelf(*fast, "full", seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_what_learns_faster_in_fastnet_does_so_when_it_is_cut(fast):
    recipe, splits = fast
    network = shelf(recipe, splits, "exit=2", 0)
    rates = network.rates()
    assert set(rates.values()) == {64.0}
    assert set(rates) <= dict(network.named_parameters()).keys()
    assert len(rates) == len([part for part in network.modules() if isinstance(part, nn.BatchNorm2d)])
    assert not network.backbone.started
    network.backbone.start_from(torch.randn(16, *splits.train.shape))
    assert network.backbone.started


@torch.inference_mode()
def test_the_network_that_is_pruned_computes_what_the_trained_one_does(fast):
    recipe, splits = fast
    x = torch.randn(4, *splits.train.shape)
    static = shelf(recipe, splits, "full", 0)
    static.backbone.start_from(x)
    random_norms(static)
    assert_close(Plain(static.backbone).eval()(x), static(x))


def test_a_pruned_network_is_smaller_and_learns_what_fastnet_learns(fast):
    pytest.importorskip("torch_pruning")
    recipe, splits = fast
    static = shelf(recipe, splits, "full", 0)
    static.backbone.start_from(torch.randn(16, *splits.train.shape))
    half = pruned(static, splits, 0.5)
    assert sizes(half)["full"]["macs"] == sizes(shelf(recipe, splits, "width=0.5", 0))["full"]["macs"]
    fixed = {name for name, value in half.named_parameters() if not value.requires_grad}
    assert any(name.endswith("layers.0.0.weight") for name in fixed)  # what whitens
    assert all(name.endswith("weight") for name in fixed)
    assert set(half.rates()) <= {name for name, value in half.named_parameters() if value.requires_grad}


@pytest.mark.filterwarnings("ignore")  # its own count of MACs warns
@torch.inference_mode()
def test_earlyon_answers_as_the_network_that_was_trained(fast):
    pytest.importorskip("earlyon")
    recipe, splits = fast
    model = early(recipe, splits, 0)
    model.backbone.start_from(torch.randn(16, *splits.train.shape))
    random_norms(model)
    other, x = wrapped(model, splits.train.shape), torch.randn(1, *splits.train.shape)
    for place in range(4):
        other.config.confidence_thresholds = [0.0 if k == place else 1.0 for k in range(3)]
        result = other(x, mode="inference")
        assert result.exit_taken == (place if place < 3 else -1)
        assert_close(result.prediction, model(x, Point(exit=place + 1)))


@torch.inference_mode()
def test_a_trained_static_transformer_merges_tokens_as_it_is():
    recipe = make_recipe(VIT)
    splits = load_data(recipe)
    static = shelf(recipe, splits, "full", 0)
    model, x = merging(static, splits), torch.randn(2, *splits.train.shape)
    assert_close(model(x), static(x))
    assert [str(point) for point in model.points] == ["tokens=8", "tokens=4", "tokens=2", "tokens=1", "full"]


def test_narrow_settings_are_those_of_the_elastic_network():
    section = {"name": "fastnet", "widths": [64, 256, 256], "head": 128}
    elastic = build(section, {"name": "elastic"}, 10, (3, 32, 32))
    cut = elastic._narrowing.cut(elastic.inner, 0.75)
    assert narrow(section, 0.75) == {"widths": (48, 192, 192), "head": 96}
    norms = [part.num_features for part in cut.backbone.blocks.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms == [48, 48, 192, 192, 192, 192]


# --- what there is to do ----------------------------------------------------------------------------------------------


def test_pruning_and_merging_wait_for_the_full_static_network():
    assert jobs("convolutional", ["F"], [3, 4]) == [("B full", 3), ("F 0.75", 3), ("F 0.5", 3)]
    assert jobs("transformer", ["H"], [0]) == [("B full", 0), ("H", 0)]
    assert jobs("convolutional", ["C"], [0]) == [(f"B {size}", 0) for size in SHELF]
    assert [seed for arm, seed in jobs("convolutional", ["E", "G"], [0, 1]) if arm == "A"] == [0, 1]
    assert ("G", 1) not in jobs("convolutional", [], [0, 1])
    with pytest.raises(SystemExit, match="no H"):
        jobs("convolutional", ["H"], [0])


def test_fewer_epochs_keep_the_shares_of_what_is_given_in_epochs():
    recipe = scaled(make_recipe(FAST), 10)
    assert (recipe.train.epochs, recipe.train.warmup, recipe.loss["warmup"]) == (10, 2, 2.5)


def test_what_cannot_be_run_here_is_left_out_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(compare, "find_spec", lambda module: None if module == "torch_pruning" else True)
    assert compare.missing_packages("convolutional", []) == {"F": "torch-pruning"}
    assert compare.missing_packages("convolutional", ["A"]) == compare.missing_packages("transformer", []) == {}
    assert jobs("convolutional", ["F", "G"], [0], {"F": "torch-pruning"}) == [("G", 0)]
    assert not [arm for arm, _ in jobs("convolutional", [], [0], ["F"]) if arm[0] == "F"]


def test_epochs_are_planned_in_the_form_that_every_arm_is_trained_in(tmp_path, monkeypatch):
    fast = {"precision": "bf16", "memory_format": "channels_last", "compile": "off"}
    timed, trained = [], []
    monkeypatch.setattr(compare, "choose", lambda settings, *given, **how: settings.model_copy(update=fast))
    monkeypatch.setattr(compare.Timing, "step_s", lambda self, settings: timed.append(settings) or 2.0)
    changes = ["data.name=generated", "data.holdout=64", "data.batch_size=32", "data.size=16", "backbone.head=16"]
    changes += ["backbone.widths=[16,32,32]", "data.erase=0", "data.crop=0"]
    given = argparse.Namespace(family="convolutional", changes=changes, threads=1, init=None, minutes_per_run=4.0)
    recipe, splits = compare.planned(given, tmp_path)
    steps = math.ceil(len(splits.train) / 32)
    assert recipe.train.epochs == int(0.85 * 240 / (2 * steps)) < 20
    assert {name: {getattr(settings, name) for settings in timed} for name in fast} == {
        name: {value} for name, value in fast.items()
    }
    again, _ = compare.planned(given, tmp_path)  # what is known is not measured again
    assert (again, len(timed)) == (recipe, 4)
    monkeypatch.setattr(compare.supple, "fit", lambda *given, **how: trained.append(how))
    bench = compare.Bench(splits, 1, 5, None, tmp_path)
    compare.fitted(compare.Setup("convolutional", recipe, splits, bench, tmp_path), None, "B full", 0)
    for settings in (trained[0], recipe.resolved()["train"]):
        assert {name: settings[name] for name in fast} == fast


# --- policies ---------------------------------------------------------------------------------------------------------


def calibrated(share: float, lost: float) -> Policy:
    """Half of what it loses is lost on either half of the pictures, of which one is three times as large."""
    facts = {
        half: {"n": n, "full_accuracy": 0.9, "accuracy": 0.9 - part * lost}
        for half, n, part in (("expected", 300, 0.8), ("achieved", 100, 1.6))
    }
    return Policy((Point(exit=1), FULL), (share,), (1.0, 1.0), facts=facts)


def test_a_policy_near_the_full_network_has_the_smallest_budget_that_loses_so_little(monkeypatch):
    asked = []

    def calibrate(model, held, points, budget_macs):
        asked.append(share := float(budget_macs.removesuffix("x")))
        if share < least:
            raise RecipeError("too little.", "Give more.")
        return calibrated(share, lost.get(share, 0.001))

    monkeypatch.setattr(compare_measure.supple, "calibrate", calibrate)
    assert compare_measure.estimated_loss(calibrated(0.5, 0.004)) == pytest.approx(0.004)
    least, lost = 0.1, {0.4: 0.0051}
    assert compare_measure.near_full(None, None).thresholds == (0.45,)
    assert asked == [0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4]
    least, lost = 0.6, {}
    assert compare_measure.near_full(None, None).thresholds == (0.6,)
    lost = {0.95: 0.01}
    assert compare_measure.near_full(None, None) is None


def test_policies_are_followed_in_pytorch_too_beside_the_network_that_earlyon_is_held_against(tmp_path, monkeypatch):
    model, seen = Static(nn.Sequential(nn.Flatten(), nn.Linear(12, 2))), []
    model.input_shape, model.classes = (3, 2, 2), ("a", "b")
    pixels, labels = torch.randn(6, 3, 2, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    other = Static(nn.Flatten())
    monkeypatch.setattr(other.backbone, "forward", lambda x: seen.append(len(x)) or x)
    bench = compare_measure.Bench(SimpleNamespace(test=TensorDataset(pixels, labels)), 1, 5, other, tmp_path)
    policy = Policy((FULL,), (), (1.0,), shares=(1.0,))
    steps = compare_measure.Steps(tmp_path / "steps.json")
    rows = compare_measure.followed(bench, model.eval(), {"exits": policy}, [], steps)
    assert [(row["engine"], row["batch"]) for row in rows] == [("torch", 1), ("torch", 16)]
    assert seen == [1] * 6 + [6]
    with torch.no_grad():
        right = float((model(pixels).argmax(1) == labels).float().mean())
    assert unpack(rows[0]["answers"]).mean() == pytest.approx(100 * right)
    assert model.policy is None


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_static_network_of_the_same_time_lies_between_two_of_the_shelf():
    known = [(1.0, 80.0), (4.0, 90.0), (3.0, 70.0)]  # the last is slower than the first, and worse
    assert static_at(2.0, known) == pytest.approx(85.0)  # half-way as the logarithm goes
    assert static_at(0.5, known) == 80
    assert static_at(9.0, known) == 90


def result(arm: str, points: dict[str, tuple[float, float]], reference: float = 2.0, seed: int = 0) -> dict:
    """points: share that is right, and ms."""
    answers = {f"{name} fp32": pack(np.arange(100) < 100 * right) for name, (right, _) in points.items()}
    times = [
        {"point": name, "engine": "torch", "precision": "fp32", "batch": batch, "p50_ms": batch * spent,
         "p95_ms": 2 * batch * spent, "iqr_ms": 0.1, "reference_ms": batch * reference}
        for name, (_, spent) in points.items() for batch in (1, 16)
    ]  # fmt: skip
    return {"family": "convolutional", "arm": arm, "seed": seed, "minutes": 30.0, "machine": "a machine", "threads": 2,
            "checkpoint_bytes": 1_000_000, "recipe": {"train": {"epochs": 20}}, "answers": answers, "times": times,
            "policies": [], "bytes": {}, "points": {}}  # fmt: skip


def test_times_are_those_of_a_machine_as_fast_as_it_mostly_was():
    slow = result("A", {"full": (0.9, 6.0)}, reference=6.0)
    usual = [result(f"B {name}", {"full": (0.8, 2.0)}) for name in ("width=0.5", "full")]
    found = {line.name: line for line in lines([slow, *usual]) if line.letter == "A"}
    assert found["full"].ms(1) == pytest.approx(2.0)
    assert found["full"].ms(16) == pytest.approx(32.0)
    assert found["full"].accuracy == 90


def test_a_policy_is_scaled_by_the_median_of_the_reference_as_points_are():
    """Else a few slow calls of the reference would make the policy look fast."""
    row = {"policy": "exits", "engine": "torch", "batch": 1, "p50_ms": 1.0, "mean_ms": 3.0, "p95_ms": 9.0}
    row |= {"reference_ms": 40.0, "reference_p50_ms": 4.0, "answers": pack(np.arange(100) < 90), "where": {}}
    found = lines([{**result("A", {"full": (0.9, 2.0)}), "policies": [row]}])
    assert {line.letter: line.ms(1) for line in found} == {"A": 2.0, "E": 1.5}
    assert compare_measure.reference_times([2.0, 3.0, 10.0]) == {"reference_ms": 5.0, "reference_p50_ms": 3.0}


def test_a_point_that_is_worse_than_a_static_network_of_its_time_is_named(tmp_path):
    elastic = result("A", {"exit=1": (0.78, 1.0), "full": (0.90, 4.0)})
    shelved = [result("B exit=1", {"full": (0.80, 1.0)}), result("B full", {"full": (0.90, 4.0)})]
    for number, one in enumerate((elastic, *shelved)):
        (tmp_path / f"{number}.json").write_text(json.dumps(one))
    text = page(tmp_path)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if "at most 1 below" in line}
    assert "-2.00" in rows["exit=1"]
    assert "**missed**" in rows["exit=1"]
    assert "**missed**" not in rows["full"]
    assert "| training minutes | 30 | 60 | 0.50 | at most 1.00 |" in text
    draw(tmp_path, tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 1000


def test_seeds_are_one_line_with_their_deviation():
    found = lines([result("A", {"full": (right, 1.0)}, seed=seed) for seed, right in enumerate((0.8, 0.9))])
    assert [line.accuracies for line in found] == [[80, 90]]
    assert "85.00 ± 7.07" in page_of(found)


def page_of(found: list[Line]) -> str:
    from compare_table import table

    return table(found)


def test_quantised_points_are_held_against_quantised_networks_only():
    def line(letter: str, name: str, right: float) -> Line:
        return Line(letter, name, "onnxruntime", [right], {1: [1.0]}, {1: [1.0]}, [1.0])

    found = [line("D", "full, int8", 80), line("C", "full, int8", 82), line("B", "full", 99)]
    ((_, better),) = against(found, "D", "C", "onnxruntime", "int8", 1)
    assert better == -2
    assert not math.isnan(better)
