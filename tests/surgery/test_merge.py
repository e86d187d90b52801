"""Layers from several runs, and several runs that answer together."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from supple import FULL, Point, checkpoint, load
from supple.errors import MergeError
from supple.methods import build
from supple.recipe import make_recipe
from supple.scoring import evaluate
from supple.surgery.ensemble import hits, score_ensemble
from supple.surgery.merge import layer_weights, merge, parse_ends, parse_plan, random_plan, score_merges
from supple.training.build import fresh_model, load_data, pin
from tiny import tiny_recipe

LAYERS = 3
SMALL = {"name": "vit_cifar", "width": 12, "mlp": 8, "heads": 3, "layers": LAYERS, "grid": 4, "stem": "conv"}


def recipe_of(seed: int = 0, **sections: dict):
    """A tiny shuffled transformer, with changes to its sections."""
    document = {"data": {"name": "generated"}, "backbone": SMALL, "method": {"name": "shuffle"}}
    document["train"] = {"seed": seed, "init": "runs/base"}
    return make_recipe({**document, **{name: {**document[name], **more} for name, more in sections.items()}})


def model_of(seed: int, **sections: dict):
    """An untrained model whose every weight, counters apart, is another one for another seed."""
    recipe = recipe_of(**sections)
    model = build(recipe.backbone, recipe.method, 6, (3, 16, 16))
    rng = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=rng)
            value.copy_(0.5 + noise if "norm" in name or "running_var" in name else noise - 0.5)
    return model.eval()


@pytest.fixture(scope="module")
def models():
    return [model_of(seed) for seed in range(LAYERS)]


@pytest.fixture(scope="module")
def x():
    return torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(7))


class Images:
    """Six classes of noise, eight images."""

    slow = False
    at_once = None

    def __len__(self) -> int:
        return 8

    def batch(self, indices, rng=None):
        x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(3))
        return x[indices], (torch.arange(8) % 6)[indices]


# --- weights ----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("owner", [1, 2, None])
def test_copies_of_one_model_merge_into_that_model_exactly(x, owner):
    merged = merge([model_of(4) for _ in range(LAYERS)], (3, 1, 2), owner)
    for point in (FULL, Point(layers=(3, 1, 2)), Point(layers=(2,))):
        assert torch.equal(merged(x, point), model_of(4)(x, point))


@torch.inference_mode()
def test_every_layer_runs_with_the_weights_of_the_run_that_the_plan_names(models, x):
    merged = merge(models, (3, 1, 3), 2)
    for layer, run in enumerate((3, 1, 3)):
        theirs = models[run - 1].backbone.blocks[layer].state_dict()
        for name, value in merged.backbone.blocks[layer].state_dict().items():
            assert torch.equal(value, theirs[name])
    state = models[1].trunk.stem(x)
    for layer, run in enumerate((3, 1, 3)):
        state = models[run - 1].trunk.blocks[layer](state)
    assert torch.equal(merged(x), models[1].trunk.head(state))
    assert not torch.allclose(merged(x), models[1](x))


def test_the_ends_are_those_of_their_owner_or_the_mean_of_all(models):
    states = [model.state_dict() for model in models]
    own, mean = merge(models, (1, 2, 3), 3).state_dict(), merge(models, (1, 2, 3), None).state_dict()
    ends = [name for name in own if ".blocks." not in name]
    assert {name.split(".")[1] for name in ends} == {"patches", "token", "positions", "norm", "classifier"}
    for name in ends:
        assert torch.equal(own[name], states[2][name])
        if own[name].is_floating_point():
            assert_close(mean[name], (states[0][name] + states[1][name] + states[2][name]) / 3)
            assert not torch.allclose(mean[name], states[0][name])
        else:
            assert mean[name] == states[0][name]  # the counter of a batch norm
    blocks = [name for name in own if ".blocks." in name]
    assert all(torch.equal(own[name], mean[name]) for name in blocks)


def test_a_merge_leaves_the_runs_it_is_made_of_alone(models):
    before = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    for value in merge(models, (2, 3, 1)).parameters():
        value.data.zero_()
    for model, held in zip(models, before):
        assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ({"variant": "predict"}, "predictors"),
        ({"variant": "position", "table": "per_layer"}, "positions"),
        ({"variant": "position", "table": "shared"}, "positions"),
    ],
)
def test_what_serves_one_layer_travels_with_it(method, part):
    models = [model_of(seed, method=method) for seed in range(LAYERS)]
    merged = merge(models, (3, 1, 2), 3).get_submodule(part)
    for layer, run in enumerate((3, 1, 2)):
        theirs = models[run - 1].get_submodule(part)[layer].state_dict()
        assert len(theirs) >= 4
        for name, value in merged[layer].state_dict().items():
            assert torch.equal(value, theirs[name])


def test_a_table_that_layers_share_comes_from_the_owner_of_the_ends():
    models = [model_of(seed, method={"variant": "position"}) for seed in range(LAYERS)]
    merged = merge(models, (3, 2, 1), 2)
    assert torch.equal(merged.table, models[1].table)
    assert not torch.equal(models[1].table, models[2].table)


@torch.inference_mode()
@pytest.mark.parametrize("method", ["shuffle", "static"])
def test_plain_transformers_of_both_backbones_merge(x, method):
    tiny = {"patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}
    sections = {"backbone": {"name": "vit", "model": "vit_tiny_patch16_224", "args": tiny}, "method": {"name": method}}
    recipe = make_recipe({"data": {"name": "generated"}, **sections})
    models = [build(recipe.backbone, recipe.method, 4, (3, 16, 16)).eval() for _ in range(2)]
    merged = merge(models, (2, 1), 1)
    a, b = (model.backbone for model in models)
    assert_close(merged(x), a.head(a.blocks[1](b.blocks[0](a.stem(x)))))


def test_methods_without_layers_that_change_places_are_refused():
    recipe = recipe_of()
    for method in ("dense", "skip"):
        other = build(recipe.backbone, {"name": method}, 4, (3, 16, 16))
        with pytest.raises(MergeError, match=f"method {method}"):
            layer_weights(other)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_random_plan_takes_no_run_twice_and_reaches_all_of_them():
    rng = random.Random(0)
    plans = {random_plan(4, 3, rng) for _ in range(500)}
    assert all(len(set(plan)) == 3 and set(plan) <= {1, 2, 3, 4} for plan in plans)
    assert len(plans) == math.perm(4, 3)
    with pytest.raises(MergeError, match="2 runs are too few for 3 layers"):
        random_plan(2, 3, rng)


def test_a_given_plan_may_repeat_runs_and_is_checked():
    assert parse_plan("2-1-2", runs=2, layers=3) == (2, 1, 2)
    for text, cause in {
        "2-1": "names runs for 2 layers; the runs have 3",
        "1-2-3": "names run 3; there are 2",
        "0-1-2": "names run 0",
        "1,2,1": '"1,2,1"',
        "": '""',
        "١-1-1": "not a list of numbers",
    }.items():
        with pytest.raises(MergeError, match=cause) as caught:
            parse_plan(text, runs=2, layers=3)
        assert "--plan 1-2-1" in caught.value.cure


def test_ends_are_a_run_or_the_mean():
    assert [parse_ends(text, 3) for text in ("1", "3", "mean")] == [1, 3, None]
    for text in ("0", "4", "-1", "median", ""):
        with pytest.raises(MergeError, match="--ends"):
            parse_ends(text, 3)


# --- scores -----------------------------------------------------------------------------------------------------------


def test_hits_by_hand():
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], [1, 2, 3, 4, 5, 6]])
    assert hits(logits, torch.tensor([0, 4, 5, 5])).tolist() == [2, 3]  # first: 0 and 3; among five: all but 2
    assert hits(logits[:, :2], torch.tensor([0, 1, 1, 1])).tolist() == [2, 4]  # of two classes both are among five


@torch.inference_mode()
def test_random_merges_are_scored_as_each_would_be_alone(models):
    sequential, arbitrary = score_merges(models, Images(), 6, seed=5, owner=2, batch_size=3)
    rng, alone = random.Random(5), {"sequential": [], "arbitrary": []}
    x, y = Images().batch(torch.arange(8))
    for _ in range(6):
        merged = merge(models, random_plan(3, 3, rng), 2)
        order = models[0].groups["arbitrary"].sample(rng)
        for name, point in (("sequential", FULL), ("arbitrary", order)):
            ranked = merged(x, point).argsort(1, descending=True)
            first = (ranked[:, 0] == y).double().mean()
            alone[name].append((first, (ranked[:, :5] == y[:, None]).double().sum(1).mean()))
    for found in (sequential, arbitrary):
        wanted = torch.tensor(alone[found.order], dtype=torch.float64)
        assert_close([found.top1, found.top5], wanted.mean(0).tolist())
        assert_close([found.top1_deviation, found.top5_deviation], wanted.std(0, correction=0).tolist())
        assert (found.n, found.draws) == (8, 6)
    assert sequential.top5_deviation > 0 or sequential.top1_deviation > 0


def test_merges_of_copies_do_not_deviate_in_sequence():
    model = model_of(0)
    found = score_merges([model_of(0) for _ in range(LAYERS)], Images(), 4)[0]
    assert found.top1 == pytest.approx(evaluate(model, Images(), [FULL])[0].score)
    assert found.top1_deviation == found.top5_deviation == 0


def test_an_ensemble_of_one_is_that_model(models):
    sequential, arbitrary = score_ensemble(models[:1], Images(), batch_size=3)
    assert sequential.top1 == pytest.approx(evaluate(models[0], Images(), [FULL])[0].score)
    order = models[0].groups["arbitrary"].sample(random.Random(0))
    assert arbitrary.top1 == pytest.approx(evaluate(models[0], Images(), [order])[0].score)
    assert (sequential.n, sequential.draws, sequential.top1_deviation) == (8, None, None)


@torch.inference_mode()
def test_an_ensemble_answers_with_the_mean_of_the_logits(models):
    x, y = Images().batch(torch.arange(8))
    sequential, arbitrary = score_ensemble(models, Images(), seed=1, batch_size=3)
    rng, group = random.Random(1), models[0].groups["arbitrary"]
    for found, mean in (
        (sequential, sum(model(x) for model in models)),
        (arbitrary, sum(model(x, group.sample(rng)) for model in models)),
    ):
        right = mean.argsort(1, descending=True)[:, :5] == y[:, None]
        assert (found.top1, found.top5) == (right[:, 0].double().mean(), right.any(1).double().mean())


# --- the command line -------------------------------------------------------------------------------------------------


def save_run(folder: Path, seed: int, **sections: dict) -> Path:
    """A run with random weights: what is merged here need not have learnt anything."""
    return save_recipe(folder, recipe_of(seed, **sections))


def save_recipe(folder: Path, recipe) -> Path:
    splits = load_data(recipe)
    checkpoint.save(folder, fresh_model(recipe, splits), pin(recipe, splits))
    return folder


@pytest.fixture(scope="module")
def exits(tmp_path_factory) -> Path:
    """A run of another kind of network for the same images."""
    return save_recipe(tmp_path_factory.mktemp("exits") / "run", tiny_recipe("exits"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Three runs that say they were refined from one base. Only to be read."""
    root = tmp_path_factory.mktemp("runs")
    return [save_run(root / name, seed) for seed, name in enumerate("abc")]


