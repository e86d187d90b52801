"""Right or wrong of every image, at points and in drawn orders, alone, merged, as an ensemble; and other measures."""

import numpy as np
import pytest
import torch

from supple.data.registry import load
from supple.errors import RecipeError
from supple.experiments.evaluation import (
    MEASURES,
    ORDERED,
    alone,
    deal,
    ensemble,
    evaluate_arm,
    merged,
    near_minus_far,
    point_for,
)
from supple.experiments.results import unpack
from supple.methods import build
from supple.scoring import evaluate
from supple.training.build import load_data
from tiny import tiny_recipe
from tiny_crowd import make_crowd

NETWORK = {"name": "vit_cifar", "width": 12, "mlp": 8, "heads": 3, "layers": 4, "grid": 4}
SMALL_CSRNET = {"name": "audiocsrnet", "front": (4, 4, 4, 4), "audio_channels": (2, 2, 4, 4), "back": (4, 4, 4)}
SPLITS = load_data(tiny_recipe())


def made(method: str, seed: int = 0, **settings):
    torch.manual_seed(seed)
    return build(NETWORK, {"name": method, **settings}, 4, (3, 16, 16)).eval()


def score(packed, name: str) -> float:
    return float(unpack(packed[name]).mean())


def test_points_score_as_evaluate_says():
    model = made("shuffle")
    packed = evaluate_arm([model], alone, SPLITS, ["full", "layers=2-1"], 0)
    expected = {one.name: 100 * one.score for one in evaluate(model, SPLITS.test, ["full", "layers=2-1"])}
    assert {name: score(packed, name) for name in packed} == pytest.approx(expected)


def test_counts_score_by_their_error(tmp_path):
    root = make_crowd(tmp_path / "crowd")
    splits = load("crowd", root=str(root), size=[16, 24])
    torch.manual_seed(0)
    model = build(SMALL_CSRNET, {"name": "exits", "at": ("vision", "audio")}, 1, splits.test.shape).eval()
    model.task = "count"
    packed = evaluate_arm([model], alone, splits, ["exit=2", "full"], 0)
    expected = {one.name: one.score for one in evaluate(model, splits.test, ["exit=2", "full"])}
    assert {name: score(packed, name) for name in packed} == pytest.approx(expected, rel=1e-2)
    assert splits.test.targets.tolist() == [len(sample.points) for sample in splits.test.samples]


def test_orders_are_redrawn_by_batch_and_seed_and_are_the_same_for_all_arms(monkeypatch):
    model, other = made("shuffle", 0), made("shuffle", 1, variant="position")
    drawn = [point_for(model, "arbitrary", seed, batch) for seed in range(2) for batch in range(12)]
    assert len(set(drawn)) > 12
    assert drawn == [point_for(other, "arbitrary", seed, batch) for seed in range(2) for batch in range(12)]
    monkeypatch.setattr("supple.experiments.evaluation.ORDERED", 16)
    seen = []
    real = model.run
    monkeypatch.setattr(model, "run", lambda x, points: (seen.append((len(x), points)), real(x, points))[1])
    evaluate_arm([model], alone, SPLITS, ["arbitrary"], 0)
    assert [count for count, _ in seen] == [16] * 4
    assert [points for _, points in seen] == [[point] for point in drawn[:4]]
    assert ORDERED == 100


def test_an_ensemble_of_equal_models_answers_as_one_in_order():
    model = made("shuffle")
    both = evaluate_arm([model, model], ensemble, SPLITS, ["full"], 0)
    assert both == evaluate_arm([model], alone, SPLITS, ["full"], 0)
    x = SPLITS.test.batch(torch.arange(8))[0]
    models = [made("shuffle", seed) for seed in (0, 1)]
    with torch.inference_mode():
        mean = (models[0](x) + models[1](x)) / 2
        torch.testing.assert_close(ensemble(models, ["full"], 0)(x, 0)["full"], mean)


