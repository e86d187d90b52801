"""Every method's points as graphs that say the same, and folders that list what they hold."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from supple.checkpoint import WEIGHTS, load, read_manifest, save_policy
from supple.errors import CheckpointError, RecipeError, SuppleError
from supple.exporting import convert, write
from supple.exporting.check import Loss, arrays, decided, largest_difference, losses
from supple.exporting.graphs import Chain, FlatPoint, Graph, given_to, one_by_one, skip_graphs
from supple.exporting.quantize import with_onnxruntime
from supple.exporting.write import Held, Wanted, export
from supple.inference.bundle import Check, is_bundle, open_bundle
from supple.inference.engines import Graphs, Layer, open_engine
from supple.inference.inputs import zeros
from supple.inference.select import _weights, choices_for, of_bundle, predictor, within
from supple.inference.skipping import follow
from supple.machine import machine
from supple.methods import METHODS
from supple.model import FlexibleModel, Output, example
from supple.point import FULL, Point
from supple.policy.policy import stop_above
from supple.scoring import Score
from supple.tasks import Result
from test_contract import PAIRS as CONTRACT
from test_contract import make

pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("openvino", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

PAIRS = [  # those that differ in what is exported
    ("exits", "msdnet"),
    ("exits", "audiocsrnet"),
    ("slim", "mobilenet_v1"),
    ("static", "resnet_v1"),
    ("shuffle", "vit"),
    ("dense", "vit_cifar"),
    ("skip", "vit_cifar"),
    ("prune", "timm"),
    ("nested", "timm"),
    ("elastic", "fastnet"),
    ("elastic", "vit"),
]
for _method in METHODS:  # any other, on the first backbone that it takes
    if _method not in dict(PAIRS):
        PAIRS.append(next(pair for pair in CONTRACT if pair[0] == _method))


@dataclass
class Noise:
    """Random inputs as a data set."""

    shape: tuple
    classes: int = 4
    at_once = None

    def __len__(self) -> int:
        return 8

    def batch(self, indices, rng=None):
        x = example(self.shape, len(self), torch.randn, generator=torch.Generator().manual_seed(3))
        pick = lambda part: part[indices]
        return (tuple(map(pick, x)) if isinstance(x, tuple) else pick(x)), indices % self.classes


def held(shape) -> Held:
    return Held(Noise(shape), Noise(shape), Noise(shape))


@pytest.mark.system
@pytest.mark.parametrize(("method", "backbone"), PAIRS)
def test_every_point_says_the_same_on_both_engines(method, backbone, traced_once, tmp_path):
    model = make(method, backbone)
    x = Noise(model.input_shape).batch(torch.arange(8))[0]
    if model.settles_on == "validation":
        model.settle([(x, None)])
    with torch.no_grad():
        expected = model(x).numpy()
    points = (*model.points[::4], FULL) if len(model.points) > 8 else ()  # of a product of axes, some of each kind
    for to, engines in (("onnx", ("onnxruntime", "openvino")), ("openvino", ("openvino",))):
        manifest = export(model, "0" * 64, tmp_path / to, Wanted(to, points=points), held(model.input_shape))
        assert [check["engine"] for check in manifest["checks"]] == list(engines)
        assert all(check["difference"] < 1e-3 for check in manifest["checks"])  # how near, the export has seen to
        bundle = open_bundle(tmp_path / to)
        assert set(bundle.graphs.points) == {str(point) for point in points or (*model.points, *model.settled)}
        answered = [str(stage.point) for stage in model.stages() if stage.point is not None]
        stages, layers = bundle.graphs.stages, bundle.graphs.layers
        assert [stage.point for stage in stages if stage.point] == (answered if len(answered) > 1 else [])
        blocks = sum(layer.role == "block" for layer in layers)
        assert blocks == (0 if model.layer_gates() is None else len(model.trunk.blocks))
        for name in engines:
            engine = open_engine(name, bundle, 1)
            np.testing.assert_allclose(
                engine.run(bundle.graphs.points["full"], arrays(x))[0], expected, atol=1e-3, rtol=1e-3
            )
            engine.close()
    given = arrays(x)
    with predictor(tmp_path / "onnx", "onnxruntime", threads=1) as made:
        for point in made.points:
            answers = made.predict(given if len(given) > 1 else given[0], point=point)
            assert [answer.point for answer in answers] == [str(point)] * 8


def test_a_graph_that_cannot_be_exported_names_the_innermost_cause_without_colours():
    cause = RuntimeError("no ONNX function for aten.thing.default")
    banner = RuntimeError("Failed to convert.\n\x1b[96mThis is step 3/3\x1b[0m of exporting. " + 300 * "Next steps. ")
    banner.__cause__ = cause
    found = convert.refused(Graph("full", torch.nn.Identity(), ()), banner)
    assert found.cause == "full cannot be exported (aten.thing.default): no ONNX function for aten.thing.default."
    assert "--debug" in found.cure


def test_samples_whose_decisions_are_near_ties_are_not_compared():
    """Whatever the method: scores of 0.6 and 0.50005 are 0.1 and 0.00005 away from the threshold."""
    logits = torch.zeros(3, 2)
    assert decided(Output(FULL, logits)).tolist() == [True] * 3
    assert decided(Output(FULL, logits, margin=torch.tensor([0.1, 0.00005, 0.0]))).tolist() == [True, False, False]


class Ties(FlexibleModel):
    """Every sample has a decision, as far from flipping as its first value is above `least`."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least, self.points, self.input_shape = least, (FULL,), (2,)

    def run(self, x, points):
        yield Output(FULL, x.clone(), margin=(x[:, 0] - self.least).clamp_min(0))