def test_a_merge_counts_what_it_scores(bars, command, runs, tmp_path):
    assert command("merge", *runs, "--plan", "3-1-2", "--out", tmp_path / "merged").status == 0
    assert [(text, total, sum(steps)) for text, total, steps in bars] == [("scoring", 64, 64)]


def test_merge_writes_a_run_that_other_verbs_take(command, runs, tmp_path):
    out = tmp_path / "merged"
    said = command("merge", *runs, "--plan", "3-1-2", "--ends", "2", "--out", out, "--json")
    assert said.err == ""
    assert [row["point"] for row in said.json["points"]] == ["layers=1", "layers=1-2", "full"]
    merged = checkpoint.read_manifest(out)["merged"]
    assert merged == said.json["merged"]
    assert (merged["plan"], merged["ends"]) == ([3, 1, 2], 2)
    vouched = [checkpoint.read_manifest(run)["files"]["model.safetensors"] for run in runs]
    assert merged["runs"] == [{"run": str(run), "weights": digest} for run, digest in zip(runs, vouched)]
    sources, made = [load(run) for run in runs], load(out)
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(made(x), merge(sources, (3, 1, 2), 2)(x))
    again = evaluate(made, load_data(recipe_of()).test)
    rows = said.json["points"]
    assert [(each.name, each.score, 64) for each in again] == [(row["point"], row["score"], row["n"]) for row in rows]
    assert (out / "report.html").is_file()
    more = command("merge", out, *runs[1:], "--count", 2, "data.test_limit=8", "--json")  # a run like any other
    assert (more.json["merges"], more.err) == (2, "")


