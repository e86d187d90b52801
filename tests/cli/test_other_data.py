"""A run evaluated on data that are not its own, or that have moved."""

import shutil

import pytest
from test_propose import make_pictures

import supple
from supple.recipe import make_recipe
from supple.training.loop import train
from tiny import tiny_document


@pytest.fixture(scope="module")
def of_pictures(tmp_path_factory):
    """A run on a folder of pictures, and where they lie."""
    root = make_pictures(tmp_path_factory.mktemp("pictures") / "first", each=10)
    data = {"name": "folder", "root": str(root), "size": 16, "batch_size": 8}
    document = tiny_document("exits", train={"epochs": 1}) | {"data": data}
    return train(make_recipe(document), tmp_path_factory.mktemp("run") / "run", quiet=True), root


def test_scores_on_other_data_are_named_and_leave_the_run_as_it_was(command, of_pictures, tmp_path):
    run, root = of_pictures
    before = (run / "ladder.json").read_text(), (run / "report.html").read_text()
    other = shutil.copytree(root, tmp_path / "other")
    for picture in other.glob("*/[0-4].png"):
        picture.unlink()
    found = command("evaluate", run, f"data.root={other}", "--json").json
    assert found["data"] == str(other)
    assert found["points"][0]["n"] == 3
    said = command("evaluate", run, f"data.root={other}")
    assert f"3 test samples of {other}; the run keeps its own figures" in said.out
    assert ((run / "ladder.json").read_text(), (run / "report.html").read_text()) == before
    assert supple.evaluate(run, other).data == str(other)
    assert (run / "ladder.json").read_text() == before[0]


def test_data_that_moved_are_still_the_runs_own(command, of_pictures, tmp_path):
    run, root = of_pictures
    moved = shutil.copytree(root, tmp_path / "moved")
    found = command("evaluate", run, f"data.root={moved}", "--json").json
    assert "data" not in found
    assert found["points"][0]["n"] == 6


def test_a_root_for_a_set_that_has_none_is_refused(command):
    command("profile", "recipes/pocket/digits.yaml", "data.root=pictures").refused(2, 'unknown key "data.root"')