class Noted:
    """An engine that says what the model does, and something else; it notes the sizes of its batches."""

    name, precision = "noted", "fp32"

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong, self.batches = wrong, []

    def run(self, graph, inputs):
        self.batches.append(len(inputs[0]))
        return (inputs[0] + self.wrong,)

    def array(self, value):
        return value


def compared(model: FlexibleModel, engine: Noted, x: torch.Tensor) -> float:
    return largest_difference(model, SimpleNamespace(graphs=Graphs({"full": "full"})), engine, x)


def test_where_no_sample_is_clear_a_graph_is_compared_on_noise():
    near = torch.zeros(8, 2)
    with pytest.raises(CheckpointError, match="full: the exported graph differs"):
        compared(Ties(0.0), Noted(0.5), near)
    assert compared(Ties(0.0), right := Noted(), near) == 0
    assert right.batches[:3] == [8, 1, 16]
    assert compared(Ties(-9.0), enough := Noted(), near) == 0
    assert enough.batches == [8, 1]
    assert compared(Ties(-9.0), few := Noted(), near[:2]) == 0  # there are no more, and all are clear
    assert few.batches == [2, 1]


def test_the_sample_that_is_compared_alone_is_a_clear_one():
    class Alone(Noted):
        def run(self, graph, inputs):
            return (super().run(graph, inputs)[0] + (len(inputs[0]) == 1),)

    x = torch.tensor([[0.0, 1], [1, 1], [1, 1], [1, 1], [1, 1]])
    with pytest.raises(CheckpointError, match="differs"):
        compared(Ties(0.0), Alone(), x)


def test_a_graph_that_cannot_be_compared_is_refused():
    with pytest.raises(CheckpointError, match="full: rounding may decide every sample"):
        compared(Ties(99.0), Noted(), torch.zeros(8, 2))


# --- skipping ---------------------------------------------------------------------------------------------------------


