"""`supple prune`: from a run to a smaller one, that answers at once and can be trained on."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from supple import FULL, checkpoint, load
from supple.backbones.dims import shape_of
from supple.cost import count_params
from supple.methods import build
from supple.recipe import load_recipe, make_recipe
from supple.surgery.prune import Plan, cut, prune, save
from supple.training.build import load_data
from supple.training.loop import train
from tiny import tiny_recipe
from tiny_transformers import INPUT, recipe_of, save_run


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Path:
    return save_run(tmp_path_factory.mktemp("prune") / "search", recipe_of())


@pytest.fixture(scope="module")
def unsearched(tmp_path_factory) -> Path:
    return save_run(tmp_path_factory.mktemp("prune") / "whole", recipe_of("vit", method={"name": "static"}))


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> dict[str, Path]:
    """Runs of networks without attention."""
    folder = tmp_path_factory.mktemp("others")
    return {name.upper(): save_run(folder / name, tiny_recipe(name)) for name in ("slim", "exits")}


def test_pruning_counts_what_it_scores(bars, command, search, tmp_path):
    assert command("prune", search, "--ratio", 0.4, "--out", tmp_path / "pruned").status == 0
    ((text, total, steps),) = bars
    assert (text, sum(steps)) == ("scoring", total)


def test_json_tells_what_became_of_every_block(command, search, tmp_path):
    pruned = tmp_path / "pruned"
    said = command("prune", search, "--ratio", 0.4, "--out", pruned, "--json").json
    model, (row,) = load(pruned), load(pruned).ladder.rows
    assert tuple(map(tuple, said["kept"])) == shape_of(model.backbone)
    assert (said["run"], said["ratio"], said["clamped"]) == (str(pruned), 0.4, 0)
    assert [tuple(block["dims"]) for block in said["blocks"]] == [(12, kept[0]) for kept in said["kept"]]
    assert all(min(block["ms"]) > 0 for block in said["blocks"])
    [point] = said["points"]
    assert (point["macs"], point["params"], point["n"]) == (row.macs, row.params, 64)
    assert row.params == count_params(model.parameters())
    assert (pruned / "report.html").is_file()


def test_nothing_cut_is_the_searched_network_with_its_scores_folded_in(command, search, tmp_path):
    """The arm that pruned ones are compared with, trained on as they are."""
    said = command("prune", search, "--ratio", 0, "--out", tmp_path / "whole", "--json").json
    x, before, after = torch.randn(2, *INPUT), load(search), load(tmp_path / "whole")
    assert said["cut"] == [0.0]
    assert_close(after(x), before(x))


def test_a_table_and_the_next_command_are_printed(command, unsearched, tmp_path):
    said = command("prune", unsearched, "--ratio", 0.5, "--by", "magnitude", "--multiple", 4, "--out", tmp_path / "out")
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    kept = shape_of(load(tmp_path / "out").backbone)
    assert lines[0].split()[:3] == ["block", "head", "dims"]
    assert f"8 > {kept[0][0]}" in lines[1]
    assert f"96 > {kept[0][1]}" in lines[1]
    assert all(size % 4 == 0 for pair in kept for size in pair)
    assert lines[-1] == f"Fine-tune it: supple train {tmp_path / 'out' / 'recipe.yaml'} --out RUN"


def test_a_group_that_was_kept_alive_is_mentioned(command, tmp_path):
    run = save_run(tmp_path / "run", recipe_of("vit"))
    model = load(run)
    with torch.no_grad():
        model.scores[2].mul_(1e-6)
    checkpoint.save(run, model, make_recipe(checkpoint.read_manifest(run)["recipe"]))
    said = command("prune", run, "--ratio", 0.5, "--out", tmp_path / "out")
    assert "at width 0.5, 1 groups would have lost all dimensions; each keeps one." in said.out
    assert shape_of(load(tmp_path / "out").backbone)[1][0] == 1


@pytest.mark.timeout(120)
def test_search_prune_and_fine_tune(command, tmp_path):
    run = train(recipe_of("vit", train={"epochs": 2}, method={"gamma": 1e-2}), tmp_path / "search", quiet=True)
    scores = load(run).scores
    assert all((score < 1).any() for score in scores)  # the penalty pulls
    assert command("prune", run, "--ratio", 0.4, "--out", tmp_path / "pruned").status == 0
    fine = load_recipe(tmp_path / "pruned" / "recipe.yaml")
    source = make_recipe(checkpoint.read_manifest(run)["recipe"])
    assert fine.method == {"name": "static", "learn": "all", "freeze_random": False}
    assert fine.backbone == {**source.backbone, "kept": shape_of(load(tmp_path / "pruned").backbone)}
    assert fine.train == source.train.model_copy(update={"init": str(tmp_path / "pruned")})
    assert (fine.data, fine.loss) == (source.data, source.loss)
    words = ("train", tmp_path / "pruned" / "recipe.yaml", "--out", tmp_path / "tuned", "train.lr=1e-9")
    said = command(*words)
    assert said.status == 0, said.err
    before, after = load(tmp_path / "pruned"), load(tmp_path / "tuned")
    x = torch.randn(4, *INPUT)
    assert_close(after(x), before(x), atol=1e-4, rtol=1e-4)  # a warm start, and steps of next to nothing


def test_a_run_of_layers_in_any_order_can_be_pruned_by_magnitude(command, tmp_path):
    sections = {"backbone": {"name": "vit"}, "method": {"name": "shuffle"}, "train": {"sample": "arbitrary"}}
    run = save_run(tmp_path / "run", recipe_of("vit", **sections))
    said = command("prune", run, "--ratio", 0.5, "--by", "magnitude", "--out", tmp_path / "out", "--json")
    assert said.status == 0, said.err
    assert load(tmp_path / "out").points == (FULL,)
    assert load_recipe(tmp_path / "out" / "recipe.yaml").train.sample == "every"
    again = {"kept": shape_of(load(tmp_path / "out").backbone)}
    shuffled = build({**recipe_of("vit", **sections).backbone, **again}, {"name": "shuffle"}, 4, INPUT)
    assert len(shuffled.points) > 1


def test_a_pruned_run_can_be_pruned_again(command, unsearched, tmp_path):
    pruned = tmp_path / "pruned"
    assert command("prune", unsearched, "--ratio", 0.4, "--by", "random", "--out", pruned).status == 0
    said = command("prune", pruned, "--ratio", 0.3, "--by", "magnitude", "--out", tmp_path / "again", "--json")
    network, kept = prune(load(pruned), 0.3, Plan(by="magnitude"))
    assert tuple(map(tuple, said.json["kept"])) == kept.shape
    x = torch.randn(2, *INPUT)
    with torch.inference_mode():
        assert torch.equal(load(tmp_path / "again")(x), network(x))


def test_what_rounding_undoes_is_said(command, search, tmp_path):
    said = command("prune", search, "--ratio", 0.4, "--multiple", 1024, "--out", tmp_path / "out")
    assert "0.0% of the dimensions were pruned instead of 40.0%" in said.out
    assert "all blocks" in said.out


def test_points_of_another_method_are_left_behind_and_connections_refused(command, tmp_path):
    exits = save_run(tmp_path / "exits", recipe_of("vit", method={"name": "exits", "at": ["blocks.0"]}))
    said = command("prune", exits, "--ratio", 0.4, "--by", "magnitude", "--out", tmp_path / "out")
    assert "dropped: exit=1. Only the network itself was pruned." in said.out
    sections = {"backbone": {"name": "vit"}, "method": {"name": "dense"}}
    dense = save_run(tmp_path / "dense", recipe_of("vit", **sections))
    said = command("prune", dense, "--ratio", 0.4, "--by", "magnitude", "--out", tmp_path / "none")
    said.refused(2, "method dense adds to the network", "then train this method")
    assert not (tmp_path / "none").exists()


def test_what_was_begun_is_removed_when_saving_fails(monkeypatch, search, tmp_path):
    pruned, test = cut(load(search), 0.4, None, Plan()).model, load_data(recipe_of()).test
    monkeypatch.setattr("supple.surgery.prune.files.write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        save(out, pruned, test)
    assert not out.exists()


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("SEARCH", "--ratio", 1), ("the ratio to prune is 1", "from 0 to below 1")),
        (("SEARCH", "--ratio", -0.4), ("-0.4", "from 0 to below 1")),
        (("SEARCH", "--ratio", 0.99), ("pruning 0.99 of 420 dimensions leaves 4 for 6 groups", "prune less")),
        (("SEARCH",), ("one of --ratio and --widths", "--ratio 0.4")),
        (("SEARCH", "--ratio", 0.4, "--widths", "0.4"), ("--ratio and --widths are both given",)),
        (("SEARCH", "--widths", "0.4,0.2"), ("0.4,0.2", "0.2,0.4,0.6,0.8")),
        (("SEARCH", "--widths", "0.5,1.0"), ("0.5,1.0", "between 0 and 1")),
        (("SEARCH", "--widths", "half"), ("half",)),
        (("SEARCH", "--ratio", 0.4, "--ranking", "local"), ('--ranking is "local"', "global, per_type, per_layer")),
        (("SEARCH", "--ratio", 0.4, "--by", "luck"), ('--by is "luck"', "score, magnitude, random")),
        (("SEARCH", "--ratio", 0.4, "--multiple", 0), ("--multiple", "supple prune --help")),
        (("SEARCH", "--ratio", 0.4, "train.lr=1"), ("train.lr=1", "Only data.*")),
        (("UNSEARCHED", "--ratio", 0.4), ("never searched", "--by magnitude")),
        (("UNSEARCHED", "--widths", "0.4"), ("never searched", "--by magnitude")),
        (("SLIM", "--ratio", 0.4), ("no block with `attn` and `mlp`", "ViT, DeiT or Swin")),
        (("EXITS", "--ratio", 0.4, "--by", "magnitude"), ("no block with `attn` and `mlp`",)),
        (("nowhere", "--ratio", 0.4), ("there is no run folder nowhere",)),
    ],
)  # fmt: skip
def test_mistakes_are_refused_kindly_and_nothing_is_written(
    command, search, unsearched, others, tmp_path, words, named
):
    places = {"SEARCH": search, "UNSEARCHED": unsearched, **others}
    said = command("prune", *(places.get(word, word) for word in words), "--out", tmp_path / "out")
    said.refused(2, *named)
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_not_overwritten(command, search):
    command("prune", search, "--ratio", 0.4, "--out", search).refused(2, f"{search} already exists")
