"""One point of a run as an ordinary network on disk, usable without supple."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supple import checkpoint
from supple.cost import count_macs, count_params
from supple.errors import CheckpointError, SaveError
from supple.point import Point

TOLERANCE = 1e-5


@torch.no_grad()
def extract_to(run: Path, point: Point, out: Path, deploy: bool = False) -> dict[str, Any]:
    """Extracts a point, compares its outputs with the run's, and writes model.pt2, model.safetensors, manifest.json."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} already exists and is not an empty folder.", "Choose a new folder with --out.")
    model = checkpoint.load(run)
    assert model.input_shape is not None
    point = model.check(point)
    network = model.extract(point, deploy=deploy).eval()
    x = torch.randn(8, *model.input_shape, generator=torch.Generator().manual_seed(0))
    expected = model(x, point)
    difference = (network(x) - expected).abs().max().item()
    limit = TOLERANCE * max(1.0, expected.abs().max().item())
    if difference > limit:
        cure = "Nothing was written. Leave --deploy out, and please report this."
        raise CheckpointError(f"the extracted network differs by {difference:.1e}, more than {limit:.1e}.", cure)
    example = x[:1].to("meta")
    facts = {
        "format": checkpoint.FORMAT,
        "point": str(point),
        "deploy": deploy,
        "macs": count_macs(lambda: model.extract(point).to("meta")(example)),
        "params": count_params(model.extract(point).parameters()),
        "difference": difference,
        "classes": list(model.classes),
        "input_shape": list(model.input_shape),
        "preprocess": model.preprocess.to_json() if model.preprocess is not None else None,
    }
    checkpoint.write(out / checkpoint.WEIGHTS, {k: v.contiguous() for k, v in network.state_dict().items()})
    _export(network, x, out / "model.pt2")
    files = {name: checkpoint.sha256(out / name) for name in (checkpoint.WEIGHTS, "model.pt2")}
    checkpoint.write(out / checkpoint.MANIFEST, json.dumps({**facts, "files": files}, indent=1))
    return facts


def _export(network: nn.Module, x: torch.Tensor, path: Path) -> None:
    program = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    temporary = path.with_name(f".{path.name}")
    try:
        torch.export.save(program, temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SaveError(
            f"{path} could not be written: {error.strerror}.", "Make room, or choose another --out."
        ) from error
