"""Calibrating a run: what is kept, what it costs, and who uses it. (What it promises: test_stopping.py.)"""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import supple
from supple import FULL, Point, checkpoint, load
from supple.cli.calibrate import SEPARATOR
from supple.cost import profile
from supple.data.images import ImageSet
from supple.data.parts import labelled
from supple.errors import CheckpointError, DataError, PointError, RecipeError, SuppleError
from supple.inference.calibration import _remark, calibrate, candidates, counted_costs, observe
from supple.inference.select import of_model
from supple.model import FlexibleModel
from supple.policy.fitting import Fitted, Outcome, Target, evaluate_policy
from supple.policy.policy import Policy, stop_above
from supple.training.build import data_of, load_data
from test_contract import make
from tiny import tiny_recipe


@pytest.fixture(scope="module")
def calibrated(exits_run, tmp_path_factory) -> Path:
    """A copy of the tiny run with a policy at 0.6 of the full model's MACs. Only to be read."""
    from supple.cli import main

    folder = Path(shutil.copytree(exits_run, tmp_path_factory.mktemp("calibrated") / "run"))
    assert main(["calibrate", str(folder), "--budget-macs", "0.6x", "--json"]) == 0
    return folder


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("images") / "stripes.png"
    Image.fromarray(load_data(tiny_recipe()).test.raw(0).permute(1, 2, 0).numpy()).save(path)
    return path


def document_of(run: Path) -> dict:
    return json.loads((run / "policy.json").read_text())


# --- the document -----------------------------------------------------------------------------------------------------


def test_policy_json_holds_the_policy_and_both_halves_of_the_held_out_images(calibrated):
    document = document_of(calibrated)
    assert document["weights"] == checkpoint.read_manifest(calibrated)["files"]["model.safetensors"]
    assert document["target"] == {"kind": "budget_macs", "value": 0.6, "relative": True, "given": "0.6x"}
    assert document["expected"]["n"] + document["achieved"]["n"] == len(data_of(calibrated).val) == 64
    full = next(row.macs for row in load(calibrated).ladder if row.point == "full")
    assert document["full_cost"] == full
    assert document["budget"] == pytest.approx(0.6 * full)
    expected = document["expected"]
    assert expected["cost"] + expected["cost_error"] <= document["budget"] * (1 + 1e-6)
    assert [row["point"] for row in document["exits"]] == ["exit=1", "exit=2", "full"]
    for half in ("expected", "achieved"):
        assert sum(row[half] for row in document["exits"]) == pytest.approx(1)
    assert [row["point"] for row in document["exits"] if row["looked_at"]] == document["points"]
    assert sum(map(sum, document["classes"]["stopped"])) == document["achieved"]["n"]
    assert document["classes"]["names"] == list(load(calibrated).classes)


def test_the_loaded_policy_does_on_the_second_half_what_the_document_says(calibrated):
    """The figures are those of the code that serves: the policy, run on the images, with the MACs of their exits."""
    model, document = load(calibrated), document_of(calibrated)
    assert model.policy == Policy.from_json(document)
    held = data_of(calibrated).val
    images, labels = held.batch(torch.arange(len(held)))
    reached = of_model(model, 1).walk((images.numpy(),), dataclasses.replace(model.policy, shares=()))
    costs = {row["point"]: row["cost"] for row in document["exits"] if row["looked_at"]}
    spent = sum(costs[one.point] for one in reached)
    halves = (document["expected"], document["achieved"])
    assert spent == pytest.approx(sum(half["n"] * half["cost"] for half in halves))
    right = sum(int(one.logits.argmax() == label) for one, label in zip(reached, labels.tolist()))
    assert right == pytest.approx(sum(half["n"] * half["accuracy"] for half in halves))
    assert int((model(images).argmax(1) == labels).sum()) == pytest.approx(
        sum(half["n"] * half["full_accuracy"] for half in halves)
    )


