"""Training exits on a network: three ways, from another run, over cached features, with copycat images."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

import supple
from supple import checkpoint
from supple.data import copycat
from supple.data.registry import load
from supple.data.splits import Splits
from supple.errors import CheckpointError, RecipeError, SaveError
from supple.methods import build
from supple.methods.staged import Features
from supple.point import FULL, Point
from supple.recipe import Recipe, make_recipe
from supple.training.feature_cache import cached
from supple.training.init import initialise
from supple.training.loop import train

BACKBONE = {"name": "mobilenet_v1", "channels": [8, 16, 16], "strides": [2, 1]}
CUTS = {"name": "exits", "at": ["2", "8"], "branch": "linear"}


def recipe(method: dict[str, Any] = CUTS, backbone: dict[str, Any] = BACKBONE, **train_: Any) -> Recipe:
    settings = {"epochs": 2, "lr": 1e-2, "optimizer": "adam", "weight_decay": 0, "schedule": "constant", "threads": 1}
    data = {"name": "generated", "batch_size": 32, **train_.pop("data", {})}
    sections = {name: train_.pop(name) for name in ("copycat", "loss") if name in train_}
    return make_recipe(
        {"data": data, "backbone": backbone, "method": method, "train": {**settings, **train_}, **sections}
    )


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the backbone alone."""
    return train(recipe({"name": "static"}), tmp_path_factory.mktemp("whole") / "run", quiet=True)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read_tensors(run / checkpoint.WEIGHTS)


def branches_over(run: Path, out: Path, **changes: Any) -> Path:
    method = {**CUTS, "way": "classifier_wise", **changes.pop("method", {})}
    return train(recipe(method, init=str(run), **changes), out, quiet=True)


def test_classifier_wise_training_leaves_the_backbone_bit_by_bit_as_it_was(whole_run, tmp_path):
    run = branches_over(whole_run, tmp_path / "run")
    before, after = weights(whole_run), weights(run)
    assert {name for name in after if name.startswith("backbone.")} == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)  # the norms' statistics too
    model = supple.load(run)
    scores = {row.point: row.score for row in model.ladder}
    assert scores["full"] == next(iter(supple.load(whole_run).ladder)).score
    assert max(scores["exit=1"], scores["exit=2"]) > 0.3  # four classes: the branches have learnt something


def test_the_frozen_backbone_stays_in_eval_mode_while_its_branches_train():
    settings = {"num_classes": 3, "input_shape": (3, 64, 64), "pretrained": False, "freeze_random": True}
    model = supple.exits("resnet18", ["layer1"], "cnn", way="classifier_wise", **settings).train()
    assert not any(part.training for part in model.backbone.modules())
    assert all(part.training for part in model.heads.modules())
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())


def test_layer_wise_training_freezes_stage_after_stage(tmp_path):
    model = build(BACKBONE, {**CUTS, "way": "layer_wise"}, 4, (3, 16, 16))
    assert model.num_phases() == 3
    learnt: list[set[str]] = []
    for phase in range(3):
        assert model.begin_phase(phase) == (model.points[phase],)
        model.train()
        learnt.append({name for name, p in model.named_parameters() if p.requires_grad})
        asleep = {name for name, part in model.backbone.named_children() if not part.training}
        assert asleep == {str(i) for i in range((0, 3, 9)[phase])}
        x = torch.randn(4, 3, 16, 16)
        model(x, [model.points[phase]])[0].logits.sum().backward()
        assert {name for name, p in model.named_parameters() if p.grad is not None and p.requires_grad} == learnt[-1]
    assert not any(learnt[a] & learnt[b] for a, b in ((0, 1), (0, 2), (1, 2)))
    assert set.union(*learnt) == {name for name, _ in model.named_parameters()}


