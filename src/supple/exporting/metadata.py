"""What the file of a graph says of itself, so that programs without supple can use it: docs/engines.md shows how."""

import json
from pathlib import Path

from supple import files
from supple.exporting.convert import saved
from supple.exporting.graphs import Graph
from supple.inference.bundle import FORMAT
from supple.ladder import Ladder
from supple.machine import versions
from supple.model import FlexibleModel

PREFIX = "supple"


def metadata(model: FlexibleModel, graph: Graph, precision: str, ladder: Ladder) -> dict[str, str]:
    """Text as it is, anything else as JSON; what is unknown is left out."""
    facts = {} if model.preprocess is None else dict(model.preprocess.to_json())
    facts |= {"task": model.task, "classes": list(model.classes), "role": graph.role, "precision": precision}
    if graph.point is not None:
        facts |= {"point": str(graph.point), **_score(graph, precision, ladder)}
    facts |= {"version": versions()["supple"], "format": FORMAT}
    return {name: value if isinstance(value, str) else _json(value) for name, value in facts.items()}


def _score(graph: Graph, precision: str, ladder: Ladder) -> dict[str, object]:
    """On the first engine that has one. In int8 and bf16 it is that of the point as one graph, not of a chain."""
    if graph.role != "point" and precision != "fp32":
        return {}
    for row in ladder:
        if (row.point, row.precision) == (str(graph.point), precision) and row.score is not None:
            found = {"score": row.score, "metric": row.metric, "samples": row.n}
            return {name: value for name, value in found.items() if value is not None}
    return {}


def _json(value: object) -> str:
    """Readable in every language; names that are not valid UTF-8, as folders may have, keep their escapes."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def write_metadata(path: Path, facts: dict[str, str]) -> None:
    """Into a graph's own file; those of torch.export have no place for it."""
    if path.suffix == ".onnx":
        import onnx

        model = onnx.load(path)
        onnx.helper.set_model_props(model, {f"{PREFIX}.{name}": value for name, value in facts.items()})
        files.write(path, model.SerializeToString())
    elif path.suffix == ".xml":
        import openvino

        graph = openvino.Core().read_model(path)
        for name, value in facts.items():
            graph.set_rt_info(value, [PREFIX, name])
        for name, content in saved(path.stem, graph).items():
            files.write(path.with_name(name), content)
