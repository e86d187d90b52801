"""`supple search`: the run has other points afterwards, with their scores and times, and nothing is measured twice."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import supple
from supple.errors import PointError, RecipeError
from supple.recipe import make_recipe
from supple.searching import measure
from supple.training.loop import train
from tiny_transformers import recipe_of, save_run

BACKBONE = {"name": "mobilenet_v1", "channels": [16, 32, 32], "strides": [2, 2]}
METHOD = {"name": "elastic", "widths": [0.5, 1.0], "at": ["2"], "points": ["width=0.5", "full"]}
EVERY = ["exit=1,width=0.5", "exit=1", "width=0.5", "full"]
TRAIN = {"epochs": 2, "lr": 0.1, "threads": 1, "precision": "fp32", "compile": "off", "memory_format": "channels_first"}


def recipe(**method):
    document = {"data": {"name": "generated", "batch_size": 32}, "backbone": BACKBONE, "method": {**METHOD, **method}}
    return make_recipe({**document, "train": TRAIN})


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """Only to be read."""
    return train(recipe(), tmp_path_factory.mktemp("elastic") / "run", quiet=True)


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(autouse=True)
def reports(monkeypatch) -> list[Path]:
    """Few rounds; and the runs whose reports would be written, which takes longer than all else."""
    written: list[Path] = []
    monkeypatch.setattr(measure, "ROUNDS", 5)
    monkeypatch.setattr("supple.opening.write_report", written.append)
    return written


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """Every point that is scored on validation samples, and every one that is timed."""
    seen: list[str] = []
    evaluate, time = measure.evaluate, measure.time_points

    def scoring(model, data, points, **how):
        seen.extend(f"score {point}" for point in points)
        return evaluate(model, data, points, **how)

    def timing(model, points, data, **how):
        seen.extend(f"time {point}" for point in points)
        return time(model, points, data, **how)

    monkeypatch.setattr(measure, "evaluate", scoring)
    monkeypatch.setattr(measure, "time_points", timing)
    return seen


def names(points) -> list[str]:
    return [str(point) for point in points]


def test_the_points_that_were_found_are_those_of_the_run(run, calls):
    weights = (run / "model.safetensors").read_bytes()
    result = supple.search(run, budget_macs="0.9x", pictures=50)
    assert sorted(calls) == sorted(f"score {point}" for point in EVERY)
    assert result.exhaustive
    assert result.published
    model = supple.load(run)
    assert model.points == result.points
    assert names(model.points)[0] == "exit=1,width=0.5"
    assert names(model.points)[-1] == "full"
    assert (run / "model.safetensors").read_bytes() == weights
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["points"] == manifest["recipe"]["method"]["points"] == names(result.points)
    assert result.ladder.data == "50 validation samples"
    assert {row.n for row in result.ladder} == {50}


def test_the_ladder_of_the_run_has_test_scores_and_only_of_points_that_it_has(run, reports):
    test = {row.n for row in supple.load(run).ladder}
    result = supple.search(run, budget_macs="0.9x", pictures=50)
    assert reports == [run]
    ladder = supple.load(run).ladder
    assert {row.n for row in ladder} == test != {50}
    assert {row.point for row in ladder} == set(names(result.points))
    fresh = {row.point: (row.score, row.macs, row.params) for row in supple.evaluate(run)}
    assert {row.point: (row.score, row.macs, row.params) for row in ladder} == fresh
    assert result.remarks == ()


def test_times_go_into_the_ladder_and_the_best_within_a_budget_is_within_it(run, calls):
    result = supple.search(run, budget_ms="2x", threads=1)
    assert {call for call in calls if call.startswith("time")} == {f"time {point}" for point in EVERY}
    (best,) = result.best
    assert best.row.p95_ms <= best.budget
    timed = {row.point: row for row in supple.load(run).ladder if row.p50_ms is not None}
    assert set(timed) == set(names(result.points))
    assert all(row.score is not None and row.macs is not None for row in timed.values())
    assert supple.load(run).ladder.best_under(ms=1e6) in result.points


def test_a_second_search_measures_nothing(run, calls):
    first = supple.search(run, budget_ms="2x", threads=1)
    calls.clear()
    second = supple.search(run, budget_ms="2x", threads=1)
    assert calls == []
    assert second.to_json() == first.to_json()
    supple.search(run, budget_ms="2x", threads=1, pictures=20)
    assert {call.split()[0] for call in calls} == {"score"}, "other pictures are other scores, and the same times"


def test_an_interrupted_search_loses_nothing(run, calls, monkeypatch):
    monkeypatch.setattr(measure, "TOGETHER", 1)
    scoring = measure.evaluate

    def interrupted(*given, **how):
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scoring(*given, **how)

    monkeypatch.setattr(measure, "evaluate", interrupted)
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        supple.search(run, budget_macs="1x")
    assert (run / "manifest.json").read_bytes() == before
    monkeypatch.setattr(measure, "evaluate", scoring)
    supple.search(run, budget_macs="1x")
    assert sorted(calls) == sorted(f"score {point}" for point in EVERY)


@pytest.mark.system
def test_an_engine_times_the_points_as_graphs_and_older_exports_are_named(tmp_path, command):
    document = recipe(at=[], points=["full"]).resolved()
    run = save_run(tmp_path / "run", make_recipe(document))
    supple.export(run)
    said = command("search", run, "--budget-ms", "9x", "--engine", "onnxruntime", "--threads", 1, "--json").json
    assert [row["point"] for row in said["points"]] == ["width=0.5", "full"]
    assert all(row["p95_ms"] >= row["p50_ms"] > 0 for row in said["points"])
    rows = [row for row in supple.load(run).ladder if row.engine == "onnxruntime"]
    assert [row.point for row in rows] == ["width=0.5", "full"]
    assert all(row.score is not None for row in rows)
    (remark,) = said["remarks"]
    assert str(run / "export" / "onnx-fp32") in remark
    command("export", run).refused(2, "before the points of the run changed", "rm -r")


def test_the_verb_tells_people_and_programs_the_same(run, command):
    words = ("search", run, "--budget-macs", "0.5x,1x", "--pictures", 50)
    said = command(*words)
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].split()[:2] == ["point", "MMACs"]
    assert "50 validation samples" in said.out
    assert "4 points (all there are) scored, 0 timed" in said.out
    document = command(*words, "--json").json
    chosen = [row["point"] for row in document["points"] if row["chosen"]]
    assert [line.split()[0] for line in lines[1 : len(chosen) + 1]] == chosen
    assert [one["given"] for one in document["budgets"]] == ["0.5x", "1x"]
    assert "best within" in said.out


def test_progress_is_counted_in_samples_and_points(run, bars, monkeypatch):
    from supple import progress

    monkeypatch.setattr(measure, "counting", progress.counting)  # the pretended one
    supple.search(run, budget_ms="2x", threads=1, pictures=50, progress=True)
    totals = {text: (total, sum(steps)) for text, total, steps in bars if total}
    assert totals["scoring"] == (200, 200)
    assert totals["timing"] == (4, 4)
    assert totals["evaluating"][0] == totals["evaluating"][1] > 0


def test_points_that_are_fixed_are_measured_and_stay(exits_copy, command, calls):
    before = supple.load(exits_copy).points
    result = supple.search(exits_copy, budget_macs="0.9x")
    assert sorted(calls) == sorted(f"score {point}" for point in before)
    assert result.exhaustive
    assert not result.published
    assert supple.load(exits_copy).points == before
    assert "stay as they are" in command("search", exits_copy, "--budget-macs", "0.9x").out
    with pytest.raises(PointError, match="fixed"):
        supple.load(exits_copy).publish(["exit=1"])


def test_a_model_in_hand_gets_the_points_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 4),
    )
    build = lambda: supple.elastic(
        network, widths=(0.25, 0.5, 1.0), points=("full",), input_shape=(3, 16, 16), num_classes=4
    )
    model = build()
    data = TensorDataset(torch.randn(40, 3, 16, 16), torch.arange(40) % 4)
    result = supple.search(model, data, budget_macs="1x")
    assert model.points == result.points
    assert names(model.points)[0] == "width=0.25"
    assert "supple evaluate" in result.remarks[0]
    assert {row.point for row in model.ladder} == set(names(model.points))
    assert list(tmp_path.iterdir()) == []
    model.save("saved")
    assert supple.load("saved", factory=build).points == result.points


def test_a_finished_run_is_still_the_one_that_its_recipe_made(run):
    """The points of the recipe were the user's; a search has changed those of the run."""
    supple.search(run, budget_macs="1x")
    again = supple.train(recipe(points=[]), run, resume=True)
    assert again.model.points == supple.load(run).points


def test_what_cannot_be_searched_is_refused(command, run, tmp_path):
    said = command("search", run, "--budget-ms", "0.000001", "--threads", 1)
    said.refused(2, "no point keeps a budget of 1e-06 ms", "the cheapest is", "--budget-ms")
    assert names(supple.load(run).points) == METHOD["points"]
    command("search", run, "--budget-ms", "5", "--budget-macs", "1e6").refused(2, "both", "Give one")
    command("search", run, "--budget-ms", "5,x").refused(2, '--budget-ms is "x"')
    command("search", run, "--budget-macs", "0.5").refused(2, "less than one MAC", "0.5x")
    command("search", run, "--engine", "tensorrt").refused(2, 'no engine "tensorrt"')
    command("search", run, "--scored", "1").refused(2, "--scored")
    command("search", tmp_path / "none").refused(2, "no run folder")
    (run / "search.json").write_text("{")
    command("search", run, "--budget-macs", "1x").refused(2, "search.json", "rm ")
    alone = save_run(tmp_path / "alone", recipe_of("vit", method={"name": "static"}))
    command("search", alone, "--budget-macs", "1x").refused(2, "single point", "elastic")
    with pytest.raises(RecipeError, match="--pictures"):
        supple.search(run, pictures=0)
