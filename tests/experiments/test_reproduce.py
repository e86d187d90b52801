"""The verb from end to end on a tiny experiment: trained, evaluated, judged, told; and what the page must say."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from test_declared import TINY

import supple
from supple.errors import CheckpointError, DataError, RecipeError
from supple.experiments import declared, reproduction
from supple.experiments.page import BEGIN, END
from supple.experiments.running import run_one
from supple.training.build import data_of

ROOT = Path(__file__).parents[2]
VIT = {"name": "timm", "model": "vit_tiny_patch16_224", "args": {"patch_size": 4, "embed_dim": 24, "depth": 2}}


def experiment(**changes: Any) -> dict[str, Any]:
    """Three epochs against none to speak of, on stripes: seconds."""
    train = {**TINY["recipe"]["train"], "epochs": 3, "optimizer": "adamw", "lr": 3e-3}
    made = {**copy.deepcopy(TINY), "evaluate": ["exit=1", "full"]}
    made["recipe"] = {
        "data": {"name": "generated", "batch_size": 64},
        "backbone": {"name": "msdnet", "blocks": 2, "base": 1, "step": 1, "channels": 8, "growth_rate": 4},
        "method": {"name": "exits"},
        "train": train,
    }
    made["recipe"]["backbone"] |= {"growth_factors": [1, 2], "bottleneck_factors": [1, 2], "head_channels": 16}
    made["arms"] = {"learnt": {}, "still": {"changes": ["train.lr=1e-9", "train.epochs=1"]}}
    claim = {"text": "training helps", "expect": "above", "published": 70.0, "figures": "95 against 25"}
    made["claims"] = {"C1": {**claim, "of": {"arm": "learnt"}, "minus": {"arm": "still"}}}
    return {**made, **changes}


@pytest.fixture
def places(tmp_path, monkeypatch) -> dict[str, Any]:
    """One experiment that comes with supple, a page, and folders for runs and results."""
    (tmp_path / "recipes" / "claims").mkdir(parents=True)
    path = tmp_path / "recipes" / "claims" / "small.yaml"
    path.write_text(yaml.safe_dump(experiment(), sort_keys=False))
    monkeypatch.setattr(declared, "recipe_folders", lambda: [tmp_path / "recipes"])
    (tmp_path / "docs" / "img").mkdir(parents=True)
    page = tmp_path / "docs" / "claims.md"
    page.write_text(f"# Claims\n\n{BEGIN}\n{END}\n\nby hand\n")
    return {"runs": tmp_path / "runs", "results": tmp_path / "results", "page": page}


def test_an_experiment_from_end_to_end(places, command, monkeypatch):
    found = supple.reproduce("small", **places, jobs=1, start=run_one)
    assert sorted(found.ran) == [f"small/{arm}-{seed}" for arm in ("learnt", "still") for seed in range(3)]
    (row,) = found.rows
    assert row.verdict == "holds"
    assert row.effect.points > 20
    assert row.effect.half is not None
    assert "holds" in str(found)

    one = json.loads((places["results"] / "small" / "learnt-1.json").read_text())
    keys = ("experiment", "arm", "seed", "recipe", "evaluation", "minutes", "machine", "versions", "test", "costs")
    assert set(one) == {*keys, "points"}
    assert one["points"]["full"]["n"] == 64
    assert one["costs"]["exit=1"]["macs"] < one["costs"]["full"]["macs"]

    page = places["page"].read_text()
    assert "| C1 | training helps (95 against 25) | holds |" in page
    assert f"**1 of 2 claims are decided.** Hold: C1 ({row.effect}). Out of reach here: C27." in page
    assert "| C27 | " in page
    assert page.endswith("by hand\n")
    assert (places["page"].parent / "img" / "claims.png").read_bytes()[:4] == b"\x89PNG"

    shutil.rmtree(places["runs"])  # verdicts come from the results alone
    monkeypatch.delattr("supple.data.registry.load")
    again = supple.reproduce("small", **places)
    assert (again.ran, again.rows) == ((), found.rows)
    words = ("--results", places["results"], "--page", places["page"])
    assert command("reproduce", "--check", *words).status == 0
    said = command("reproduce", "--claims", "C1", "--no-run", *words, "--json").json
    assert said["claims"][0]["verdict"] == "holds"
    assert said["claims"][0]["difference"]["seeds"] == 3
    assert said["ran"] == []
    other = command("reproduce", "small", "--seeds", "7,8,9", "--no-run", *words, "--json").json["claims"][0]
    assert (other["verdict"], other["difference"]) == ("undecided", None)
    assert places["page"].read_text() == page  # it tells the declared seeds


def test_a_page_that_drifted_is_refused(places, command):
    supple.reproduce(everything=True, run=False, **places)
    told = {key: places[key] for key in ("results", "page")}
    reproduction.check_page(**told)
    places["page"].write_text(places["page"].read_text().replace("undecided", "holds"))
    with pytest.raises(CheckpointError, match="differs from what the results give"):
        reproduction.check_page(**told)
    words = ("--results", places["results"], "--page", places["page"])
    command("reproduce", "--check", *words).refused(2, "differs", "supple reproduce --all --no-run")
    places["page"].write_text("no markers")
    command("reproduce", "--check", *words).refused(2, "has no place for the rows", BEGIN)


def test_the_page_of_this_checkout_says_what_its_results_give():
    assert reproduction.check_page() == ROOT / "docs" / "claims.md"


def test_results_that_are_not_the_checkouts_own_are_told_on_no_page(places, tmp_path):
    before = (ROOT / "docs" / "claims.md").read_text()
    found = supple.reproduce("small", results=tmp_path / "results", run=False)
    assert found.page is None
    assert (ROOT / "docs" / "claims.md").read_text() == before


def test_chains_pruning_merging_and_ensembles_run_from_the_command_line(tmp_path, command):
    train = {**TINY["recipe"]["train"], "epochs": 1}
    data = {"name": "generated", "batch_size": 64}
    pool = {"of": "shuffle", "pools": {0: [0, 1]}}
    arms = {
        "base": {"evaluate": [], "seeds": [0]},
        "shuffle": {"after": "base", "changes": ["train.sample=arbitrary"], "seeds": [0, 1]},
        "shallow": {"after": "base", "changes": ["backbone.layers=2"], "seeds": [0], "evaluate": ["full"]},
        "merged": {"merge": pool},
        "together": {"ensemble": pool},
        "search": {"sections": {"method": {"name": "prune"}, "backbone": VIT}, "seeds": [0], "evaluate": []},
        "cut": {"after": "search", "prune": 0.5, "seeds": [0], "evaluate": ["full"]},
    }
    claim = {"text": "x", "expect": "above", "of": {"arm": "merged"}, "minus": {"arm": "cut"}}
    claim["also"] = {"y": {"of": {"arm": "together"}}, "z": {"of": {"arm": "shallow"}}}
    made = {**copy.deepcopy(TINY), "arms": arms, "claims": {"C20": claim}}
    made["recipe"] = {**made["recipe"], "data": data, "train": train}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    words = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
    found = supple.reproduce(path, runs=words[1], results=words[3], start=run_one)
    ran = [name.split("/")[1] for name in found.ran]
    assert ran[:2] == ["base-0", "shuffle-0"]
    assert ran.index("cut-0") < ran.index("shuffle-1") < ran.index("merged-0")
    assert {path.stem for path in (tmp_path / "results" / "mine").iterdir()} >= {"merged-0", "together-0", "cut-0"}
    (folder,) = (tmp_path / "runs" / "mine").glob("cut-0-????????")
    assert supple.load(folder).backbone_spec["kept"] is not None
    (row,) = found.rows
    assert (row.verdict, row.effect.seeds) == ("undecided", 1)
    (tmp_path / "results" / "mine" / "merged-0.json").unlink()
    said = command("reproduce", path, "--one", "merged-0", *words, "--json").json
    assert Path(said["result"]).is_file()


def test_images_are_copied_with_the_labels_of_another_run_of_the_experiment(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(12):
        picture = Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8))
        (tmp_path / "others").mkdir(exist_ok=True)
        picture.save(tmp_path / "others" / f"{number}.png")
    train = {**TINY["recipe"]["train"], "cache_features": "features"}
    exits = {"name": "exits", "at": ["layer1"], "way": "classifier_wise", "branch": "linear"}
    made = {**copy.deepcopy(TINY), "evaluate": ["exit=1"], "seeds": [0, 1]}
    made["recipe"] = {
        "data": {"name": "generated", "batch_size": 64},
        "backbone": {"name": "resnet_v1", "layers": [1, 1, 1, 1], "width": 8},
        "method": exits,
        "train": train,
    }
    copied = {"labeller": "backbone", "root": str(tmp_path / "others"), "ratio": 0.5}
    still = {"sections": {"method": {"name": "static"}}, "changes": ["train.cache_features=null"]}
    made["arms"] = {
        "backbone": {**still, "seeds": [0], "evaluate": ["full"]},
        "branch": {"after": "backbone"},
        "longer": {"after": "branch", "changes": ["train.epochs=2"]},
        "copycat": {"after": "branch", "sections": {"copycat": copied}},
    }
    claim = {"text": "x", "expect": "above", "of": {"arm": "copycat", "at": "exit=1"}}
    made["claims"] = {"C10": {**claim, "minus": {"arm": "longer", "at": "exit=1"}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    found = supple.reproduce(
        tmp_path / "mine.yaml", runs=tmp_path / "runs", results=tmp_path / "results", start=run_one
    )
    assert {name.split("/")[1] for name in found.ran} == {
        "backbone-0",
        *(f"{arm}-{seed}" for arm in ("branch", "longer", "copycat") for seed in (0, 1)),
    }
    assert found.rows[0].effect.seeds == 2
    (folder,) = (tmp_path / "runs" / "mine").glob("copycat-1-????????")
    labeller = Path(supple.load(folder).recipe.copycat.labeller)
    assert labeller.name.startswith("backbone-0-")
    assert len(list((tmp_path / "runs" / "mine" / "features").iterdir())) == 2  # real images; and with copied ones


def test_every_seed_has_a_split_of_its_own(tmp_path):
    """Clips of two kinds of music; a fifth is tested on, another for every seed."""
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    wave = np.sin(2 * np.pi * 440 * np.arange(4000) / 2000)
    for kind, loud in (("calm", 0.1), ("wild", 0.9)):
        for number in range(10):
            path = tmp_path / "music" / kind / f"{number}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_wav(path, loud * wave * (1 + number) / 10, 2000)
    made = {**copy.deepcopy(TINY), "evaluate": ["full"], "seeds": [0, 1, 2], "by_seed": ["data.seed"]}
    data = {"name": "gtzan", "root": str(tmp_path / "music"), "size": 16, "seconds": 1, "rate": 2000, "mels": 8}
    made["recipe"] = {
        "data": {**data, "features": "mel", "classes": 2},
        "backbone": {"name": "resnet_v1", "layers": [1, 1, 1, 1], "width": 8},
        "method": {"name": "static"},
        "train": TINY["recipe"]["train"],
    }
    made["arms"] = {"learnt": {}, "still": {"changes": ["train.lr=1e-9"]}}
    made["claims"] = {"C14": {"text": "x", "expect": "above", "of": {"arm": "learnt"}, "minus": {"arm": "still"}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    words = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
    (row,) = supple.reproduce(tmp_path / "mine.yaml", **words, start=run_one).rows
    assert row.effect.seeds == 3
    tested = []
    for seed in range(3):
        (folder,) = (tmp_path / "runs" / "mine").glob(f"learnt-{seed}-????????")
        splits = data_of(folder)
        tested.append({bytes(x.numpy().tobytes()) for x in splits.test.batch(torch.arange(len(splits.test)))[0]})
    assert len({frozenset(each) for each in tested}) == 3


def _write_wav(path: Path, samples: Any, rate: int) -> None:
    import soundfile

    soundfile.write(path, samples, rate)


# --- what is refused ---


def test_mistakes_are_refused_with_a_cure(places, command, tmp_path):
    words = ("--results", places["results"], "--page", places["page"])
    command("reproduce", *words).refused(2, "nothing is named", "--claims C16")
    command("reproduce", "smal", *words).refused(2, "there is no experiment smal", 'Did you mean "small"?')
    command("reproduce", "--claims", "C99", *words).refused(2, "no experiment decides C99", "C1")
    command("reproduce", "--all", "small", *words).refused(2, "--all does not go with a name")
    command("reproduce", "small", "--one", "learnt-9", *words).refused(2, 'no run "learnt-9"', "learnt-0")
    command("reproduce", "small", "--seeds", "3,4", *words).refused(2, "the experiment has 3", "--seeds 10,11,12")
    command("reproduce", "--one", "learnt-0", *words).refused(2, "--one goes with one experiment")
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    command("reproduce", "small", "--runs", tmp_path / "tree" / "runs", *words).refused(2, "work tree", "--runs FOLDER")
    train = {**experiment()["recipe"]["train"], "precision": "auto"}
    recipe = {**experiment()["recipe"], "train": train}
    (tmp_path / "auto.yaml").write_text(yaml.safe_dump(experiment(recipe=recipe), sort_keys=False))
    command("reproduce", tmp_path / "auto.yaml", *words).refused(2, "train.precision is auto", "fp32")


def test_files_that_are_not_at_hand_are_named_before_anything_runs(places, tmp_path):
    weights = {"file": "no-such.safetensors", "sha256": 64 * "0"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(experiment(weights=weights), sort_keys=False))
    with pytest.raises(DataError, match="there are no weights no-such.safetensors"):
        supple.reproduce(tmp_path / "mine.yaml", **places, start=None)
    made = experiment()
    copied = {"copycat": {"labeller": "learnt", "root": "no-such-folder"}}
    made["arms"]["still"] = {"after": "learnt", "sections": copied}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    with pytest.raises(DataError, match="no-such-folder"):
        supple.reproduce(tmp_path / "mine.yaml", **places, start=None)
    assert not places["runs"].exists()


def test_jobs_are_a_number(places):
    with pytest.raises(RecipeError, match="jobs is 0"):
        supple.reproduce("small", **places, jobs=0)
