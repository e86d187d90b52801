"""`supple analyse`: what is computed, by hand where that is possible; what is drawn and refused."""

import csv
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

from supple import Point, checkpoint
from supple.analysis.dense import dependencies
from supple.analysis.finding import choose
from supple.analysis.shuffle import ORDERS, Walks, densities, draw_ridges, follow, principal, project, walk
from supple.analysis.skip import LayersRun, draw_classes, layers_run
from supple.errors import DataError
from supple.methods.dense import Dense
from supple.methods.shuffle import Shuffle
from supple.methods.skip import Skip
from supple.point import FULL
from supple.recipe import make_recipe
from supple.training.build import fresh_model, load_data, pin

TRUNK = {"name": "vit_cifar", "width": 12, "mlp": 8, "heads": 3, "layers": 4, "grid": 4}


def document(method: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"data": {"name": "generated", **data}, "backbone": TRUNK, "method": method}


def saved_run(folder: Path, method: dict[str, Any], **data: Any) -> Path:
    """A run with untrained weights: an analysis does not ask how good they are."""
    recipe = make_recipe(document(method, **data))
    splits = load_data(recipe)
    model = fresh_model(recipe, splits)
    checkpoint.save(folder, model, pin(recipe, splits))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    methods = {
        "shuffle": {"name": "shuffle"},
        "predict": {"name": "shuffle", "variant": "predict"},
        "dense": {"name": "dense"},
        "skip": {"name": "skip"},
        "whole": {"name": "static", "learn": "all"},
    }
    return {name: saved_run(folder / name, method) for name, method in methods.items()}


@pytest.fixture(autouse=True)
def _without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """UMAP takes longer than all these tests; what is installed must not matter either."""
    monkeypatch.setitem(sys.modules, "umap", None)


class Blank:
    """Images and labels that are given, as a data set."""

    slow = False
    at_once = None

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return self.x[indices], self.y[indices]


class Add(nn.Module):
    """A layer that adds a constant vector to the class token, and as much noise as it likes to the others."""

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, state: Tensor) -> Tensor:
        return torch.cat([state[:, :1] + self.constant, state[:, 1:] * 7], 1)


class Lines(nn.Module):
    """A trunk of given layers on tokens (batch, tokens, 2); the class token is the answer."""

    width, class_token = 2, True

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.unused = nn.Parameter(torch.zeros(1))

    def stem(self, x: Tensor) -> Tensor:
        return x

    def head(self, state: Tensor) -> Tensor:
        return state[:, 0]


TOKENS = torch.tensor([[[0.0, 1.0], [2.0, 3.0]], [[1.0, 0.0], [4.0, 5.0]]]).repeat(6, 1, 1)  # (12, 2, 2)
LABELS = torch.tensor([1, 0]).repeat(6)


def adders() -> Shuffle:
    """Three layers that add vectors of lengths 5, 10 and 5."""
    return Shuffle(Lines(*(Add(torch.tensor(v)) for v in ([3.0, 4.0], [6.0, 8.0], [0.0, -5.0]))))


def tiny(method: dict[str, Any]) -> tuple[Any, Any]:
    recipe = make_recipe(document(method))
    splits = load_data(recipe)
    return fresh_model(recipe, splits).eval(), splits.test


# --- shuffle ----------------------------------------------------------------------------------------------------------


def test_what_a_constant_adds_is_its_length_in_every_position():
    walks = walk(adders(), Blank(TOKENS, LABELS), torch.arange(12), layer=2, orders=12)
    assert walks.positions.sort(1).values.tolist() == [[1, 2, 3]] * 12
    assert len(set(map(tuple, walks.positions.tolist()))) > 2  # several orders were walked
    assert_close(walks.norms, torch.tensor([[5.0, 10.0, 5.0]]).expand(12, -1))
    assert_close(walks.shares, torch.tensor([[0.25, 0.5, 0.25]]).expand(12, -1))
    assert walks.right is None


