"""What goes on inside trained models: pure functions from a model and images to arrays, and pictures of these."""

from collections.abc import Callable

from supple.analysis.dense import analyse_dense
from supple.analysis.finding import Finding
from supple.analysis.shuffle import analyse_shuffle
from supple.analysis.skip import analyse_skip

ANALYSES: dict[str, Callable[..., Finding]] = {
    "shuffle": analyse_shuffle,
    "dense": analyse_dense,
    "skip": analyse_skip,
}
