"""Experiments as files: those that come with supple are valid, what could not be judged is refused by name."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from supple.errors import PointError, RecipeError
from supple.experiments.declared import (
    Experiment,
    check,
    check_fixed,
    chosen,
    experiment_files,
    load_experiment,
    number,
    parse_claims,
    parse_seeds,
    with_seeds,
)
from supple.experiments.jobs import Job
from supple.experiments.page import OPEN
from supple.experiments.running import check_recipes, recipe_of

FILES = experiment_files()
ROOT = Path(__file__).parents[2]
TRAIN = {"epochs": 1, "precision": "fp32", "memory_format": "channels_first", "compile": "off", "threads": 1}
TINY: dict[str, Any] = {
    "title": "tiny",
    "regime": "none",
    "core_hours": 0.1,
    "seeds": [0, 1, 2],
    "evaluate": ["full", "arbitrary"],
    "recipe": {
        "data": {"name": "generated"},
        "backbone": {"name": "vit_cifar", "width": 12, "mlp": 8, "heads": 3, "layers": 4, "grid": 4},
        "method": {"name": "shuffle"},
        "train": TRAIN,
    },
    "arms": {
        "base": {"evaluate": []},
        "plain": {"after": "base"},
        "shuffle": {"after": "base", "changes": ["train.sample=arbitrary"]},
        "both": {"merge": {"of": "shuffle", "pools": {0: [0, 1], 2: [1, 2]}}},
    },
    "claims": {
        "C16": {
            "text": "shuffling helps",
            "of": {"arm": "shuffle", "at": "arbitrary"},
            "minus": {"arm": "plain", "at": "arbitrary"},
            "expect": "above",
        }
    },
}


def tiny(**changes: Any) -> Experiment:
    """TINY with other values at dotted keys: tiny(**{"claims.C16.expect": "below"})."""
    document = copy.deepcopy(TINY)
    for key, value in changes.items():
        *path, last = key.split(".")
        inner: Any = document
        for part in path:
            inner = inner[part]
        inner[last] = value
    experiment = Experiment.model_validate(document)
    check(experiment, "tiny")
    return experiment


# --- the files that come with supple ---


def test_the_claims_of_the_files_are_decided_once_each():
    claims = [claim for name in FILES for claim in load_experiment(name).claims]
    assert len(claims) == len(set(claims))
    assert {number(claim) for claim in claims} | {number(claim) for claim in OPEN} == {*range(1, 28)}
    assert not set(OPEN) & set(claims)


def test_what_comes_first_fits_into_forty_hours_of_a_core():
    found = [experiment for _, experiment, _ in chosen([], None, everything=True)]
    assert found[0].title.startswith("LayerShuffle")
    assert len({experiment.order for experiment in found}) == len(found)
    within = [experiment for experiment in found if experiment.order <= 6]
    assert sum(experiment.core_hours for experiment in within) <= 40


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_its_command_and_says_how_its_regime_was_chosen(name):
    text = FILES[name].read_text()
    assert re.search(rf"^# supple reproduce {name}( --claims [C\d,-]+)? --jobs 2$", text, re.M)
    experiment = load_experiment(name)
    assert "alone" in experiment.regime
    assert experiment.hours <= 2
    assert len(experiment.seeds) >= 3


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name in FILES for arm in load_experiment(name).arms])
def test_every_arm_is_a_valid_recipe_and_has_the_points_that_are_evaluated(name, arm):
    experiment = load_experiment(name)
    check_recipes(Job(name, experiment, arm, experiment.seeds_of(arm)[0], Path("runs"), Path("results")))


def test_the_share_of_equal_weights_in_c24_is_that_of_ten_layers():
    claim = load_experiment("dynamic").claims["C24"]
    assert -claim.constant() == pytest.approx(100 * sum(1 / layer for layer in range(6, 11)) / 5, abs=0.005)


def test_published_differences_are_those_of_the_figures():
    """Of two numbers in a claim's figures, the difference; the signs are those of the paper."""
    pairs = {"C2": (93.01, 92.39), "C3": (62.45, 61.83), "C9": (71.89, 70.79), "C12": (85.65, 82.79)}
    pairs |= {"C16": (62.77, 0.13), "C22": (68.98, 68.11), "C23": (67.18, 68.11)}
    claims = {claim: one for name in FILES for claim, one in load_experiment(name).claims.items()}
    for claim, (one, other) in pairs.items():
        assert claims[claim].published == pytest.approx(one - other)
        assert f"{one}" in claims[claim].figures
    assert claims["C20"].published == pytest.approx((82.61 - 1.87) - (62.77 - 59.68))


# --- what an experiment says ---


def test_an_arm_is_the_recipe_with_its_sections_and_changes():
    made = tiny(**{"arms.plain": {"sections": {"method": {"name": "static"}}, "changes": ["train.epochs=3"]}})
    document = made.document("plain")
    assert document["method"] == {"name": "static"}
    assert document["train"]["epochs"] == 3
    assert made.recipe == TINY["recipe"]  # as it was