def test_a_layer_that_everybody_skips_does_not_run():
    class Engine:
        """Layers add one to the state; the first gate lets the odd ones through, the second nobody."""

        name, precision, ran = "by hand", "fp32", []

        def run(self, role, state):
            self.ran.append((role, len(state[0])))
            if role == "stem":
                return state[0], np.ones((len(state[0]), 1), np.float32)
            if role == "gate":
                score = np.arange(len(state[0])) % 2 if len(state[1][0]) == 1 else np.zeros(len(state[0]))
                return (np.concatenate([state[1], score[:, None].astype(np.float32)], 1),)
            return (state[0] + 1,) if role == "block" else (state[0],)

        def array(self, value):
            return value

    engine, layers = Engine(), tuple(Layer(role, role) for role in ROLES)
    found = follow(engine, layers, (np.zeros((4, 1), np.float32),), 0.5)
    assert found[:, 0].tolist() == [1, 2, 1, 2]
    assert engine.ran == [("stem", 4), ("block", 4), ("gate", 4), ("block", 2), ("gate", 4), ("head", 4)]
    engine.ran.clear()
    assert follow(engine, layers, (np.zeros((4, 1), np.float32),), None)[:, 0].tolist() == [3] * 4
    assert ("gate", 4) not in engine.ran


ROLES = ("stem", "block", "gate", "block", "gate", "block", "head")


def test_the_layers_of_a_skipping_model_are_given_what_it_gives_them():
    model = make("skip", "vit_cifar")
    x = Noise(model.input_shape).batch(torch.arange(3))[0]
    graphs = skip_graphs(model, x)
    *_, (state,) = given_to(Chain([], graphs), x)
    with torch.no_grad():
        torch.testing.assert_close(model.trunk.head(state), model(x))


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(exits_run, tmp_path_factory) -> Path:
    """The run of the tests, exported to ONNX."""
    out = tmp_path_factory.mktemp("exported") / "onnx"
    model = load(exits_run)
    weights = read_manifest(exits_run)["files"][WEIGHTS]
    from supple.training.build import data_of

    splits = data_of(exits_run)
    export(model, weights, out, Wanted("onnx"), Held(splits.train, splits.val, splits.test))
    return out


def test_what_is_altered_missing_or_newer_is_refused(folder, tmp_path):
    for change in ("flip", "remove", "format", "unlisted"):
        copy = Path(shutil.copytree(folder, tmp_path / change))
        manifest = json.loads((copy / "manifest.json").read_text())
        if change == "flip":
            content = bytearray((copy / "full.onnx").read_bytes())
            content[len(content) // 2] ^= 1
            (copy / "full.onnx").write_bytes(content)
            expected = "does not match its digest in manifest.json"
        elif change == "remove":
            (copy / "body-1.onnx").unlink()
            expected = "body-1.onnx is missing"
        elif change == "format":
            (copy / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
            expected = "has format 99"
        else:
            manifest["points"]["full"] = "../full.onnx"
            (copy / "manifest.json").write_text(json.dumps(manifest))
            expected = "has no digest"
        with pytest.raises(CheckpointError, match=expected):
            open_bundle(copy)


# docs/engines.md names what is.
NOT_NEEDED = ("torch", "torchvision", "timm", "lightning_fabric", "safetensors", "yaml", "sklearn")


def test_it_answers_in_a_process_that_cannot_import_torch(folder, tmp_path):
    Image.new("RGB", (20, 20), "red").save(tmp_path / "red.png")
    program = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {NOT_NEEDED}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from supple.cli import main\n"
        f"words = ['predict', {str(folder)!r}, {str(tmp_path / 'red.png')!r}, '--deadline-ms', '1000', '--json']\n"
        "sys.exit(main(words))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [answer] = json.loads(done.stdout)["predictions"]
    assert (answer["point"], answer["in_time"]) == ("full", True)


def test_files_give_the_answers_that_the_run_gives(folder, exits_run, tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 30, 3), np.uint8)).save(tmp_path / "noise.png")
    model = load(exits_run)
    with predictor(folder, "openvino", threads=1) as made, torch.no_grad():
        for point in model.points:
            answer = made.predict(tmp_path / "noise.png", point=point)
            expected = model(model.preprocess.input(tmp_path / "noise.png"), point)[0]
            np.testing.assert_allclose(answer.logits, expected.numpy(), atol=1e-4)
            assert answer.label == model.classes[int(expected.argmax())]


