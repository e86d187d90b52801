"""search.json: what was measured is found again, and nothing else."""

import json

import pytest

from supple.errors import CheckpointError
from supple.ladder import Row
from supple.searching.memory import Memory


def test_what_was_remembered_is_there_in_the_next_search(tmp_path):
    path = tmp_path / "search.json"
    memory = Memory("abc", path)
    row = Row("exit=1", score=0.5, macs=7, extra_metrics={"mse": 0.25}, higher_is_better=False)
    memory.remember("scores", "10 samples", [row])
    memory.remember("times", "torch", [Row("exit=1", p50_ms=1.5)])
    memory.begin("seed 0", ["exit=1", "full"])
    again = Memory("abc", path)
    assert again.rows("scores", "10 samples") == {"exit=1": row}
    assert again.rows("scores", "20 samples") == {}
    assert again.rows("times", "torch")["exit=1"].p50_ms == 1.5
    assert again.starts == {"seed 0": ["exit=1", "full"]}


def test_other_weights_are_another_story(tmp_path):
    Memory("abc", tmp_path / "search.json").remember("scores", "some", [Row("full", score=1.0)])
    assert Memory("def", tmp_path / "search.json").rows("scores", "some") == {}


def test_without_a_file_it_lasts_as_long_as_it_is_held():
    memory = Memory("abc")
    memory.remember("scores", "some", [Row("full", score=1.0)])
    assert memory.rows("scores", "some")["full"].score == 1.0


BROKEN = {
    "no json": "{",
    "no table": json.dumps({"weights": "abc", "scores": 3, "times": {}, "starts": {}}),
    "no rows": json.dumps({"weights": "abc", "scores": {"some": {"full": 1}}, "times": {}, "starts": {}}),
    "no number": json.dumps(
        {"weights": "abc", "scores": {"some": [{"point": "full", "score": "x"}]}, "times": {}, "starts": {}}
    ),
    "no point": json.dumps({"weights": "abc", "scores": {}, "times": {}, "starts": {"seed 0": ["exit=none"]}}),
    "nothing": json.dumps({"weights": "abc"}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_with_the_way_to_be_rid_of_it(tmp_path, content):
    path = tmp_path / "search.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r"search\.json") as caught:
        Memory("abc", path)
    assert f"rm {path}" in caught.value.cure