def test_the_seed_decides_a_random_merge_and_the_table_says_whose_layers_they_are(command, runs, tmp_path):
    said = command("merge", *runs, "--out", tmp_path / "out", "--seed", 3, "data.test_limit=8")
    assert said.status == 0
    plan = checkpoint.read_manifest(tmp_path / "out")["merged"]["plan"]
    assert plan == list(random_plan(3, LAYERS, random.Random(3))) != list(random_plan(3, LAYERS, random.Random(0)))
    for layer, run in enumerate(plan, 1):
        assert f"layer {layer}  from {runs[run - 1]}\n" in said.out
    assert f"the rest from {runs[0]}\n" in said.out
    recipe = checkpoint.read_manifest(tmp_path / "out")["recipe"]
    assert recipe == checkpoint.read_manifest(runs[0])["recipe"]  # data.test_limit was for this once


def test_count_prints_means_and_writes_nothing(command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("merge", *runs, "--count", 5, "--ends", "mean", "data.test_limit=20")
    said = command(*words, "--json")
    document = said.json
    assert said.err == ""
    assert [row["order"] for row in document["points"]] == ["sequential", "arbitrary"]
    assert [row["point"] for row in document["points"]] == ["full", "arbitrary"]
    models, test = [load(run) for run in runs], load_data(recipe_of(data={"test_limit": 20})).test
    wanted = score_merges(models, test, 5, owner=None)
    assert document["points"] == [json.loads(json.dumps(each.to_json())) for each in wanted]
    assert all((row["n"], row["draws"]) == (20, 5) for row in document["points"])
    table = command(*words)
    first = document["points"][0]
    assert f"{100 * first['top1']:.2f} ± {100 * first['top1_deviation']:.2f}" in table.out
    assert "(5 merges of 3 runs; 20 test images)" in table.out
    assert list(tmp_path.iterdir()) == []
    assert {path.name for path in runs[0].iterdir()} == {"model.safetensors", "manifest.json"}


def test_evaluate_takes_an_ensemble(command, runs):
    words = ("evaluate", runs[0], "--ensemble", runs[1], "--ensemble", runs[2], "data.test_limit=20")
    document = command(*words, "--json").json
    assert document["runs"] == [str(run) for run in runs]
    test = load_data(recipe_of(data={"test_limit": 20})).test
    wanted = score_ensemble([load(run) for run in runs], test)
    assert [(row["order"], row["top1"], row["top5"], row["n"]) for row in document["points"]] == [
        (each.order, each.top1, each.top5, 20) for each in wanted
    ]
    said = command(*words)
    assert "(ensemble of 3 runs; 20 test images)" in said.out
    assert f"{100 * wanted[0].top1:.2f}" in said.out
    assert not (runs[0] / "ladder.json").exists()


def test_an_ensemble_may_mix_networks_but_not_classes(command, runs, exits, tmp_path):
    rows = command("evaluate", runs[0], "--ensemble", exits, "--json").json["points"]
    assert [row["order"] for row in rows] == ["sequential"]  # an MSDNet has no layers to shuffle
    other = renamed(runs[1], tmp_path / "other")
    command("evaluate", runs[0], "--ensemble", other).refused(2, str(other), "class 3 is diagonal, not vertical")


def test_what_does_not_go_with_an_ensemble_is_refused(command, runs):
    base = ("evaluate", runs[0], "--ensemble", runs[1])
    command(*base, "--draws", 3).refused(2, "--draws does not go with --ensemble")
    command(*base, "--point", "full").refused(2, "--point does not go with --ensemble")
    command("evaluate", runs[0], "--point", "arbitrary").refused(2, '"arbitrary" is a group of points, not a point')


def renamed(run: Path, folder: Path) -> Path:
    """A copy that knows its third class by another name."""
    shutil.copytree(run, folder)
    manifest = checkpoint.read_manifest(folder)
    manifest["classes"][2] = "diagonal"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_runs_of_several_bases_are_named_in_a_warning(command, runs, tmp_path):
    scratch = save_run(tmp_path / "scratch", 5, train={"init": None})
    said = command("merge", *runs[:2], scratch, "--count", 1, "data.test_limit=8", "--json")
    assert said.json["merges"] == 1
    assert said.err.startswith("warning: ")
    assert f"{runs[0]}, {runs[1]} from runs/base; {scratch} from random weights" in said.err
    base = save_run(tmp_path / "base", 5, train={"init": None})
    child = save_run(tmp_path / "child", 6, train={"init": str(base)})
    plan = ("--plan", "-".join("12"[layer % 2] for layer in range(LAYERS)), "--out", tmp_path / "merged")
    assert command("merge", base, child, *plan, "data.test_limit=8").err == ""  # a base fits its own refinement
    other = save_run(tmp_path / "other", 5, train={"init": "./runs//base"})  # another spelling of the same folder
    assert command("merge", *runs[:2], other, "--count", 1, "data.test_limit=8", "--json").err == ""


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"backbone": {"mlp": 16}}, "backbone.mlp is 16, not 8"),
        ({"backbone": {"layers": 4}}, "backbone.layers is 4, not 3"),
        ({"method": {"variant": "predict"}}, "method.variant is predict, not plain"),
        ({"method": {"name": "static"}}, "method.name is static, not shuffle"),
        ({"data": {"size": 32}}, "input shape is (3, 32, 32), not (3, 16, 16)"),
        ({"data": {"mean": [0.5, 0.5, 0.5]}}, "data.mean is [0.5, 0.5, 0.5]"),
    ],
)
def test_runs_that_do_not_fit_are_refused_by_name(command, runs, tmp_path, sections, named):
    other = save_run(tmp_path / "other", 0, **sections)
    said = command("merge", *runs[:2], other, "--plan", "1-2-3", "--out", tmp_path / "out")
    said.refused(2, f"{other} does not fit {runs[0]}", named)
    assert not (tmp_path / "out").exists()