def test_batches_of_many_sizes_need_few_compiled_graphs(folder):
    bundle = open_bundle(folder)
    one, other = open_engine("openvino", bundle, 1), open_engine("onnxruntime", bundle, 1)
    x = np.random.default_rng(0).standard_normal((9, *bundle.input_shape), np.float32)
    for batch in (*range(1, 10), 3, 6):
        found, expected = (engine.run("full.onnx", (x[:batch],))[0] for engine in (one, other))
        np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-3)
    assert {size for _, size in one._compiled} == {1, 2, -1}  # -1: one for all others


def test_the_first_stage_of_a_chain_pays_for_compiling_the_others(folder):
    """Else the first calls with a new size of a batch would miss their deadline, one for each stage."""
    bundle = open_bundle(folder)
    engine = open_engine("openvino", bundle, 1)
    for batch in (3, 1, 5, 6):
        state = (np.zeros((batch, *bundle.input_shape), np.float32),)
        for k, stage in enumerate(bundle.graphs.stages):
            state = state if stage.body is None else engine.run(stage.body, state)
            engine.run(stage.head, state)
            if k == 0:
                compiled = set(engine._compiled)
        assert set(engine._compiled) == compiled
    assert {size for _, size in compiled} == {3, 1, -1}


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_the_answers_to_a_batch_stay_when_the_graph_runs_again(folder, name):
    bundle = open_bundle(folder)
    engine = open_engine(name, bundle, 1)
    x = np.random.default_rng(0).standard_normal((6, *bundle.input_shape), np.float32)
    for batch in (1, 2, 3):  # of sizes of its own, and of an open one
        first = engine.array(engine.run("full.onnx", (x[:batch],))[0])
        kept = first.copy()
        second = engine.array(engine.run("full.onnx", (x[3 : 3 + batch],))[0])
        np.testing.assert_array_equal(first, kept)
        assert not np.array_equal(first, second)


def test_the_fastest_engine_is_remembered_and_said(folder, tmp_path, capsys):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    predictor(copy, threads=1, progress=True).close()
    said = capsys.readouterr().err
    kept = json.loads((copy / "engine.json").read_text())
    assert kept["chosen"] in said
    assert set(kept["ms"]) == {str(choice) for choice in choices_for(copy)}
    predictor(copy, threads=1, progress=True).close()
    assert capsys.readouterr().err == ""
    assert is_bundle(copy)


def test_an_export_of_a_run_is_found_and_one_of_other_weights_is_not(folder, exits_copy):
    shutil.copytree(folder, exits_copy / "export" / "onnx-fp32")
    assert {choice.engine for choice in choices_for(exits_copy)} == {"torch", "onnxruntime", "openvino"}
    manifest = json.loads((exits_copy / "export" / "onnx-fp32" / "manifest.json").read_text())
    (exits_copy / "export" / "onnx-fp32" / "manifest.json").write_text(json.dumps({**manifest, "checkpoint": "1" * 64}))
    assert [choice.engine for choice in choices_for(exits_copy)] == ["torch"]
    with pytest.raises(RecipeError, match="not for the engine openvino"):
        predictor(exits_copy, "openvino")
    with pytest.raises(RecipeError, match='no engine "opnvino"'):
        predictor(exits_copy, "opnvino")


def test_a_run_that_answers_through_its_export_follows_its_own_policy(folder, exits_copy, capsys):
    shutil.copytree(folder, exits_copy / "export" / "onnx-fp32")
    for least in (0.5, 0.9):  # calibrated after the export, and once more
        save_policy(exits_copy, stop_above((Point(exit=1), FULL), least))
        with predictor(exits_copy, "onnxruntime", threads=1) as made:
            assert made.policy == load(exits_copy).policy
            assert made.policy.thresholds == (least,)
    document = json.loads((exits_copy / "policy.json").read_text())
    (exits_copy / "policy.json").write_text(json.dumps(document | {"weights": "0" * 64}))
    with predictor(exits_copy, "onnxruntime", threads=1) as made:
        assert made.policy is None
    (exits_copy / "policy.json").write_text(json.dumps(document | {"points": ["thin=1", "full"]}))
    with pytest.raises(CheckpointError, match="--import MODULE"):
        predictor(exits_copy, "onnxruntime", threads=1)


