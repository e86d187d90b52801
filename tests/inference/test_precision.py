"""Precisions: what is computed in fp32, bf16 and int8, on which processors, and who may choose it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino
import pytest
import torch
from test_export import PAIRS, Noise

from supple.checkpoint import load, load_ladder, save_ladder
from supple.errors import RecipeError
from supple.exporting import convert, write
from supple.exporting.check import arrays
from supple.exporting.graphs import FlatPoint, Graph, one_by_one
from supple.exporting.quantize import with_nncf
from supple.exporting.write import Wanted, export
from supple.inference.bundle import Bundle, open_bundle
from supple.inference.engines import Graphs, Layer, open_engine
from supple.inference.engines.openvino import HINTS
from supple.inference.engines.torch import TorchEngine, in_bf16
from supple.inference.select import _chosen, _weights, choices_for, of_bundle, predictor, within
from supple.inference.timing import Times
from supple.ladder import Ladder, Row
from supple.machine import has_bf16, machine, same_instructions
from supple.methods.gates import Gates
from supple.point import FULL, Point
from test_contract import make

pytest.importorskip("openvino", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="this processor has no bf16 arithmetic")


# --- OpenVINO is told the precision -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> Path:
    """One small graph, for both kinds of folders."""
    folder = tmp_path_factory.mktemp("graphs")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    graph = Graph("full", FlatPoint(network).eval(), (torch.zeros(2, 3, 8, 8),), FULL)
    for to in ("onnx", "openvino"):
        for name, content in convert.convert(graph, to).items():
            (folder / name).write_bytes(content)
    return folder


def bundle_of(folder: Path, kind: str, precision: str, role: str = "stage") -> Bundle:
    file = "full.onnx" if kind == "onnx" else "full.xml"
    made = Graphs({"full": file}, layers=(Layer(role, file),) if role == "gate" else ())
    facts = {"task": "classes", "classes": ("a",), "input_shape": (3, 8, 8), "preprocess": None, "policy": None}
    rest = {"checks": (), "asked": (), "max_drop": 0.01}
    return Bundle(folder, kind, precision, "0" * 64, made, {file: ("image",)}, **facts, **rest)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
@pytest.mark.parametrize(("precision", "hint"), [("fp32", "f32"), ("int8", "f32"), ("bf16", "bf16")])
def test_no_graph_is_compiled_without_its_precision(kind, precision, hint, graphs, monkeypatch):
    monkeypatch.setattr("supple.machine.instruction_set", lambda: "avx2 avx512 bf16 vnni")
    told = []

    class Core:
        """Writes down what it is asked for, and compiles in fp32."""

        def __init__(self) -> None:
            self.core = openvino.Core()

        def read_model(self, *given):
            return self.core.read_model(*given)

        def compile_model(self, model, device, settings):
            told.append(settings.get("INFERENCE_PRECISION_HINT"))
            return self.core.compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})

    recording = Core()
    monkeypatch.setattr("supple.inference.engines.openvino.core", lambda: recording)
    x = (np.zeros((1, 3, 8, 8), np.float32),)
    engine = open_engine("openvino", bundle_of(graphs, kind, precision), 1)
    file = "full.onnx" if kind == "onnx" else "full.xml"
    engine.run(file, x)
    engine.run(file, (x[0].repeat(2, 0),))
    assert told == [hint, hint]
    gate = open_engine("openvino", bundle_of(graphs, kind, precision, "gate"), 1)
    gate.run(file, x)
    assert told == [hint, hint, "f32"]  # a score must not shift


@needs_bf16
@pytest.mark.parametrize(("precision", "name"), [("fp32", "f32"), ("int8", "f32"), ("bf16", "bf16")])
def test_a_compiled_graph_has_the_precision_that_it_was_told(precision, name, graphs):
    engine = open_engine("openvino", bundle_of(graphs, "onnx", precision), 1)
    engine.run("full.onnx", (np.zeros((1, 3, 8, 8), np.float32),))
    [compiled] = engine._compiled.values()
    assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == name


# --- int8 -------------------------------------------------------------------------------------------------------------


def test_weights_of_all_layers_have_seven_bits_in_openvino():
    """With eight, sums of two products overflow where there is no 8-bit dot product, not in the first layer only."""
    network = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
    x = torch.rand(4, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    graph = Graph("full", FlatPoint(network), (x[:2],), FULL)
    files = with_nncf(graph, convert.convert(graph, "openvino"), one_by_one((x,)), attention=False)
    model = openvino.Core().read_model(files["full.xml"], files["full.bin"])
    weights = [op.data for op in model.get_ops() if op.get_type_name() == "Constant" and op.data.dtype == np.int8]
    weights = [part for part in weights if part.ndim == 4]
    assert len(weights) == 2
    assert all(np.abs(part.astype(int)).max() <= 64 for part in weights)


# --- a check belongs to an engine and a precision ---------------------------------------------------------------------


ONE = (Point(exit=1),)


@pytest.fixture(scope="module")
def splits(exits_run):
    from supple.training.build import data_of

    return data_of(exits_run)


def pretend(patch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies bf16, or says so: others compute in fp32 when OpenVINO is asked for bf16."""
    if not has_bf16():
        patch.setitem(HINTS, "bf16", "f32")
    patch.setattr("supple.machine.instruction_set", lambda: "avx2 avx512 bf16 vnni")


