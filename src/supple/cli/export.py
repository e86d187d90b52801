import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Json, Points, Run, loss_unit, print_json


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
    from supple import api
    from supple.inference.bundle import MANIFEST, is_bundle, open_bundle
    from supple.inference.select import EXPORTS
    from supple.networks import located
    from supple.tasks import get_task
    from supple.text import some

    folder = Path(located(run)) / EXPORTS / f"{to}-{'int8' if int8 else 'bf16' if bf16 else 'fp32'}"
    before = open_bundle(folder) if out is None and is_bundle(folder) else None
    how: dict[str, Any] = {"points": point or None, "changes": changes or (), "progress": not json}
    bundle = api.export(run, out, to=to, int8=int8, bf16=bf16, max_drop=max_drop, **how)
    if before is not None:
        added = "" if bundle.policy == before.policy else ", now with the thresholds of supple calibrate"
        print_json({"folder": str(folder), "cached": True}) if json else print(f"{folder} is up to date{added}.")
        return
    if json:
        manifest = json_text.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
        print_json({"folder": str(bundle.folder), "cached": False, **manifest})
        return
    print(f"{bundle.ladder}\n")
    unit = loss_unit(get_task(bundle.task).metric)
    for check in bundle.checks:
        where = f"on {check.engine} in {check.precision}"
        for name, lost in check.lost.items():
            figure = f"{100 * lost:.1f} ± {100 * check.error[name]:.1f} {unit} on {check.samples} validation samples"
            if name in check.left_out:
                print(f"left out {where}: {name}, which loses {figure}")
            elif lost > max_drop:
                print(f"kept {where}: {name}, which loses {figure}: not clearly more than --max-drop")
        if check.difference is not None:
            print(f"largest difference from PyTorch {where}: {check.difference:.1e}")
    graphs = bundle.graphs
    print(f"{bundle.folder}: {some(len(graphs.points), 'point')}, {some(len(graphs.stages), 'stage')}")
