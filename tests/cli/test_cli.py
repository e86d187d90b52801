"""The command line: what every verb prints, writes and returns. Scripts rely on it."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch.testing import assert_close

import supple.training.loop
from supple import Point, checkpoint, files, load
from supple.backbones import BACKBONES
from supple.cli import VERBS, app, main, overview
from supple.cli.app import EXAMPLES
from supple.errors import SuppleError
from supple.machine import machine
from supple.methods import METHODS
from supple.progress import Progress
from supple.recipe import find_recipe, load_recipe
from supple.training.build import load_data
from tiny import tiny_recipe

CLICK = typer.main.get_command(app.app)
ROW = {
    *("point", "engine", "precision", "batch", "threads", "machine"),
    *("macs", "macs_through", "macs_worst", "params", "branch_params", "extra_params"),
    "folder",
    *("p50_ms", "p95_ms", "p99_ms", "metric", "score", "accuracy", "higher_is_better", "n", "deviation", "draws"),
    *("iqr_ms", "score_error", "lost", "lost_error", "extra_metrics"),
}
POINTS = {"exits": ["exit=1", "exit=2", "full"], "slim": ["width=0.5", "full"]}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A test image as a file."""
    path = tmp_path_factory.mktemp("images") / "stripes.png"
    Image.fromarray(load_data(tiny_recipe()).test.raw(0).permute(1, 2, 0).numpy()).save(path)
    return path


@pytest.fixture
def laddered(exits_copy: Path) -> Path:
    """A run whose ladder is made by hand: exit=2 scores as well as any and costs less than full."""
    facts = [("exit=1", 100, 1e3, 0.5), ("exit=2", 200, 5e3, 0.9), ("full", 300, 2e4, 0.8)]
    key = {"batch": 1, "threads": 1, "machine": machine()}
    rows = [
        {"point": point, "macs": macs, "p50_ms": ms / 2, "p95_ms": ms, "metric": "accuracy", "score": score, **key}
        for point, macs, ms, score in facts
    ]
    document = {"weights": files.sha256(exits_copy / "model.safetensors"), "points": rows}
    (exits_copy / "ladder.json").write_text(json.dumps(document))
    return exits_copy


def parse(line: str) -> typer.Context:
    """Reads a pasted command as the command line would, without running it."""
    program, verb, *words = shlex.split(line)
    assert program == "supple"
    for word in words:
        if word.startswith("recipes/"):
            assert find_recipe(word).is_file()
    return CLICK.commands[verb].make_context(verb, words)  # type: ignore[attr-defined]


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_bare_supple_and_help_list_every_verb_and_end_with_two_commands(command, words):
    said = command(*words)
    assert (said.status, said.err) == (0, "")
    wanted = ["list", "profile", "train", "evaluate", "predict", "bench", "extract", "report", "demo", "doctor"]
    wanted += ["merge", "prune", "calibrate", "analyse", "export", "reproduce", "search", "serve", "cluster"]
    assert sorted(wanted) == sorted(VERBS) == sorted(CLICK.commands)
    for verb, text in VERBS.items():
        assert f"  {verb:<10}{text}\n" in said.out
    first, second = said.out.splitlines()[-2:]
    assert (first.strip(), parse(second.strip()).info_name) == ("supple demo", "profile")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_fits_a_screen_and_ends_with_two_commands_that_parse(command, verb):
    said = command(verb, "--help")
    assert (said.status, said.err) == (0, "")
    assert len(said.out.splitlines()) <= 30
    assert [line.strip() for line in said.out.splitlines()[-2:]] == list(EXAMPLES[verb])
    for example in EXAMPLES[verb]:
        assert parse(example).info_name == verb


