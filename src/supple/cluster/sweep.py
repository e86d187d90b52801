"""Points of a model scored by Ray tasks, some on every CPU."""

from collections.abc import Iterator, Sequence
from typing import Any

from supple.cluster.ray_local import import_modules
from supple.device import placed
from supple.errors import IMPORTED
from supple.model import FlexibleModel
from supple.point import Point
from supple.scoring import Score, evaluate
from supple.searching.measure import Spread


def spread(ray: Any, model: FlexibleModel, data: Any, device: str) -> Spread:
    """What scores several lots of points at once, each in a task; the scores come in the order of the lots."""
    held = ray.put(ray.cloudpickle.dumps((model, data)))  # once, for all tasks
    task = ray.remote(num_cpus=1, num_gpus=1 if device.startswith("cuda") else 0)(score)

    def scored(lots: Sequence[Sequence[Point]]) -> Iterator[list[Score]]:
        waiting = [task.remote(held, [str(point) for point in lot], device, tuple(IMPORTED)) for lot in lots]
        for one in waiting:
            yield ray.get(one)

    return scored


def score(held: bytes, points: Sequence[str], device: str, imports: Sequence[str]) -> list[Score]:
    """Of a task. What the user's modules register is there before the model is."""
    import_modules(imports)
    from ray import cloudpickle

    model, data = cloudpickle.loads(held)
    with placed(model, device):
        return evaluate(model, data, [Point.parse(text) for text in points])