def test_what_is_pruned_has_the_recipe_of_its_search():
    arms = {"search": {"sections": {"method": {"name": "prune"}}, "changes": ["train.lr=0.5"]}}
    arms |= {"p40": {"after": "search", "prune": 0.4, "changes": ["train.epochs=7"]}}
    claim = {"text": "x", "of": {"arm": "p40"}, "minus": {"arm": "search"}, "expect": "above"}
    document = tiny(arms=arms, evaluate=["full"], claims={"C26": claim}).document("p40")
    assert document["method"] == {"name": "static"}
    assert (document["train"]["lr"], document["train"]["epochs"]) == (0.5, 7)


def test_runs_start_from_the_same_seed_or_from_the_only_one():
    assert tiny().needs("shuffle", 2) == [("base", 2)]
    assert tiny(**{"arms.base.seeds": [7]}).needs("shuffle", 2) == [("base", 7)]
    assert tiny().needs("both", 2) == [("shuffle", 1), ("shuffle", 2)]
    assert tiny().seeds_of("both") == (0, 2)


def test_a_claim_needs_its_arms_and_those_they_start_from():
    assert tiny().arms_of(["C16"]) == ["base", "shuffle", "plain"]


def test_the_hash_is_of_recipe_seed_and_start_alone():
    made = tiny()
    everything = [made.hash(arm, seed) for arm in made.arms for seed in made.seeds_of(arm)]
    assert len(set(everything)) == len(everything)
    same = tiny(title="other", regime="other", core_hours=9, evaluate=["full", "arbitrary", "any 2"])
    assert [same.hash(arm, seed) for arm in same.arms for seed in same.seeds_of(arm)] == everything
    other = tiny(**{"arms.base.changes": ["train.lr=0.01"]})
    assert all(other.hash(arm, 0) != made.hash(arm, 0) for arm in made.arms)  # what starts from it is another run, too
    weights = [{"file": file, "sha256": 64 * digit} for file, digit in (("a", "0"), ("b", "0"), ("a", "1"))]
    hashes = [tiny(weights=given).hash("base", 0) for given in weights]
    assert hashes[0] == hashes[1] != hashes[2]  # of what a file holds, not of its name
    assert made.hash("base", 0) not in hashes
    assert tiny(by_seed=["data.fold"], arms={"base": {}, "plain": {}, "shuffle": {}}).hash("base", 0) != made.hash(
        "base", 0
    )


def test_other_seeds_replace_the_declared_ones_and_pools_move_with_them():
    experiment = tiny(
        **{"arms.base.seeds": [7], "arms.shuffle.seeds": [0, 1, 2, 3], "arms.both.merge.pools": {0: [0, 3]}}
    )
    moved = with_seeds(experiment, (10, 11, 12))
    assert moved.seeds_of("plain") == (10, 11, 12)
    assert moved.seeds_of("shuffle") == (10, 11, 12, 13)
    assert moved.needs("both", 10) == [("shuffle", 10), ("shuffle", 13)]
    assert moved.needs("plain", 11) == [("base", 7)]  # the only run of an arm stays
    assert with_seeds(experiment, (0, 1, 2)) == experiment
    assert parse_seeds("3, 4,5") == (3, 4, 5)
    for text in ("3,x", "", "3,3,4"):
        with pytest.raises(RecipeError, match="--seeds is"):
            parse_seeds(text)
    with pytest.raises(RecipeError, match="2 seeds are given, and the experiment has 3"):
        with_seeds(experiment, (3, 4))


def test_copied_images_are_labelled_by_the_run_of_another_arm(tmp_path):
    copycat = {"labeller": "base", "root": "others"}
    arms = {"base": {}, "shuffle": {"seeds": [4]}, "plain": {"after": "shuffle", "sections": {"copycat": copycat}}}
    claims = {"C10": {**TINY["claims"]["C16"], "of": {"arm": "plain"}, "minus": {"arm": "base"}}}
    made = tiny(arms=arms, claims=claims)
    assert made.needs("plain", 2) == [("shuffle", 4), ("base", 2)]
    assert made.arms_of(["C10"]) == ["shuffle", "base", "plain"]
    job, labeller = (Job("tiny", made, arm, 2, tmp_path, tmp_path) for arm in ("plain", "base"))
    assert job.beside("base") == labeller.folder
    assert recipe_of(job, None, labeller.folder).copycat.labeller == str(labeller.folder)
    other = tiny(arms={**arms, "base": {"changes": ["train.lr=0.5"]}}, claims=claims)
    assert other.hash("plain", 2) != made.hash("plain", 2)


def test_a_seed_may_be_a_setting_of_the_data(tmp_path):
    recipe = {**TINY["recipe"], "data": {"name": "esc", "root": "x", "classes": 10, "size": 16}}
    arms = {"base": {}, "plain": {"after": "base"}, "shuffle": {}}
    made = tiny(by_seed=["data.fold"], recipe=recipe, arms=arms, seeds=[1, 2, 3])
    told = recipe_of(Job("tiny", made, "plain", 2, tmp_path, tmp_path))
    assert (told.train.seed, told.data.fold) == (2, 2)
    with pytest.raises(RecipeError, match="has other data"):
        tiny(by_seed=["data.fold"], recipe=recipe, arms={**arms, "base": {"seeds": [1]}})
    with pytest.raises(RecipeError, match="by_seed has train.lr"):
        tiny(by_seed=["train.lr"])