@pytest.fixture
def with_bf16(monkeypatch):
    pretend(monkeypatch)


@pytest.fixture
def without_bf16(monkeypatch):
    monkeypatch.setattr("supple.machine.instruction_set", lambda: "avx2")


def elsewhere(folder: Path) -> None:
    """As if the folder had been made with another instruction set."""
    for name in ("manifest.json", "ladder.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(json.dumps(machine()), '"Other CPU, 8 cores, vnni"'))


def test_an_engine_that_was_not_there_at_export_is_not_used(exits_run, splits, tmp_path, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr("supple.inference.engines.find_spec", lambda package: None if package == "openvino" else True)
        manifest = export(load(exits_run), "w", tmp_path / "out", Wanted(points=ONE), splits)
    assert [check["engine"] for check in manifest["checks"]] == ["onnxruntime"]
    assert [choice.engine for choice in choices_for(tmp_path / "out")] == ["onnxruntime"]
    with predictor(tmp_path / "out", threads=1) as made:
        assert made.engine.name == "onnxruntime"
    for opening in (
        lambda: predictor(tmp_path / "out", "openvino"),
        lambda: of_bundle(open_bundle(tmp_path / "out"), "openvino", 1),
    ):
        with pytest.raises(RecipeError, match="was not checked on openvino") as told:
            opening()
        assert told.value.cure == "Export again where openvino is installed."


def test_a_point_that_loses_too_much_on_one_engine_answers_on_the_other(exits_run, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "CALIBRATED_ON", 8)
    losses = write.losses

    def lossy(model, graphs, engine, data, points):
        before, found = losses(model, graphs, engine, data, points)
        return before, found | ({"exit=1": found["exit=1"]._replace(lost=9.0)} if engine.name == "openvino" else {})

    monkeypatch.setattr(write, "losses", lossy)
    wanted = Wanted("onnx", "int8", (Point(exit=1), Point(exit=2)), max_drop=1.0)
    export(load(exits_run), "w", tmp_path / "out", wanted, splits)
    bundle = open_bundle(tmp_path / "out")
    for engine, points in (("onnxruntime", ["exit=1", "exit=2"]), ("openvino", ["exit=2"])):
        with of_bundle(bundle, engine, 1) as made:
            assert [str(point) for point in made.points] == points
            assert {row.point for row in made.ladder} == set(points)


# --- bf16 on OpenVINO -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(exits_run, splits, tmp_path_factory) -> Path:
    """The run of the tests in bf16, whatever it has lost."""
    out = tmp_path_factory.mktemp("exported") / "openvino-bf16"
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        export(load(exits_run), _weights(exits_run), out, Wanted("openvino", "bf16", max_drop=1.0), splits)
    return out


@pytest.fixture
def bf16_folder(exported, tmp_path, with_bf16) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(exported, tmp_path / "openvino-bf16"))


def test_a_folder_in_bf16_is_checked_in_both_precisions_and_scored_in_bf16(bf16_folder):
    bundle = open_bundle(bf16_folder)
    in_fp32, in_bf16_ = bundle.checks
    assert (in_fp32.precision, in_bf16_.precision) == ("fp32", "bf16")
    assert in_fp32.difference < 1e-4
    assert set(in_bf16_.lost) == {"exit=1", "exit=2", "full", "exit=1, chain", "exit=2, chain", "full, chain"}
    rows = bundle.ladder.where(precision="bf16")
    assert {(row.point, row.machine) for row in rows} == {(p, machine()) for p in ("exit=1", "exit=2", "full")}
    assert all(row.score is not None and row.lost == in_bf16_.lost[row.point] for row in rows)
    assert all(row.machine is None for row in bundle.ladder.where(precision="fp32"))
    [choice] = choices_for(bf16_folder)
    assert (choice.engine, choice.precision) == ("openvino", "bf16")
    with predictor(bf16_folder, threads=1) as made:
        assert made.engine.precision == "bf16"


def test_where_there_is_no_bf16_such_a_folder_runs_in_fp32_and_says_so(bf16_folder, command, monkeypatch, capsys):
    monkeypatch.setattr("supple.machine.instruction_set", lambda: "avx2")
    with predictor(bf16_folder, threads=1) as made:
        assert made.engine.precision == "fp32"
        assert {row.precision for row in made.ladder} == {"fp32"}
    assert "which this processor lacks: it runs in fp32" in capsys.readouterr().err
    said = command("bench", bf16_folder, "--rounds", "5", "--threads", "1", "--json")
    assert {row["precision"] for row in said.json["points"]} == {"fp32"}
    assert "it runs in fp32" in said.err
    rows = open_bundle(bf16_folder).ladder
    assert {row.precision for row in rows if row.p50_ms is not None} == {"fp32"}
    with pytest.raises(RecipeError, match="no bf16 arithmetic"):
        predictor(bf16_folder, precision="bf16")
    with pytest.raises(RecipeError, match="no bf16 arithmetic"):
        open_engine("openvino", open_bundle(bf16_folder), 1, "bf16")


@needs_bf16
def test_a_folder_in_bf16_computes_in_bf16(bf16_folder):
    bundle = open_bundle(bf16_folder)
    x = (np.random.default_rng(0).standard_normal((4, *bundle.input_shape), np.float32),)
    exact, short = (
        open_engine("openvino", bundle, 1, precision).run(bundle.graphs.points["full"], x)[0]
        for precision in ("fp32", "bf16")
    )
    assert 0 < np.abs(exact - short).max() < 0.1


def test_what_bf16_is_not_for_is_refused(command, exits_copy, without_bf16):
    command("export", exits_copy, "--to", "onnx", "--bf16").refused(2, "--bf16 is not for onnx", "--to openvino")
    command("export", exits_copy, "--to", "torch-export", "--bf16").refused(2, "--bf16 is not for torch-export")
    command("export", exits_copy, "--to", "openvino", "--bf16").refused(2, "no bf16 arithmetic", "fp32 or int8")
    command("export", exits_copy, "--to", "openvino", "--int8", "--bf16").refused(2, "--int8 and --bf16", "one of them")
    command("evaluate", exits_copy, "--precision", "bf16").refused(2, "no bf16 arithmetic", "fp32 or int8")
    command("evaluate", exits_copy, "--precision", "int8").refused(2, '--precision is "int8"', "supple export --int8")


def test_the_verb_exports_in_bf16(command, exits_copy, with_bf16):
    words = ("export", exits_copy, "--to", "openvino", "--bf16", "--max-drop", "1", "--point", "exit=1", "--json")
    done = command(*words).json
    assert done["folder"].endswith("openvino-bf16")
    assert done["precision"] == "bf16"
    assert command(*words).json["cached"]


# --- where scores count -----------------------------------------------------------------------------------------------


def test_machines_multiply_alike_if_their_instruction_sets_are_the_same_and_known():
    assert same_instructions("A, 2 cores, avx2 vnni", "B, 64 cores, avx2 vnni")
    assert not same_instructions("A, 2 cores, avx2 vnni", "A, 2 cores, avx2")
    assert not same_instructions("A, 2 cores", "B, 2 cores")
    assert same_instructions("A, 2 cores", "A, 2 cores")


def test_scores_travel_save_those_of_int8_and_bf16_and_times_do_not():
    here, alike, other = "A, 2 cores, avx2 bf16", "B, 8 cores, avx2 bf16", "C, 2 cores, avx2"
    rows = [
        Row("full", precision=precision, batch=1, threads=1, machine=here, p95_ms=3.0, score=0.9, lost=0.1)
        for precision in ("fp32", "bf16", "int8")
    ]
    assert [(row.p95_ms, row.score) for row in Ladder(rows).on(here)] == [(3.0, 0.9)] * 3
    assert [(row.p95_ms, row.score) for row in Ladder(rows).on(alike)] == [(None, 0.9)] * 3
    assert [(row.p95_ms, row.score, row.lost) for row in Ladder(rows).on(other)] == [
        (None, 0.9, 0.1),
        (None, None, None),
        (None, None, None),
    ]


def test_a_time_takes_a_score_in_int8_from_its_own_engine_and_instruction_set():
    ladder = Ladder()
    ladder.update("full", "onnxruntime", "int8", "A, 2 cores, avx2 vnni", macs=7, score=0.9)
    where = {"batch": 1, "threads": 1, "precision": "int8", "p50_ms": 1.0}
    ladder.time("full", engine="onnxruntime", machine="B, 2 cores, avx2 vnni", **where)
    ladder.time("full", engine="onnxruntime", machine="C, 2 cores, avx2", **where)
    ladder.time("full", engine="openvino", machine="A, 2 cores, avx2 vnni", **where)
    found = {(row.engine, row.machine[0]): (row.macs, row.score) for row in ladder if row.p50_ms is not None}
    assert found == {("onnxruntime", "B"): (7, 0.9), ("onnxruntime", "C"): (7, None), ("openvino", "A"): (7, None)}
    ladder.update("full", "onnxruntime", "int8", "C, 2 cores, avx2", score=0.8)
    assert sorted((row.machine[0], row.score) for row in ladder.where(engine="onnxruntime")) == [
        ("A", 0.9),
        ("B", 0.9),
        ("C", 0.8),
    ]


def test_the_best_point_is_that_of_fp32_unless_another_precision_is_asked_for():
    here = machine()
    rows = [Row("exit=1", macs=1, score=0.8), Row("full", macs=2, score=0.9)]
    rows += [replace(rows[0], precision="bf16", machine=here, score=0.95)]
    rows += [replace(rows[1], precision="bf16", machine=here, score=0.85)]
    assert Ladder(rows).best_under(macs=9) == FULL
    assert Ladder(rows).best_under(macs=9, precision="bf16") == Point(exit=1)
    other = [replace(row, machine="Other CPU, 8 cores, vnni") for row in rows]
    assert Ladder(other).best_under(macs=9, precision="bf16") == FULL  # no scores: the dearest


@pytest.mark.system
def test_a_folder_in_int8_of_another_instruction_set_is_not_chosen_but_answers_if_named(
    exits_copy, splits, monkeypatch, capsys
):
    monkeypatch.setattr(write, "CALIBRATED_ON", 8)
    out = exits_copy / "export" / "onnx-int8"
    export(load(exits_copy), _weights(exits_copy), out, Wanted("onnx", "int8", max_drop=1.0), splits)
    there = [choice for choice in choices_for(exits_copy) if choice.precision == "int8"]
    assert [within(choice, 1.0) for choice in there] == [True, True]
    elsewhere(out)
    there = [choice for choice in choices_for(exits_copy) if choice.precision == "int8"]
    assert [within(choice, 1.0) for choice in there] == [False, False]
    with predictor(exits_copy, threads=1, max_drop=1.0) as made:
        assert made.engine.precision == "fp32"
    with predictor(out, "onnxruntime", threads=1) as made:
        assert [row.score for row in made.ladder] == [None] * 3
    assert "are of another instruction set (Other CPU, 8 cores, vnni)" in capsys.readouterr().err


# --- bf16 in PyTorch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "backbone"), PAIRS)
def test_every_method_runs_in_bf16(method, backbone):
    model = make(method, backbone).eval()
    x = Noise(model.input_shape).batch(torch.arange(8))[0]
    engine = TorchEngine(model, 1, "bf16")
    for point in model.points:
        if point.skip is not None:
            continue  # which layers run may differ
        with torch.no_grad():
            expected = model(x, point).numpy()
        found = engine.array(engine.run(str(point), arrays(x))[0])
        assert found.dtype == np.float32
        assert 0 < np.abs(found - expected).max() <= 0.05 * max(1.0, np.abs(expected).max())
    state = arrays(x)
    for stage in engine.graphs.stages:
        if stage.body is not None:
            state = engine.run(stage.body, state)
            assert all(part.dtype == torch.bfloat16 for part in state if part.is_floating_point())
        logits = engine.array(engine.run(stage.head, state)[0])
        alone = engine.array(engine.run(stage.point, arrays(x))[0])
        np.testing.assert_allclose(logits, alone, atol=0.05 * np.abs(logits).max() + 0.05)
    assert all(part.dtype == torch.float32 for part in model.parameters())  # the model is as it was


def test_the_gates_of_a_skipping_model_stay_in_fp32():
    model = make("skip", "vit_cifar").eval()
    seen = []
    network = in_bf16(model.extract(Point(skip=0.5)))
    [gates] = [part for part in network.modules() if isinstance(part, Gates)]
    for oracle in gates.oracles:
        oracle.register_forward_hook(lambda _, given, logit: seen.append((given[0].dtype, logit.dtype)))
    x = Noise(model.input_shape).batch(torch.arange(4))[0]
    with torch.no_grad():
        logits = network(x.bfloat16())
    assert seen
    assert set(seen) == {(torch.float32, torch.float32)}
    assert logits.dtype == torch.bfloat16
    for mine, kept in zip(gates.oracles.parameters(), model.gates.oracles.parameters()):
        assert torch.equal(mine, kept)


def test_a_lower_precision_is_chosen_only_where_it_is_faster_outside_the_spread():
    def timed(ms: float) -> dict[str, tuple[str, Times]]:
        times = {"fp32": 1.0, "int8": ms, "bf16": 2.0}
        return {f"an {name}": (name, Times(p50, p50, p50, 0.1, 30)) for name, p50 in times.items()}

    assert _chosen(timed(0.91)) == ("an fp32", False)
    assert _chosen(timed(0.89)) == ("an int8", True)
    assert _chosen(timed(1.05)) == ("an fp32", False)
    assert _chosen(timed(1.5)) == ("an fp32", True)


def bf16_choice(run: Path):
    return next((choice for choice in choices_for(run) if choice.precision == "bf16"), None)


def test_torch_in_bf16_is_chosen_only_after_its_scores(command, exits_copy, with_bf16):
    assert bf16_choice(exits_copy) is None
    with pytest.raises(RecipeError, match="has nothing for torch in bf16") as told:
        predictor(exits_copy, "torch", precision="bf16")
    assert "supple evaluate RUN --precision bf16" in told.value.cure
    command("evaluate", exits_copy, "--precision", "bf16", "--draws", "3").refused(2, "--draws does not go with")
    command("evaluate", exits_copy, "--precision", "bf16", "--point", "exit=1")
    assert bf16_choice(exits_copy) is None  # not all points
    done = command("evaluate", exits_copy, "--precision", "bf16", "--json").json
    rows = [row for row in done["points"] if row["precision"] == "bf16"]
    assert {row["point"] for row in rows} == {"exit=1", "exit=2", "full"}
    assert all(row["machine"] == machine() and row["engine"] == "torch" for row in rows)
    choice = bf16_choice(exits_copy)
    assert str(choice) == "torch bf16"
    assert within(choice, 1.0)
    with predictor(exits_copy, "torch", threads=1, precision="bf16") as made:
        assert made.engine.precision == "bf16"
        answer = made.predict(np.zeros((2, *made.shape), np.float32), min_confidence=0.0)[0]
        assert (answer.point, answer.logits.dtype) == ("exit=1", np.float32)
    words = ("bench", exits_copy, "--engine", "all", "--rounds", "5", "--threads", "1", "--json")
    timed = command(*words).json["points"]
    assert {(row["engine"], row["precision"]) for row in timed} >= {("torch", "fp32"), ("torch", "bf16")}


def test_torch_in_bf16_counts_for_its_weights_instruction_set_and_loss(exits_copy, with_bf16, monkeypatch):
    def kept(**change) -> None:
        ladder = load_ladder(exits_copy)
        for point, lost in (("exit=1", 0.02), ("exit=2", 0.0), ("full", 0.0)):
            row = Row(point, "torch", "bf16", machine=machine(), metric="accuracy", score=0.5, lost=lost)
            ladder.put(replace(row, **change))
        save_ladder(exits_copy, ladder)

    plain = (exits_copy / "ladder.json").read_text()
    kept()
    assert within(bf16_choice(exits_copy), 0.02)
    assert not within(bf16_choice(exits_copy), 0.01)
    kept(lost_error=0.011)  # within a standard error
    assert within(bf16_choice(exits_copy), 0.01)
    kept(lost_error=0.009)
    assert not within(bf16_choice(exits_copy), 0.01)
    document = json.loads((exits_copy / "ladder.json").read_text())
    (exits_copy / "ladder.json").write_text(json.dumps({**document, "weights": "1" * 64}))
    assert bf16_choice(exits_copy) is None
    (exits_copy / "ladder.json").write_text(plain)
    kept(machine="Other CPU, 8 cores, vnni")
    assert bf16_choice(exits_copy) is None
    kept()
    assert bf16_choice(exits_copy) is not None
    monkeypatch.setattr("supple.machine.instruction_set", lambda: "avx2")
    assert bf16_choice(exits_copy) is None


def test_scores_in_bf16_do_not_outlive_their_weights(exits_copy):
    from supple.checkpoint import read_manifest
    from supple.recipe import make_recipe
    from supple.training.build import data_of
    from supple.training.finalize import score_and_save

    ladder = load_ladder(exits_copy)
    ladder.put(Row("full", "torch", "bf16", machine=machine(), score=0.5, lost=0.0))
    save_ladder(exits_copy, ladder)
    model, recipe = load(exits_copy), make_recipe(read_manifest(exits_copy)["recipe"])
    with torch.no_grad():
        next(model.parameters()).add_(1)
    score_and_save(recipe, exits_copy, model, data_of(exits_copy).test, {})
    assert {row.precision for row in load_ladder(exits_copy)} == {"fp32"}