def test_costs_are_those_through_the_exits_that_are_looked_at(exits_run, slim_run):
    model = load(exits_run)
    counted = counted_costs(model)
    rows = profile(model)
    assert counted(model.points) == [row.macs_through for row in rows]
    assert [counted((point,))[0] for point in model.points] == [row.macs for row in rows]
    some = (Point(exit=2), FULL)  # the head of exit 1 does not run
    assert counted(some)[0] == rows[1].macs
    assert rows[2].macs < counted(some)[1] < rows[2].macs_through
    slim = load(slim_run)  # widths share nothing: one after the other costs the sum
    counted = counted_costs(slim)
    both = [row.macs for row in profile(slim)]
    assert counted(slim.points) == [both[0], both[0] + both[1]]


def test_the_same_seed_gives_the_same_policy(calibrated):
    model, held = load(calibrated), data_of(calibrated).val
    target = Target.parse("budget_macs", "0.6x")
    seed = checkpoint.read_manifest(calibrated)["recipe"]["train"]["seed"]
    policy = calibrate(model, held, target, seed=seed)
    document = json.loads(json.dumps({**policy.facts, **policy.to_json()}))
    assert {"weights": document_of(calibrated)["weights"], **document} == document_of(calibrated)


def test_halves_have_the_classes_in_equal_shares_and_share_no_image(calibrated, monkeypatch):
    model, held = load(calibrated), data_of(calibrated).val
    seen = []
    spy = lambda fitted, samples: seen.append(samples) or evaluate_policy(fitted, samples)
    monkeypatch.setattr("supple.inference.calibration.evaluate_policy", spy)
    calibrate(model, held, Target.parse("max_drop", "0.1"), seed=3)
    first, second = seen
    logits = model(held.batch(torch.arange(64))[0]).detach().numpy()
    both = np.concatenate([first.logits[-1], second.logits[-1]])
    assert np.allclose(np.sort(both.sum(1)), np.sort(logits.sum(1)), atol=1e-5)
    assert np.array_equal(np.bincount(first.labels), np.bincount(second.labels))


def test_a_loader_or_a_torch_data_set_calibrates_as_a_data_set_does(exits_run):
    model, held = load(exits_run), data_of(exits_run).val
    images, labels = held.batch(torch.arange(len(held)))
    samples = TensorDataset(images, labels)
    target = Target.parse("budget_macs", "0.6x")
    one, other = (calibrate(model, data, target, seed=3) for data in (held, samples))
    assert one == other
    streamed = calibrate(model, DataLoader(samples, 16), target, seed=3)  # in another order: other halves
    assert streamed.facts["expected"]["n"] == one.facts["expected"]["n"] == 32
    with pytest.raises(DataError, match="not numbers of classes"):
        calibrate(model, TensorDataset(images, labels.float()), target)


def test_widths_can_be_calibrated_too(command, slim_copy):
    document = command("calibrate", slim_copy, "--max-drop", "0.2", "--json").json
    assert document["unit"] == "macs"
    assert document["achieved"]["cost"] <= document["full_cost"]


# --- cascades ---------------------------------------------------------------------------------------------------------

NARROW = Point(width=0.5)


@pytest.fixture(scope="module")
def elastic() -> FlexibleModel:
    """Exits at two widths."""
    return make("elastic", "fastnet")


