"""Training and evaluating groups of points: random orders, dropped layers, skipped layers."""

import json
from pathlib import Path

import pytest
import torch
from test_train import interrupted, metrics, recipe, weights
from torch.testing import assert_close

from supple import checkpoint
from supple.errors import RecipeError
from supple.methods.shuffle import Shuffle
from supple.point import FULL, Group, Point
from supple.scoring import draw, evaluate, evaluate_group
from supple.training.loop import train
from toy import Toy

BACKBONE = {"name": "vit_cifar", "width": 24, "mlp": 16, "heads": 3, "layers": 4, "grid": 4}
SHUFFLE = {"backbone": BACKBONE, "method": {"name": "shuffle"}}
SKIP = {"backbone": {**BACKBONE, "layers": 3}, "method": {"name": "skip"}}
FAST = {"optimizer": "adam", "lr": 3e-3, "schedule": "constant", "weight_decay": 0}


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shuffled")
    return train(recipe(SHUFFLE, sample="arbitrary", **FAST), folder / "run", quiet=True)


def told(folder: Path) -> list[set[str]]:
    """What metrics.jsonl names, line by line: the same of training and of validation."""
    lines = metrics(folder)
    assert all(set(line["train"]) == set(line["val"]) for line in lines)
    return [set(line["val"]) for line in lines]


def test_arbitrary_orders_are_trained_and_told_as_one(shuffled):
    assert told(shuffled) == [{"arbitrary"}] * 2
    first, last = metrics(shuffled)
    assert last["train"]["arbitrary"]["loss"] < first["train"]["arbitrary"]["loss"]


def test_a_training_with_random_orders_resumes_bit_identically(monkeypatch, tmp_path, shuffled):
    for step in (3, 7):  # in the first epoch, and in the second
        interrupted(monkeypatch, tmp_path / "run", step, sections=SHUFFLE, sample="arbitrary", **FAST)
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert weights(tmp_path / "run") == weights(shuffled)
    assert [line["val"] for line in metrics(tmp_path / "run")] == [line["val"] for line in metrics(shuffled)]


@pytest.mark.parametrize("variant", ["position", "predict"])
def test_the_variants_train(tmp_path, variant):
    sections = {**SHUFFLE, "method": {"name": "shuffle", "variant": variant}}
    folder = train(recipe(sections, sample="arbitrary", epochs=1, **FAST), tmp_path / "run", quiet=True)
    model = checkpoint.load(folder)
    [line] = metrics(folder)
    if variant == "position":
        assert model.table.abs().sum() > 0  # it began at zero
    else:
        assert line["loss"] > line["train"]["arbitrary"]["loss"] + 0.5  # the penalty, at first about ln 4


def test_layerdrop_trains_and_is_told_as_one(tmp_path):
    folder = train(recipe(SHUFFLE, sample="layerdrop", epochs=1, **FAST), tmp_path / "run", quiet=True)
    assert told(folder) == [{"layerdrop"}]
    assert [row.point for row in checkpoint.load(folder).ladder] == ["layers=1", "layers=1-2", "layers=1-2-3", "full"]


@pytest.mark.parametrize(("sample", "name"), [("full", "full"), ("smallest", "layers=1")])
def test_where_one_point_is_trained_it_alone_chooses_the_epoch(tmp_path, sample, name):
    folder = train(recipe(SHUFFLE, sample=sample, epochs=1, **FAST), tmp_path / "run", quiet=True)
    assert told(folder) == [{name}]
    assert len(checkpoint.load(folder).ladder.rows) == 4  # in the end all points are scored


@pytest.fixture(scope="module")
def skipped(tmp_path_factory) -> Path:
    return train(recipe(SKIP, sample="smallest", **FAST), tmp_path_factory.mktemp("skipped") / "run", quiet=True)


def test_skipping_trains_settles_on_validation_images_and_knows_its_mean_cost(skipped):
    assert told(skipped) == [{"skip=0.5"}] * 2
    model = checkpoint.load(skipped)
    assert model.settled
    rows = {row.point: row for row in model.ladder}
    assert set(rows) == {str(point) for point in (*model.points, *model.settled)}
    assert all(row.macs <= row.macs_worst for row in rows.values())
    assert any(row.macs < row.macs_worst for row in rows.values())
    assert rows["full"].macs == rows["full"].macs_worst


def test_skipping_resumes_bit_identically(monkeypatch, tmp_path, skipped):
    interrupted(monkeypatch, tmp_path / "run", 11, sections=SKIP, sample="smallest", **FAST)
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert weights(tmp_path / "run") == weights(skipped)


