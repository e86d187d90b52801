"""Batches without Ray: what an actor answers, and the folder that is written."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import supple
from supple.cluster.batches import PLACED, WRITTEN, Answerer, Gathered, Setup, answers, begin, done, file_of, write
from supple.cluster.sources import READ, Sample
from supple.errors import CheckpointError, DataError, PointError, RecipeError

JOB = {"weights": "w", "engine": "torch fp32", "limits": {}, "policy": None, "source": "s", "parts": 3}


def picture(seed: int, side: int = 16) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def rows(part: int, *places: int, last: int | None = None) -> pa.Table:
    made = [{"part": part, "place": at, "last": at == last, "path": f"{part}/{at}", "error": None} for at in places]
    return pa.Table.from_pylist(made, PLACED)


@pytest.fixture(scope="module")
def made(exits_run):
    with supple.predictor(exits_run, "torch", 1, warm=False) as found:
        yield found


def test_a_batch_answers_as_single_files_do_and_a_broken_one_is_its_error(made, tmp_path):
    (tmp_path / "a.png").write_bytes(picture(0))
    given = [
        Sample(str(tmp_path / "a.png")),
        Sample("b", picture(1, side=40)),
        Sample("c", b"no picture"),
        Sample("d", error="d is damaged"),
        Sample(str(tmp_path / "none.png")),
    ]
    one, other, broken, damaged, missing = answers(made, given, {})
    for found, source in ((one, tmp_path / "a.png"), (other, picture(1, side=40))):
        alone = made.predict(source)
        assert (found.label, found.point, found.reason) == (alone.label, alone.point, alone.reason)
        assert list(found.scores.values()) == pytest.approx(list(alone.scores.values()), abs=1e-5)
    assert "is not a readable image" in broken
    assert damaged == "d is damaged"
    assert "none.png" in missing


def test_samples_that_are_sure_leave_their_batch(made):
    given = [Sample(str(seed), picture(seed)) for seed in range(40)]
    first = [answer.best_score for answer in answers(made, given, {"point": "exit=1"})]
    least = sorted(first)[20]  # half of them are this sure at the first exit
    found = answers(made, given, {"min_confidence": least})
    assert [answer.point == "exit=1" for answer in found] == [score >= least for score in first]
    assert sum(answer.reason == "confident" for answer in found) >= 10


def test_one_sample_that_no_network_can_answer_does_not_take_the_others_with_it(made, monkeypatch):
    seen = []
    real = made.predict

    def fussy(given, **limits):
        seen.append(len(given[0]))
        if any((row == row.flat[0]).all() for row in given[0]):  # a blank picture
            raise DataError("full gave values that are not finite.")
        return real(given, **limits)

    monkeypatch.setattr(made, "predict", fussy)
    blank = io.BytesIO()
    Image.new("L", (16, 16)).convert("RGB").save(blank, "PNG")
    monkeypatch.setattr(
        type(made.preprocess),
        "arrays",
        lambda self, given: (
            np.full((1, 3, 16, 16), given, np.float32)
            + (np.arange(768, dtype=np.float32).reshape(1, 3, 16, 16) if given else 0),
        ),
    )
    found = answers(made, [Sample("a", 1), Sample("b", 0), Sample("c", 2)], {})
    assert [isinstance(answer, str) for answer in found] == [False, True, False]
    assert seen == [3, 1, 1, 1]


def test_an_actor_gives_a_row_for_every_row_in_its_place(exits_run):
    given = pa.Table.from_pylist(
        [
            {"part": 3, "place": 8, "last": False, "path": "a", "content": picture(0), "error": None},
            {"part": 3, "place": 9, "last": True, "path": "b", "content": b"none", "error": None},
        ],
        READ,
    )
    found = Answerer(Setup(str(exits_run), "torch", "fp32", 1, None, {"point": "exit=2"}))(given)
    assert found.schema == PLACED
    one, other = found.to_pylist()
    assert (one["part"], one["place"], one["path"], one["point"], one["reason"]) == (3, 8, "a", "exit=2", "asked")
    assert one["label"] == one["scores"][0]["label"]
    assert sum(entry["score"] for entry in one["scores"]) == pytest.approx(1, abs=1e-5)
    assert (other["last"], other["label"], other["error"] is None) == (True, None, False)


def test_parts_are_handed_out_once_they_are_whole_in_the_order_of_their_rows():
    gathered = Gathered()
    assert list(gathered.add(rows(0, 2, 3, last=3))) == []
    assert list(gathered.add(rows(1, 0))) == []
    both = pa.concat_tables([rows(1, 1, last=1), rows(0, 0)])
    ((number, table),) = gathered.add(both)
    assert (number, table["path"].to_pylist()) == (1, ["1/0", "1/1"])
    ((number, table),) = gathered.add(rows(0, 1))
    assert (number, table["path"].to_pylist()) == (0, ["0/0", "0/1", "0/2", "0/3"])
    assert table.schema.names == WRITTEN.names
    assert not gathered.tables


def test_a_folder_goes_on_with_the_parts_that_it_lacks(tmp_path):
    folder = tmp_path / "out"
    begin(folder, JOB)
    assert done(folder, JOB) == {}
    table = pa.Table.from_pylist([{"path": "a", "label": "x"}, {"path": "b", "error": "e"}], WRITTEN)
    for number in (0, 2):
        write(folder, number, table, JOB)
    begin(folder, JOB)
    assert done(folder, JOB) == {0: (2, 1), 2: (2, 1)}
    assert parquet.read_table(file_of(folder, 0)).to_pylist() == table.to_pylist()
    file_of(folder, 0).write_bytes(file_of(folder, 0).read_bytes()[:-9])  # damaged: made again
    write(folder, 2, table, JOB | {"weights": "others"})  # copied from another folder, say
    assert done(folder, JOB) == {}


@pytest.mark.parametrize("name", [name for name in JOB if name != "parts"])
def test_a_folder_of_another_batch_is_refused_and_says_what_differs(tmp_path, name):
    begin(tmp_path / "out", JOB)
    with pytest.raises(CheckpointError, match=f"another batch: other {name}"):
        begin(tmp_path / "out", JOB | {name: "another"})


def test_a_folder_that_holds_anything_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="already exists"):
        begin(tmp_path, JOB)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def refused(exits_run, **how):
    return supple.predict(exits_run, **{"ray": True, **how})


def test_what_cannot_be_answered_is_refused_before_ray_starts(exits_run, tmp_path, monkeypatch):
    monkeypatch.setattr("supple.cluster.batches.connect", None)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(picture(0))
    where = {"files": str(tmp_path / "in"), "out": tmp_path / "out"}
    for error, words, how in (
        (RecipeError, "out=", {"files": where["files"]}),
        (DataError, "deadline", {**where, "deadline_ms": 5}),
        (PointError, "exit=9", {**where, "point": "exit=9"}),
        (PointError, "no policy", {**where, "confident": True}),
        (DataError, "would lie in what is read", {**where, "out": tmp_path / "in" / "out"}),
        (DataError, "holds no image", {**where, "files": str(Path(tmp_path / "in").parent / "in" / ".." / "empty")}),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(error, match=words):
            refused(exits_run, **how)
    assert not (tmp_path / "out").exists()
