"""Every verb from Python: models in hand, loaders and paths in, objects out; a model saved comes back without code."""

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import supple
from supple import api
from supple.cli import VERBS
from supple.errors import CheckpointError, DataError, MergeError, PointError, RecipeError
from supple.inference.bundle import Bundle
from supple.ladder import Ladder
from supple.opening import check_targets, must_take
from supple.policy.policy import Policy
from supple.training.build import data_of
from supple.training.optim import fine_tuning
from tiny import tiny_document
from tiny_transformers import recipe_of, save_run

ROOT = Path(__file__).parents[1]
N = 96
X = torch.randn(N, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = (X.mean((1, 2, 3)) > 0).long()
DATA = TensorDataset(X, Y)
QUICK: dict[str, Any] = {"precision": "fp32", "compile": "off", "threads": 1, "memory_format": "channels_first"}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 2))


def own() -> supple.FlexibleModel:
    """Exits on a module that no recipe knows by name."""
    return supple.exits(network(), at=["1"], input_shape=(3, 16, 16), way="end_to_end")


def fitted(out: Path, **more: Any) -> supple.Run:
    loader = DataLoader(DATA, 16, shuffle=True)
    return supple.fit(own(), loader, DATA, out=out, epochs=2, lr=0.05, **{**QUICK, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> supple.Run:
    """Only to be read."""
    return fitted(tmp_path_factory.mktemp("fit") / "run", classes=["dark", "bright"])


# --- the verbs --------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_every_verb_is_a_function_of_the_same_name_and_no_module_takes_its_place(exits_copy, tmp_path):
    """A package `supple.export` would replace the verb `supple.export` once something imported it."""
    for verb in set(VERBS) - {"demo", "doctor", "list", "cluster"}:  # these print; cluster is a package
        assert getattr(supple, verb) is getattr(api, verb)
    held = data_of(exits_copy).val
    for turn in "12":
        supple.train(recipe_of("vit", train={"epochs": 1, **QUICK}), tmp_path / f"train{turn}")
        supple.fit(own(), DATA, DATA, out=tmp_path / f"fit{turn}", epochs=1, **QUICK)
        supple.profile(exits_copy)
        supple.evaluate(exits_copy)
        supple.bench(exits_copy, rounds=5)
        supple.search(exits_copy, budget_macs="1x")
        supple.calibrate(exits_copy, held, budget_macs="1x")
        supple.export(exits_copy, tmp_path / f"export{turn}", points="exit=1")
        supple.extract(exits_copy, tmp_path / f"extract{turn}", "exit=1")
        searched = save_run(tmp_path / f"vit{turn}", recipe_of("vit"))
        supple.prune(searched, 0.4)
        shuffled = recipe_of("vit", backbone={"name": "vit"}, method={"name": "shuffle"})
        sources = [save_run(tmp_path / f"{name}{turn}", shuffled) for name in "ab"]
        supple.merge(sources, (1, 2))
        supple.analyse(sources[0], images=20)
        supple.report(exits_copy)
        supple.predict(exits_copy, held.batch(torch.arange(1))[0].numpy())
    for name, target in ((name, getattr(supple, name)) for name in supple.__all__):
        assert not isinstance(target, type(os)), name


def test_no_module_directly_under_supple_bears_the_name_of_a_public_function():
    there = {path.stem for path in (ROOT / "src" / "supple").iterdir()}
    assert not there & {name for name in supple.__all__ if callable(getattr(supple, name))}


def test_verbs_print_nothing_unless_asked(capsys, tmp_path, run):
    capsys.readouterr()
    model = fitted(tmp_path / "run").model
    supple.evaluate(model, DATA)
    supple.calibrate(model, DATA, budget_macs="1x")
    supple.export(model, tmp_path / "export", points=["exit=1", "full"])
    assert capsys.readouterr() == ("", "")
    fitted(tmp_path / "loud", progress=True)
    assert "epoch 2/2" in capsys.readouterr().err


# --- fit --------------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_every_verb_takes_the_run_of_a_module_without_a_name_and_writes_into_its_folder(tmp_path, capsys):
    run = fitted(tmp_path / "run")
    again = lambda: supple.load(run.folder, factory=own)
    supple.evaluate(run, DATA)
    supple.profile(run)
    supple.bench(run, rounds=5)
    assert any(row.p50_ms for row in again().ladder)
    policy = supple.calibrate(run, DATA, budget_macs="0.9x")
    assert again().policy == policy
    exported = supple.export(run, points=["full"], calibration=DATA)
    assert exported.folder == run.folder / "export" / "onnx-fp32"
    supple.bench(run, engine="all", rounds=5)
    supple.extract(run, tmp_path / "extracted", "exit=1")
    supple.report(run)
    assert supple.predict(run, X[0]).point == "full"
    with supple.predictor(run) as predictor:
        assert predictor.policy == policy
    assert capsys.readouterr().err == ""
    with torch.no_grad():
        next(run.model.parameters()).add_(1)
    with pytest.raises(CheckpointError, match="has changed since"):
        supple.evaluate(run, DATA)
    with pytest.raises(CheckpointError) as caught:
        run.model.save(run.folder)
    assert "a new folder" in caught.value.cure


def test_fit_trains_in_place_and_returns_the_run(run):
    assert [line["epoch"] for line in run.metrics] == [1, 2]
    assert not run.model.training
    assert [row.point for row in run.ladder] == ["exit=1", "full"]
    assert {row.n for row in run.ladder} == {N}
    again = {row.point: row.score for row in supple.evaluate(run.model, DATA)}
    assert {row.point: row.score for row in run.ladder} == again
    assert not (run.folder / "state").exists()
    assert Path(os.fspath(run)) == run.folder


def test_fit_fine_tunes_what_starts_from_trained_weights(tmp_path):
    torch.save(supple.static("resnet18", num_classes=9, pretrained=False).backbone.state_dict(), tmp_path / "w.pth")
    model = supple.static("resnet18", num_classes=2, input_shape=(3, 16, 16), weights=tmp_path / "w.pth")
    first = supple.fit(model, DATA, DATA, out=tmp_path / "tuned", epochs=1, **QUICK).model.recipe.train
    assert (first.optimizer["name"], first.lr, first.ema, first.select) == ("adamw", 5e-4, 0.999, "last")
    assert first.branch_rate == 1  # there are no branches
    branched = supple.exits(model.backbone, at=["layer2"], num_classes=2, input_shape=(3, 16, 16))
    branched.expected_input = model.expected_input
    assert fine_tuning(branched)["branch_rate"] == 10
    asked = supple.fit(model, DATA, DATA, out=tmp_path / "asked", epochs=1, lr=0.01, **QUICK).model.recipe.train
    assert (asked.optimizer["name"], asked.lr, asked.ema) == ("sgd", 0.01, 0)


def test_a_finished_fit_is_not_overwritten_and_resume_gives_it_back(tmp_path):
    first = fitted(tmp_path / "run")
    with pytest.raises(CheckpointError, match="already holds a finished run"):
        fitted(tmp_path / "run")
    again = fitted(tmp_path / "run", resume=True)
    assert torch.equal(again.model(X), first.model(X))
    assert again.ladder.to_json() == first.ladder.to_json()


def test_fit_says_what_is_missing_or_does_not_go_together(tmp_path):
    with pytest.raises(DataError, match="val is missing"):
        supple.fit(own(), DATA, out=tmp_path / "run")
    with pytest.raises(DataError, match="3 classes are named; the model tells 2 apart"):
        supple.fit(own(), DATA, DATA, out=tmp_path / "run", classes=["a", "b", "c"])
    with pytest.raises(DataError, match="val and test do not go with it"):
        supple.fit(own(), tmp_path, DATA, out=tmp_path / "run")
    with pytest.raises(RecipeError, match='unknown key "train.epohcs"'):
        supple.fit(own(), DATA, DATA, out=tmp_path / "run", epohcs=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (TensorDataset(X[:, :1], Y), "shape (1, 16, 16); the model takes (3, 16, 16)"),
        (TensorDataset(X, Y + 1), "labels lie in 1..2 with 2 classes"),
        (TensorDataset(X, Y.float()), "labels are torch.float32"),
        (DataLoader(TensorDataset(X, Y[:, None].expand(-1, 2)), 8), "labels are torch.int64 (96, 2)"),
    ],
)
def test_samples_that_the_model_cannot_take_are_refused_before_anything_is_written(tmp_path, data, words):
    with pytest.raises(DataError) as error:
        supple.fit(own(), data, DATA, out=tmp_path / "run", **QUICK)
    assert words in error.value.cause
    assert not (tmp_path / "run").exists()


def test_a_look_at_the_samples_changes_no_training(tmp_path):
    """A loader draws its order from torch's generator."""
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    must_take(model := own(), loader := DataLoader(DATA, 16, shuffle=True))
    model.classes = ("dark", "bright")
    torch.manual_seed(5)
    check_targets(model, loader)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_without_an_input_shape_takes_that_of_the_samples(tmp_path):
    model = own()
    model.input_shape = None
    supple.fit(model, DATA, DATA, out=tmp_path / "run", epochs=1, loss="distill", task="classes", **QUICK)
    assert model.input_shape == (3, 16, 16)


@pytest.mark.system
def test_a_run_and_an_exported_folder_are_printed_in_a_line_or_two(run, tmp_path):
    assert len(repr(run)) < 200
    assert len(repr(supple.export(run.model, tmp_path / "exported", calibration=DATA))) < 500


@pytest.mark.system
def test_files_are_refused_where_nothing_says_how_they_become_inputs(run, tmp_path, command):
    folder = supple.export(run.model, tmp_path / "exported", points="full", calibration=DATA).folder
    said = command("predict", folder, ROOT / "docs" / "curve.png", "--engine", "onnxruntime")
    said.refused(2, "no preprocessing for files", "preprocess=")
    with pytest.raises(DataError, match="this preprocessing cannot be used: it has no size"):
        supple.fit(own(), DATA, DATA, out=tmp_path / "run", preprocess={"channels": 3})


@pytest.mark.system
def test_a_model_exported_again_is_not_written_again_and_follows_its_policy(run, tmp_path):
    model = supple.load(run, factory=own)
    first = supple.export(model, tmp_path / "exported", calibration=DATA)
    written = (first.folder / "manifest.json").stat().st_mtime_ns
    assert supple.export(model, tmp_path / "exported", calibration=DATA) == first
    assert (first.folder / "manifest.json").stat().st_mtime_ns == written
    policy = supple.calibrate(model, DATA, budget_macs="0.9x")
    assert supple.export(model, tmp_path / "exported", calibration=DATA).policy == policy


@pytest.mark.system
def test_an_exported_folder_with_a_field_of_another_module_asks_for_the_module(run, tmp_path):
    folder = supple.export(run.model, tmp_path / "exported", calibration=DATA).folder
    manifest = (folder / "manifest.json").read_text()
    assert '"exit=1"' in manifest
    (folder / "manifest.json").write_text(manifest.replace('"exit=1"', '"windows=1"'))
    with pytest.raises(CheckpointError, match=r"unknown here(.|\n)*--import MODULE"):
        supple.predictor(folder)


def test_a_predictor_takes_tensors_and_says_which_exits_it_looks_at(run):
    with supple.predictor(run.model) as predictor:
        assert predictor.predict(X[:2])[0].label in ("dark", "bright")
        assert predictor.policy_for(2) is None  # nothing was calibrated


def pictures(root: Path) -> Path:
    for part in ("train", "test"):
        for value, kind in enumerate(("dark", "light")):
            (root / part / kind).mkdir(parents=True)
            for n in range(20):
                Image.effect_noise((16, 16), 20 + n).point(lambda v, value=value: v // 2 + 100 * value).save(
                    root / part / kind / f"{n}.png"
                )
    return root


def test_fit_on_a_folder_gives_a_run_that_finds_its_pictures_again(tmp_path, command):
    folder = pictures(tmp_path / "pictures")
    run = supple.fit(own(), folder, out=tmp_path / "run", epochs=1, **QUICK)
    assert run.model.classes == ("dark", "light")
    assert run.model.preprocess.size == 16
    named = supple.exits("resnet18", at=["layer1"], num_classes=2, input_shape=(3, 16, 16), pretrained=False)
    named_run = supple.fit(named, folder, out=tmp_path / "named", epochs=1, **QUICK)
    (row,) = [row for row in command("evaluate", named_run.folder, "--json").json["points"] if row["point"] == "full"]
    assert row["n"] == 40
    (answer,) = command("predict", named_run.folder, folder / "test/dark/0.png", "--json").json["predictions"]
    assert answer["label"] in ("dark", "light")
    assert supple.predict(run.model, folder / "test/dark/0.png").label in ("dark", "light")


# --- save and load ----------------------------------------------------------------------------------------------------


def test_a_network_with_a_name_comes_back_by_itself(tmp_path):
    model = supple.slim("mobilenet_v1", widths=(0.5, 1.0), num_classes=3, input_shape=(3, 32, 32)).eval()
    model.save(tmp_path / "run")
    again = supple.load(tmp_path / "run")
    x = torch.randn(2, 3, 32, 32)
    for point in model.points:
        assert torch.equal(again(x, point), model(x, point))
    with pytest.raises(CheckpointError, match="not an empty folder"):
        model.save(tmp_path / "run")


def test_any_other_network_comes_back_through_its_factory(run):
    with pytest.raises(CheckpointError, match="cannot build by name") as caught:
        supple.load(run)
    assert "factory=f" in caught.value.cure
    again = supple.load(run, factory=own)
    assert torch.equal(again(X), run.model(X))
    assert again.classes == ("dark", "bright")
    assert again.ladder.to_json() == run.ladder.to_json()
    with pytest.raises(CheckpointError, match="the model expects.*\n.*factory builds another network"):
        supple.load(run, factory=lambda: supple.static(network(), input_shape=(3, 16, 16)))


def test_a_policy_and_a_ladder_are_saved_with_the_model(tmp_path, run):
    model = supple.load(run, factory=own)
    policy = supple.calibrate(model, DATA, budget_macs="1x")
    model.save(tmp_path / "run")
    again = supple.load(tmp_path / "run", factory=own)
    assert again.policy == policy
    assert again.policy.facts == json.loads(json.dumps(policy.facts))
    assert len(again.ladder) == len(model.ladder)


def test_tied_weights_are_saved(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.end = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.end(self.other(self.one(x)))

    build = lambda: supple.static(Tied(), input_shape=(4,))
    model = build().eval()
    model.save(tmp_path / "run")
    x = torch.randn(2, 4)
    assert torch.equal(supple.load(tmp_path / "run", factory=build)(x), model(x))


def test_a_run_on_a_loader_says_that_it_cannot_find_its_data(tmp_path, command):
    model = supple.exits("resnet18", at=["layer1"], num_classes=2, input_shape=(3, 16, 16), pretrained=False)
    run = supple.fit(model, DATA, DATA, out=tmp_path / "run", epochs=1, **QUICK)
    command("evaluate", run.folder).refused(2, "data given in Python", "data.name=folder data.root=PICTURES")
    assert [row["point"] for row in command("profile", run.folder, "--json").json["points"]] == ["exit=1", "full"]


# --- measuring, stopping, exporting -----------------------------------------------------------------------------------


def test_evaluate_takes_points_as_text_and_leaves_a_run_alone_that_is_scored_on_other_data(exits_copy):
    before = (exits_copy / "ladder.json").read_text()
    val = data_of(exits_copy).val
    ladder = supple.evaluate(exits_copy, val, "exit=1")
    assert [(row.point, row.n) for row in ladder] == [("exit=1", len(val))]
    assert (exits_copy / "ladder.json").read_text() == before
    frame = supple.evaluate(exits_copy).to_pandas()
    assert list(frame["point"]) == ["exit=1", "exit=2", "full"]
    with pytest.raises(PointError, match="cannot run"):
        supple.evaluate(exits_copy, val, ["width=0.5"])
    with pytest.raises(RecipeError, match="precision"):
        supple.evaluate(exits_copy, precision="int8")


def test_bench_gives_a_row_for_every_point_and_batch(run):
    found = supple.bench(run.model, batch=(1, 4), rounds=5)
    assert sorted((row.point, row.batch) for row in found) == [("exit=1", 1), ("exit=1", 4), ("full", 1), ("full", 4)]
    assert all(row.p50_ms > 0 for row in found)
    assert supple.Point(exit=1) == run.model.ladder.where(point="exit=1").best_under(ms=1e6)


def test_a_model_in_hand_is_calibrated_exported_and_answers_without_a_run(tmp_path, run):
    model = supple.load(run, factory=own)
    policy = supple.calibrate(model, DataLoader(DATA, 32), max_drop=0.5)
    assert isinstance(policy, Policy)
    assert model.policy is policy
    bundle = supple.export(model, tmp_path / "export", calibration=DataLoader(DATA, 32))
    assert isinstance(bundle, Bundle)
    with supple.predictor(bundle, engine="onnxruntime") as predictor:
        answers = predictor.predict(X.numpy(), point="exit=1")
        expected = model(X, "exit=1").argmax(1).tolist()
        assert [answer.label for answer in answers] == [model.classes[label] for label in expected]
        assert predictor.policy == policy
    with pytest.raises(DataError, match="int8 needs samples"):
        supple.export(model, tmp_path / "int8", int8=True)
    with pytest.raises(RecipeError, match="folder to write is missing"):
        supple.export(model)


@pytest.mark.system
def test_int8_from_a_loader_is_scored_on_it(tmp_path, run):
    model = supple.load(run, factory=own)
    bundle = supple.export(model, tmp_path / "int8", int8=True, calibration=DataLoader(DATA, 32), max_drop=1.0)
    assert {row.n for row in bundle.ladder} == {N}
    assert {row.precision for row in bundle.ladder} == {"int8"}


def test_extract_and_predict_take_models_too(tmp_path, run):
    folder = supple.extract(run.model, tmp_path / "out", "exit=1")
    again = torch.export.load(folder / "model.pt2").module()
    assert torch.allclose(again(X[:2]), run.model(X[:2], "exit=1"), atol=1e-5)
    first, second = supple.predict(run.model, [X[:1].numpy(), X[1:2].numpy()], point="exit=1")
    assert (first[0].point, second[0].reason) == ("exit=1", "asked")


# --- surgery ----------------------------------------------------------------------------------------------------------


def test_prune_gives_a_model_and_with_out_a_run(tmp_path):
    source = save_run(tmp_path / "search", recipe_of("vit"))
    small = supple.prune(source, 0.5, by="magnitude", out=tmp_path / "small")
    in_hand = supple.prune(supple.load(source), 0.5, by="magnitude")
    x = torch.randn(2, *small.input_shape)
    assert torch.equal(small(x), in_hand(x))
    assert torch.equal(supple.load(tmp_path / "small")(x), small(x))
    nested = supple.prune(supple.load(source), widths=(0.5, 0.8), by="magnitude")
    assert list(map(str, nested.points)) == ["width=0.5", "width=0.8", "full"]
    nested.save(tmp_path / "nested")
    assert torch.equal(supple.load(tmp_path / "nested")(x, "width=0.5"), nested(x, "width=0.5"))
    for wrong in ({}, {"ratio": 0.5, "widths": (0.5,)}, {"widths": (0.8, 0.5)}, {"ratio": 0.5, "by": "mood"}):
        with pytest.raises(RecipeError):
            supple.prune(source, **wrong)


def test_merge_takes_models_and_runs(tmp_path):
    shuffled = recipe_of("vit", backbone={"name": "vit"}, method={"name": "shuffle"})
    runs = [save_run(tmp_path / name, shuffled) for name in "ab"]
    models = [supple.load(run) for run in runs]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.add_(0.1)
    merged = supple.merge(models, (2, 1))
    weights = [model.state_dict() for model in (merged, *models)]
    first = next(name for name in weights[0] if ".0." in name and name.endswith("weight"))
    second = first.replace(".0.", ".1.", 1)
    assert torch.equal(weights[0][first], weights[2][first])
    assert torch.equal(weights[0][second], weights[1][second])
    supple.merge(runs, (2, 1), out=tmp_path / "merged", ends="mean")
    assert supple.load(tmp_path / "merged").points == merged.points
    for wrong in ({"plan": (1,)}, {"plan": (1, 3)}, {"plan": (1, 2), "ends": 3}):
        with pytest.raises(MergeError):
            supple.merge(models, **wrong)
    with pytest.raises(MergeError, match="no run is given"):
        supple.merge([])


# --- the example ------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_the_example_goes_from_a_network_and_a_loader_to_an_answer_in_twenty_lines(tmp_path, capsys):
    source = (ROOT / "examples" / "from_python.py").read_text()
    (main,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    lines = [line for line in source.splitlines()[main.lineno : main.end_lineno] if line.strip()]
    assert len(lines) <= 20
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "example", "exec"), space)
    space["main"](str(tmp_path / "run"), epochs=1)
    said = capsys.readouterr().out
    assert said.count("exit=1") >= 2
    assert "within 20 ms: " in said
    assert isinstance(supple.load(tmp_path / "run", factory=_example_model).ladder, Ladder)


def _example_model() -> supple.FlexibleModel:
    from torchvision.models import resnet18

    network = resnet18(num_classes=10)
    return supple.exits(network, at=["layer1", "layer2"], branch="linear", input_shape=(3, 32, 32), way="end_to_end")


def test_a_recipe_file_trains_with_changes(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(tiny_document("exits")))
    run = supple.train(file, tmp_path / "run", ["train.epochs=1"])
    assert len(run.metrics) == 1
    assert run.model.recipe.train.epochs == 1