def test_no_help_imports_torch():
    code = f"""
import sys
from supple.cli import main
for words in ([], ["--help"], *([verb, "--help"] for verb in {list(VERBS)})):
    assert main(words) == 0, words
heavy = {{"torch", "torchvision", "lightning_fabric", "matplotlib", "sklearn", "numpy", "PIL"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- profile ----------------------------------------------------------------------------------------------------------

# point: macs, macs_through, params.
PUBLISHED = {
    "msdnet_cifar10_none": {
        "exit=1": (14_955_776, 14_955_776, 422_266),
        "exit=3": (28_780_800, 36_745_984, 517_670),
        "exit=4": (34_789_632, 45_926_400, 616_118),
        "exit=6": (46_326_016, 66_460_160, 713_638),
    },
    "msdnet_cifar100_tam": {
        "exit=1": (14_967_296, 14_967_296, 433_876),
        "exit=3": (28_792_320, 36_780_544, 529_280),
        "exit=4": (34_801_152, 45_972_480, 627_728),
        "exit=6": (46_337_536, 66_529_280, 725_248),
    },
    "mobilenet_cifar10_none": {
        "width=0.25": (3_331_072, None, 215_642),
        "width=0.75": (26_508_288, None, 1_824_250),
        "full": (46_354_432, None, 3_217_226),
    },
    "mobilenet_cifar100_ipkd": {
        "width=0.25": (3_354_112, None, 238_772),
        "width=0.75": (26_577_408, None, 1_893_460),
        "full": (46_446_592, None, 3_309_476),
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_profile_gives_the_published_counts_without_any_data(command, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUPPLE_DATA", raising=False)
    said = command("profile", f"recipes/ipkd_ta/{name}.yaml", "--json")
    rows = {row["point"]: row for row in said.json["points"]}
    assert said.err == ""
    assert len(rows) == (7 if name.startswith("msdnet") else 4)
    for point, (macs, through, params) in PUBLISHED[name].items():
        row = rows[point]
        assert (row["macs"], row["params"]) == (macs, params)
        assert through is None or row["macs_through"] == through
    for row in rows.values():
        assert set(row) == ROW
        assert all(type(row[key]) is int for key in ("macs", "macs_through", "params", "extra_params"))
        assert (type(row["branch_params"]) is int) == name.startswith("msdnet")
    assert not list(tmp_path.iterdir())


def test_profile_takes_changes_and_single_points_and_prints_a_table(command, exits_yaml, exits_run):
    two = command("profile", exits_yaml, "backbone.blocks=2", "--json").json["points"]
    three = command("profile", exits_yaml, "--json").json["points"]
    assert [row["point"] for row in two] == ["exit=1", "full"]
    assert [row["point"] for row in three] == POINTS["exits"]
    assert two[0]["macs"] == three[0]["macs"]
    assert command("profile", exits_run, "--json").json["points"] == three
    assert command("profile", exits_yaml, "--point", "exit=3", "--json").json["points"] == three[2:]
    table = command("profile", exits_yaml).out.splitlines()
    assert [line.split()[0] for line in table] == ["point", *POINTS["exits"]]
    command("profile", exits_run, "backbone.blocks=2").refused(2, "backbone.blocks=2", str(exits_run))


# --- train ------------------------------------------------------------------------------------------------------------


def test_train_writes_into_runs_and_keeps_progress_off_stdout(command, monkeypatch, tmp_path, slim_yaml):
    monkeypatch.chdir(tmp_path)
    said = command("train", slim_yaml, "train.epochs=1")
    assert said.status == 0
    assert [line.split()[0] for line in said.out.splitlines() if line] == [
        "point",
        *POINTS["slim"],
        "runs/slim/report.html",
    ]
    assert "epoch 1/1" in said.err
    assert len((tmp_path / "runs/slim/metrics.jsonl").read_text().splitlines()) == 1
    assert checkpoint.read_manifest(Path("runs/slim"))["recipe"]["train"]["epochs"] == 1

    again = command("train", "runs/slim", "--resume", "--json")  # finished: nothing is trained again
    assert again.err == ""
    assert again.json == {"run": "runs/slim", "points": load("runs/slim").ladder.to_json()["points"]}


def test_ctrl_c_saves_and_exits_with_130_and_resume_ends_as_if_never_stopped(
    command, monkeypatch, tmp_path, exits_yaml, exits_run
):
    step = Progress.step

    def interrupted(self: Progress, *facts: Any) -> None:
        step(self, *facts)
        if self.done == 10:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", interrupted)
        said = command("train", exits_yaml, "--out", tmp_path / "run", "--json")
    assert (said.status, said.out) == (130, "")
    assert said.err.splitlines()[-1] == f"Resume it: supple train {tmp_path / 'run'} --resume."
    command("evaluate", tmp_path / "run").refused(2, "manifest.json", "has not finished", "--resume")
    assert command("train", tmp_path / "run", "--resume", "--json").json["run"] == str(tmp_path / "run")
    assert (tmp_path / "run/model.safetensors").read_bytes() == (exits_run / "model.safetensors").read_bytes()


def test_a_settled_width_runs_and_is_scored_listed_and_extracted(command, slim_copy, tmp_path):
    before = load(slim_copy)
    x = load_data(tiny_recipe("slim")).test.batch(torch.arange(8))[0]
    said = command("train", slim_copy, "--settle", "width=0.75", "--json")
    assert [row["point"] for row in said.json["points"]] == ["width=0.5", "width=0.75", "full"]
    model = load(slim_copy)
    logits = model(x, Point(width=0.75))
    assert logits.isfinite().all()
    for point in before.points:
        assert_close(model(x, point), before(x, point), rtol=0, atol=0)
        assert not torch.equal(logits, model(x, point))
    rows = command("evaluate", slim_copy, "--json").json["points"]
    assert [row["point"] for row in rows] == ["width=0.5", "width=0.75", "full"]
    assert rows[0]["macs"] < rows[1]["macs"] < rows[2]["macs"]
    assert rows == said.json["points"]
    assert (
        command("extract", slim_copy, "--point", "width=0.75", "--out", tmp_path / "x", "--json").json["macs"]
        == rows[1]["macs"]
    )
    manifest = checkpoint.read_manifest(slim_copy)
    assert (manifest["settled"], manifest["epochs"]) == (["width=0.75"], 2)


# --- evaluate and bench -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", POINTS)
def test_evaluate_scores_every_point_and_updates_the_ladder(command, request, method):
    run = request.getfixturevalue(f"{method}_copy")
    model = load(run)
    (run / "ladder.json").unlink()
    said = command("evaluate", run, "--json")
    rows = said.json["points"]
    assert said.err == ""
    assert [row["point"] for row in rows] == POINTS[method]
    test = load_data(tiny_recipe(method)).test
    x, y = test.batch(torch.arange(len(test)))
    for row in rows:
        right = (model(x, Point.parse(row["point"])).argmax(1) == y).float().mean().item()
        assert set(row) == ROW
        assert (row["metric"], row["n"], row["score"], row["accuracy"]) == ("accuracy", 64, right, right)
        assert all(type(row[key]) is int for key in ("macs", "params", "n"))
    assert [row.to_json() for row in load(run).ladder] == rows
    assert command("evaluate", run, "--point", "full", "--json").json["points"] == rows[-1:]
    table = command("evaluate", run)
    assert table.status == 0
    assert f"{100 * rows[-1]['accuracy']:.1f}" in table.out
    assert "(64 test samples)" in table.out


@pytest.mark.system
def test_bench_times_every_point_at_every_batch_and_the_ladder_keeps_them(command, exits_copy):
    before = [row.score for row in load(exits_copy).ladder]
    said = command("bench", exits_copy, "--batch", "1,3", "--threads", "1,2", "--rounds", "5", "--json")
    rows = said.json["points"]
    assert said.err == ""
    assert torch.get_num_threads() == 1  # as it was
    wanted = [(point, batch, threads) for threads in (1, 2) for batch in (1, 3) for point in POINTS["exits"]]
    assert [(row["point"], row["batch"], row["threads"]) for row in rows] == wanted
    for row in rows:
        assert set(row) == ROW
        assert (row["engine"], row["precision"], row["machine"]) == ("torch", "fp32", machine())
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    kept = [row.to_json() for row in load(exits_copy).ladder]
    assert sorted(map(json.dumps, kept)) == sorted(map(json.dumps, rows))
    assert [row["score"] for row in rows[:3]] == before

    command("evaluate", exits_copy, "--json").json  # noqa: B018
    assert [row.p50_ms for row in load(exits_copy).ladder] == [row["p50_ms"] for row in kept]
    assert command("bench", exits_copy, "--point", "exit=1", "--rounds", "5").out.splitlines()[0].split()[:3] == [
        "point",
        "MMACs",
        "params",
    ]


def test_bench_times_a_recipe_with_random_weights_and_writes_nothing(command, monkeypatch, tmp_path, slim_yaml):
    monkeypatch.chdir(tmp_path)
    rows = command("bench", slim_yaml, "--rounds", "5", "--json").json["points"]
    assert [row["point"] for row in rows] == POINTS["slim"]
    assert all(row["p95_ms"] > 0 and row["score"] is None for row in rows)
    assert not list(tmp_path.iterdir())


# --- predict ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "point", "reason"),
    [
        ((), "full", "full"),
        (("--point", "exit=1"), "exit=1", "asked"),
        (("--point", "exit=3"), "full", "asked"),
        (("--deadline-ms", "30e3"), "full", "full"),  # exits run stage by stage: there is time for all
        (("--deadline-ms", "0.001"), "exit=1", "deadline"),  # nothing fits: the cheapest answers
        (("--budget-macs", "2e2"), "exit=2", "budget"),
        (("--budget-macs", "199"), "exit=1", "budget"),
        (("--budget-macs", "1"), "exit=1", "budget"),
    ],
)
def test_predict_names_the_point_that_ran_and_why(command, laddered, image, words, point, reason):
    said = command("predict", laddered, image, *words, "--json")
    (answer,) = said.json["predictions"]
    assert said.err == ""
    limits = {"in_time", "within_budget"}
    assert set(answer) == {"file", "label", "scores", "point", "reason", "elapsed_ms", *limits}
    assert (answer["file"], answer["point"], answer["reason"]) == (str(image), point, reason)
    assert answer["elapsed_ms"] > 0

    model = load(laddered)
    x = model.preprocess.normalise(torch.from_numpy(np.array(Image.open(image))).permute(2, 0, 1)[None])
    probabilities = model(x, Point.parse(point)).softmax(1)[0].tolist()
    expected = sorted(zip(probabilities, model.classes), reverse=True)[:5]
    assert [score["label"] for score in answer["scores"]] == [label for _, label in expected]
    assert_close([score["score"] for score in answer["scores"]], [score for score, _ in expected])
    assert answer["label"] == expected[0][1]


def test_predict_says_so_when_no_point_keeps_the_limit(command, laddered, image):
    for words, kept in (
        (("--budget-macs", "1"), False),
        (("--budget-macs", "2e2"), True),
        (("--budget-macs", "9x"), True),
    ):
        (answer,) = command("predict", laddered, image, *words, "--json").json["predictions"]
        assert answer["within_budget"] is kept
        assert ("nothing fits; used the cheapest" in command("predict", laddered, image, *words).out) is not kept
    assert "deadline, late" in command("predict", laddered, image, "--deadline-ms", "0.001").out
    command("predict", laddered, image, "--budget-macs", "half").refused(2, "--budget-macs", '"half"', "0.5x")


def test_a_module_of_the_users_is_imported_before_a_verb_runs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_register.py").write_text(
        "from supple.backbones import BACKBONES\nBACKBONES['mine'] = BACKBONES['mobilenet_v1']\n"
    )
    text = "data: {name: generated}\nbackbone: {name: mine, channels: [32, 32], strides: [2]}\nmethod: {name: slim}\n"
    (tmp_path / "r.yaml").write_text(text)
    command("profile", "r.yaml").refused(2, '"mine" is unknown', "--import MODULE")
    try:
        assert "width=0.5" in command("profile", "r.yaml", "--import", "mine_to_register").out
    finally:
        BACKBONES.pop("mine", None)
    command("profile", "r.yaml", "--import", "no_such_module").refused(2, "no_such_module", "Name a Python module")
    (tmp_path / "field_again.py").write_text("from supple.point import FIELDS, add_field\nadd_field(FIELDS['exit'])\n")
    command("profile", "r.yaml", "--import", "field_again").refused(2, "--import field_again: points already", "once")


def test_a_run_remembers_the_modules_it_was_made_with_and_cures_name_them(command, tmp_path, exits_copy, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_name.py").write_text("")
    monkeypatch.setattr(checkpoint, "IMPORTED", ["mine_to_name"])
    load(exits_copy).save(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"msdnet"', '"mine"'))
    command("evaluate", "run").refused(2, '"mine" is unknown', "--import mine_to_name")
    said = command("calibrate", "run", "--import", "mine_to_name")
    said.refused(2, "none of --budget-macs", "supple --import mine_to_name calibrate RUN")


def test_predict_measures_and_counts_for_itself_what_the_ladder_lacks(command, exits_copy, image):
    def answer(*words: str) -> tuple[str, bool | None]:
        found = command("predict", exits_copy, image, *words, "--json").json["predictions"][0]
        return found["point"], found["in_time"]

    (exits_copy / "ladder.json").unlink()
    assert answer("--deadline-ms", "0.0001") == ("exit=1", False)  # late is better than never
    assert answer("--deadline-ms", "100000") == ("full", True)
    assert (answer("--budget-macs", "300e3")[0], answer("--budget-macs", "1e9")[0]) == ("exit=1", "full")


def test_predict_takes_the_images_of_a_folder_in_order(command, exits_run, image, tmp_path):
    for name in ("b.png", "a.PNG", "notes.txt"):
        (tmp_path / name).write_bytes(image.read_bytes())
    said = command("predict", exits_run, tmp_path, image)
    assert said.status == 0
    assert [Path(line.split()[0]).name for line in said.out.splitlines()] == ["file", "a.PNG", "b.png", "stripes.png"]


# --- extract, report, list, doctor ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "point", "words", "faster"),  # faster: whether the probe finds channels_last to be
    [
        ("exits", "exit=2", (), False),
        ("exits", "exit=1", ("--deploy",), True),
        ("slim", "width=0.5", ("--deploy",), False),
    ],
)
def test_extract_writes_a_network_that_torch_alone_runs_with_equal_outputs(
    command, request, monkeypatch, tmp_path, method, point, words, faster
):
    monkeypatch.setattr("supple.surgery.deploy.fastest", lambda networks, *_, **__: networks[-1 if faster else 0])
    run, out = request.getfixturevalue(f"{method}_run"), tmp_path / "small"
    facts = command("extract", run, "--point", point, "--out", out, *words, "--json").json
    model = load(run)
    network = torch.export.load(out / "model.pt2").module()
    for batch in (1, 5):
        x = torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))
        assert_close(network(x), model(x, Point.parse(point)), rtol=1e-5, atol=1e-5)

    row = next(row for row in model.ladder if row.point == point)
    manifest = json.loads((out / "manifest.json").read_text())
    assert {key: manifest[key] for key in facts} == facts
    assert (facts["point"], facts["deploy"], facts["macs"], facts["params"]) == (
        point,
        bool(words),
        row.macs,
        row.params,
    )
    assert facts["difference"] <= 1e-5
    assert (facts["classes"], facts["input_shape"]) == (list(model.classes), [3, 16, 16])
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "model.pt2", "model.safetensors"]
    assert manifest["files"] == {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("model.pt2", "model.safetensors")
    }
    command("extract", run, "--out", out).refused(2, str(out), "--out")


def test_report_writes_the_page_and_the_curve(command, exits_copy):
    page, curve = exits_copy / "report.html", exits_copy / "curve.png"
    page.unlink(), curve.unlink()
    assert command("report", exits_copy, "--json").json == {"report": str(page)}
    assert "exit=1" in page.read_text()
    assert curve.read_bytes()[:4] == b"\x89PNG"
    assert command("report", exits_copy).out == f"{page}\n"


def test_list_knows_every_name_and_every_recipe_it_lists_can_be_loaded(command):
    names = command("list", "--json").json
    assert set(names) == {"backbones", "methods", "branches", "losses", "data", "sampling", "recipes"}
    assert {"msdnet", "mobilenet_v1"} <= set(names["backbones"])
    assert set(names["methods"]) == set(METHODS)
    assert (
        names["methods"].items()
        >= {
            "exits": ["at", "branch", "way", "unfrozen", "freeze_random"],
            "slim": ["widths", "divisor"],
            "shuffle": ["variant", "table", "embedding", "dropout", "weight", "drop"],
            "dense": ["dropout", "read"],
            "skip": ["gate", "target", "weight", "oracle", "inputs", "dropout", "read", "last_always_on"],
            "prune": ["gamma", "update", "ratio", "ranking", "multiple", "kept"],
            "nested": ["widths", "shapes"],
            "static": ["learn", "freeze_random"],
        }.items()
    )
    assert {"digits", "cifar10", "cifar100", "folder"} <= set(names["data"])
    objectives, networks = ("none", "ipkd", "ta1", "tam"), ("msdnet", "mobilenet")
    for network in networks:
        for data in ("cifar10", "cifar100"):
            assert {f"recipes/ipkd_ta/{network}_{data}_{objective}.yaml" for objective in objectives} <= set(
                names["recipes"]
            )
    for recipe, text in names["recipes"].items():
        assert load_recipe(recipe).train.epochs >= 1
        assert text
    plain = command("list", "--recipes").out
    assert all(recipe in plain for recipe in names["recipes"])
    assert command("list", "--recipes", "--json").json == {"recipes": names["recipes"]}


def test_doctor_names_what_there_is_and_how_to_get_the_rest(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPPLE_DATA", str(tmp_path))
    checks = {check["what"]: check for check in command("doctor", "--json").json["checks"]}
    assert all(set(check) == {"what", "ok", "found", "cure"} for check in checks.values())
    assert checks["torch"]["found"] == version("torch")
    assert str(tmp_path) in checks["data folders"]["found"]
    assert all(what in command("doctor").out for what in checks)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("prophile",), ('"prophile"', 'Did you mean "profile"?')),
        (("frobnicate",), ('"frobnicate"', "Possible:", "predict")),
        (("profile",), ("target", "supple profile --help")),
        (("profile", "x.yaml", "--wide"), ("--wide", "supple profile --help")),
        (("bench", "RUN", "--rounds", "2"), ("--rounds", "supple bench --help")),
        (("bench", "RUN", "--batch", "1,x"), ("--batch", '"1,x"', "1,16")),
        (("bench", "RUN", "--threads", "0"), ("--threads", '"0"')),
        (("predict", "RUN", "x.png", "--deadline-ms", "-1"), ("--deadline-ms", "supple predict --help")),
        (("predict", "RUN", "x.png", "--point", "full", "--deadline-ms", "1"), ("--point", "Give one")),
        (("predict", "RUN", "x.png", "--point", "exit=one"), ('"one"', "exit=2")),
        (("predict", "RUN", "x.png", "--point", "depth=2"), ('"depth=2"', "exit=2")),
        (("evaluate", "RUN", "train.lr=1"), ("train.lr=1", "Only data.*")),
        (("evaluate", "RUN", "--point", "width=0.5"), ("Point(width=0.5)", "exit=1, exit=2, full")),
        (("train", "RUN"), ("RUN", "--resume")),
        (("train", "RUN", "train.lr=1", "--resume"), ("the recipe it was started with", "Leave")),
        (("train", "nowhere.yaml", "--settle", "width=0.3"), ("--settle", "nowhere.yaml", "train.settle")),
        (("extract", "RUN"), ("--out", "supple extract --help")),
        (("report", "nowhere"), ("nowhere", "supple train")),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_line_of_cause_one_of_cure_and_status_2(command, exits_run, words, named):
    said = command(*(str(exits_run) if word == "RUN" else word for word in words))
    said.refused(2, *(name.replace("RUN", str(exits_run)) for name in named))


def test_debug_shows_where_an_error_came_from(exits_run, capsys):
    with pytest.raises(SuppleError, match="exit=9"):
        main(["evaluate", str(exits_run), "--point", "exit=9", "--debug"])
    with pytest.raises(SuppleError, match='no verb "prophile"'):
        main(["--debug", "prophile"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "stopped."),
        (ZeroDivisionError("a\nb"), 1, "error: ZeroDivisionError: a b"),
        (MemoryError(), 1, "error: MemoryError"),
        (ModuleNotFoundError("no", name="torch._C"), 1, "error: the package torch._C is not installed."),
    ],
)
def test_what_nobody_foresaw_is_one_line_and_a_status_too(command, monkeypatch, exits_run, error, status, line):
    def fail(folder: object) -> None:
        raise error

    monkeypatch.setattr(checkpoint, "load", fail)
    said = command("evaluate", exits_run, "--json")
    assert (said.status, said.out, said.err.splitlines()[0]) == (status, "", line)
    assert len(said.err.splitlines()) == (1 if status == 130 else 2)
    with pytest.raises(type(error)):
        main(["evaluate", str(exits_run), "--debug"])


def test_the_installed_command_prints_json_alone_and_returns_its_status(exits_run):
    """The one way through a real process: stdout, stderr and exit status as a script sees them."""
    program = [sys.executable, "-m", "supple"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*program, "profile", exits_run, "--json"], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["point"] for row in json.loads(done.stdout)["points"]] == POINTS["exits"]
    done = subprocess.run([*program, "prophile"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ['error: there is no verb "prophile".', 'Did you mean "profile"?']


def test_a_reader_who_leaves_early_is_no_error_to_tell_of():
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "supple", "--help"], stdout=writes, stderr=subprocess.PIPE, check=False
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, b"")


def test_version_and_overview_agree_with_the_package(command):
    assert command("--version").out == f"supple {supple.__version__}\n"
    assert command("help").out.strip() == overview()


def test_settling_with_images_from_elsewhere_leaves_the_recipe_as_it_was(command, slim_copy):
    before = checkpoint.read_manifest(slim_copy)["recipe"]
    assert (
        command("train", slim_copy, "data.batch_size=7", "data.fingerprint=null", "--settle", "width=0.75").status == 0
    )
    assert checkpoint.read_manifest(slim_copy)["recipe"] == before


def test_settling_keeps_the_times_that_were_measured(command, slim_copy):
    assert command("bench", slim_copy, "--batch", "1,4", "--rounds", "5").status == 0
    assert command("train", slim_copy, "--settle", "width=0.75").status == 0
    times = {(row.point, row.batch) for row in load(slim_copy).ladder if row.p50_ms is not None}
    assert times == {("width=0.5", 1), ("width=0.5", 4), ("full", 1), ("full", 4)}
    assert {row.point for row in load(slim_copy).ladder if row.score is not None} == {"width=0.5", "width=0.75", "full"}


def test_evaluate_tells_what_random_budgets_give_in_the_mean(command, exits_copy, slim_copy):
    said = command("evaluate", exits_copy, "--json").json
    rows = said["points"]
    assert said["anytime"]["score"] == pytest.approx(sum(row["score"] for row in rows) / 3)
    assert said["anytime"]["macs"] == pytest.approx(sum(row["macs"] for row in rows) / 3)
    assert "stopped at a random exit" in command("evaluate", exits_copy).out
    assert "anytime" not in command("evaluate", slim_copy, "--json").json
