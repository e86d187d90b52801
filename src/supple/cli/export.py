import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supple.cli.common import Changes, Json, Points, Run, check_out, must_be_run, print_json
from supple.errors import RecipeError
from supple.text import first, say, some

if TYPE_CHECKING:
    from supple.exporting.write import Wanted
    from supple.inference.bundle import Bundle

NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
INT8: dict[str, tuple[str, ...]] = {"onnx": (), "openvino": ("nncf",)}


def export(
    run: Run,
    changes: Changes = None,
    to: Annotated[str, typer.Option(help="onnx, openvino or torch-export.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Quantize after training (onnx, openvino).")] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Compute in bf16, where the processor has it (openvino).")
    ] = False,
    point: Points = None,
    max_drop: Annotated[float, typer.Option(help="int8, bf16: leave out points that lose more.", min=0, max=1)] = 0.01,
    out: Annotated[Path | None, typer.Option(help="A new folder; default: RUN/export/TO-PRECISION.")] = None,
    json: Json = False,
) -> None:
    """Every point as a graph of its own, and the stages of a model with exits as a chain. Each is run against PyTorch
    on validation images, on every engine that opens it, before it is written, and timed there. The folder answers
    without PyTorch: supple predict FOLDER FILES.
    """
    from supple import checkpoint
    from supple.cli.common import model_of, points_of, splits_for
    from supple.exporting.write import Held, Wanted, all_graphs, policy_of, replace_policy
    from supple.exporting.write import export as write_graphs
    from supple.inference.bundle import KINDS, open_bundle
    from supple.inference.compare import compare
    from supple.inference.select import EXPORTS, ROUNDS, SECONDS, checked, of_bundle
    from supple.machine import cores
    from supple.model import example
    from supple.progress import counting

    if to not in KINDS:
        raise RecipeError(f'--to is "{to}".', f"Possible: {', '.join(KINDS)}.")
    precision = _precision(to, int8, bf16)
    _must_be_installed(to, precision)
    model = model_of(must_be_run(run), changes)
    weights = checkpoint.read_manifest(run)["files"][checkpoint.WEIGHTS]
    wanted = Wanted(to, precision, tuple(points_of(model, point)) if point else (), max_drop)
    folder = out or run / EXPORTS / f"{to}-{wanted.precision}"
    if out is None and (folder / checkpoint.MANIFEST).is_file():
        there, policy = open_bundle(folder), model.policy
        if other := _otherwise(there, weights, wanted):
            raise RecipeError(f"{folder} was made {other}.", f"Give another --out, or remove it first: rm -r {folder}")
        if there.policy != policy:
            replace_policy(folder, policy_of(model))
        told = "" if there.policy == policy else ", now with the thresholds of supple calibrate"
        print_json({"folder": str(folder), "cached": True}) if json else print(f"{folder} is up to date{told}.")
        return
    check_out(folder)
    assert model.input_shape is not None
    points, chain = all_graphs(model, wanted.points, example(model.input_shape, 2))
    count = len(points) + len(chain.graphs)
    splits = splits_for(run, model, changes)
    if not json and not sys.stderr.isatty():
        say(f"{run}: converting {some(count, 'graph')} to {to}; minutes, for a large network")
    with counting(count, "exporting", quiet=json) as on_progress:
        manifest = write_graphs(
            model, weights, folder, wanted, Held(splits.train, splits.val, splits.test), on_progress=on_progress
        )
    bundle = open_bundle(folder)
    choices = checked(bundle)
    if choices:
        made = [(choice, of_bundle(bundle, choice.engine, cores())) for choice in choices]
        compare(made, threads=cores(), rounds=ROUNDS, seconds=SECONDS)
    if json:
        print_json({"folder": str(folder), "cached": False, **manifest})
        return
    print(f"{bundle.ladder}\n")
    held = some(len(splits.val), f"validation {splits.val.preprocess.kind}")
    for check in bundle.checks:
        where = f"on {check.engine} in {check.precision}"
        for name in check.left_out:
            print(f"left out {where}: {name}, which loses {100 * check.lost[name]:.1f} points ({held})")
        if check.difference is not None:
            print(f"largest difference from PyTorch {where}: {check.difference:.1e}")
    print(f"{folder}: {some(len(manifest['points']), 'point')}, {some(len(manifest['stages']), 'stage')}")


def _precision(to: str, int8: bool, bf16: bool) -> str:
    from supple.inference.engines import must_have_bf16

    if int8 and bf16:
        raise RecipeError("--int8 and --bf16 are both given.", "Give one of them.")
    if int8 and to not in INT8:
        raise RecipeError(f"--int8 is not for {to}.", f"Use --to {' or '.join(INT8)}.")
    if bf16 and to != "openvino":
        raise RecipeError(f"--bf16 is not for {to}: ONNX Runtime is no faster in bf16.", "Use --to openvino.")
    if bf16:
        must_have_bf16("--bf16")
    return "int8" if int8 else "bf16" if bf16 else "fp32"


def _must_be_installed(to: str, precision: str) -> None:
    from importlib.util import find_spec

    for package in NEEDED.get(to, ()) + (INT8[to] if precision == "int8" else ()):
        if find_spec(package) is None:
            raise RecipeError(f"--to {to} needs {package}, which is not installed.", "pip install 'supple[export]'")


def _otherwise(there: "Bundle", weights: str, wanted: "Wanted") -> str | None:
    """In what a folder differs from what would be written; None: in nothing."""
    if there.checkpoint != weights:
        return "from other weights"
    if there.asked != tuple(map(str, wanted.points)):
        return f"for {first(there.asked) or 'all points'}"
    return (
        f"with --max-drop {there.max_drop:g}"
        if wanted.precision != "fp32" and there.max_drop != wanted.max_drop
        else None
    )
