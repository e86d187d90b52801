"""The pages run: every code block of the README, and the walk through a new method."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from supple import checkpoint
from supple.backbones import BACKBONES
from supple.cli import main
from supple.recipe import load_recipe
from supple.train import train

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


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


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """A folder with runs/demo inside, as `supple demo` leaves it, but trained more briefly."""
    from supple.demo import run_demo

    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("supple.demo.load_recipe", lambda name: load_recipe(name, ["train.epochs=2", "train.threads=1"]))
        run_demo(Path("runs/demo"), quiet=True)
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
        if words[0] == "supple" and words[1] not in ("demo", "train", "export"):  # these take long, and have tests
            words = [str(path) for word in words for path in (sorted(demo.glob(word)) if "*" in word else [word])]
            assert main(words[1:]) == 0, words
    makefile = (ROOT / "Makefile").read_text()
    for words in commands:
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        if words[0] == "supple" and words[1] == "train":
            load_recipe(words[2], [word for word in words if "=" in word])


def test_the_example_lets_sure_images_leave_early(demo, capsys):
    import runpy

    module = runpy.run_path(str(ROOT / "examples" / "stop_when_sure.py"))
    module["main"](str(demo / "runs" / "demo"), 0.0)
    nobody_stays = capsys.readouterr().out.splitlines()
    assert nobody_stays[0].split()[:4] == ["exit=1", "answers", "359", "images;"]
    assert len(nobody_stays) == 2
    module["main"](str(demo / "runs" / "demo"), 1.1)
    everybody_stays = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in everybody_stays[:-1]] == ["0", "0", "0", "359"]
    full = checkpoint.load(demo / "runs" / "demo").ladder.rows[-1].score
    assert everybody_stays[-1] == f"accuracy {100 * full:.1f} % at confidence 1.1"


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
        space["main"](str(tmp_path / "own"), epochs=2)
    finally:
        del BACKBONES["own"]
    assert "exit=2" in capsys.readouterr().out


def test_the_page_on_training_runs(tmp_path, monkeypatch):
    """Its recipes parse, its optimizer and schedule train, its model in hand learns."""
    import yaml

    from supple.optim import OPTIMIZERS
    from supple.recipe import make_train
    from supple.schedule import SCHEDULES

    one, other = (make_train(yaml.safe_load(block)["train"]) for block in blocks("docs/training.md", "yaml"))
    assert one.optimizer == {"name": "adamw", "betas": (0.9, 0.95), "eps": 1e-6}
    assert other.schedule == {"name": "step", "milestones": (30, 60), "gamma": 0.1}

    own, in_hand = blocks("docs/training.md", "python")
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
    exec(compile(in_hand, "docs/training.md", "exec"), {})
    assert len(Path("runs/mine/metrics.jsonl").read_text().splitlines()) == 2
