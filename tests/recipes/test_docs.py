"""The pages run: every code block of the README, and the walks through a new method and a new task."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from supple import checkpoint
from supple.backbones import BACKBONES
from supple.cli import main
from supple.cost import PointCosts
from supple.data.registry import DATASETS
from supple.ladder import Row
from supple.recipe import load_recipe, make_recipe
from supple.training.loop import train
from tiny_network import CLASSES, ship_tiny

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.mark.system
def test_the_walk_through_a_new_method_keeps_the_contract_and_trains(tmp_path):
    (code,) = blocks("docs/add-a-method.md", "python")
    (recipe,) = blocks("docs/add-a-method.md", "yaml")
    assert len(code.splitlines()) <= 50
    (tmp_path / "shrink.yaml").write_text(recipe)
    (tmp_path / "shrink.py").write_text(code)
    script = (
        "import sys, pytest\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from shrink import Shrink\n"
        "from supple.methods import METHODS\n"
        "METHODS['shrink'] = Shrink\n"
        "status = pytest.main(['tests/test_contract.py', '-k', 'shrink', '-p', 'no:cacheprovider', '-p', 'no:xdist'])\n"
        "from supple.cli import main\n"
        f"page, out = {str(tmp_path / 'shrink.yaml')!r}, {str(tmp_path / 'run')!r}\n"
        "sys.exit(status or main(['profile', page]) or main(['train', page, '--out', out]) or main(['bench', out]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed", done.stdout)
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:-1]] == ["width=0.5", "full"]


@pytest.mark.system
def test_the_pages_method_passes_the_type_checker(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="needs the extra dev")
    (code,) = blocks("docs/add-a-method.md", "python")
    (tmp_path / "shrink.py").write_text(code)
    out, _, status = mypy.run([str(tmp_path / "shrink.py"), "--config-file", str(ROOT / "pyproject.toml")])
    assert status == 0, out


MULTILABEL = """
import multilabel, torch
from PIL import Image
from supple.cli import main
from supple.model import Output
from supple.point import FULL

meter = multilabel.MeanAveragePrecision(None)
meter.add(Output(FULL, torch.tensor([[2.0, 0], [1, 1], [0, 2]])), torch.tensor([[1.0, 0], [0, 0], [1, 1]]))
assert abs(meter.result().score - (5 / 6 + 1) / 2) < 1e-6  # (1 + 2/3) / 2 for the first class, 1 for the second

images, targets = multilabel.draw(8, seed=9)
names = [f"{i}.png" for i in range(8)]
for name, image in zip(names, images):
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(name)
run = lambda *words: main(["--import", "multilabel", *words])
assert run("train", "patches.yaml", "--out", "run") == 0
assert run("evaluate", "run") == 0
assert run("export", "run") == 0
exported = "run/export/onnx-fp32"
for where in ("run", exported):
    print("JSON")
    assert run("predict", where, *names, "--json") == 0
    print("JSON")
    assert run("predict", where, *names, "--json", "--min-confidence", "0") == 0
    print("END")
    assert run("predict", where, *names) == 0
    assert run("predict", where, *names, "--confident") == 2