def test_the_whole_output_of_the_recorded_layer_is_kept():
    """By hand: layer 2 adds (6, 8) to what the layers before it added to the class token; others grow sevenfold."""
    walks = walk(adders(), Blank(TOKENS, LABELS), torch.arange(12), layer=2, orders=6)
    for image, (first, second, third), output in zip(TOKENS, walks.positions.tolist(), walks.outputs):
        token = image[0] + torch.tensor([6.0, 8.0])
        token += torch.tensor([3.0, 4.0]) * (first < second) + torch.tensor([0.0, -5.0]) * (third < second)
        assert_close(output, torch.cat([token, image[1] * 7.0**second]))


def test_images_share_so_many_orders_and_no_fewer():
    model, data = adders(), Blank(TOKENS, LABELS)
    assert len(set(map(tuple, walk(model, data, torch.arange(12), 1, orders=1).positions.tolist()))) == 1
    halves = walk(model, data, torch.arange(12), 1, orders=2, seed=1).positions
    assert (halves[:6] == halves[0]).all()
    assert (halves[6:] == halves[6]).all()
    assert not torch.equal(halves[0], halves[6])


def test_a_walk_ends_where_the_model_ends():
    model, data = tiny({"name": "shuffle", "variant": "position"})
    x, _ = data.batch(torch.arange(5))
    point = Point(layers=(3, 1, 4, 2))
    with torch.inference_mode():
        steps = list(follow(model, x, point))
        assert [(layer, position) for layer, position, *_ in steps] == [(3, 1), (1, 2), (4, 3), (2, 4)]
        assert_close(model.trunk.head(steps[-1][3]), model(x, point))


def test_mean_shares_are_those_of_the_images_in_that_position():
    positions = torch.tensor([[1, 2], [1, 2], [2, 1]])
    walks = Walks(positions, torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 4.0]]), torch.zeros(3, 1), None)
    # Shares of layer 1: 1/2 and 3/4 in position 1, 1/5 in position 2.
    assert_close(walks.mean_shares(), torch.tensor([[0.625, 0.2], [0.8, 0.375]]))


@pytest.mark.parametrize(("sure", "share"), [(True, 1.0), (False, 0.25)])
def test_positions_that_layers_say_are_compared_with_those_they_held(sure, share):
    """Predictors that know the position are always right; those that always say 1 are right in 1 of 4 positions."""
    model, data = tiny({"name": "shuffle", "variant": "predict"})

    class Told(nn.Module):
        def forward(self, state: Tensor) -> Tensor:
            held.append(len(held) % 4)
            return nn.functional.one_hot(torch.full((len(state),), held[-1] if sure else 0), 4).float()

    held: list[int] = []
    model.predictors = nn.ModuleList(Told() for _ in range(4))
    right = walk(model, data, torch.arange(20), 1, orders=5).right
    assert right is not None
    assert right.double().mean() == share
    if not sure:
        again = walk(model, data, torch.arange(20), 1, orders=5)
        assert torch.equal(again.right, again.positions == 1)


def test_densities_enclose_an_area_of_one_and_stand_over_their_values():
    positions = torch.tensor([[1, 2]] * 40)
    norms = torch.stack([torch.linspace(1, 2, 40), torch.linspace(9, 8, 40)], 1)
    at = np.linspace(0, 1, 2001)
    found = densities(Walks(positions, norms, torch.zeros(40, 1), None), at)
    assert found.shape == (2, 2, 2001)
    assert_close(found.sum(2) * (at[1] - at[0]), np.array([[1.0, 0.0], [0.0, 1.0]]), atol=1e-3, rtol=0)
    assert at[found[0, 0].argmax()] == pytest.approx(0.15, abs=0.06)
    assert at[found[1, 1].argmax()] == pytest.approx(0.85, abs=0.06)