def test_a_layer_wise_training_has_a_phase_per_exit_and_resumes_within_it(tmp_path, monkeypatch):
    way = {**CUTS, "way": "layer_wise"}
    whole = train(recipe(way), tmp_path / "whole", quiet=True)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [list(line["val"]) for line in lines] == [["exit=1"]] * 2 + [["exit=2"]] * 2 + [["full"]] * 2

    class Stop(Exception):
        pass

    import supple.training.loop as loop

    real, ends = loop.end_epoch, []

    def stop_in_phase_2(*given: Any) -> None:
        ends.append(given)
        if len(ends) == 4:
            raise Stop
        real(*given)

    monkeypatch.setattr(loop, "end_epoch", stop_in_phase_2)
    with pytest.raises(Stop):
        train(recipe(way), tmp_path / "broken", quiet=True)
    monkeypatch.setattr(loop, "end_epoch", real)
    again = train(None, tmp_path / "broken", resume=True, quiet=True)
    first, second = weights(whole), weights(again)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_exits_learn_from_the_last_one_with_a_teacher_matrix(whole_run, tmp_path):
    loss = {"name": "distill", "teachers": "largest", "lam": 1.0, "tau": 2}
    run = branches_over(whole_run, tmp_path / "run", loss=loss)
    assert supple.load(run).points == (Point(exit=1), Point(exit=2), FULL)