def test_a_damaged_export_is_passed_over_and_one_of_some_points_is_not_chosen(folder, exits_copy, capsys):
    copy = Path(shutil.copytree(folder, exits_copy / "export" / "onnx-fp32"))
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "asked": ["exit=1"]}))
    with predictor(exits_copy, threads=1) as made:
        assert made.engine.name == "torch"
    (copy / "full.onnx").write_bytes(b"")
    assert [choice.engine for choice in choices_for(exits_copy)] == ["torch"]
    assert "It is ignored. Remove" in capsys.readouterr().err


def test_an_exported_folder_that_is_named_answers_whatever_it_has_lost(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    checks = [
        {**check, "precision": "int8", "lost": {"full": 0.5}, "left_out": ["exit=1"]} for check in manifest["checks"]
    ]
    lossy = {"precision": "int8", "checks": checks}
    (copy / "manifest.json").write_text(json.dumps({**manifest, **lossy}))
    with predictor(copy, "onnxruntime", threads=1) as made:
        assert [str(point) for point in made.points] == ["exit=2", "full"]  # without what was left out
        assert made.predict(zeros(made.shape, 1))[0].point == "full"


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"input_shape": None},
        {"input_shape": [1, 2, 3]},
        {"policy": {"a": 1}},
        {"task": "foo"},
        {"checks": [{"engine": "onnxruntime"}]},
        {"stages": [{"file": "full.onnx", "point": None}]},
        {"points": {"exit=x": {"file": "full.onnx"}}},
        {"classes": 5},
        {"inputs": {}},
    ],
    ids=str,
)
def test_a_manifest_that_tells_nonsense_is_refused(change, folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(CheckpointError):
        predictor(copy, "onnxruntime", threads=1)


@pytest.mark.parametrize("given", [{"threads": 0}, {"threads": "2"}, {"engine": None}, {"precision": "int4"}], ids=str)
def test_what_a_predictor_cannot_be_is_said(given, folder):
    with pytest.raises(RecipeError):
        predictor(folder, **given)


def test_an_engine_that_is_not_installed_names_the_extra(exits_copy, monkeypatch):
    monkeypatch.setattr(
        "supple.inference.engines.find_spec", lambda package: None if package == "onnxruntime" else True
    )
    with pytest.raises(RecipeError, match="not installed") as told:
        predictor(exits_copy, "onnxruntime")
    assert "supple[export]" in told.value.cure


# --- int8 -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def splits(exits_run):
    from supple.training.build import data_of

    return data_of(exits_run)


def test_int8_does_not_overflow_where_there_is_no_dot_product_of_eight_bits():
    """Two products of eight bits each are summed in sixteen there: full weights on full inputs would be cut in half."""
    network = torch.nn.Sequential(torch.nn.Conv2d(64, 8, 3, bias=False))
    torch.nn.init.constant_(network[0].weight, 0.1)
    x = torch.ones(4, 64, 8, 8)
    graph = Graph("whole", FlatPoint(network).eval(), (x[:2],), FULL)
    content = with_onnxruntime(convert.convert(graph, "onnx")["whole.onnx"], one_by_one((x,)))
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    [found] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, network(x).detach().numpy(), rtol=0.05)


class Loud:
    """A model's own logits, for some samples turned around."""

    name, precision = "loud", "int8"

    def __init__(self, model, wrong: list[int], by: float = -1.0) -> None:
        self.model, self.wrong, self.by = model, wrong, by

    def run(self, graph, inputs):
        logits = self.model(torch.from_numpy(inputs[0])).numpy().copy()
        logits[self.wrong] *= self.by
        return (logits,)

    def array(self, value):
        return value


