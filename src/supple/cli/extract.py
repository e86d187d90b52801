from pathlib import Path
from typing import Annotated

import typer

from supple.cli.common import Json, Run, print_json


def extract(
    run: Run,
    out: Annotated[Path, typer.Option(help="A new folder for the extracted network.")],
    point: Annotated[str, typer.Option(help="Which point.")] = "full",
    deploy: Annotated[bool, typer.Option("--deploy", help="Fold norms and pick the memory format.")] = False,
    json: Json = False,
) -> None:
    """The folder holds model.pt2 (for torch.export.load), model.safetensors and manifest.json.

    Its outputs are compared with the run's before anything is written.
    """
    from supple import api, checkpoint

    facts = checkpoint.read_json(api.extract(run, out, point, deploy=deploy) / checkpoint.MANIFEST)
    if json:
        print_json(facts)
    else:
        from supple.text import quantity

        print(
            f"{out / 'model.pt2'}: {facts['point']}, {quantity(facts['params'])} params, {quantity(facts['macs'])} MACs"
        )
        if facts["point"].startswith("skip="):
            print("every layer runs and the scores select the output: skipping saves no time in an extracted network")
        print(f"largest difference from the run's outputs: {facts['difference']:.1e}")
        print(f"\n  import torch\n  network = torch.export.load('{out / 'model.pt2'}').module()")
