"""`supple demo`: the network that comes with supple on this machine, and a training on digits."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from typer.main import get_command

from supple import load, showing
from supple.cli import app
from supple.errors import CheckpointError
from supple.inference.engines import Stage
from supple.inference.latency import LatencyEstimator
from supple.recipe import load_recipe
from tiny_network import CLASSES, NAME, ship_tiny


@pytest.fixture(scope="module")
def package(exits_run, tmp_path_factory) -> Path:
    return ship_tiny(exits_run, tmp_path_factory.mktemp("networks"), CLASSES).parent


@pytest.fixture
def shipped(package, monkeypatch, tmp_path) -> Path:
    """A tiny network that ships, in the place of the real one; the current folder is empty."""
    monkeypatch.setattr("supple.networks.FOLDER", package)
    monkeypatch.setattr("supple.showing.ROUNDS", 5)
    monkeypatch.chdir(tmp_path)
    return package / NAME


def test_the_demo_shows_stored_scores_over_times_of_this_machine_and_three_deadlines(command, shipped):
    said = command("demo")
    assert (said.status, said.err) == (0, "")
    model = load("runs/demo")
    assert str(model.ladder) in said.out
    assert all(row.p50_ms for row in model.ladder)
    assert [row.score for row in model.ladder] == [row.score for row in load(shipped).ladder]
    with Image.open("runs/demo/curve.png") as curve:
        assert curve.width > 500
    heading, *rows = (line for line in said.out.splitlines() if line.startswith(("picture", *CLASSES)))
    assert heading.count("within") == 3
    assert [line.split()[0] for line in rows] == [f"{name}.png" for name in CLASSES]
    assert all(line.count(" % (") == 3 for line in rows)
    verbs = [get_command(app.app).commands[line.split()[1]].name for line in said.out.splitlines()[-4:]]
    assert verbs == ["predict", "bench", "extract", "demo"]


def test_the_commands_that_it_ends_with_run(command, shipped):
    for line in command("demo", "--json").json["next"][:3]:
        assert command(*line.split()[1:]).status == 0, line


def test_the_shipped_network_and_earlier_demos_are_left_as_they_are(command, shipped):
    before = {path: path.read_bytes() for path in shipped.iterdir()}
    assert command("demo", "--json").json["run"] == "runs/demo"
    first = {path: path.read_bytes() for path in Path("runs/demo").iterdir() if path.is_file()}
    assert command("demo", "--json").json["run"] == "runs/demo-2"
    assert command("demo", "--json", "--out", "runs/demo").json["run"] == "runs/demo-3"
    assert {path: path.read_bytes() for path in (*shipped.iterdir(), *first)} == before | first


def test_it_answers_the_pictures_given_and_names_those_it_cannot_read(command, shipped):
    Path("mine").mkdir()
    Image.new("RGB", (40, 30), "red").save("mine/red.png")
    Path("mine/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    said = command("demo", "mine")
    assert said.status == 2
    assert "mine/broken.png" in said.err
    assert [line.split()[0] for line in said.out.splitlines() if " % (" in line] == ["red.png"]
    assert "drawings" not in said.out
    assert not Path("runs/demo/images").exists()


def test_json_is_one_document_with_every_answer_and_its_deadline(command, shipped):
    found = command("demo", "--json").json
    assert len(found["deadlines_ms"]) == 3
    assert [*map(float, found["deadlines_ms"])] == sorted(found["deadlines_ms"])
    asked = [(Path(answer["file"]).stem, answer["deadline_ms"]) for answer in found["predictions"]]
    assert asked == [(name, ms) for name in CLASSES for ms in found["deadlines_ms"]]
    assert all(answer["point"] in ("exit=1", "exit=2", "full") for answer in found["predictions"])
    assert (found["network"], found["errors"], len(found["points"])) == (NAME, [], 3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("*.png",), ("no file fits *.png",)),
        (("--train", "a.png"), ("--train",)),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(command, shipped, words, named):
    command("demo", *words).refused(2, *named)
    assert not Path("runs").exists()


def test_without_the_network_the_cure_is_a_training(command, monkeypatch, tmp_path):
    monkeypatch.setattr("supple.networks.FOLDER", tmp_path)
    command("demo").refused(2, NAME, "supple demo --train")


def test_deadlines_leave_time_for_the_first_exit_for_all_and_halfway():
    # 1 + 0.8 (2 - 1) = 1.8; 1.4 x 4 = 5.6; (1.8 + 5.6) / 2 = 3.7
    assert showing.deadlines_of([1.0, 2.0, 3.0, 4.0]) == (1.8, 3.7, 5.6)
    assert showing.deadlines_of([2.0]) == (2.8,)


def test_what_an_exit_usually_takes_is_all_bodies_and_heads_on_the_way():
    latency = LatencyEstimator()
    for step, ms in {("body", 0): 1, ("head", 0): 0.25, ("body", 1): 2, ("body", 2): 4, ("head", 2): 0.5}.items():
        latency.learn((*step, 1), [ms])
    stages = (Stage("a", "b", "exit=1"), Stage("c", None, None), Stage("d", "e", "full"))
    made = SimpleNamespace(stages=stages, latency=latency)
    assert showing.usual_ms(made) == pytest.approx([0.1 + 1.25, 0.1 + 1.25 + 2 + 4.5])


def test_drawings_that_are_taken_for_something_else_are_owned_up_to():
    from supple.cli.demo import _verdict

    answers = [
        [SimpleNamespace(file=f"a/{name}.png", label=label)] for name, label in (("cat", "dog"), ("ship", "ship"))
    ]
    text = _verdict(SimpleNamespace(answers=answers, deadlines_ms=(2.0,)))
    assert text.endswith("1 of 2 are right within 2 ms; it took cat for dog.")


# --- a training -------------------------------------------------------------------------------------------------------


def test_a_demo_that_was_interrupted_goes_on(command, monkeypatch, tmp_path):
    def train(recipe: object, folder: Path, *, quiet: bool, resume: bool) -> None:
        raise CheckpointError(f"{folder} {resume}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("supple.training.loop.train", train)
    assert "runs/demo False" in command("demo", "--train").err
    Path("runs/demo").mkdir(parents=True)
    Path("runs/demo/recipe.yaml").touch()
    assert "runs/demo True" in command("demo", "--train").err


def test_demo_train_trains_measures_predicts_and_says_what_to_try_next(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    short = load_recipe("pocket/digits.yaml", ["train.epochs=1", "data.limit=256"])
    monkeypatch.setattr("supple.recipe.load_recipe", lambda name: short)
    (tmp_path / "runs/demo").mkdir(parents=True)
    said = command("demo", "--train")
    assert said.status == 0
    run = tmp_path / "runs/demo-2"  # the first name was taken
    assert {"curve.png", "report.html", "model.safetensors"} <= {path.name for path in run.iterdir()}
    assert str(load("runs/demo-2").ladder) in said.out
    lines = said.out.splitlines()
    for number, (verb, line) in enumerate(zip(("predict", "bench", "extract"), lines[-3:])):
        assert (number, line.split()[1]) == (number, verb)
    answered = [line.split() for line in lines if ".png" in line and "MACs" in line]
    assert len(answered) == 9
    assert len({words[0] for words in answered}) == len({words[2] for words in answered}) == 3