def test_the_error_of_a_loss_counts_the_samples_that_changed():
    model = make("static", "resnet_v1").eval()
    x, _ = (data := Noise(model.input_shape)).batch(torch.arange(8))
    with torch.no_grad():
        best, worst = model(x).argmax(1), model(x).argmin(1)
    y = torch.where(torch.arange(8) < 6, best, worst)  # six are right
    data.batch = lambda indices, rng=None: (x[indices], y[indices])
    # Three right ones become wrong, one wrong one right: (3 - 1) / 8 lost, and sqrt(3 + 1 - (3 - 1)^2 / 8) / 8.
    [before], found = losses(model, Graphs({"full": "full"}), Loud(model, [0, 1, 2, 7]), data, (FULL,))
    assert (before.score, before.n, found["full"].after.score) == (0.75, 8, 0.5)
    assert (found["full"].lost, found["full"].error) == pytest.approx((0.25, 3.5**0.5 / 8))
    _, unchanged = losses(model, Graphs({"full": "full"}), Loud(model, []), data, (FULL,))
    assert unchanged["full"][1:] == (0.0, 0.0)


def test_of_an_error_the_loss_and_its_error_are_relative():
    model = make("static", "resnet_v1").eval()
    model.task = "count"
    x, _ = (data := Noise(model.input_shape)).batch(torch.arange(8))
    with torch.no_grad():
        counts = model(x).sum(1)
    data.batch = lambda indices, rng=None: (x[indices], counts[indices] - counts[indices].abs())  # mean error: |count|
    [before], found = losses(model, Graphs({"full": "full"}), Loud(model, [*range(8)], 1.5), data, (FULL,))
    more = (1.5 * counts - (counts - counts.abs())).abs() - counts.abs()
    assert found["full"].lost == pytest.approx(float(more.mean() / counts.abs().mean()), rel=1e-4)
    assert found["full"].error == pytest.approx(float(more.std(correction=0) / 8**0.5 / counts.abs().mean()), rel=1e-4)
    assert before.error == pytest.approx(float(counts.abs().std(correction=0) / 8**0.5), rel=1e-4)


def test_too_much_is_lost_only_outside_the_standard_error():
    check = Check("onnxruntime", "int8", machine(), lost={"exit=1": 0.021, "full": 0.021}, samples=144)
    assert check.losing(0.01) == ("exit=1", "full")  # nothing is known of an error, as in folders made before
    errors = {"exit=1": 0.0105, "full": 0.0115}
    assert replace(check, error=errors).losing(0.01) == ("exit=1",)
    assert replace(check, error=errors).losing(0.02) == ()


