"""Results: packed and unpacked without loss, small, stale when the recipe changes; differences by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_declared import TINY, tiny

from supple.errors import CheckpointError
from supple.experiments.declared import load_experiment
from supple.experiments.page import BEGIN, END, picture, ranges, rows_of, updated
from supple.experiments.results import (
    EVALUATION,
    LARGEST,
    complete,
    decide,
    effect_of,
    pack,
    path_of,
    read_results,
    sample,
    unpack,
    usable_seeds,
    write_result,
)


def result(experiment, arm, seed, **points):
    """A result as a run writes it; points: right or wrong of every image."""
    return {
        "recipe": experiment.hash(arm, seed),
        "evaluation": EVALUATION,
        "minutes": 10.0,
        "machine": "a",
        "test": "t",
        "points": {name: pack(np.asarray(each, bool)) for name, each in points.items()},
    }


def made(folder, experiment, shuffle, plain, name="tiny"):
    """Results of the arms shuffle and plain, by seed, at arbitrary; in full order all are right."""
    for arm, scores in (("shuffle", shuffle), ("plain", plain)):
        for seed, each in enumerate(scores):
            one = result(experiment, arm, seed, arbitrary=each, full=[1] * len(each))
            write_result(path_of(folder, name, arm, seed), one)


SHUFFLE, PLAIN = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


# --- packing ---


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_right_and_wrong_come_back_as_0_and_100(bits):
    assert unpack(json.loads(json.dumps(pack(np.array(bits))))).tolist() == [100.0 * bit for bit in bits]


def test_other_values_come_back_to_three_digits():
    values = np.array([0.0, -12.345, 99.99, 3.25])
    assert unpack(pack(values)) == pytest.approx(values, rel=1e-3)


def test_a_result_of_ten_thousand_images_is_small(tmp_path):
    rng = np.random.default_rng(0)
    points = {f"any {k}": pack(rng.random(10_000) < 0.5) for k in range(8)}
    points["home"] = pack(rng.random(10_000))
    write_result(tmp_path / "r.json", {"points": points})
    assert (tmp_path / "r.json").stat().st_size < LARGEST / 4


def test_a_large_result_is_refused(tmp_path):
    points = {str(k): pack(np.zeros(10_000)) for k in range(10)}
    with pytest.raises(CheckpointError, match="would have") as caught:
        write_result(tmp_path / "r.json", {"points": points})
    assert "fewer points" in caught.value.cure
    assert not (tmp_path / "r.json").exists()


# --- stale, incomplete, mixed ---


def test_results_of_another_recipe_are_stale_and_not_used(tmp_path):
    made(tmp_path, tiny(), SHUFFLE, PLAIN)
    found, stale = read_results(tmp_path, "tiny", tiny())
    assert (len(found), stale) == (6, [])
    other = tiny(**{"arms.shuffle.changes": ["train.sample=arbitrary", "train.lr=0.01"]})
    found, stale = read_results(tmp_path, "tiny", other)
    assert {arm for arm, _ in found} == {"plain"}
    assert stale == ["shuffle-0", "shuffle-1", "shuffle-2"]
    (row,) = rows_of("tiny", other, tmp_path)
    assert (row.verdict, row.effect) == ("undecided", None)
    assert "stale, made or evaluated in another way: shuffle-0, shuffle-1, shuffle-2" in row.problems


def test_a_point_that_is_evaluated_since_makes_a_result_incomplete(tmp_path):
    made(tmp_path, tiny(), SHUFFLE, PLAIN)
    found, _ = read_results(tmp_path, "tiny", tiny())
    assert complete(tiny(), "plain", found["plain", 0])
    assert not complete(tiny(evaluate=["full", "arbitrary", "any 2"]), "plain", found["plain", 0])
    assert not complete(tiny(), "plain", None)


def test_seeds_of_several_machines_or_test_images_are_not_compared(tmp_path):
    experiment = tiny()
    made(tmp_path, experiment, SHUFFLE, PLAIN)
    found, _ = read_results(tmp_path, "tiny", experiment)
    found["plain", 0]["machine"] = "b"
    found["plain", 2]["test"] = "u"
    seeds, problems = usable_seeds(experiment, found, experiment.claims["C16"])
    assert seeds == [1]
    assert [problem.partition(" was ")[0] for problem in problems] == ["seed 0", "seed 2"]
    assert "several kinds of processors, and counts as missing" in problems[0]


def test_a_result_that_is_not_json_is_refused_by_name(tmp_path):
    path = path_of(tmp_path, "tiny", "plain", 0)
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(CheckpointError, match="plain-0.json") as caught:
        read_results(tmp_path, "tiny", tiny())
    assert "supple reproduce tiny" in caught.value.cure


# --- differences and rows ---


def test_a_difference_by_hand(tmp_path):
    """75 - 25, 50 - 0, 100 - 25: 50, 50, 75, so s^2 = 208.33; per image, over seeds: 1/3, 1, 2/3, 1/3."""
    experiment = tiny()
    made(tmp_path, experiment, SHUFFLE, PLAIN)
    found, _ = read_results(tmp_path, "tiny", experiment)
    effect, problems = effect_of(experiment, found, experiment.claims["C16"])
    images = np.var(100 * np.array([1 / 3, 1, 2 / 3, 1 / 3])) / 4
    assert problems == []
    assert effect.points == pytest.approx(175 / 3)
    assert effect.half == pytest.approx(4.302653 * np.sqrt(625 / 3 / 3 + images))


def test_a_term_of_several_points_is_their_mean_and_a_number_is_subtracted(tmp_path):
    experiment = tiny(**{"claims.C16.of": {"arm": "shuffle", "at": ["arbitrary", "full"]}, "claims.C16.minus": 10})
    made(tmp_path, experiment, SHUFFLE, PLAIN)
    found, _ = read_results(tmp_path, "tiny", experiment)
    assert sample(found["shuffle", 1], ["arbitrary", "full"]).mean == 75
    effect, _ = effect_of(experiment, found, experiment.claims["C16"])
    assert effect.points == pytest.approx((87.5 + 75 + 100) / 3 - 10)


def test_a_row_says_figures_seeds_minutes_and_command(tmp_path):
    also = {"in order": {"of": {"arm": "shuffle"}, "minus": {"arm": "plain"}}}
    experiment = tiny(**{"claims.C16.also": also, "claims.C16.published": 62.64})
    many = [[k % 4 != 0 for k in range(400)]] * 3
    made(tmp_path, experiment, many, [[False] * 400] * 3)
    (row,) = rows_of("tiny", experiment, tmp_path)
    assert row.verdict == "holds"
    assert dict(row.figures) == {"shuffle at arbitrary": 75, "plain at arbitrary": 0}
    assert row.minutes == 60
    page = updated(f"before\n{BEGIN}\nyesterday\n{END}\nafter\n", [row])
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "yesterday" not in page
    for words in ("| C16 | shuffling helps | holds | +75.00 ± 9.32", "published +62.64", "in order +0.00 ± 0.00"):
        assert words in page
    assert "3 of 3 seeds, 60 minutes, `supple reproduce tiny --claims C16`" in page
    assert updated(page, [row]) == page
    assert picture([row])[:4] == b"\x89PNG"
    assert json.loads(json.dumps(row.to_json()))["difference"]["points"] == 75


def test_a_row_without_results_says_what_it_would_take(tmp_path):
    (row,) = rows_of("tiny", tiny(), tmp_path)
    page = updated(f"{BEGIN}{END}", [row])
    assert "not run" in page
    assert "about 0.1 core-hours for all of tiny" in page
    assert picture([row]) is None


def test_claims_in_a_row_are_told_as_a_range():
    assert ranges(["C9", "C2", "C1", "C3", "C6", "C7"]) == "C1 to C3, C6, C7, C9"


def test_two_seeds_give_a_difference_without_a_verdict(tmp_path):
    made(tmp_path, tiny(), SHUFFLE[:2], PLAIN[:2])
    (row,) = rows_of("tiny", tiny(), tmp_path)
    assert (row.verdict, row.effect.half, row.effect.seeds) == ("undecided", None, 2)
    assert "1 of 3 seeds are missing: nothing is decided before" in updated(f"{BEGIN}{END}", [row])


def seeds_of(count: int, **changes):
    """An experiment whose arms have so many seeds."""
    own = {f"arms.{arm}.seeds": list(range(count)) for arm in ("base", "plain", "shuffle")}
    return tiny(**own, **changes)


def test_nothing_is_decided_before_all_declared_seeds_are_there(tmp_path):
    many = [[k % 4 != 0 for k in range(400)]] * 6
    experiment = seeds_of(6)
    made(tmp_path, experiment, many[:3], [[False] * 400] * 3)
    (row,) = rows_of("tiny", experiment, tmp_path)
    assert (row.verdict, row.effect.seeds, row.seeds) == ("undecided", 3, 6)
    assert "3 of 6 seeds are missing: nothing is decided before" in updated(f"{BEGIN}{END}", [row])
    made(tmp_path, experiment, many, [[False] * 400] * 6)
    (row,) = rows_of("tiny", experiment, tmp_path)
    assert row.verdict == "holds"


def test_a_result_of_another_evaluation_is_stale(tmp_path):
    made(tmp_path, tiny(), SHUFFLE, PLAIN)
    path = path_of(tmp_path, "tiny", "plain", 1)
    path.write_text(path.read_text().replace(f'"evaluation": {EVALUATION}', f'"evaluation": {EVALUATION - 1}'))
    found, stale = read_results(tmp_path, "tiny", tiny())
    assert stale == ["plain-1"]
    assert ("plain", 1) not in found


@pytest.mark.parametrize(("cost", "verdict"), [(2.9, "holds"), (3.1, "fails"), (3.0, "undecided")])
def test_what_a_claim_requires_decides_too(tmp_path, cost, verdict):
    """Better, and at a lower mean cost: 75 points above, (1 + cost) / 2 against 2 MMACs."""
    term = {"at": ["full", "arbitrary"], "macs": True}
    cheaper = {"of": {"arm": "shuffle", **term}, "minus": {"arm": "plain", **term}, "expect": "below"}
    experiment = tiny(**{"claims.C16.requires": {"mean cost": cheaper}})
    made(tmp_path, experiment, [[k % 4 != 0 for k in range(400)]] * 3, [[False] * 400] * 3)
    for arm, costs in (("shuffle", (1, cost)), ("plain", (1, 3))):
        for seed in range(3):
            path = path_of(tmp_path, "tiny", arm, seed)
            one = json.loads(path.read_text())
            one["costs"] = {name: {"macs_through": 1e6 * c} for name, c in zip(("full", "arbitrary"), costs)}
            path.write_text(json.dumps(one))
    (row,) = rows_of("tiny", experiment, tmp_path)
    assert dict(row.requires)["mean cost"].points == pytest.approx((cost - 3) / 2)
    assert dict(row.requires)["mean cost"].half == 0
    assert row.verdict == verdict
    assert "and mean cost below 0" in updated(f"{BEGIN}{END}", [row])


def test_a_merge_is_compared_with_the_mean_of_its_sources(tmp_path):
    """both-0 comes from shuffle-0 (75) and shuffle-1 (50), both-2 from shuffle-1 and shuffle-2 (100)."""
    both = {"arm": "both", "at": "arbitrary"}
    experiment = tiny(**{"claims.C16.of": {**both, "sources": True}, "claims.C16.minus": both})
    made(tmp_path, experiment, SHUFFLE, PLAIN)
    for seed in (0, 2):
        one = result(experiment, "both", seed, arbitrary=[0, 1, 0, 0])
        write_result(path_of(tmp_path, "tiny", "both", seed), one)
    found, _ = read_results(tmp_path, "tiny", experiment)
    effect, _ = effect_of(experiment, found, experiment.claims["C16"])
    assert (effect.points, effect.seeds) == (((75 + 50) / 2 + (50 + 100) / 2) / 2 - 25, 2)
    found["shuffle", 0]["machine"] = "b"
    seeds, problems = usable_seeds(experiment, found, experiment.claims["C16"])
    assert (seeds, len(problems)) == ([2], 1)


def test_where_the_data_change_with_the_seed_so_do_the_images(tmp_path):
    """Folds of 4 and 2 and 4 images: each adds the variance of its own mean, over 9."""
    arms = {name: arm for name, arm in TINY["arms"].items() if name != "both"}
    experiment = tiny(by_seed=["data.fold"], arms=arms)
    plain = [[0] * 4, [0] * 2, [0] * 4]
    made(tmp_path, experiment, [[1, 1, 1, 0], [1, 0], [1, 0, 0, 0]], plain)
    found, _ = read_results(tmp_path, "tiny", experiment)
    effect, _ = effect_of(experiment, found, experiment.claims["C16"])
    v = (1875 / 4 + 2500 / 2 + 1875 / 4) / 9
    assert effect.points == 50
    assert effect.half == pytest.approx(4.302653 * np.sqrt(625 / 3 + v))


# --- what the files that come with supple declare ---


def declared_results(name, scores, macs=None):
    """Results of an experiment of recipes/claims: the first images are right, so many; 'skipped' is a share."""
    experiment, found = load_experiment(name), {}
    for arm, points in scores.items():
        for seed in experiment.seeds_of(arm):
            packed = {}
            for point, share in points.items():
                each = np.full(2000, float(share)) if point == "skipped" else np.arange(2000) < 20 * share
                packed[point] = pack(each, "train" if point.startswith("train") else "test")
            costs = {point: {"macs_through": 1e6 * macs[arm]} for point in points} if macs else {}
            found[arm, seed] = {"machine": "a", "test": "t", "points": packed, "costs": costs}
    return experiment, found


@pytest.mark.parametrize(
    ("accuracy", "skipped", "verdict"),
    [(63, 50, "holds"), (59.8, 45, "holds"), (57, 50, "fails"), (63, 20, "fails"), (63, 95, "fails")],
)
def test_c23_holds_where_half_of_the_layers_are_skipped_at_no_or_a_small_loss(accuracy, skipped, verdict):
    scores = {"base": {"full": 60}, "dt": {"skip=0.5": accuracy, "skipped": skipped}}
    experiment, found = declared_results("dynamic", scores)
    assert decide(experiment, found, experiment.claims["C23"]) == verdict


@pytest.mark.parametrize(("macs", "verdict"), [(19, "holds"), (20, "undecided"), (21, "fails")])
def test_c12_holds_where_the_mean_cost_is_lower_too(macs, verdict):
    exits = {"exit=1": 50, "exit=2": 60, "full": 90}
    better = {"exit=1": 56, "exit=2": 64, "full": 90}
    experiment, found = declared_results("sl_vit", {"cnn": exits, "sl_vit": better}, {"cnn": 20, "sl_vit": macs})
    assert decide(experiment, found, experiment.claims["C12"]) == verdict


def test_c20_is_what_plain_models_lose_more_by_merging():
    scores = {
        "plain": {"full": 80, "arbitrary": 1},
        "shuffle": {"full": 70, "arbitrary": 60},
        "merged_plain": {"full": 10},
        "merged_shuffle": {"arbitrary": 55},
    }
    experiment, found = declared_results("layershuffle", scores)
    effect, _ = effect_of(experiment, found, experiment.claims["C20"])
    assert effect.points == pytest.approx((80 - 10) - (60 - 55))


def test_c25_measures_dt_at_the_point_that_it_trains():
    also = load_experiment("dynamic").claims["C25"].also["DT, as trained"]
    told = {(term.arm, at) for _, term in also.terms() for at in term.at if term.arm == "dt"}
    assert told == {("dt", "train, skip=0.5"), ("dt", "skip=0.5")}