@pytest.fixture(scope="module")
def samples(elastic) -> TensorDataset:
    """Labels that the full model gets right, save every tenth."""
    x = torch.randn(80, *elastic.input_shape, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        labels = elastic(x).argmax(1)
    labels[::10] = (labels[::10] + 1) % len(elastic.classes)
    return TensorDataset(x, labels)


@pytest.mark.parametrize("backbone", ["fastnet", "vit"])
def test_points_that_are_not_exits_of_one_chain_cost_the_sum(backbone):
    model = make("elastic", backbone)
    counted, macs = counted_costs(model), {row.point: row.macs for row in profile(model)}
    small, narrow, full = macs["exit=1,width=0.5"], macs["width=0.5"], macs["full"]
    assert counted((NARROW, FULL)) == [narrow, narrow + full]
    mixed = (Point(exit=1, width=0.5), NARROW, FULL)  # of one width, but no chain of graphs: each from the start
    assert counted(mixed) == [small, small + narrow, small + narrow + full]
    exits = (Point(exit=1), FULL)  # the full width's are the chain: they share what is before the exit
    assert counted(exits)[0] == macs["exit=1"]
    assert full <= counted(exits)[1] < macs["exit=1"] + full


def test_who_may_answer_where_nobody_is_named(exits_run, slim_run, elastic):
    assert candidates(load(exits_run)) == load(exits_run).points
    assert candidates(load(slim_run)) == load(slim_run).points
    assert candidates(elastic) == tuple(stage.point for stage in elastic.stages())
    assert {point.width for point in candidates(elastic)} == {1.0}
    with pytest.raises(PointError, match="single point"):
        candidates(make("static", "resnet_v1"))


def test_points_are_put_in_order_and_only_they_answer(elastic, samples):
    policy = supple.calibrate(elastic, samples, points=["full", "width=0.5", "exit=1,width=0.5"], budget_macs="5x")
    rows = policy.facts["exits"]
    assert [row["point"] for row in rows] == ["exit=1,width=0.5", "width=0.5", "full"]
    assert set(map(str, policy.points)) <= {row["point"] for row in rows}
    assert candidates(elastic, [FULL, NARROW, "width=0.5"]) == (NARROW, FULL)


def test_the_cost_of_a_calibrated_cascade_is_what_its_samples_pay(elastic, samples):
    macs = {row.point: row.macs for row in profile(elastic)}
    policy = calibrate(
        elastic, samples, Target.parse("budget_macs", "0.9x"), points=(NARROW, FULL), keep_dominated=True
    )
    assert policy.points == (NARROW, FULL)
    for half in ("expected", "achieved"):
        narrow, full = (row[half] for row in policy.facts["exits"])
        paid = narrow * macs["width=0.5"] + full * (macs["width=0.5"] + macs["full"])
        assert policy.facts[half]["cost"] == pytest.approx(paid)
    assert 0 < policy.shares[1] < 1
    assert policy.facts["full_cost"] == macs["full"]


def test_without_full_the_largest_named_answers_what_is_left_and_is_held_against_full(elastic, samples):
    named = (Point(exit=1, width=0.5), NARROW)
    policy = calibrate(elastic, samples, Target.parse("budget_macs", "5x"), points=named, keep_dominated=True)
    assert set(policy.points) <= set(named)
    x, labels = samples.tensors
    with torch.no_grad():
        right = float((elastic(x).argmax(1) == labels).float().mean())
    halves = (policy.facts["expected"], policy.facts["achieved"])
    assert sum(half["n"] * half["full_accuracy"] for half in halves) == pytest.approx(80 * right)
    assert [row["looked_at"] for row in policy.facts["exits"]][-1] is False


@pytest.fixture(scope="module")
def steep() -> FlexibleModel:
    """Exits at two widths; the branch of the first costs more than the second exit, all of it."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.MaxPool2d(4), torch.nn.Conv2d(8, 8, 3, padding=1)]
    layers += [torch.nn.ReLU(), torch.nn.Conv2d(8, 512, 3, padding=1), torch.nn.Conv2d(512, 64, 3, padding=1)]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 4)]
    branches = ({"name": "cnn", "filters": 64}, "linear")
    how = {"widths": (0.5, 1.0), "at": ("0", "3"), "branch": branches, "num_classes": 4, "input_shape": (3, 16, 16)}
    model = supple.elastic(torch.nn.Sequential(*layers), **how).eval()
    model.classes = tuple("abcd")
    macs = {row.point: row.macs for row in profile(model)}
    assert macs["exit=2"] < macs["exit=1"] < macs["full"]
    with torch.no_grad():  # the full model tells its samples apart, so that it is worth going on to
        layers[-1].weight.mul_(1000)
        layers[-1].bias.sub_(model(samples_of(model).tensors[0]).mean(0))
    return model


def samples_of(model: FlexibleModel) -> TensorDataset:
    x = torch.randn(80, *model.input_shape, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return TensorDataset(x, model(x).argmax(1))


def test_what_a_point_says_is_noted_as_its_own_where_an_earlier_exit_costs_more(steep):
    """The chain gives exits as they lie; the order of their costs is another."""
    x, y = samples_of(steep).tensors
    points = tuple(steep.order(("exit=1", "exit=2", "exit=1,width=0.5", "exit=2,width=0.5", FULL)))
    seen, _ = observe(steep, points, [(x, y)], 0, None)
    with torch.no_grad():
        for point, logits in zip(points, seen.logits):
            np.testing.assert_allclose(logits, steep(x, point), atol=1e-5)


def test_a_policy_on_a_chain_decides_in_the_order_of_its_stages_whatever_they_cost(steep):
    data = samples_of(steep)
    assert candidates(steep) == candidates(steep, ["exit=2", FULL, "exit=1"]) == (Point(exit=1), Point(exit=2), FULL)
    policy = calibrate(steep, data, Target.parse("budget_macs", "0.9x"), keep_dominated=True)
    costs = {row["point"]: row["cost"] for row in policy.facts["exits"] if row["looked_at"]}
    reached = of_model(steep, 1).walk((data.tensors[0].numpy(),), dataclasses.replace(policy, shares=()))
    halves = (policy.facts["expected"], policy.facts["achieved"])
    assert len({one.point for one in reached}) > 1
    assert sum(costs[one.point] for one in reached) == pytest.approx(sum(half["n"] * half["cost"] for half in halves))


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["width=0.3", "full"], "it has the widths 0.5, 1"),
        (["skip=0.5", "full"], "no axis skip"),
        (["thin=1", "full"], "not a valid point"),
        (["width=0.5"], "width=0.5 alone is named"),
        ("width=0.5", "width=0.5 alone is named"),
        ([], "no point is named"),
    ],
)
def test_points_that_cannot_be_chosen_from_are_refused(elastic, samples, named, words):
    with pytest.raises(SuppleError, match=words) as caught:
        supple.calibrate(elastic, samples, points=named, max_drop=0.1)
    assert caught.value.cure


def test_a_point_that_costs_no_less_than_the_full_model_is_refused():
    with pytest.raises(PointError, match=r"layers=4-3-2-1 costs no less than the full model"):
        candidates(make("shuffle", "vit"), ["layers=1-2", "layers=4-3-2-1"])


def test_a_budget_in_ms_times_the_cascade(elastic, samples):
    """Also where a point is not published: its graph is made for that."""
    model = make("elastic", "vit")
    point = Point(width=0.5, layers=(1, 2, 4))
    assert point not in model.points
    policy = calibrate(model, samples, Target.parse("budget_ms", "10x"), points=(point, FULL), keep_dominated=True)
    assert set(policy.points) <= {point, FULL}
    assert policy.facts["unit"] == "ms"
    assert policy.facts["achieved"]["cost"] > 0


def test_the_command_takes_points_with_semicolons_or_spaces(command, slim_copy):
    for text in ("full;width=0.5", " width=0.5 ; full;", "full width=0.5"):
        said = command("calibrate", slim_copy, "--points", text, "--budget-macs", "1x", "--json")
        assert [row["point"] for row in said.json["exits"]] == ["width=0.5", "full"]
    told = command("calibrate", slim_copy, "--points", "width=0.5;full", "--budget-macs", "1x").out.splitlines()
    assert [line.split()[0] for line in told[2:5]] == ["point", "width=0.5", "full"]
    assert [line.split()[0] for line in told[7:9]] == ["expected", "achieved"]


def test_a_comma_belongs_to_a_point_whatever_is_around_it():
    split = lambda text: [Point.parse(part) for part in re.split(SEPARATOR, text)]
    assert split("exit=1, width=0.5;full") == split("exit=1 ,width=0.5 full") == [Point(exit=1, width=0.5), FULL]


# --- milliseconds -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stopwatch(monkeypatch) -> None:
    """The machine takes 1 ms per stage and 0.5 ms per head, and is half as fast when the policy really runs."""

    def way(policy: Policy, place: int) -> float:
        return 1.0 * (policy.points[place].exit or 3) + 0.5 * (place + 1)

    def walks(predictor: object, policies: list[Policy], x: tuple) -> list[float]:
        assert len(x[0]) == 1
        stops = [next((k for k, t in enumerate(p.thresholds) if t == 0), len(p.points) - 1) for p in policies]
        return [way(policy, stop) for policy, stop in zip(policies, stops)]

    def policy_times(predictor: object, policy: Policy, samples: object) -> tuple[list[float], list[float]]:
        assert all(len(x[0]) == 1 for x in samples)
        times = [2 * way(policy, place) for place in range(len(policy.points))]
        return [1.1 * ms for ms in times], times  # really running takes a tenth longer than it should

    monkeypatch.setattr("supple.inference.calibration.time_walks", walks)
    monkeypatch.setattr("supple.inference.calibration.time_policy", policy_times)


def test_a_budget_in_ms_is_one_of_measured_times_and_drift_cancels(stopwatch, exits_run):
    model, held = load(exits_run), data_of(exits_run).val
    for given, budget in (("2.4", 2.4), ("0.8x", 2.8), ("100", 100.0)):  # the full model alone takes 3.5 ms
        document = calibrate(model, held, Target.parse("budget_ms", given)).facts
        assert document["full_cost"] == 3.5
        assert document["budget"] == pytest.approx(budget)
        assert document["expected"]["cost"] <= budget
        shares = [(row["achieved"], row["cost"]) for row in document["exits"] if row["looked_at"]]
        # Half as fast in all: not the policy's doing. The tenth is.
        assert document["achieved"]["cost"] == pytest.approx(1.1 * sum(share * ms for share, ms in shares))
        assert document["machine"]
        assert document["threads"] == torch.get_num_threads()


def test_a_budget_in_ms_below_the_first_exit_is_refused(stopwatch, exits_run):
    with pytest.raises(RecipeError, match="1.5 ms") as caught:
        calibrate(load(exits_run), data_of(exits_run).val, Target.parse("budget_ms", "1.4"))
    assert "0.43x" in caught.value.cure  # 1.5 of 3.5


# --- the command ------------------------------------------------------------------------------------------------------


def test_calibrate_prints_the_policy_as_json_alone_or_as_tables(command, exits_copy):
    said = command("calibrate", exits_copy, "--budget-macs", "0.7x", "--measure", "margin", "--json")
    assert said.err == ""
    weights = {"weights": document_of(exits_copy)["weights"]}
    assert {**weights, **said.json} == document_of(exits_copy)
    assert said.json["measure"] == "margin"
    told = command("calibrate", exits_copy, "--budget-macs", "0.7x", "--measure", "entropy", "--keep-dominated")
    lines = told.out.splitlines()
    assert lines[0].startswith("target: budget macs 0.7x: ")
    assert [line.split()[0] for line in lines[2:6]] == ["point", "exit=1", "exit=2", "full"]
    assert [line.split()[0] for line in lines[8:10]] == ["expected", "achieved"]
    assert lines[-1] == f"Use it: supple predict {exits_copy} FILES --confident"
    assert "Stopping when sure" in (exits_copy / "report.html").read_text()


def test_an_accuracy_that_only_the_full_model_keeps_is_said_so(command, exits_copy):
    said = command("calibrate", exits_copy, "--max-drop", "0")
    document = document_of(exits_copy)
    if document["points"] == ["full"]:
        assert "Nothing cheaper than the full model keeps" in said.out
        assert document["achieved"]["cost"] == document["full_cost"]
    assert document["achieved"]["cost"] <= document["full_cost"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), ("none of --budget-macs", "0.5x")),
        (("--budget-macs", "1e6", "--max-drop", "0.1"), ("more than one", "--max-drop")),
        (("--budget-macs", "half"), ("--budget-macs", '"half"', "2e6")),
        (("--budget-macs", "-1"), ("--budget-macs", '"-1"')),
        (("--budget-macs", "nanx"), ("--budget-macs", '"nanx"')),
        (("--budget-macs", "inf"), ("--budget-macs", '"inf"')),
        (("--budget-ms", "0"), ("--budget-ms", '"0"', "0.5x")),
        (("--max-drop", "1"), ("--max-drop", '"1"', "0.01 is one percentage point")),
        (("--max-drop", "0.1x"), ("--max-drop", '"0.1x"')),
        (("--max-drop", "nan"), ("--max-drop", '"nan"')),
        (("--budget-macs", "0.01x"), ("below the cheapest possible", "exit=1", "Give at least")),
        (("--budget-macs", "10"), ("10 MACs", "below the cheapest possible")),
        (("--budget-macs", "1x", "--measure", "mood"), ("--measure", '"mood"', "entropy")),
        (("train.lr=1", "--budget-macs", "1x"), ("train.lr=1", "Only data.*")),
        (("--points", "exit=9;full", "--budget-macs", "1x"), ("exit=9", "3 exits", "exit=1 to exit=3")),
        (("--points", "width=0.5;full", "--budget-macs", "1x"), ("no axis width", "exit=1, exit=2, full")),
        (("--points", "exits=1;full", "--budget-macs", "1x"), ('"exits=1"', "exit=2")),
        (("--points", "exit=1,full", "--budget-macs", "1x"), ('"exit=1,full"', "exit=2")),
        (("--points", "exit=1", "--budget-macs", "1x"), ("exit=1 alone is named", "exit=1;full")),
        (("--points", "full;exit=3", "--budget-macs", "1x"), ("full alone is named", "exit=1;full")),
        (("--points", " ; ", "--budget-macs", "1x"), ("no point is named", "exit=1;full")),
    ],
)
def test_a_wrong_request_is_refused_and_nothing_is_written(command, exits_copy, words, named):
    command("calibrate", exits_copy, *words).refused(2, *named)
    assert not (exits_copy / "policy.json").exists()


def test_too_few_images_or_other_classes_are_refused(exits_run, command, tmp_path):
    held, some = data_of(exits_run).val, torch.arange(8)
    few = ImageSet(labelled(held.read(some), held.targets[some]), held.classes, held.preprocess)
    with pytest.raises(DataError, match="too few") as caught:
        calibrate(load(exits_run), few, Target.parse("budget_macs", "1x"))
    assert "data.holdout" in caught.value.cure
    command("calibrate", tmp_path / "nowhere", "--budget-macs", "1x").refused(2, "nowhere", "supple train")
    command("calibrate", exits_run, "data.name=digits", "--budget-macs", "1x").refused(2, "data")


# --- who uses it ------------------------------------------------------------------------------------------------------


def test_a_policy_of_other_weights_is_no_policy(calibrated, tmp_path, command, image):
    run = Path(shutil.copytree(calibrated, tmp_path / "run"))
    document = document_of(run)
    (run / "policy.json").write_text(json.dumps(document | {"weights": "0" * 64}))
    assert load(run).policy is None
    said = command("predict", run, image, "--confident")
    said.refused(2, "policy.json was made for other weights", f"supple calibrate {run}")
    assert command("report", run).status == 0
    assert "calibrated for other weights" in (run / "report.html").read_text()


def test_a_run_without_a_policy_says_how_to_make_one(exits_run, command, image):
    assert load(exits_run).policy is None
    command("predict", exits_run, image, "--confident").refused(
        2, "policy.json does not exist", f"supple calibrate {exits_run} --budget-macs 0.5x"
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "[]",
        lambda text: text.replace('"max_probability"', '"mood"'),
        lambda text: text.replace('"exit=1"', '"exit=9"', 1).replace('"exit=1"', '"exit=9"'),
        lambda text: text.replace('"points"', '"pints"', 1),
    ],
)
def test_a_damaged_policy_is_refused_by_name_with_the_cure(calibrated, tmp_path, command, image, damage):
    run = Path(shutil.copytree(calibrated, tmp_path / "run"))
    text = (run / "policy.json").read_text()
    assert damage(text) != text
    (run / "policy.json").write_text(damage(text))
    with pytest.raises(CheckpointError):
        load(run)
    command("predict", run, image).refused(2, "policy.json", "Delete it", "supple calibrate")


def test_predict_confident_stops_as_the_policy_says_and_gives_its_reason(
    calibrated, tmp_path, command, image, monkeypatch
):
    whole = lambda costs, policy, batch: policy  # whatever this machine measures
    monkeypatch.setattr("supple.inference.costs.ChainCosts.reduced", whole)
    run = Path(shutil.copytree(calibrated, tmp_path / "run"))
    for threshold, last, point, reason in (
        (0.0, "full", "exit=1", "confident"),
        (None, "full", "full", "full"),
        (None, "exit=2", "exit=2", "budget"),  # nobody was sure, and the policy goes no deeper
    ):
        changed = {"points": ["exit=1", last], "thresholds": [threshold], "temperatures": [2.0, 0.5]}
        changed |= {"shares": [0.5, 0.5]}
        (run / "policy.json").write_text(json.dumps(document_of(run) | changed))
        said = command("predict", run, image, "--confident", "--json")
        (answer,) = said.json["predictions"]
        assert (answer["point"], answer["reason"], answer["in_time"]) == (point, reason, None)
        model = load(run)
        x = model.preprocess.normalise(model.preprocess.open(image)[None])
        logits = model(x, Point.parse(point)).detach()
        chances = (logits / (2.0 if point == "exit=1" else 0.5)).softmax(1)[0]  # as sure as the temperature says
        assert answer["scores"][0]["score"] == pytest.approx(float(chances.max()), abs=1e-5)


@pytest.mark.parametrize(("least", "point", "reason"), [("0", "exit=1", "confident"), ("1", "full", "full")])
def test_predict_with_a_least_confidence_needs_no_policy(exits_run, command, image, least, point, reason):
    (answer,) = command("predict", exits_run, image, "--min-confidence", least, "--json").json["predictions"]
    assert (answer["point"], answer["reason"]) == (point, reason)
    model = load(exits_run)
    x = model.preprocess.normalise(model.preprocess.open(image)[None])
    (reached,) = of_model(model, 1).walk((x.numpy(),), stop_above(model.points, float(least)))
    best = torch.from_numpy(reached.logits).softmax(0).max(0)
    assert answer["label"] == model.classes[best.indices]
    assert answer["scores"][0]["score"] == pytest.approx(float(best.values), abs=1e-5)


@pytest.mark.parametrize("first", [("--confident",), ("--min-confidence", "0.5")])
@pytest.mark.parametrize("second", [("--point", "full"), ("--deadline-ms", "9"), ("--budget-macs", "9x")])
def test_stopping_when_sure_does_not_go_with_another_limit(calibrated, command, image, first, second):
    command("predict", calibrated, image, *first, *second).refused(2, "more than one of", "Give one")


def test_a_least_confidence_does_not_go_with_the_stored_policy(calibrated, command, image):
    command("predict", calibrated, image, "--confident", "--min-confidence", "0").refused(2, "more than one of")
    command("predict", calibrated, image, "--min-confidence", "1.5").refused(2, "--min-confidence")


def test_the_cheapest_point_need_not_be_the_first(exits_run):
    """A first exit whose branch costs more than the rest of the network."""
    model, target = load(exits_run), Target.parse("budget_macs", "1x")
    data = data_of(exits_run).val
    dear = {Point(exit=1): 900.0, Point(exit=2): 500.0, FULL: 100.0}
    costs = lambda points: [dear[point] for point in points]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("supple.inference.calibration.counted_costs", lambda model: costs)
        found = calibrate(model, data, target)
        assert (found.points, found.facts["achieved"]["cost"]) == ((FULL,), 100.0)
        with pytest.raises(RecipeError, match=r"99 MACs is below the cheapest possible: 100 MACs, .* at full"):
            calibrate(model, data, Target.parse("budget_macs", "0.99x"))


def test_a_missed_goal_is_said_so():
    half = Outcome(100, 12.0, 0.1, 0.5, 0.6, 0.01, 0.1, np.zeros(100, int))
    fitted = Fitted(Policy((Point(exit=1), FULL), (0.5,), (1.0, 1.0)), [1.0, 2.0], [1.0, 1.0], {})
    assert _remark(fitted, 10.0, None, half) == "Target missed on the other half: 20.0 % over the budget."
    assert _remark(fitted, None, 0.05, half) == "Target missed on the other half: 10.0 points below the full model."
    assert _remark(fitted, 12.0, None, half) == _remark(fitted, None, 0.1, half) == ""
    # Within two standard errors, 0.2 and 2 points, it may be chance.
    assert _remark(fitted, 11.81, None, half) == _remark(fitted, None, 0.081, half) == ""
    assert _remark(fitted, 11.79, None, half) != ""
    assert _remark(fitted, None, 0.079, half) != ""


def test_never_survives_the_way_through_the_file(calibrated, tmp_path):
    run = Path(shutil.copytree(calibrated, tmp_path / "run"))
    policy = Policy(load(run).points, (math.inf, 0.5), (1.0, 1.0, 1.0))
    checkpoint.save_policy(run, policy)
    assert load(run).policy == policy