# --- projection -------------------------------------------------------------------------------------------------------


def test_without_umap_the_two_largest_components_are_found():
    """By hand: centred, the vectors vary by 3 along one diagonal and by 1 along the third axis, and not otherwise."""
    along, third = torch.tensor([3.0, -3.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, -1.0])
    vectors = torch.stack([along * 0.6, along * 0.8, third, torch.zeros(4)], 1) + torch.tensor([9.0, 8.0, 7.0, 6.0])
    spots, way = project(vectors)
    assert way == "PCA"
    assert_close(np.abs(spots), np.array([[3.0, 0], [3, 0], [0, 1], [0, 1]]), atol=1e-6, rtol=0)
    assert np.array_equal(spots.argmax(0), np.abs(spots).argmax(0))
    assert_close(principal(vectors), spots)


def test_umap_is_used_where_it_is_installed(monkeypatch):
    asked = {}

    class Stub:
        def __init__(self, **settings: Any) -> None:
            asked.update(settings)

        def fit_transform(self, vectors: np.ndarray) -> np.ndarray:
            return vectors[:, 1:]

    module = types.ModuleType("umap")
    module.UMAP = Stub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "umap", module)
    spots, way = project(torch.arange(12.0).reshape(4, 3), seed=5)
    assert way == "UMAP"
    assert spots.tolist() == [[1, 2], [4, 5], [7, 8], [10, 11]]
    assert (asked["n_neighbors"], asked["random_state"]) == (3, 5)


# --- dense ------------------------------------------------------------------------------------------------------------


def test_the_dependency_map_is_what_the_oracles_say():
    """Biases ln 1 : ln 3 and ln 1 : ln 1 : ln 2 with no weights: shares 1/4, 3/4 and 1/4, 1/4, 1/2 for every image."""
    model = Dense(Lines(nn.Identity(), nn.Identity(), nn.Identity()), dropout=0.0)
    for mixer, ratios in zip(model.mixers, ([1.0, 3.0], [1.0, 1.0, 2.0])):
        nn.init.zeros_(mixer.oracle.weight)
        mixer.oracle.bias.data = torch.tensor(ratios).log()
    found = dependencies(model, Blank(TOKENS, LABELS), torch.arange(12))
    expected = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0.25, 0.25, 0.5]], dtype=torch.float64)
    assert found["all"].count == found["right"].count == 12  # the class token, unchanged, is the right answer
    assert found["wrong"] is None
    assert_close(found["all"].weights, expected, atol=1e-6, rtol=0)


def test_right_and_wrong_answers_have_maps_of_their_own():
    """The oracle reads which coordinate of the class token is set: 20 pulls the weight to one activation."""
    model = Dense(Lines(nn.Identity(), nn.Identity()), dropout=0.0)
    model.mixers[0].oracle.weight.data = torch.tensor([[20.0, 0.0], [0.0, 20.0]])
    nn.init.zeros_(model.mixers[0].oracle.bias)
    labels = torch.ones(12, dtype=torch.long)  # right only for (0, 1), whose layer 2 reads activation 1
    labels[0] = 0
    found = dependencies(model, Blank(TOKENS, labels), torch.arange(12))
    assert (found["right"].count, found["wrong"].count) == (5, 7)
    assert_close(found["right"].weights[1], torch.tensor([0.0, 1.0]).double(), atol=1e-6, rtol=0)
    assert_close(found["wrong"].weights[1], torch.tensor([6 / 7, 1 / 7]).double(), atol=1e-6, rtol=0)


# --- skip -------------------------------------------------------------------------------------------------------------


