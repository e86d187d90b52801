"""The network that comes with supple, as it is in the package."""

import json
import re

import pytest

import supple
from supple import checkpoint, files, networks, showing
from supple.cli.demo import NETWORK
from supple.ladder import TIMES

FOLDER = networks.FOLDER / NETWORK
LARGEST = 2_000_000  # bytes


def test_it_is_whole_small_and_stored_in_fp16():
    assert {path.name for path in FOLDER.iterdir()} == {*networks.PARTS}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= LARGEST
    digest = files.sha256(FOLDER / checkpoint.WEIGHTS)
    assert checkpoint.read_manifest(FOLDER)["files"] == {checkpoint.WEIGHTS: digest}
    for part in ("ladder.json", "policy.json"):
        assert json.loads((FOLDER / part).read_text())["weights"] == digest
    kinds = {str(value.dtype) for value in checkpoint.read_tensors(FOLDER / checkpoint.WEIGHTS).values()}
    assert kinds <= {"torch.float16", "torch.int64"}


def test_it_says_nothing_of_the_machine_that_made_it():
    for path in FOLDER.glob("*.json"):
        assert not re.search(r'"(/|~|[A-Za-z]:\\)', path.read_text()), path
    for row in checkpoint.load_ladder(FOLDER):
        assert row.machine is None
        assert all(getattr(row, name) is None for name in TIMES)


def test_every_point_was_scored_on_all_test_pictures_and_a_larger_one_is_better():
    rows = checkpoint.load_ladder(FOLDER).rows
    assert [row.point for row in rows] == [str(point) for point in supple.load(NETWORK).points]
    assert {(row.metric, row.n) for row in rows} == {("accuracy", 10_000)}
    scores = [row.score for row in rows]
    assert scores == sorted(scores)


def test_its_scores_are_those_of_its_stored_weights(real_data, monkeypatch, tmp_path):
    root = real_data("cifar-10-batches-bin")
    monkeypatch.chdir(tmp_path)  # where its copy goes
    found = supple.evaluate(NETWORK, changes=[f"data.root={root}"])
    stored = {row.point: row.score for row in checkpoint.load_ladder(FOLDER)}
    for row in found:
        assert row.n == 10_000
        assert row.score == pytest.approx(stored[row.point], abs=5e-4)  # another processor rounds otherwise


def test_its_pictures_are_answered_at_every_point(tmp_path):
    pictures = showing.samples(supple.load(NETWORK).classes, tmp_path)
    assert len(pictures) >= 3
    with supple.predictor(NETWORK, engine="torch", threads=1) as made:
        for picture in pictures:
            for point in made.points:
                answer = made.predict(picture, point=point)
                assert answer.label in made.classes
                assert 0.1 <= answer.best_score <= 1
        right = [made.predict(picture).label == picture.stem for picture in pictures]
    assert any(right)  # the demo says how many
