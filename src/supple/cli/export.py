from pathlib import Path
from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Json, Points, Run, check_out, must_be_run, print_json
from supple.errors import RecipeError


def export(
    run: Run,
    changes: Changes = None,
    to: Annotated[str, typer.Option(help="onnx, openvino or torch-export.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Quantize after training (onnx, openvino).")] = False,
    point: Points = None,
    most_lost: Annotated[float, typer.Option(help="int8: leave out points that lose more score.", min=0, max=1)] = 0.01,
    out: Annotated[Path | None, typer.Option(help="A new folder; default: RUN/export/TO-PRECISION.")] = None,
    json: Json = False,
) -> None:
    """Every point as a graph of its own, and the stages of a model with exits as a chain. Each is run against PyTorch
    on held-out images before it is written. The folder answers without PyTorch: supple predict FOLDER FILES.
    """
    from importlib.util import find_spec

    from supple import checkpoint
    from supple.cli.common import model_of, points_of, splits_for
    from supple.export.graphs import chain_of, graphs_of
    from supple.export.writing import Held, Wanted
    from supple.export.writing import export as write_graphs
    from supple.progress import counting
    from supple.runtime.bundle import KINDS, open_bundle

    if to not in KINDS:
        raise RecipeError(f'--to is "{to}".', f"Possible: {', '.join(KINDS)}.")
    needed = {"onnx": ["onnx", "onnxscript", "onnxruntime"], "openvino": ["onnx", "onnxscript", "openvino"]}.get(to, [])
    needed += ["nncf"] if int8 and to == "openvino" else []
    for package in needed:
        if find_spec(package) is None:
            raise RecipeError(f"--to {to} needs {package}, which is not installed.", "pip install 'supple[export]'")
    model = model_of(must_be_run(run), changes)
    wanted = Wanted(to, int8, tuple(points_of(model, point)) if point else (), most_lost)
    folder = out or run / "export" / f"{to}-{wanted.precision}"
    if out is None and (folder / "manifest.json").is_file() and not point:
        bundle = open_bundle(folder)
        if bundle.checkpoint == checkpoint.read_manifest(run)["files"][checkpoint.WEIGHTS]:
            print_json({"folder": str(folder), "cached": True}) if json else print(f"{folder} is there already.")
            return
        raise RecipeError(f"{folder} was made from other weights.", "Remove it, or give --out.")
    check_out(folder)
    splits = splits_for(run, model, changes)
    x = splits.val.batch(_two())[0]
    count = len(graphs_of(model, wanted.points or model.points, x)) + len(chain_of(model, x))
    with counting(count, "exporting", quiet=json) as watch:
        manifest = write_graphs(run, folder, wanted, Held(splits.train, splits.val, splits.test), watch)
    if json:
        print_json({"folder": str(folder), "cached": False, **manifest})
        return
    print(f"{open_bundle(folder).ladder}\n")
    for name in manifest.get("left_out", ()):
        print(f"left out: {name}, which loses {100 * manifest['lost'][name]:.1f} points in int8")
    if "difference" in manifest:
        print(f"largest difference from PyTorch: {manifest['difference']:.1e}")
    print(f"{folder}: {len(manifest['points'])} points, {len(manifest['stages'])} stages")


def _two() -> Any:
    import torch

    return torch.arange(2)
