"""A model as stem, layers in any order, and head: stem and head run where the caller is, the layers on nodes."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from supple.backbones.protocols import Trunk
from supple.errors import ClusterError, RecipeError
from supple.model import FlexibleModel

Array = np.ndarray[Any, Any]
ANY_ORDER, LEFT_OUT = "arbitrary", "layerdrop"  # of train.sample: what makes layers bear nodes that die


class Layered(Protocol):
    """A model whose layers run one by one, in the order that the caller likes."""

    count: int

    @property
    def trunk(self) -> Trunk: ...
    def layer(self, state: Tensor, layer: int, position: int) -> Tensor: ...  # both from 0


def as_layered(model: FlexibleModel, name: str) -> Layered:
    """The model as such a one; refuses any other."""
    if not all(hasattr(model, part) for part in ("layer", "count", "trunk")):
        cause = f"{name} cannot be spread over nodes: its layers do not run one by one."
        raise RecipeError(cause, "Give a run of the method shuffle: docs/depth.md.")
    return cast(Layered, model)


def trained_for(model: FlexibleModel) -> str | None:
    """Which of ANY_ORDER and LEFT_OUT it was trained for; None: neither."""
    sample = model.recipe.train.sample if model.recipe is not None else None
    return sample if sample in (ANY_ORDER, LEFT_OUT) else None


def must_bear_it(model: FlexibleModel, name: str, force: bool) -> str | None:
    """Refuses a model that was not trained for layers that are missing, unless it is forced; then, what to expect."""
    if trained_for(model) is not None:
        return None
    known = {row.point: row.score for row in model.ladder if row.score is not None}
    groups = ", ".join(f"{known[group]:.3g} {group}" for group in model.groups if group in known)
    found = (
        f"scores in its ladder: {known.get('full', 'none')} in full; {groups}" if groups else "its scores are unknown"
    )
    cause = f"{name} was not trained for layers that are left out or run in another order; {found}."
    if force:
        return f"warning: {cause}"
    cure = f"Train with train.sample=arbitrary or layerdrop; see what is lost: supple evaluate {name}; or add --force."
    raise RecipeError(cause, cure)


class Parts:
    """The blocks of a model and of its siblings, or its stem and head, on arrays."""

    def __init__(self, models: Sequence[FlexibleModel], names: Sequence[str]) -> None:
        self._models = [as_layered(model.eval(), name) for model, name in zip(models, names)]
        self.layers = self._models[0].count
        self.input_shape, self._preprocess = models[0].input_shape, models[0].preprocess

    @torch.inference_mode()
    def stem(self, x: Any) -> Array:
        """x: a batch of inputs, or a list of files."""
        batch = x if isinstance(x, Tensor) else torch.cat([self._preprocess.input(file) for file in x])
        return _array(self._models[0].trunk.stem(batch))

    @torch.inference_mode()
    def head(self, state: Array) -> Array:
        return _array(self._models[0].trunk.head(torch.tensor(state)))

    @torch.inference_mode()
    def run(self, blocks: Sequence[tuple[int, int]], place: int, state: Array) -> Array:
        """The state after blocks (layer, model), the first of which stands at the place `place` of all that run."""
        tensor = torch.tensor(state)  # a copy: arrays from an object store cannot be written to
        for position, (layer, model) in enumerate(blocks, place):
            tensor = self._models[model].layer(tensor, layer - 1, position)
        return _array(tensor)

    def probe(self) -> Array:
        """A state to try blocks on."""
        if self.input_shape is None:
            raise ClusterError("the run does not say what shape its inputs have.", "Train it again.")
        noise = torch.randn(1, *self.input_shape, generator=torch.Generator().manual_seed(0))
        return self.stem(noise)

    def keep(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Forgets the weights of all other layers."""
        for number, model in enumerate(self._models):
            for layer in range(1, model.count + 1):
                if (layer, number) not in blocks:
                    model.trunk.blocks[layer - 1] = nn.Identity()


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.float().contiguous().numpy()
    return found
