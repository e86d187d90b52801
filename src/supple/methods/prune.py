"""SiDT: search for the dimensions of a transformer that matter, with a score for each (sections 3 and 4).

The search trains the network with its scores, under an L1 penalty; `supple prune` then cuts the dimensions with the
lowest ones. Scores scale weights and biases, so they cost next to nothing and can be folded in exactly.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.dims import Block, blocks_of, check_shape, filled, resize, shape_of
from supple.errors import RecipeError
from supple.methods._trunk import check_range
from supple.methods.ranking import Ranking, Scores, equal_scores, keep
from supple.model import FlexibleModel, Output, Outputs, as_output
from supple.point import FULL, AnyPoint, Point
from supple.text import did_you_mean

Pairs = tuple[tuple[int, int], ...]
Update = Literal["together", "alternate"]


class Prune(FlexibleModel):
    """One point, the full network, whose layers are scored: one vector for the heads of a block (the same for q, k, v
    and in every head), one for the hidden dimensions of its MLP.

    With a `ratio` or `kept` the network is cut down as soon as it is built and has no scores: the counts of a pruned
    shape without training, or that shape trained from scratch.
    """

    backbone: nn.Module
    points = (FULL,)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        gamma: float = 1e-4,  # weight of the L1 penalty on the scores
        update: Update = "together",  # scores learn with the weights, or alone in every second step
        ratio: float = 0.0,  # share of the dimensions to be without from the start; 0: search
        ranking: Ranking = "global",  # for this ratio: which dimensions are compared with each other
        multiple: int = 1,  # for this ratio: kept dimensions are rounded to a multiple
        kept: Pairs = (),  # for each block: kept dimensions of a head, and of the MLP (in a recipe also a JSON file)
    ) -> None:
        super().__init__()
        check_range("gamma", gamma, 0)
        check_range("ratio", ratio, 0, 1)
        check_range("multiple", multiple, 1)
        if update not in get_args(Update):
            raise RecipeError(f'method.update is "{update}".', did_you_mean(str(update), get_args(Update)))
        if kept and ratio:
            raise RecipeError("method.ratio and method.kept are both given.", "Leave one of them out.")
        self.backbone, self.gamma, self.update = backbone, gamma, update
        self.scores = nn.ParameterList()
        blocks = blocks_of(backbone)
        if kept:
            resize(backbone, check_shape(kept, shape_of(backbone)))
        elif ratio:
            resize(backbone, keep(equal_scores(blocks), ratio, ranking, multiple).shape)
        else:
            for block in blocks:
                self._score(block)

    def _score(self, block: Block) -> None:
        device = block.mlp.fc1.weight.device
        heads = nn.Parameter(torch.ones(block.head_dims, device=device))
        hidden = nn.Parameter(torch.ones(block.hidden, device=device))
        block.attention.qkv = Scored(block.attention.qkv, heads)
        block.mlp.fc1 = Scored(block.mlp.fc1, hidden)
        self.scores.extend([heads, hidden])

    def pruning_scores(self) -> Scores | None:
        """Of every block; None where the network was cut down from the start."""
        if not len(self.scores):
            return None
        flat = [score.detach().cpu() for score in self.scores]
        return list(zip(flat[::2], flat[1::2]))

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        for point in self.order(points):
            yield as_output(point, self.backbone(x))

    def penalty(self, outputs: Sequence[Output]) -> Tensor:
        """gamma times the sum of all absolute scores."""
        if not len(self.scores):
            return super().penalty(outputs)
        return self.gamma * torch.cat([score.abs() for score in self.scores]).sum()

    def no_weight_decay(self) -> Iterable[nn.Parameter]:
        return self.scores

    def resting(self, step: int) -> Iterable[nn.Parameter]:
        """With update=alternate, weights learn in even steps and scores in odd ones, as in DARTS (first order): the
        images that judge the scores are not those that the weights have just been fitted to.

        Departure: both see all training images in the course of a training, DARTS keeps half of them for the scores.
        """
        if self.update == "together" or not len(self.scores):
            return ()
        return self.scores if step % 2 == 0 else self.backbone.parameters()

    def plain(self, point: Point) -> nn.Module:
        return folded(self.backbone)


class Scored(nn.Linear):
    """A linear layer whose outputs have scores: x (W a) + b a. It keeps the weights, and the names, of the layer it
    stands for; the scores belong to the method.
    """

    def __init__(self, linear: nn.Linear, score: nn.Parameter) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._score = [score]  # in a list, so that it is not one of this layer's own

    @property
    def score(self) -> Tensor:
        """Of every output: a score is shared by those that are a whole number of scores apart."""
        score = self._score[0]
        return score.repeat(self.out_features // len(score))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self._scaled())

    def _scaled(self) -> tuple[Tensor, Tensor | None]:
        score = self.score
        return self.weight * score[:, None], None if self.bias is None else self.bias * score

    def fold(self) -> nn.Linear:
        """An ordinary layer with the scores in its weights."""
        return filled(self, *self._scaled())


def folded(network: nn.Module) -> nn.Module:
    """A copy with all scores folded into the weights."""
    network = copy.deepcopy(network)
    for path, part in list(network.named_modules()):
        if isinstance(part, Scored):
            network.set_submodule(path, part.fold())
    return network
