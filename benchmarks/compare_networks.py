"""The networks of the comparison (compare.py): elastic ones, the same sizes as static ones, pruned ones, earlyon's.

A point of an elastic network names a size. The static network of that size has the shape that `extract` gives: a
FastNet with fewer channels, cut at an exit; of a transformer, the extracted network with the weights it starts from.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

import supple
from supple.backbones.fastnet import RATE_OF_BIASES, Classifier, FastNet, Whiten
from supple.backbones.vit import Vit
from supple.data.splits import Splits
from supple.methods.exits import Exits
from supple.methods.merge_tokens import MergeTokens
from supple.methods.slim import kept
from supple.methods.static import Static
from supple.model import FlexibleModel
from supple.point import Point
from supple.recipe import Recipe
from supple.training.build import fresh_model
from supple.training.init import initialise

TOKENS = (1, 2, 4, 8)  # merged in every layer, without training


def named(model: FlexibleModel, splits: Splits) -> Any:
    """A model that knows its data, as one of a recipe does."""
    model.classes, model.preprocess, model.input_shape = (
        splits.train.classes,
        splits.train.preprocess,
        splits.train.shape,
    )
    return model.eval()


# --- static networks of the same sizes --------------------------------------------------------------------------------


class Fast(nn.Module):
    """What the parts of a FastNet have in common for a training: what is computed from images, and learns faster."""

    @property
    def rates(self) -> Mapping[str, float]:
        norms = (name for name, part in self.named_modules() if isinstance(part, nn.BatchNorm2d))
        return {f"{name}.bias": RATE_OF_BIASES for name in norms}

    @property
    def started(self) -> bool:
        return all(bool(part.weight.any()) for part in self.modules() if isinstance(part, Whiten))

    def start_from(self, images: Tensor) -> None:
        for part in self.modules():
            if isinstance(part, Whiten):
                part.start_from(images)


class Cut(Fast):
    """A FastNet up to one of its exits: a network with one classifier."""

    def __init__(self, net: FastNet, exit: int | None = None) -> None:
        super().__init__()
        count = exit or len(net.heads)
        self.body, self.head = nn.Sequential(*net.blocks[:count]), net.heads[count - 1]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def narrow(backbone: Mapping[str, Any], width: float, divisor: int = 8) -> dict[str, Any]:
    """The settings of a FastNet with the share of channels that a width keeps."""
    channels = tuple(kept(count, width, divisor) for count in backbone["widths"])
    own = {key: value for key, value in backbone.items() if key != "name"}
    return own | {"widths": channels, "head": kept(backbone["head"], width, divisor)}


def shelf(recipe: Recipe, splits: Splits, point: str, seed: int) -> Static:
    """The untrained static network of a point's size."""
    size, train = Point.parse(point), splits.train
    if recipe.backbone["name"] == "fastnet":
        torch.manual_seed(seed)
        facts = {"num_classes": len(train.classes), "in_channels": train.shape[0], "input_shape": train.shape}
        net = FastNet(**facts, **narrow(recipe.backbone, size.width, int(recipe.method["divisor"])))
        return cast(Static, named(Static(Cut(net, size.exit)), splits))
    seeded = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})
    elastic = fresh_model(seeded, splits)
    elastic.start(initialise(elastic, seeded, quiet=True))
    return cast(Static, named(Static(elastic.extract(size)), splits))


def merging(static: FlexibleModel, splits: Splits) -> MergeTokens:
    """A trained static transformer that merges tokens, as it is."""
    backbone = static.get_submodule("backbone")
    assert isinstance(backbone, Vit)
    return cast(MergeTokens, named(MergeTokens(backbone, tokens=TOKENS, input_shape=splits.train.shape), splits))


# --- pruned by Torch-Pruning ------------------------------------------------------------------------------------------