def test_threshold_0_runs_all_layers_and_threshold_1_only_those_without_a_gate():
    model, data = tiny({"name": "skip"})
    none, everything = layers_run(model, data, torch.arange(64), [Point(skip=0.0), Point(skip=1.0)])
    assert (none.point, everything.point) == (Point(skip=1.0), FULL)
    assert none.ran.tolist() == [[True, False, False, True]] * 64
    assert everything.ran.all()
    assert none.histogram().tolist() == [0, 0, 64, 0, 0]
    assert everything.histogram().tolist() == [0, 0, 0, 0, 64]
    layer, oracles = model.prices[1:]
    assert set((everything.macs - none.macs).tolist()) == {2 * layer - oracles}


def test_shares_of_a_class_count_its_own_images():
    ran = torch.tensor([[True, False], [True, True], [True, False]])
    found = LayersRun(FULL, ran, torch.tensor([0, 0, 2]), torch.tensor([True] * 3), torch.tensor([1, 2, 1]))
    shares = found.by_class(3)
    assert_close(shares[[0, 2]], torch.tensor([[1, 0.5], [1, 0]]).double())
    assert shares[1].isnan().all()
    assert found.histogram().tolist() == [0, 2, 1]


def test_layers_that_ran_agree_with_the_output():
    model, data = tiny({"name": "skip"})
    assert isinstance(model, Skip)
    (found,) = layers_run(model, data, torch.arange(10, 30), [Point(skip=0.5)])
    x, y = data.batch(torch.arange(10, 30))
    with torch.inference_mode():
        (output,) = model.run(x, [Point(skip=0.5)])
    assert torch.equal(found.ran, output.aux["ran"])
    assert torch.equal(found.macs, output.cost)
    assert torch.equal(found.labels, y)


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_are_drawn_once_each_and_alike_each_time():
    data = Blank(TOKENS, LABELS)
    drawn = choose(data, 7, None, 1)
    assert len(set(drawn.tolist())) == 7
    assert torch.equal(drawn, choose(data, 7, None, 1))
    assert sorted(choose(data, None, 1000, 1).tolist()) == list(range(12))
    assert len(choose(data, None, 5, 1)) == 5
    with pytest.raises(DataError, match="needs 20"):
        choose(data, None, 1000, 20)


def test_a_model_in_training_is_analysed_in_eval_mode_and_goes_on_training():
    model = Dense(Lines(nn.Identity(), nn.Identity()), dropout=0.9).train()
    data, images = Blank(TOKENS, LABELS), torch.arange(12)
    first = dependencies(model, data, images)["all"]
    assert model.training
    assert_close(first.weights, dependencies(model.eval(), data, images)["all"].weights)


# --- pictures ---------------------------------------------------------------------------------------------------------


def pixels(content: bytes | Path) -> np.ndarray:
    import io

    source = content if isinstance(content, Path) else io.BytesIO(content)
    return np.asarray(Image.open(source).convert("RGB")).astype(int)


def test_ridges_are_dark_at_the_input_and_light_at_the_output():
    at = np.linspace(0, 1, 50)
    bump = np.exp(-(((at - 0.5) / 0.2) ** 2))
    nothing = np.zeros(50)
    only = [np.array([[bump if p == held else nothing for p in range(4)] for _ in range(4)]) for held in (0, 3)]
    first, last = (pixels(draw_ridges(["a"], [rows], at, "")) for rows in only)
    middle = first.shape[1] // 3
    assert first[:, :middle].sum() < last[:, :middle].sum()


@pytest.mark.parametrize("classes", [3, 60])
def test_a_heat_map_is_drawn_for_few_and_for_many_classes(classes):
    labels = torch.arange(classes)
    ran = [torch.full((classes, 4), runs) for runs in (True, False)]
    found = [LayersRun(Point(skip=0.5), each, labels, labels == 0, labels) for each in ran]
    dark, light = (pixels(draw_classes([each], [f"class {n}" for n in range(classes)], "")) for each in found)
    assert dark.shape == light.shape
    assert dark.mean() < light.mean() - 40