def test_a_merged_model_has_every_layer_from_the_run_that_the_plan_says():
    models = [made("shuffle", seed) for seed in (0, 1)]
    x = SPLITS.test.batch(torch.arange(8))[0]
    plan = deal(2, 4, seed=5, batch=3)
    assert sorted(plan) == [1, 1, 2, 2]
    assert len({deal(2, 4, 5, batch) for batch in range(20)}) > 3
    with torch.inference_mode():
        state = models[0].backbone.stem(x)
        for layer, run in enumerate(plan):
            state = models[run - 1].backbone.blocks[layer](state)
        expected = models[0].backbone.head(state)
        torch.testing.assert_close(merged(models, ["full"], 5)(x, 3)["full"], expected)


def test_runs_that_are_alike_merge_into_themselves():
    packed = evaluate_arm([made("shuffle"), made("shuffle")], merged, SPLITS, ["full", "arbitrary"], 0)
    assert packed == evaluate_arm([made("shuffle")], alone, SPLITS, ["full", "arbitrary"], 0)


def test_training_images_are_a_set_of_their_own():
    packed = evaluate_arm([made("static")], alone, SPLITS, ["full", "train"], 0)
    assert (packed["train"]["images"], packed["train"]["n"]) == ("train", 256)
    assert score(packed, "train") == pytest.approx(100 * evaluate(made("static"), SPLITS.train)[-1].score)


def test_training_images_are_seen_at_the_point_that_skipping_trains():
    torch.manual_seed(0)
    model = made("skip")
    packed = evaluate_arm([model], alone, SPLITS, ["train, skip=0.5"], 0)
    expected = {one.name: 100 * one.score for one in evaluate(model, SPLITS.train)}
    assert score(packed, "train, skip=0.5") == pytest.approx(expected["skip=0.5"])
    with pytest.raises(RecipeError, match="is for method skip"):
        MEASURES["train, skip=0.5"].check(made("dense"), "mine")


def test_near_minus_far_by_hand():
    """Four layers: ten of the sixteen places are near, so 2.5 layers in the mean, 1.5 far."""
    shares = np.array([[0.4, 0.2, 0.2, 0.2], [0.2, 0.4, 0.2, 0.2]])  # means 0.3, 0.3, 0.2, 0.2
    near = np.array([[True, False, False, False], [False, True, True, True]])
    assert near_minus_far(shares, near) == pytest.approx([10 / 2.5 + 10 / 1.5, 10 / 2.5 + 10 / 1.5])
    assert near_minus_far(np.full((3, 4), 0.25), near[[0, 1, 1]]) == pytest.approx([0, 0, 0])


def test_measures_are_shares_of_every_image():
    counted = {
        "positions": made("shuffle", variant="predict"),
        "skipped": made("skip"),
        "preceding": made("dense"),
    }
    for name, model in counted.items():
        each = unpack(evaluate_arm([model], alone, SPLITS, [name], 0)[name])
        assert each.shape == (64,)
        assert 0 <= each.min() <= each.max() <= 100
    home = unpack(evaluate_arm([made("shuffle")], alone, SPLITS, ["home"], 0)["home"])
    assert home.shape == (64,)
    assert np.isfinite(home).all()


def test_equal_weights_take_from_the_layer_before_what_c24_compares_with():
    model = made("dense")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("backbone"):
                parameter.zero_()
    each = unpack(evaluate_arm([model], alone, SPLITS, ["preceding"], 0)["preceding"])
    assert each == pytest.approx(np.full(64, 100 * (1 / 3 + 1 / 4) / 2), rel=1e-3)  # layers 3 and 4 of four


def test_measures_of_other_methods_are_refused():
    with pytest.raises(RecipeError, match="is for method skip"):
        MEASURES["skipped"].check(made("shuffle"), "mine")
    with pytest.raises(RecipeError, match="variant predict"):
        evaluate_arm([made("shuffle")], alone, SPLITS, ["positions"], 0)