def test_runs_of_other_classes_are_not_merged(command, runs, tmp_path):
    other = renamed(runs[2], tmp_path / "other")
    command("merge", *runs[:2], other, "--count", 1).refused(2, str(other), "class 3 is diagonal, not vertical")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("A", "B", "--count", "3"), ("2 runs are too few for 3 layers", "--plan 1-2-1")),
        (("A", "B", "--plan", "1-2-3", "--out", "NEW"), ("run 3", "there are 2")),
        (("A", "B", "--plan", "", "--out", "NEW"), ("--plan",)),
        (("A", "B", "C", "--ends", "4", "--out", "NEW"), ('--ends is "4"', "from 1 to 3, or mean")),
        (("A", "B", "C"), ("neither of --out and --count",)),
        (("A", "B", "C", "--count", "3", "--out", "NEW"), ("both of --out and --count",)),
        (("A", "B", "C", "--count", "3", "--plan", "1-2-3"), ("--plan does not go with --count",)),
        (("A", "B", "C", "--count", "0"), ("--count", "supple merge --help")),
        (("A", "B", "A", "--out", "NEW"), ("A is given twice",)),
        (("A", "B", "C", "--out", "A"), ("A already exists", "--out")),
        (("A", "B", "C", "train.lr=1", "--out", "NEW"), ("train.lr=1", "Only data.*")),
        (("A", "B", "nowhere", "--out", "NEW"), ("there is no run folder nowhere",)),
        (("A", "B", "EMPTY", "--out", "NEW"), ("manifest.json is missing",)),
        (("data.test_limit=3", "--count", "3"), ("no run is given",)),
        (("EXITS", "--plan", "1-1-1", "--out", "NEW"), ("method exits", "shuffle")),
    ],
)  # fmt: skip
def test_mistakes_are_refused_kindly_and_nothing_is_written(command, runs, exits, tmp_path, words, named):
    (tmp_path / "empty").mkdir()
    places = {"A": runs[0], "B": runs[1], "C": runs[2], "NEW": tmp_path / "new", "EMPTY": tmp_path / "empty"}
    places["EXITS"] = exits
    said = command("merge", *(places.get(word, word) for word in words))
    said.refused(2, *(name.replace("A ", f"{runs[0]} ") for name in named))
    assert not (tmp_path / "new").exists()


def test_an_ensemble_refuses_points_doubled_runs_and_what_is_no_run(command, runs):
    command("evaluate", runs[0], "--ensemble", runs[1], "--point", "full").refused(2, "--point", "--ensemble")
    command("evaluate", runs[0], "--ensemble", runs[0]).refused(2, "given twice")
    command("evaluate", runs[0], "--ensemble", "nowhere").refused(2, "no run folder nowhere")


def test_an_altered_source_is_refused(command, runs, tmp_path):
    broken = Path(shutil.copytree(runs[2], tmp_path / "broken"))
    with (broken / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    command("merge", *runs[:2], broken, "--count", 1).refused(2, str(broken), "altered or truncated")