assert run("calibrate", "run", "--budget-macs", "0.5x") == 2
assert run("predict", "run", *names, "--draw", "drawn") == 2
"""


@pytest.mark.system
def test_the_walk_through_a_new_task_trains_scores_answers_and_exports_it(tmp_path):
    """One imported file is all there is: any part of the core that had to know of the task would fail here."""
    (tmp_path / "multilabel.py").write_text("\n\n".join(blocks("docs/add-a-task.md", "python")))
    (recipe,) = blocks("docs/add-a-task.md", "yaml")
    (tmp_path / "patches.yaml").write_text(recipe)
    done = subprocess.run([sys.executable, "-c", MULTILABEL], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validation mAP %: width=0.5" in done.stderr
    assert "--confident is not for the task multilabel" in done.stderr
    assert "--draw is for count and boxes; this run answers multilabel" in done.stderr
    assert re.search(r"params  mAP %\nwidth=0.5", done.stdout)
    documents = [json.loads(part.split("END")[0])["predictions"] for part in done.stdout.split("JSON")[1:]]
    of_run, all_of_run, of_engine, all_of_engine = documents
    for prediction in of_run:
        likely = [score["label"] for score in prediction["scores"] if score["score"] >= 0.5]
        assert prediction["labels"] == likely
        assert prediction["label"] == (", ".join(likely) or "nothing")
    assert {len(prediction["labels"]) for prediction in of_run} >= {0, 1, 2}
    assert all(len(prediction["labels"]) == 3 for prediction in (*all_of_run, *all_of_engine))
    assert [prediction["labels"] for prediction in of_engine] == [prediction["labels"] for prediction in of_run]


def test_the_walk_through_a_new_data_set_trains_with_its_own_setting(tmp_path, monkeypatch, capsys):
    (code,) = blocks("docs/add-a-data-set.md", "python")
    (recipe,) = blocks("docs/add-a-data-set.md", "yaml")
    assert len(code.splitlines()) <= 40
    (tmp_path / "birds.yaml").write_text(recipe)
    (tmp_path / "table_set.py").write_text(code)
    (tmp_path / "birds").mkdir()
    rows = ["file,species,sex"]
    for number in range(40):
        rows.append(f"{number}.png,{('crow', 'gull')[number % 2]},{('f', 'm', 'm')[number % 3]}")
        Image.new("RGB", (20, 16), (200 * (number % 2), 5 * number, 0)).save(tmp_path / "birds" / f"{number}.png")
    (tmp_path / "birds" / "labels.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/add-a-data-set.md").read_text()
    commands = [shlex.split(line) for line in re.findall(r"^    supple (.*)$", page, flags=re.MULTILINE)]
    assert [words[0] for words in commands] == ["train", "train", "evaluate"]
    try:
        for words in commands:
            assert main(words) == 0, words
        assert main(["train", "birds.yaml", "data.column=age", "--out", "runs/age", "--import", "table_set"]) == 2
        assert "has no column age" in capsys.readouterr().err
        found = [checkpoint.load(f"runs/{run}").classes for run in ("birds", "sex")]
    finally:
        DATASETS.pop("table", None)
    assert found == [("crow", "gull"), ("f", "m")]


@pytest.fixture(scope="module")
def demo(exits_run, tmp_path_factory) -> Path:
    """A folder with runs/demo inside, as `supple demo` leaves it, but of a tiny network; and with runs/digits, as with
    --train, but trained more briefly."""
    from supple.cli.demo import show_demo, train_demo

    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("supple.networks.FOLDER", ship_tiny(exits_run, folder / "networks", CLASSES).parent)
        show_demo((), Path("runs/demo"), quiet=True)
        patch.setattr(
            "supple.recipe.load_recipe", lambda name: load_recipe(name, ["train.epochs=2", "train.threads=1"])
        )
        train_demo(Path("runs/digits"), quiet=True)
    os.symlink(ROOT / "recipes", folder / "recipes")
    return folder


def test_the_python_of_the_readme_runs(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    code = blocks("README.md", "python")
    assert code
    for block in code:
        exec(compile(block, "README.md", "exec"), {})
    assert "exit=1" in capsys.readouterr().out


def test_the_commands_of_the_readme_run(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    lines = [line.split("#")[0].strip() for block in blocks("README.md", "bash") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line]
    assert {words[0] for words in commands} <= {"make", "source", "supple"}
    for words in commands:
        if words[0] == "supple" and words[1] not in ("demo", "train", "export") and "runs/pictures" not in words:
            words = [str(path) for word in words for path in (sorted(demo.glob(word)) if "*" in word else [word])]
            assert main(words[1:]) == 0, words
    makefile = (ROOT / "Makefile").read_text()
    for words in commands:
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        if words[0] == "supple" and words[1] == "train" and words[2] != "pictures":  # see the page on pictures
            load_recipe(words[2], [word for word in words if "=" in word])


def test_the_example_lets_sure_images_leave_early(demo, capsys):
    import runpy

    module = runpy.run_path(str(ROOT / "examples" / "stop_when_sure.py"))
    module["main"](str(demo / "runs" / "digits"), 0.0)
    nobody_stays = capsys.readouterr().out.splitlines()
    assert nobody_stays[0].split()[:4] == ["exit=1", "answers", "359", "images;"]
    assert len(nobody_stays) == 2
    module["main"](str(demo / "runs" / "digits"), 1.0)
    everybody_stays = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in everybody_stays[:-1]] == ["0", "0", "0", "359"]
    full = checkpoint.load(demo / "runs" / "digits").ladder.rows[-1].score
    assert everybody_stays[-1] == f"accuracy {100 * full:.1f} % at confidence 1"


def test_every_page_named_in_the_readme_exists():
    names = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_train_then_load_as_the_readme_says(tmp_path):
    folder = train(load_recipe("pocket/digits.yaml", ["train.epochs=1", "train.threads=1"]), tmp_path, quiet=True)
    assert checkpoint.load(folder).ladder.best_under(macs=1e9)


def test_the_page_on_exits_and_its_example_run(tmp_path, capsys):
    for block in blocks("docs/exits.md", "python"):
        exec(compile(block, "exits.md", "exec"), {})
    (recipe,) = blocks("docs/exits.md", "yaml")
    (tmp_path / "exits.yaml").write_text(recipe)
    assert main(["profile", str(tmp_path / "exits.yaml"), "data.classes=10"]) == 0
    space = {"__name__": "example"}
    exec(compile((ROOT / "examples/exits_on_your_network.py").read_text(), "example", "exec"), space)
    try:
        space["main"](str(tmp_path / "own"), epochs=1)
        ladder = checkpoint.load(tmp_path / "own").ladder
    finally:
        del BACKBONES["own"]
    assert [row.point for row in ladder] == ["exit=1", "exit=2", "full"]  # cheapest first
    assert ladder.rows[1].macs < 0.7 * ladder.rows[2].macs
    assert "exit=2" in capsys.readouterr().out


def test_the_page_on_training_runs(tmp_path, monkeypatch):
    """Its recipes parse, its optimizer and schedule train, its model in hand learns."""
    import yaml

    from supple.recipe import make_recipe
    from supple.training.optim import OPTIMIZERS
    from supple.training.schedule import SCHEDULES

    given = [{"data": {}, "backbone": {}, "method": {}} | yaml.safe_load(b) for b in blocks("docs/training.md", "yaml")]
    one, other = (make_recipe(document, partial=True).train for document in given)
    assert one.optimizer == {"name": "adamw", "betas": (0.9, 0.95), "eps": 1e-6}
    assert other.schedule == {"name": "step", "milestones": (30, 60), "gamma": 0.1}

    (own,) = blocks("docs/training.md", "python")
    for registry in (OPTIMIZERS, SCHEDULES):
        for name in ("signsgd", "root"):
            monkeypatch.setitem(registry, name, None)  # type: ignore[arg-type]
            del registry[name]
    (tmp_path / "mine.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    changes = ["train.epochs=2", "train.threads=1", "data.limit=64", "train.optimizer=signsgd", "train.lr=1e-3"]
    changes += ["train.schedule={name: root, power: 1}", "train.warmup=0"]
    recipe = ROOT / "recipes" / "pocket" / "digits.yaml"
    assert main(["--import", "mine", "train", str(recipe), *changes, "--out", "run", "--json"]) == 0
    rates = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in rates] == pytest.approx([1e-3, 5e-4])  # one step in each of two epochs


@pytest.mark.system
def test_the_page_on_python_runs(tmp_path, monkeypatch, capsys):
    (code,) = blocks("docs/python.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/python.md", "exec"), {})
    assert "exit=1" in capsys.readouterr().out
    assert len(Path("runs/mine/metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.system
def test_the_page_on_the_command_line_runs(demo, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(demo / "runs" / "demo")
    picture = next((demo / "runs" / "demo" / "images").glob("*.png"))
    for name in ("photo.png", "photos/cats/1.png", "photos/2.png", "more/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.open(picture).convert("RGB").save(tmp_path / name)
    (tmp_path / "supple").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m supple "$@"\n')
    (tmp_path / "supple").chmod(0o755)
    source, path = str(ROOT / "src"), f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(tmp_path), "SHELL": "/bin/bash", "PYTHONPATH": source}
    answered = {}
    for line in "".join(blocks("docs/command-line.md", "bash")).splitlines():
        if "--install-completion" not in line:  # it depends on the program that started it: see test_completion.py
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stderr)
            answered[line] = [row.split()[0] for row in done.stdout.splitlines()[1:] if row.strip()]
    files, folder, piped, named = [rows for line, rows in answered.items() if "predict" in line]
    assert (files, folder) == (["photo.png", "more/3.jpg"], ["photos/2.png", "photos/cats/1.png"])
    assert (piped, sorted(named)) == (["-"], ["photos/2.png", "photos/cats/1.png"])


@pytest.mark.system
def test_the_page_on_pictures_runs(tmp_path, monkeypatch, capsys):
    """With pictures of three colours, and no weights to be had: all but the network is as with them."""
    from test_propose import make_pictures

    from supple.recipe import Train
    from supple.training import propose

    make_pictures(tmp_path / "pictures", each=40)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(propose, "available", lambda name: False)
    monkeypatch.setattr(propose, "_rate", lambda plan: (Train(precision="fp32", compile="off"), 5.0))
    for block in blocks("docs/pictures.md", "bash"):
        for line in block.splitlines():
            assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
    (code,) = blocks("docs/pictures.md", "python")
    exec(compile(code, "docs/pictures.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] in ("blue", "green", "red")


def test_the_code_of_the_page_on_elastic_models_runs_and_its_recipe_is_valid():
    for block in blocks("docs/elastic.md", "python"):
        exec(compile(block, "docs/elastic.md", "exec"), {})
    (recipe,) = blocks("docs/elastic.md", "yaml")
    assert make_recipe(yaml.safe_load(recipe)).train.sample == "sandwich"


def test_the_searches_of_the_page_on_elastic_models_run(tmp_path, monkeypatch, capsys):
    backbone = {"name": "mobilenet_v1", "channels": [32, 64, 64], "strides": [2, 2]}
    method = {"name": "elastic", "widths": [0.25, 0.5, 1.0], "at": ["2"]}
    document = {"data": {"name": "generated", "batch_size": 32}, "backbone": backbone, "method": method}
    document |= {"train": {"epochs": 1, "threads": 1}}
    train(make_recipe(document), tmp_path / "runs" / "elastic", quiet=True)
    costs = PointCosts()
    ms = lambda model, point: dict.fromkeys(("p50_ms", "p95_ms"), 1e-6 * costs.macs(model, point))
    timed = lambda model, points, *_, **how: [Row(str(point), **ms(model, point)) for point in points]
    monkeypatch.setattr("supple.searching.measure.time_points", timed)  # what is true on a quiet machine
    monkeypatch.chdir(tmp_path)
    (lines,) = blocks("docs/elastic.md", "bash")
    for line in lines.splitlines():
        assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
        assert "runs/elastic now has these points" in capsys.readouterr().out