class Plain(Fast):
    """A trained `Cut` of layers that Torch-Pruning knows: what whitens is a convolution, norms have a fixed scale."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(plain(part) for block in copy.deepcopy(cut.body) for part in block))
        assert isinstance(cut.head, Classifier)
        self.head = copy.deepcopy(cut.head)
        self.freeze()

    def freeze(self) -> None:
        """What did not learn in the network that was pruned does not learn now."""
        self.layers[0].requires_grad_(False)
        self.layers[0][0].bias.requires_grad_(True)  # type: ignore[index, union-attr]
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x))
        return logits


def plain(part: nn.Module) -> nn.Module:
    if isinstance(part, Whiten):
        patches = nn.Conv2d(part.weight.shape[1], part.channels, part.patch, part.stride)
        patches.load_state_dict({"weight": part.weight, "bias": part.bias.detach()})
        return nn.Sequential(patches, nn.GELU())
    assert isinstance(part, nn.Sequential)
    return nn.Sequential(*(_norm(one) if isinstance(one, nn.BatchNorm2d) else one for one in part))


def _norm(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    new = nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum)
    values = norm.state_dict()
    new.load_state_dict({"weight": torch.ones(norm.num_features), **values})
    return new


def pruned(static: FlexibleModel, splits: Splits, share: float, divisor: int = 8) -> Static:
    """The trained full network with this share of its channels: those of the largest groups of weights (DepGraph)."""
    import torch_pruning as tp

    backbone = static.get_submodule("backbone")
    assert isinstance(backbone, Cut)
    network = Plain(backbone).eval().requires_grad_(True)
    importance = tp.importance.GroupMagnitudeImportance(p=2)
    kept_whole = [network.layers[0], network.head.linear]
    settings = {"pruning_ratio": 1 - share, "ignored_layers": kept_whole, "round_to": divisor}
    example = torch.zeros(1, *splits.train.shape)
    tp.pruner.MagnitudePruner(network, example, importance=importance, **settings).step()
    network.freeze()
    return cast(Static, named(Static(network), splits))


# --- earlyon ----------------------------------------------------------------------------------------------------------


class OnState(nn.Module):
    """A head of earlyon behind a block of FastNet."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, state: tuple[Tensor]) -> Tensor:
        logits: Tensor = self.head(state[0])
        return logits


class Early(Fast):
    """FastNet with earlyon's own heads where FastNet has exits."""

    def __init__(self, net: FastNet, num_classes: int) -> None:
        from earlyon.core.exit_head import EarlyExitHead

        super().__init__()
        self.blocks = net.blocks
        channels = [last_channels(block) for block in net.blocks[:-1]]
        heads = [OnState(EarlyExitHead(count, num_classes)) for count in channels]
        self.heads = nn.ModuleList([*heads, net.heads[-1]])

    def forward(self, x: Tensor) -> Tensor:
        state: Any = x
        for block in self.blocks:
            state = block(state)
        logits: Tensor = self.heads[-1](state)
        return logits


def last_channels(block: nn.Module) -> int:
    return [part.num_features for part in block.modules() if isinstance(part, nn.BatchNorm2d)][-1]


def early(recipe: Recipe, splits: Splits, seed: int) -> Exits:
    torch.manual_seed(seed)
    train = splits.train
    facts = {"num_classes": len(train.classes), "in_channels": train.shape[0], "input_shape": train.shape}
    net = FastNet(**facts, **narrow(recipe.backbone, 1.0))
    return cast(Exits, named(Exits(Early(net, len(train.classes))), splits))


def wrapped(model: Exits, shape: Sequence[int]) -> Any:
    """The trained network in earlyon's wrapper, which finds its layers by name and stops inside their hooks."""
    from earlyon.core.types import EarlyExitConfig, ExitPoint
    from earlyon.core.wrappers import EarlyExitWrapper

    network = copy.deepcopy(model.get_submodule("backbone")).eval()
    assert isinstance(network, Early)
    places = [ExitPoint(f"exit{k}", f"blocks.{k}", last_channels(block)) for k, block in enumerate(network.blocks[:-1])]
    heads = {place.name: head.head for place, head in zip(places, network.heads[:-1])}
    first = {place.name: lambda state: state[0] for place in places}
    settings = EarlyExitConfig("custom", len(model.classes), places)
    return EarlyExitWrapper(network, heads, nn.Identity(), settings, (1, *shape), first).eval()


def sizes(model: FlexibleModel) -> dict[str, dict[str, int]]:
    """MACs and parameters of every point."""
    rows = supple.profile(model)
    return {row.point: {"macs": int(row.macs or 0), "params": int(row.params or 0)} for row in rows}
