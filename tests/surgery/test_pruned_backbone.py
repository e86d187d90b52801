"""A pruned network is a backbone: it takes exits and is padded for deployment."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import test_contract as contract
from supple import checkpoint, load
from supple.backbones.dims import shape_of
from supple.cost import count_macs, count_params, profile
from supple.methods import build
from supple.methods.exits import Exits
from supple.recipe import load_recipe, make_recipe
from supple.surgery.prune import Plan, prune
from supple.training.init import initialise
from supple.training.loop import train
from tiny_transformers import INPUT, SHAPES, drop, recipe_of, save_run

CONTRACT = [
    contract.test_points_are_distinct_and_end_with_the_full_model,
    contract.test_run_agrees_with_forward_point_by_point,
    contract.test_only_asked_points_come_and_in_execution_order,
    contract.test_a_run_ends_when_every_sample_has_left,
    contract.test_two_interleaved_runs_do_not_disturb_each_other,
    contract.test_threads_with_different_points_do_not_disturb_each_other,
    contract.test_extract_gives_a_plain_module_with_equal_outputs,
    contract.test_extract_for_deployment_is_equal_to_1e_5,
    contract.test_cost_never_falls_along_the_points_and_equals_that_of_the_extract,
    contract.test_every_stage_answers_the_point_that_it_names_and_the_last_one_is_the_full_model,
]


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Path:
    return save_run(tmp_path_factory.mktemp("prune") / "search", recipe_of())


@pytest.fixture(scope="module")
def pruned(search) -> Path:
    """Saved by another process."""
    out = search.parent / "pruned"
    run(["prune", str(search), "--ratio", "0.4", "--out", str(out)])
    return out


def run(words: list[str], module: bool = True) -> str:
    """What a process of its own prints: of a verb of supple, or of Python."""
    command = [sys.executable, *(["-m", "supple"] if module else []), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exits(pruned) -> Exits:
    recipe = make_recipe(checkpoint.read_manifest(pruned)["recipe"])
    method = {"name": "exits", "at": ["layers.0"]}
    recipe = make_recipe({**recipe.resolved(), "method": method})
    model = build(recipe.backbone, recipe.method, 4, INPUT)
    model.backbone.load_state_dict(load(pruned).backbone.state_dict())
    return model.eval()


def test_a_pruned_run_loads_from_its_folder_alone_and_equals_what_was_pruned(search, pruned, tmp_path):
    network, kept = prune(load(search), 0.4, Plan())
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("model.safetensors", "manifest.json"):
        (moved / name).write_bytes((pruned / name).read_bytes())
    model = load(moved)
    assert shape_of(model.backbone) == kept.shape != SHAPES["swin"]
    x = torch.randn(4, *INPUT)
    with torch.inference_mode():
        assert torch.equal(model(x), network(x))
    masked = load(search)
    drop(masked, kept)
    assert_close(model(x), masked(x), atol=1e-5, rtol=1e-5)


@pytest.mark.system
def test_the_swin_t_of_the_paper_is_pruned_by_one_process_and_answers_in_another(tmp_path):
    swin_t = make_recipe(
        {
            "data": {"name": "generated", "size": 64, "limit": 64, "test_limit": 4},
            "backbone": load_recipe("sidt/cifar100_swin_t").backbone,
            "method": {"name": "prune"},
        }
    )
    search = save_run(tmp_path / "search", swin_t)
    run(["prune", str(search), "--ratio", "0.4", "--out", str(tmp_path / "pruned")])
    script = f"""
import torch, supple
model = supple.load({str(tmp_path / "pruned")!r})
with torch.inference_mode():
    print(sum(p.numel() for p in model.parameters()), *model(torch.ones(1, 3, 64, 64))[0].tolist())
"""
    params, *logits = map(float, run(["-c", script], module=False).split())
    network, kept = prune(load(search), 0.4, Plan())
    assert sum(len(dims) for pair in kept.dims for dims in pair) == int(0.6 * 18_048)  # of heads and MLPs
    assert params == count_params(network.parameters())
    with torch.inference_mode():
        assert_close(torch.tensor(logits), network(torch.ones(1, 3, 64, 64))[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__.removeprefix("test_"))
def test_exits_on_a_pruned_swin_keep_the_contract(exits, promise):
    arguments = {"model": exits, "x": torch.randn(6, *INPUT, generator=torch.Generator().manual_seed(1))}
    wanted = promise.__code__.co_varnames[: promise.__code__.co_argcount] or ("model", "x")
    promise(**{name: arguments[name] for name in wanted})


def test_exits_on_a_pruned_swin_answer_in_the_end_as_it_does(exits, pruned):
    x = torch.randn(3, *INPUT)
    assert [str(point) for point in exits.points] == ["exit=1", "full"]
    assert_close(exits(x), load(pruned)(x))
    assert shape_of(exits.extract()) == shape_of(load(pruned).backbone)


def test_exits_are_trained_on_a_pruned_run(pruned, tmp_path):
    changes = ["method.name=exits", "method.at=[layers.0]", "method.way=classifier_wise"]
    folder = train(load_recipe(pruned / "recipe.yaml", changes), tmp_path / "exits", quiet=True)
    x = torch.randn(3, *INPUT)
    assert_close(load(folder)(x), load(pruned)(x))  # the backbone stood still
    assert len(load(folder).ladder.rows) == 2


def test_another_method_that_starts_from_a_search_gets_the_scores_in_its_weights(search):
    model = build(recipe_of().backbone, {"name": "exits", "at": ["layers.0"]}, 4, INPUT).eval()
    x = torch.randn(3, *INPUT)
    initialise(model, make_recipe({**recipe_of().resolved(), "train": {"init": str(search)}}), quiet=True)
    assert_close(model(x), load(search)(x))


# --- padding for deployment -------------------------------------------------------------------------------------------


def test_padding_is_used_where_it_is_faster_and_never_counted(monkeypatch, pruned):
    model, x = load(pruned), torch.randn(2, *INPUT)
    counted = profile(model)
    for wins in (True, False):
        choose = lambda modules, *_, wins=wins, **__: modules[-1 if wins else 0]
        monkeypatch.setattr("supple.surgery.deploy.fastest", choose)
        fast = model.extract(deploy=True)
        odd = [size % 8 for pair in shape_of(fast) for size in pair]
        assert any(odd) != wins
        assert_close(fast(x), model(x), atol=1e-5, rtol=1e-5)
    assert profile(model) == counted
    bare = copy.deepcopy(model).to("meta")
    assert counted[0].macs == count_macs(lambda: bare(torch.empty(1, *INPUT, device="meta")))
    assert counted[0].params == count_params(model.parameters())