@pytest.mark.system
def test_int8_is_scored_and_points_that_lose_too_much_are_left_out(
    exits_run, splits, traced_once, tmp_path, monkeypatch
):
    monkeypatch.setattr(write, "CALIBRATED_ON", 8)
    model, data = load(exits_run), Held(splits.train, splits.val, splits.test)
    manifest = export(model, "0" * 64, tmp_path / "all", Wanted("onnx", precision="int8", max_drop=1.0), data)
    assert set(manifest["points"]) == {"exit=1", "exit=2", "full"}
    for check in manifest["checks"]:
        assert set(check["lost"]) == {"exit=1", "exit=2", "full", "exit=1, chain", "exit=2, chain", "full, chain"}
    assert [check["engine"] for check in manifest["checks"]] == ["onnxruntime", "openvino"]
    for choice in choices_for(tmp_path / "all"):
        assert within(choice, 1.0)
        assert not within(choice, -1.0)

    lost = {"exit=1": 0.5, "exit=2": 0.0, "full": 0.0, "exit=1, chain": 0.5}
    after = Result(0.5, 0.0, {})

    def losing(*_):
        return [Score("full", "accuracy", 0.9, 0.0, 64)], {what: Loss(after, lost[what], 0.1) for what in lost}

    monkeypatch.setattr(write, "losses", losing)
    manifest = export(model, "0" * 64, tmp_path / "some", Wanted("onnx", precision="int8"), data)
    assert set(manifest["points"]) == {"exit=2", "full"}
    whole = open_bundle(tmp_path / "some")
    check = whole.check("onnxruntime", "int8")
    bundle = whole.after(check)
    assert [stage.point for stage in bundle.graphs.stages] == [
        None,
        "exit=2",
        "full",
    ]  # it runs, and only the others answer
    with of_bundle(whole, "onnxruntime", 1) as made:
        answer = made.predict(np.zeros((1, *bundle.input_shape), np.float32), min_confidence=0.0)[0]
    assert answer.point == "exit=2"
    assert check.left_out == ("exit=1", "exit=1, chain")
    assert not (tmp_path / "some" / "exit-1.onnx").exists()
    [choice, *_] = choices_for(tmp_path / "some")
    assert not within(choice, 1.0)  # auto wants every point

    lost = {"exit=1": 0.0, "exit=2": 0.0, "full": 0.5, "exit=2, chain": 0.5, "full, chain": 0.5}
    manifest = export(model, "0" * 64, tmp_path / "short", Wanted("onnx", precision="int8"), data)
    assert [stage["point"] for stage in manifest["stages"]] == ["exit=1"]
    assert not (tmp_path / "short" / "stage-2.onnx").exists()

    lost = dict.fromkeys(lost, 0.9)
    with pytest.raises(CheckpointError, match="every point loses more in int8 than is allowed, on 64 validation"):
        export(model, "0" * 64, tmp_path / "none", Wanted("onnx", precision="int8"), data)
    assert not (tmp_path / "none").exists()


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_export_verb_writes_checks_and_finds_it_again(command, exits_copy):
    done = command("export", exits_copy, "--point", "exit=1", "--out", exits_copy / "one", "--json").json
    assert list(done["points"]) == ["exit=1"]
    assert [(c["engine"], c["precision"]) for c in done["checks"]] == [("onnxruntime", "fp32"), ("openvino", "fp32")]
    assert all(check["difference"] < 1e-4 for check in done["checks"])
    assert command("predict", exits_copy / "one", exits_copy / "curve.png").status == 0
    command("export", exits_copy, "--out", exits_copy / "one").refused(2, "was made for exit=1", "--out")
    command("export", exits_copy, "--out", exits_copy).refused(2, "already exists", "--out")
    other = command("export", exits_copy, "--point", "exit=1", "--to", "openvino", "--out", exits_copy / "one")
    other.refused(2, "was made for onnx in fp32", "--out")
    times = json.loads((exits_copy / "one" / "ladder.json").read_text())["points"]
    assert {row["engine"] for row in times if row.get("p50_ms")} == {"onnxruntime", "openvino"}
    command("bench", exits_copy / "one", "--point", "exit=9").refused(2, "no point exit=9", "Use one of these")
    command("bench", exits_copy, "train.epochs=9", "--engine", "torch").refused(2, "changes do not apply")
    command("export", exits_copy, "--to", "onxx").refused(2, "onxx", "onnx, openvino, torch-export")
    command("export", exits_copy, "--to", "torch-export", "--int8").refused(2, "--int8", "onnx")
    command("predict", exits_copy, exits_copy / "curve.png", "--engine", "openvino").refused(2, "openvino", "export")


def test_a_folder_counts_as_there_only_if_it_is_what_is_asked_for(command, exits_copy):
    assert command("export", exits_copy, "--point", "exit=1").status == 0
    assert "is up to date" in command("export", exits_copy, "--point", "exit=1").out
    command("export", exits_copy).refused(2, "was made for exit=1", "rm -r")


@pytest.mark.system
def test_new_thresholds_reach_graphs_that_are_there_and_shares_need_the_full_model(command, exits_copy, tmp_path):
    command("export", exits_copy, "--point", "exit=1", "--point", "exit=2")
    folder = exits_copy / "export" / "onnx-fp32"
    before = (folder / "body-1.onnx").stat().st_mtime_ns
    assert open_bundle(folder).policy is None
    assert command("calibrate", exits_copy, "--budget-macs", "0.9x").status == 0
    said = command("export", exits_copy, "--point", "exit=1", "--point", "exit=2")
    assert "is up to date, now with the thresholds" in said.out
    assert open_bundle(folder).policy is not None
    assert (folder / "body-1.onnx").stat().st_mtime_ns == before
    Image.new("RGB", (20, 20), "red").save(tmp_path / "red.png")
    words = ("predict", folder, tmp_path / "red.png", "--engine", "onnxruntime", "--budget-macs", "0.9x")
    command(*words).refused(2, "a share of the full model", "2e6")