# --- command line -----------------------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_analyse_shuffle_beside_a_base(command, runs, tmp_path):
    out = tmp_path / "new" / "folder"
    said = command("analyse", runs["predict"], "--base", runs["shuffle"], "--layer", 3, "--out", out, "--json")
    found = said.json
    assert (found["method"], found["layer"], found["images"], found["orders"]) == ("shuffle", 3, 64, ORDERS)
    assert [Path(name).name for name in found["files"]] == [
        *("layer-3.png", "layer-3.csv", "contributions.png", "contributions.csv", "analysis.json")
    ]
    assert sorted(path.name for path in out.iterdir()) == sorted(Path(name).name for name in found["files"])
    assert "umap-learn is not installed" in said.err
    assert found["projection"] == "PCA"
    run, base = found["runs"]
    assert 0 <= run["predicted"] <= 1
    assert base["predicted"] is None
    assert sum(layer["contribution"] for layer in run["layers"]) == pytest.approx(1)
    norms = rows_of(out / "contributions.csv")
    assert len(norms) == 2 * 64 * 4
    own = [float(row["share"]) for row in norms if row["run"] == str(runs["predict"]) and row["layer"] == "2"]
    assert np.mean(own) == pytest.approx(run["layers"][1]["contribution"], abs=1e-5)
    spots = rows_of(out / "layer-3.csv")
    held = {(row["run"], row["image"]): row["position"] for row in norms if row["layer"] == "3"}
    assert len(spots) == 128
    assert all(held[row["run"], row["image"]] == row["position"] for row in spots)
    assert pixels(out / "layer-3.png").std() > 5
    document = json.loads((out / "analysis.json").read_text())
    assert document == {name: value for name, value in found.items() if name != "files"}


def test_analyse_takes_the_middle_layer_and_writes_into_the_run(command, runs):
    said = command("analyse", runs["shuffle"], "--images", 24, "--orders", 6)
    assert said.status == 0
    folder = runs["shuffle"] / "analysis"
    assert {path.name for path in folder.iterdir()} >= {"layer-2.png", "contributions.png"}
    assert str(folder / "layer-2.png") in said.out.splitlines()
    assert "most at position" in said.out
    assert "says its position" not in said.out
    assert len({row["position"] for row in rows_of(folder / "layer-2.csv")}) > 1
    assert len(rows_of(folder / "layer-2.csv")) == 24


def test_analyse_dense(command, runs, tmp_path):
    table = command("analyse", runs["dense"], "--out", tmp_path).out.splitlines()
    assert [line.split()[0] for line in table[:5]] == ["layer", "T1", "T2", "T3", "T4"]
    assert table[-1] == str(tmp_path / "analysis.json")
    found = json.loads((tmp_path / "analysis.json").read_text())
    weights = found["maps"]["all"]["weights"]
    assert [len(row) for row in weights] == [1, 2, 3, 4]
    assert [sum(row) for row in weights] == pytest.approx([1] * 4)
    right, wrong = found["maps"]["right"], found["maps"]["wrong"]
    assert (right["images"] if right else 0) + (wrong["images"] if wrong else 0) == found["images"] == 64
    cells = {(row["layer"], row["activation"]): row["weight"] for row in rows_of(tmp_path / "dependencies.csv")[:10]}
    assert float(cells["3", "1"]) == pytest.approx(weights[2][1], abs=1e-5)
    assert pixels(tmp_path / "dependencies.png").std() > 5