@pytest.mark.parametrize(("learn", "learning"), [("norms", {"1", "4", "7", "10", "13", "17"}), ("classifier", {"17"})])
def test_the_transfer_stage_trains_the_classifier_and_the_norms_or_the_classifier_alone(learn, learning):
    backbone = {"name": "timm", "model": "resnet18", "classifier": 16}
    model = build(backbone, {"name": "static", "learn": learn}, 4, (3, 32, 32)).train()
    free = {name.rpartition(".")[0] for name, p in model.backbone.named_parameters() if p.requires_grad}
    norms = {name for name, part in model.backbone.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert free == {"fc.0", "fc.3"} | (norms if learn == "norms" else set())
    assert model.backbone.bn1.training == (learn == "norms")


def test_a_network_that_does_not_name_its_classifier_cannot_learn_it_alone():
    with pytest.raises(RecipeError, match="does not say which layer is its classifier"):
        build(BACKBONE, {"name": "static", "learn": "classifier"}, 4, (3, 16, 16))


# --- where it starts ------------------------------------------------------------------------------------------------


def test_a_safetensors_file_of_a_plain_network_is_a_start(tmp_path):
    torch.manual_seed(3)
    network = build(BACKBONE, {"name": "static"}, 4, (3, 16, 16)).backbone
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    model = build(BACKBONE, CUTS, 4, (3, 16, 16))
    fresh = initialise(model, recipe(init=str(tmp_path / "net.safetensors")), quiet=True)
    assert {name[:7] for name in fresh} == {"heads.0", "heads.1"}
    assert torch.equal(model.backbone[0].weight, network[0].weight)


def test_a_start_that_does_not_fit_is_refused_by_name(whole_run, tmp_path, capsys):
    wide = {**BACKBONE, "channels": [8, 16, 32]}
    with pytest.raises(CheckpointError, match="backbone.12.weight has shape .16, 16, 1, 1., the backbone expects"):
        train(recipe({"name": "static"}, wide, init=str(whole_run)), tmp_path / "run", quiet=True)
    with pytest.raises(CheckpointError, match="does not exist"):
        train(recipe({"name": "static"}, init=str(tmp_path / "gone")), tmp_path / "run2", quiet=True)
    altered = Path(shutil.copytree(whole_run, tmp_path / "altered"))
    (altered / checkpoint.WEIGHTS).write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        train(recipe({"name": "static"}, init=str(altered)), tmp_path / "run3", quiet=True)
    with pytest.raises(RecipeError, match="no published weights"):
        train(recipe({"name": "static"}, init="pretrained"), tmp_path / "run4", quiet=True)


# --- cached features --------------------------------------------------------------------------------------------------


def test_features_are_what_the_branches_read_and_give_the_same_answers():
    torch.manual_seed(0)
    model = build(BACKBONE, CUTS, 4, (3, 16, 16)).eval()
    x = torch.randn(5, 3, 16, 16)
    features = model.features(x)
    for output, same in zip(model(x, model.points), model(features, model.points)):
        assert_close(output.logits, same.logits)
    run = model.run(features, model.points)
    next(run)
    assert_close(run.send(torch.tensor([4, 2])).logits, model(x, Point(exit=2))[[4, 2]])


def test_training_on_cached_features_gives_what_training_on_images_gives(whole_run, tmp_path):
    direct = branches_over(whole_run, tmp_path / "direct")
    for name in ("first", "second"):  # the second finds the features of the first
        run = branches_over(whole_run, tmp_path / name, cache_features=str(tmp_path / "features"))
        for key, value in weights(run).items():
            assert_close(value, weights(direct)[key], atol=5e-3, rtol=5e-3)  # kept with 16 bits
    folders = list((tmp_path / "features").iterdir())
    assert len(folders) == 1
    assert np.load(folders[0] / "train-1.npy", mmap_mode="r").dtype == np.float16
    assert {path.name for path in folders[0].glob("*.npy")} == {f"{p}-{k}.npy" for p in ("train", "val") for k in "123"}


def test_other_weights_or_cuts_get_features_of_their_own(whole_run, tmp_path):
    place = str(tmp_path / "features")
    branches_over(whole_run, tmp_path / "a", cache_features=place)
    branches_over(whole_run, tmp_path / "b", cache_features=place, method={"at": ["5", "8"]})
    other = train(recipe({"name": "static"}, seed=5, epochs=1), tmp_path / "other", quiet=True)
    branches_over(other, tmp_path / "c", cache_features=place)
    assert len(list((tmp_path / "features").iterdir())) == 3


def test_augmented_images_are_cached_only_when_asked(whole_run, tmp_path):
    with pytest.raises(RecipeError, match="data.flip"):
        branches_over(whole_run, tmp_path / "a", cache_features=str(tmp_path / "f"), data={"flip": True})
    branches_over(
        whole_run, tmp_path / "b", cache_features=str(tmp_path / "f"), data={"flip": True}, cache_augmented=True
    )


def test_a_backbone_that_learns_has_no_features_to_cache(tmp_path):
    with pytest.raises(RecipeError, match="the backbone learns"):
        train(recipe(CUTS, cache_features=str(tmp_path / "f")), tmp_path / "run", quiet=True)


def test_features_that_do_not_fit_are_refused_before_they_are_written(tmp_path, monkeypatch):
    splits, model = tiny_parts({**CUTS, "way": "classifier_wise"})
    wanted = recipe({**CUTS, "way": "classifier_wise"}, cache_features=str(tmp_path / "f"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(SaveError, match="has 1 kB left"):
        cached(wanted, model, splits, quiet=True)
    monkeypatch.undo()
    model.backbone[1].weight.data.fill_(1e9)  # behind it an activation with a ceiling, so cut before
    bodies = build(BACKBONE, {**CUTS, "at": ("1",), "way": "classifier_wise"}, 4, (3, 16, 16))
    bodies.load_state_dict(model.state_dict(), strict=False)
    model, wanted = bodies, recipe({**CUTS, "at": ["1"], "way": "classifier_wise"}, cache_features=str(tmp_path / "f"))
    with pytest.raises(RecipeError, match="16-bit"):
        cached(wanted, model, splits, quiet=True)


def tiny_parts(method: dict[str, Any]) -> tuple[Splits, Any]:
    splits = load("generated")
    return splits, build(BACKBONE, method, len(splits.train.classes), splits.train.shape)


# --- copycat ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Seven pictures in nested folders, and a file that is none."""
    rng = np.random.default_rng(0)
    for i in range(7):
        path = tmp_path / "pictures" / f"class{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    (tmp_path / "pictures" / "readme.txt").write_text("no picture")
    return tmp_path / "pictures"


def test_copied_images_get_the_labellers_labels_and_keep_the_ratio(whole_run, pictures):
    labeller = supple.load(whole_run)
    sources = copycat.unlabelled(str(pictures), None, 0)
    assert len(sources) == 7
    assert len(copycat.unlabelled(str(pictures), 3, 0)) == 3
    labels = copycat.label(sources, labeller)
    x = labeller.preprocess.normalise(torch.stack([labeller.preprocess.open(source) for source in sources]))
    assert torch.equal(labels, labeller(x).argmax(1))

    real = load("generated", limit=10).train
    mixed = copycat.mix(real, sources, labels, ratio=2.0, seed=0)
    assert len(mixed) == 30  # 10 real, 20 copied: of seven pictures, each two or three times
    assert torch.equal(mixed.targets[:10], real.targets)
    copies = mixed.read(torch.arange(10, 30))
    originals = torch.stack([real.preprocess.open(source) for source in sources])
    which = [int((originals == copy).flatten(1).all(1).nonzero()) for copy in copies]
    assert sorted(which.count(i) for i in range(7)) == [2, 3, 3, 3, 3, 3, 3]
    assert torch.equal(mixed.targets[10:], labels[which])
    few = copycat.mix(real, sources, labels, ratio=0.5, seed=0)
    assert len(few) == 15


def test_a_copycat_training_starts_from_a_trained_branch_and_uses_the_copies(whole_run, pictures, tmp_path):
    trained = branches_over(whole_run, tmp_path / "trained")
    section = {"labeller": str(whole_run), "root": str(pictures), "ratio": 0.5}
    run = branches_over(trained, tmp_path / "copycat", copycat=section, epochs=1)
    steps = json.loads((run / "metrics.jsonl").read_text())["step"]
    plain = json.loads((trained / "metrics.jsonl").read_text().splitlines()[0])["step"]
    assert steps == int(1.5 * plain) or steps == int(1.5 * plain) + 1
    assert supple.load(run).ladder.best_under(macs=1e9)


def test_copycat_refuses_a_labeller_of_other_classes_and_a_folder_without_images(whole_run, exits_run, tmp_path):
    section = {"labeller": str(whole_run), "root": str(tmp_path)}
    with pytest.raises(supple.SuppleError, match="has no images"):
        branches_over(whole_run, tmp_path / "a", copycat=section)
    other = Path(shutil.copytree(whole_run, tmp_path / "other"))
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["classes"] = ["p", "q", "r", "s"]
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecipeError, match="knows other classes"):
        branches_over(whole_run, tmp_path / "b", copycat={"labeller": str(other), "root": str(tmp_path)})


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_branch_has_settings_of_its_own_and_a_change_reaches_them():
    document = {"data": {"name": "generated"}, "backbone": BACKBONE, "method": {**CUTS, "branch": "sl_vit"}}
    branch = make_recipe(document, ["method.branch.heads=4"]).method["branch"]
    assert (branch["name"], branch["heads"], branch["d"]) == ("sl_vit", 4, 32)  # defaults are written out
    document["method"]["branch"] = ["sl_vit", {"name": "cnn", "filters": 4}]
    with pytest.raises(RecipeError, match="cannot be changed alone"):
        make_recipe(document, ["method.branch.heads=4"])
    model = build(BACKBONE, make_recipe(document).method, 4, (3, 16, 16))
    assert [type(head[0]).__name__ for head in model.heads] == ["SlVit", "Cnn", "Identity"]
    with pytest.raises(RecipeError, match="names 1 branches for 2 cuts"):
        build(BACKBONE, {**CUTS, "branch": ("cnn",)}, 4, (3, 16, 16))


def test_exits_need_to_know_where():
    with pytest.raises(RecipeError, match="where to cut"):
        build(BACKBONE, {"name": "exits"}, 4, (3, 16, 16))
    msdnet = {"name": "msdnet", "blocks": 2, "base": 1, "step": 1, "channels": 4, "growth_rate": 4}
    msdnet |= {"growth_factors": (1, 2), "bottleneck_factors": (1, 2), "head_channels": 8}
    with pytest.raises(RecipeError, match="exits of its own"):
        build(msdnet, {"name": "exits", "way": "classifier_wise"}, 4, (3, 16, 16))


def test_features_survive_a_move_between_devices():
    from supple.scoring import to_device

    moved = to_device((Features((torch.zeros(2), torch.ones(2))), torch.ones(2)), torch.device("meta"))
    assert isinstance(moved[0], Features)
    assert moved[0].outputs[1].is_meta


# --- search -----------------------------------------------------------------------------------------------------------


def test_a_search_tries_what_is_affordable_and_ranks_it_by_validation_score(whole_run, tmp_path, command):
    method = {**CUTS, "at": ["2"], "way": "classifier_wise"}
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe(method, init=str(whole_run), epochs=1).to_yaml())
    words = ("--search", "--search-d", "8,64", "--search-heads", "1,2", "--out", tmp_path / "found")
    said = command("train", path, *words, "--json").json
    (tries,) = said["exits"]
    assert [one["score"] for one in tries] == sorted((one["score"] for one in tries), reverse=True)
    assert {(one["d"], one["heads"]) for one in tries} == {(8, 1), (8, 2)}  # 64 is beyond the CNN branch
    assert json.loads((tmp_path / "found" / "search.json").read_text()) == said["exits"]
    again = command("train", path, *words)  # finished trials are only read
    assert again.status == 0
    assert "best: method.branch=[{name: sl_vit, d: 8" in again.out
    command("train", whole_run, "--search").refused(2, "--search needs a recipe")
    command("train", path, *words[:-2], "--search-d", "64", "--out", tmp_path / "none").refused(2, "none of d=[64]")
    plain = tmp_path / "plain.yaml"
    plain.write_text(recipe({"name": "static"}).to_yaml())
    command("train", plain, "--search", "--out", tmp_path / "x").refused(2, "method.at")


def test_a_branch_that_costs_more_than_the_rest_of_the_network_is_warned_of(command, tmp_path):
    path = tmp_path / "dear.yaml"
    wide = {"name": "cnn", "kernel": 3, "filters": 256, "pool": 1}
    path.write_text(recipe({**CUTS, "at": ["2"], "branch": wide}).to_yaml())
    said = command("profile", path)
    assert said.status == 0
    assert "warning: exit=1 costs" in said.err
    assert "more than the rest of the network" in said.err
    assert "warning" not in command("profile", path, "method.branch=linear").err


# --- what a user may get wrong in Python ------------------------------------------------------------------------------


class Two(nn.Module):
    """Small, with a place to cut: `a`."""

    def __init__(self, end: Any = None) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.c, self.end = nn.Linear(4, 10), end

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.c(self.b(self.a(x)).mean((2, 3)))
        return {"logits": logits} if self.end == "dict" else logits[..., None] if self.end == "deep" else logits


class Pair(Two):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return super().forward(x + y)


SHAPE = (3, 16, 16)


@pytest.mark.parametrize(
    ("network", "words", "named"),
    [
        (Two(), {"at": ["a"], "way": "frozen"}, ('method.way is "frozen"', "classifier_wise")),
        (Two(), {"at": ["a"], "num_classes": 5}, ("gives 10 numbers", "num_classes is 5")),
        (Two(), {"at": ["a"], "num_classes": -5}, ("num_classes is -5",)),
        (Two("dict"), {"at": ["a"]}, ("gives dict", "logits alone")),
        (Two("deep"), {"at": ["a"]}, ("shape (2, 10, 1)", "logits alone")),
        (Pair(), {"at": ["a"]}, ("Pair", "input")),
        (Two(), {"at": ["a"], "input_shape": (1, 16, 16)}, ("(1, 16, 16)",)),
        (Two(), {"at": ["a"], "input_shape": (3, 16, 16, 2)}, ("(3, 16, 16, 2)",)),
        (Two(), {"at": ["a"], "branch": nn.Linear(2, 2)}, ("Linear is not a valid branch", "sl_vit")),
        (Two(), {"at": ["a", "b"], "branch": {"name": "sl_vit", "patch": 5}}, ("at a:", "does not divide")),
        (Two(), {"at": ["a", "a"]}, ("a is given twice",)),
        (Two(), {"at": "z"}, ('"z"',)),
    ],
)
def test_a_slip_in_python_is_refused_with_the_reason(network, words, named):
    with pytest.raises(RecipeError) as caught:
        supple.exits(network, **{"input_shape": SHAPE, **words})
    assert all(word in f"{caught.value.cause} {caught.value.cure}" for word in named), caught.value.cause


def test_one_name_is_a_cut_and_the_places_are_listed():
    network = Two()
    assert [place.name for place in supple.cuts(network, SHAPE)] == ["a", "b"]
    model = supple.exits(network, "a", input_shape=SHAPE)
    assert model.points == (Point(exit=1), FULL)
    assert model(torch.randn(2, *SHAPE), Point(exit=1)).shape == (2, 10)
    assert len(model.ladder) == 0
    assert all(parameter.requires_grad for parameter in network.parameters())


@torch.inference_mode()
def test_a_network_is_cut_in_inference_mode_too():
    model = supple.exits(Two(), "a", input_shape=SHAPE)
    assert model(torch.randn(2, *SHAPE)).shape == (2, 10)