def test_a_graph_that_differs_is_not_written(exits_run, splits, tmp_path, monkeypatch):
    monkeypatch.setattr("supple.exporting.check.TOLERANCE", 1e-12)
    data = Held(splits.train, splits.val, splits.test)
    with pytest.raises(CheckpointError, match="differs from PyTorch"):
        export(load(exits_run), "0" * 64, tmp_path / "out", Wanted("onnx", points=(Point(exit=1),)), data)
    assert not (tmp_path / "out").exists()


def test_detectors_are_refused_and_archives_are_not_opened(exits_run, splits, tmp_path):
    model = load(exits_run)
    data = Held(splits.train, splits.val, splits.test)
    export(model, "0" * 64, tmp_path / "archive", Wanted("torch-export", points=(FULL,)), data)
    with pytest.raises(RecipeError, match="reading one can run code"):
        predictor(tmp_path / "archive")
    model.task = "boxes"
    with pytest.raises(SuppleError, match="graphs cannot answer the task boxes"):
        export(model, "0" * 64, tmp_path / "boxes", Wanted("onnx"), data)


def test_the_chain_ends_at_the_last_point_that_was_asked_for(exits_run, splits, traced_once, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "CALIBRATED_ON", 8)
    model = load(exits_run)
    manifest = export(model, "w", tmp_path / "one", Wanted(points=(Point(exit=1),)), splits)
    assert manifest["stages"] == []
    for precision in ("fp32", "int8"):  # exit=1 answers along the chain, though it has no graph of its own
        wanted = Wanted(points=(Point(exit=2),), precision=precision, max_drop=1.0)
        export(model, "w", tmp_path / f"two-{precision}", wanted, splits)
        bundle = open_bundle(tmp_path / f"two-{precision}")
        assert list(bundle.graphs.points) == ["exit=2"]
        assert [stage.point for stage in bundle.graphs.stages] == ["exit=1", "exit=2"]
        made = predictor(tmp_path / f"two-{precision}", engine="onnxruntime", precision=wanted.precision)
        assert made.predict(zeros(made.shape, 1), deadline_ms=1e6)[0].point == "exit=2"


def test_an_export_that_was_interrupted_leaves_no_folder_that_answers(exits_copy, splits, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("supple.exporting.write._check", stop)
    monkeypatch.setattr("supple.files.shutil.rmtree", lambda *_, **__: None)  # as if it had been killed
    with pytest.raises(KeyboardInterrupt):
        wanted = Wanted(points=(Point(exit=1),))
        export(load(exits_copy), _weights(exits_copy), exits_copy / "export" / "onnx-fp32", wanted, splits)
    [left] = (exits_copy / "export").iterdir()
    assert left.name.startswith(".onnx-fp32.")
    assert [choice.engine for choice in choices_for(exits_copy)] == ["torch"]


def test_sessions_share_one_pool_where_the_process_is_ours_and_nowhere_else(folder, monkeypatch):
    """Beside such a pool no session of the process may have one of its own: a library must not make it."""
    from supple import machine
    from supple.inference.engines import onnxruntime as engine

    asked = []
    monkeypatch.setattr(engine, "_pool", [])
    monkeypatch.setattr(machine, "_own", [])
    monkeypatch.setattr(engine.onnxruntime, "set_global_thread_pool_sizes", lambda *sizes: asked.append(sizes))
    own = open_engine("onnxruntime", open_bundle(folder), 2)
    assert own._options.use_per_session_threads
    assert own._options.intra_op_num_threads == 2
    machine.own_process()
    assert [engine.shares_pool(threads) for threads in (1, 2, 3, 2)] == [False, True, True, True]
    assert asked == [(2, 1)]  # the first decides: a pool cannot be changed
    assert not open_engine("onnxruntime", open_bundle(folder), 2)._options.use_per_session_threads