def test_analyse_skip(command, runs, tmp_path):
    lines = command("analyse", runs["skip"], "--point", "skip=1", "--point", "full", "--out", tmp_path).out.splitlines()
    assert lines[1].split()[:4] == ["skip=1.0", "2.00", "2", "2"]
    assert ["horizontal", "2.00", "4.00"] in [line.split() for line in lines]
    few, full = json.loads((tmp_path / "analysis.json").read_text())["points"]
    assert (few["point"], full["point"]) == ("skip=1.0", "full")
    assert (few["layers"], few["layers_most"], full["layers_fewest"]) == (2, 2, 4)
    assert few["macs"] == few["macs_worst"] < full["macs"] == full["macs_worst"]
    assert few["classes"]["rising"] == {"images": 16, "layers": [1, 0, 0, 1]}
    shares = {(row["point"], row["class"], row["layer"]): row["share"] for row in rows_of(tmp_path / "classes.csv")}
    assert (shares["skip=1.0", "falling", "2"], shares["full", "falling", "2"]) == ("0", "1")
    counts = {(row["point"], row["layers"]): row["images"] for row in rows_of(tmp_path / "histogram.csv")}
    assert (counts["skip=1.0", "2"], counts["full", "4"], counts["full", "2"]) == ("64", "64", "0")
    assert pixels(tmp_path / "classes.png").std() > 5


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("shuffle", ("--layer", 5), ("--layer is 5", "layers 1 to 4")),
        ("shuffle", ("--layer", 0), ("--layer is 0", "layers 1 to 4")),
        ("shuffle", ("--orders", 0), ("--orders is 0", "1 to 64")),
        ("shuffle", ("--images", 19), ("19 test images are too few", "needs 20", "Raise --images")),
        ("shuffle", ("--images", 65), ("--images is 65", "at most 64")),
        ("shuffle", ("data.test_limit=5",), ("5 test images are too few", "data.test_limit")),
        ("shuffle", ("--point", "full"), ("--point is for runs of method skip",)),
        ("shuffle", ("train.epochs=3",), ("does not apply",)),
        ("dense", ("--layer", 1), ("--layer is for runs of method shuffle", "Leave --layer out")),
        ("dense", ("--images", 0), ("0 test images are too few",)),
        ("skip", ("--base", "x"), ("--base is for runs of method shuffle",)),
        ("skip", ("--point", "exit=2"), ("cannot run Point(exit=2)",)),
    ],
)
def test_what_cannot_be_analysed_is_refused(command, runs, tmp_path, name, words, said):
    command("analyse", runs[name], *words, "--out", tmp_path / "out").refused(2, *said)
    assert not list(tmp_path.iterdir())


def test_other_methods_and_other_runs_are_refused(command, runs, tmp_path):
    known = "Methods that can be analysed: dense, shuffle, skip."
    command("analyse", runs["whole"]).refused(2, "method static", known)
    command("analyse", tmp_path / "none").refused(2, "there is no run folder")
    command("analyse", tmp_path).refused(2, "manifest.json is missing")
    base = ("analyse", runs["shuffle"], "--base")
    command(*base, tmp_path / "none").refused(2, "there is no run folder")
    command(*base, runs["whole"]).refused(2, "method static", known)
    command(*base, runs["dense"]).refused(2, "method dense", "Name a run of method shuffle.")


def test_a_base_with_other_classes_is_refused(command, runs, tmp_path):
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / "data" / part / kind).mkdir(parents=True)
            for n in range(12):
                Image.effect_noise((16, 16), 50 + n).save(tmp_path / "data" / part / kind / f"{n}.png")
    other = saved_run(tmp_path / "run", {"name": "shuffle"}, name="folder", root=str(tmp_path / "data"), size=16)
    command("analyse", runs["shuffle"], "--base", other).refused(2, f"--base {other} knows other classes")


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(command, runs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr("supple.analysis.ANALYSES", {"dense": None})
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        command("analyse", runs["dense"], "--out", out).refused(2, "cannot be written", "Choose another folder: --out.")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_model_that_computes_no_numbers_is_refused(command, runs, tmp_path):
    recipe = make_recipe(document({"name": "shuffle"}))
    splits = load_data(recipe)
    model = fresh_model(recipe, splits)
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    checkpoint.save(tmp_path, model, pin(recipe, splits))
    command("analyse", tmp_path).refused(2, "not finite", "lower train.lr")
    assert not (tmp_path / "analysis").exists()
