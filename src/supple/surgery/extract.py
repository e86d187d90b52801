"""One point of a run as an ordinary network on disk, usable without supple."""

import io
import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supple import checkpoint, files
from supple.cost import count_macs, count_params
from supple.errors import CheckpointError
from supple.model import FlexibleModel, example
from supple.point import AnyPoint
from supple.tasks import get_task

TOLERANCE = 1e-5


@torch.no_grad()
def extract_to(model: FlexibleModel, point: AnyPoint, out: Path, deploy: bool = False) -> dict[str, Any]:
    """Extracts a point, compares its outputs with the model's, writes model.pt2, model.safetensors, manifest.json."""
    checkpoint.check_out(out)
    if not get_task(model.task).exportable:
        cause = f"torch.export cannot write answers of the task {model.task}: their number depends on the sample."
        raise CheckpointError(cause, "Use supple.load(RUN): model.extract(point) gives an ordinary module in Python.")
    assert model.input_shape is not None
    point = model.check(point)
    network = model.extract(point, deploy=deploy).eval()
    x = example(model.input_shape, 8, torch.randn, generator=torch.Generator().manual_seed(0))
    expected = model(x, point)
    difference = (network(x) - expected).abs().max().item()
    limit = TOLERANCE * max(1.0, expected.abs().max().item())
    if difference > limit:
        cure = "Nothing was written. Leave --deploy out, and please report this."
        raise CheckpointError(f"the extracted network differs by {difference:.1e}, more than {limit:.1e}.", cure)
    one = example(model.input_shape, make=torch.empty, device="meta")
    facts = {
        "format": checkpoint.FORMAT,
        "point": str(point),
        "deploy": deploy,
        "macs": count_macs(lambda: model.extract(point).to("meta")(one)),
        "params": count_params(model.extract(point).parameters()),
        "difference": difference,
        "classes": list(model.classes),
        "input_shape": list(model.input_shape),
        "preprocess": model.preprocess.to_json() if model.preprocess is not None else None,
    }
    contents: dict[str, files.Content] = {
        "model.pt2": _exported(network, x),
        checkpoint.WEIGHTS: {name: value.contiguous() for name, value in network.state_dict().items()},
    }
    try:
        for name, content in contents.items():
            files.write(out / name, content)
        digests = {name: files.sha256(out / name) for name in contents}
        files.write(out / checkpoint.MANIFEST, json.dumps({**facts, "files": digests}, indent=1))
    except BaseException:
        for name in contents:  # the folder was empty: leave it so, and the command can be given again
            with suppress(OSError):
                (out / name).unlink()
        raise
    return facts


def _exported(network: nn.Module, x: Any) -> bytes:
    """What `torch.export.load` reads. Made in memory, since torch ends the whole process when a disk is full."""
    batch = {0: torch.export.Dim("batch", min=1)}
    sizes = batch if isinstance(x, torch.Tensor) else tuple(batch for _ in x)  # of several inputs, each
    program = torch.export.export(network, (x,), dynamic_shapes=(sizes,))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Said of channels_last weights, which arrive well.
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(program, buffer)
    return buffer.getvalue()