def test_the_straight_gate_trains(tmp_path):
    sections = {**SKIP, "method": {"name": "skip", "gate": "straight", "target": 0.5}}
    folder = train(recipe(sections, sample="smallest", epochs=1, **FAST), tmp_path / "run", quiet=True)
    assert told(folder) == [{"skip=0.5"}]


def test_a_group_of_another_method_is_refused():
    with pytest.raises(RecipeError, match='train.sample "arbitrary" is unknown'):
        recipe(SKIP, sample="arbitrary")


# --- evaluation -------------------------------------------------------------------------------------------------------


class Numbers:
    """The samples 1, 2, 3; the right answer is always 0."""

    slow = False
    at_once = None

    def __len__(self) -> int:
        return 3

    def batch(self, indices, rng=None):
        return torch.tensor([[1.0], [2.0], [3.0]])[indices], torch.tensor([0, 0, 0])[indices]


def test_a_group_is_the_mean_and_deviation_over_its_draws():
    model = Shuffle(Toy((2, 0), (1, 3)))
    model.task = "count"
    orders = iter([Point(layers=(2, 1)), FULL, Point(layers=(2, 1)), Point(layers=(1, 2))])
    score = evaluate_group(model, Numbers(), Group("mine", lambda rng: next(orders)), draws=4)
    # 2 x + 3 is 5, 7, 9; 2 (x + 3) is 8, 10, 12; the target is 0
    assert (score.name, score.draws, score.n) == ("mine", 4, 3)
    assert score.score == pytest.approx((7 + 10) / 2)
    assert score.deviation == pytest.approx(1.5)
    both = {one.name: one.score for one in evaluate(model, Numbers(), [FULL, Point(layers=(2, 1))])}
    assert both == {"full": 7, "layers=2-1": 10}


def test_every_group_draws_for_itself():
    """With one seed for all, five draws of `layerdrop` left nothing out."""
    model = Shuffle(Toy(*[(1.0, 0.0)] * 4))
    drawn = draw(model, model.groups["layerdrop"], 20, 0)
    assert any(point != FULL for point in drawn)
    orders = [draw(model, model.groups[name], 5, 0) for name in ("any 2, arbitrary", "first 2, arbitrary")]
    assert orders[0] != orders[1]


def test_the_same_seed_draws_the_same_points():
    model = Shuffle(Toy(*[(1, 1)] * 6))
    group = model.groups["arbitrary"]
    assert draw(model, group, 5, seed=1) == draw(model, group, 5, seed=1) != draw(model, group, 5, seed=2)


def test_evaluate_writes_mean_deviation_and_draws_of_every_group(shuffled, command):
    before = {row.point for row in checkpoint.load(shuffled).ladder}
    said = command("evaluate", shuffled, "--draws", 3, "--json").json["points"]
    written = json.loads((shuffled / "ladder.json").read_text())["points"]
    model = checkpoint.load(shuffled)
    for rows in (said, written):
        by_name = {row["point"]: row for row in rows}
        assert set(by_name) == before | set(model.groups)
        for name in model.groups:
            row = by_name[name]
            assert row["draws"] == 3
            assert 0 <= row["deviation"] <= 1
            assert 0 <= row["score"] <= 1
            assert row["macs"] > 0
        assert by_name["full"].get("draws") is None
        assert by_name["spread 2"]["deviation"] == 0  # one point, whoever draws
        assert by_name["any 2"]["macs"] == by_name["layers=1-2"]["macs"]


@pytest.mark.parametrize(("run", "point"), [("shuffled", "layers=2-1"), ("skipped", "skip=0.5")])
def test_an_extract_runs_with_any_batch_size(request, command, tmp_path, run, point):
    folder = request.getfixturevalue(run)
    said = command("extract", folder, "--point", point, "--out", tmp_path / "small")
    assert ("saves no time" in said.out) is (run == "skipped")
    model, network = checkpoint.load(folder), torch.export.load(tmp_path / "small" / "model.pt2").module()
    for batch in (1, 5):
        x = torch.randn(batch, *model.input_shape, generator=torch.Generator().manual_seed(batch))
        assert_close(network(x), model(x, Point.parse(point)), rtol=1e-5, atol=1e-5)


def test_a_model_whose_samples_decide_is_not_calibrated(skipped, command):
    command("calibrate", skipped, "--budget-macs", "0.7x").refused(2, "decides for itself", "threshold from the ladder")