def test_claims_are_named_alone_or_as_ranges():
    known = ["C5", "C16", "C17", "C20", "C9"]
    assert parse_claims("C16-C21", known) == ["C16", "C17", "C20"]
    assert parse_claims("c9, 5,C16-17", known) == ["C9", "C5", "C16", "C17"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("text", "words"), [("C99", "no experiment decides C99"), ("x", "not a valid claim"), (",", "no")]
)
def test_unknown_claims_are_refused(text, words):
    with pytest.raises(RecipeError, match=words) as caught:
        parse_claims(text, ["C5", "C16"])
    assert "C16" in caught.value.cure


def test_a_misspelt_name_gets_a_guess():
    with pytest.raises(RecipeError, match="there is no experiment layershufle") as caught:
        load_experiment("layershufle")
    assert 'Did you mean "layershuffle"?' in caught.value.cure


@pytest.mark.parametrize("key", ["precision", "memory_format", "compile", "threads"])
def test_what_a_clock_would_choose_is_refused(key):
    auto = 0 if key == "threads" else "auto"
    for train in ({**TRAIN, key: auto}, {k: v for k, v in TRAIN.items() if k != key}):
        with pytest.raises(RecipeError, match=rf"train.{key} is (auto|0)") as caught:
            check_fixed({"data": {}, "train": train}, "mine")
        assert "threads: 1" in caught.value.cure
    with pytest.raises(RecipeError, match=f"arms.shuffle: train.{key}"):
        tiny(**{"arms.shuffle.changes": [f"train.{key}={auto}"]})


@pytest.mark.parametrize(
    ("changes", "words", "cure"),
    [
        ({"arms.plain.after": "bas"}, "made from bas", 'Did you mean "base"?'),
        ({"arms.base.after": "plain"}, "not declared above it", "Possible"),
        ({"arms.plain.seeds": [0, 9]}, "needs base with seed 9", "0, 1, 2"),
        ({"arms.plain.prune": 0.2, "arms.plain.after": None}, "nothing to prune", "after"),
        ({"arms.both.changes": ["train.epochs=1"]}, "made in several ways", "no other keys"),
        ({"arms.both.merge": {"of": "shuffle", "pools": {0: [0, 5]}}}, "seed 5", "0, 1, 2"),
        ({"claims.C16.of": {"arm": "shufle"}}, 'no arm "shufle"', 'Did you mean "shuffle"?'),
        ({"claims.C16.of": {"arm": "shuffle", "at": "arbitary"}}, "not evaluated", 'Did you mean "arbitrary"?'),
        ({"claims.C16.of": {"arm": "base"}}, '"full" of base is not evaluated', "add it"),
        ({"claims.C16.of": 1, "claims.C16.minus": 2}, "compares nothing", "of:"),
        ({"claims": {"x": TINY["claims"]["C16"]}}, '"x" is not the number of a claim', "C16"),
        ({"claims.C16.of": {"arm": "plain", "sources": True}}, "plain is merged from nothing", "Leave sources out"),
        ({"arms.plain.sections": {"copycat": {"labeller": "bas", "root": "x"}}}, "made from bas", "base"),
        ({"arms.plain.changes": ["data.test_limit=100"]}, "test_limit is 100", "all images"),
        ({"arms.plain.changes": ["train.seed=1"]}, "train.seed is 1", "Use seeds"),
        ({"arms.plain.changes": ["train.init=runs/x"]}, "train.init is runs/x", "weights"),
    ],
)
def test_what_could_not_be_judged_is_refused(changes, words, cure):
    with pytest.raises(RecipeError, match=re.escape(words)) as caught:
        tiny(**changes)
    assert cure in caught.value.cure


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"claim": {}}, 'unknown key "claim"'),
        ({"regime": None}, '"regime" is'),
        ({"claims.C16.expect": "better"}, "\"claims.C16.expect\" is 'better'"),
    ],
)
def test_a_file_that_is_not_an_experiment_is_refused_by_key(changes, words, tmp_path):
    document = copy.deepcopy(TINY)
    for key, value in changes.items():
        *path, last = key.split(".")
        inner: Any = document
        for part in path:
            inner = inner[part]
        inner[last] = value
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.raises(RecipeError, match=re.escape(words)) as caught:
        load_experiment(tmp_path / "mine.yaml")
    assert caught.value.cure


def test_a_key_that_is_missing_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_text("title: x")
    with pytest.raises(RecipeError, match='"regime" is missing'):
        load_experiment(tmp_path / "mine.yaml")


def test_a_point_that_the_model_has_not_is_refused_before_anything_runs(tmp_path):
    for name, error in (("exit=2", PointError), ("any 3, arbitary", RecipeError), ("skipped", RecipeError)):
        made = tiny(**{"arms.shuffle.evaluate": ["arbitrary", name]})
        with pytest.raises(error):
            check_recipes(Job("tiny", made, "shuffle", 0, tmp_path, tmp_path))
