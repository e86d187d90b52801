"""A flexible model from a network you already have, in one call: `supple.exits("resnet50", at=["layer1", "layer2"])`.

One function for each method, all with the same words. `network` is a module, or a name: of a network of timm, or of one
of supple's own (`supple list`). A module needs `input_shape`, the shape of one sample without the batch; it is used as
it is, not copied. A named one has `num_classes` (timm's own number by default) and starts from the weights in the file
`weights` or, where it is a network of timm, from timm's own; `pretrained=False`: from random ones. A classifier for
other classes is new. The other keyword arguments are the settings of the method, as in a recipe.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from supple.backbones import BACKBONES
from supple.backbones.dims import Shape as Kept
from supple.backbones.networks import check_outputs, fitting, timm_facts
from supple.backbones.protocols import own_task
from supple.backbones.weights import expected_input, is_published, start
from supple.errors import RecipeError
from supple.methods import METHODS, network_of, section_of_timm
from supple.methods.dense import Dense, Read
from supple.methods.elastic import Elastic
from supple.methods.exits import Exits, Wanted, Way
from supple.methods.freezing import unfreeze_new
from supple.methods.gates import Inputs, Oracle
from supple.methods.merge_tokens import MergeTokens
from supple.methods.nested import Nested
from supple.methods.prune import Pairs, Prune, Update
from supple.methods.ranking import Ranking
from supple.methods.shuffle import Shuffle, Table, Variant
from supple.methods.skip import Gate, Skip
from supple.methods.slim import Slim
from supple.methods.static import Learn, Static
from supple.model import FlexibleModel, Shape
from supple.recipe import named_settings

Path_ = str | PathLike[str]
M = TypeVar("M", bound=FlexibleModel)
Network = nn.Module | str

# Each builder hands on all that it was given, by name: `**locals()`. So it has no local names but its arguments.


def exits(
    network: Network,
    at: str | Sequence[str] = (),
    branch: Wanted | Sequence[Wanted] = "linear",
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    way: Way = "end_to_end",
    unfrozen: Sequence[str] = (),
    freeze_random: bool = False,
) -> Exits:
    """Early exits: branches at the layers `at`, or the network's own. See `methods/exits.py`, and `supple.cuts`.

    way="classifier_wise": only the branches learn, and a new classifier; the network, which is trained, is frozen.
    """
    at = (at,) if isinstance(at, str) else tuple(at)
    branch = branch if isinstance(branch, (str, Mapping)) or not isinstance(branch, Sequence) else tuple(branch)
    unfrozen = tuple(unfrozen)
    return _flexible(Exits, **locals())


def slim(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    widths: Sequence[float] = (0.25, 0.5, 0.75, 1.0),
    divisor: int = 8,
) -> Slim:
    """Widths: the first share of every layer's channels. See `methods/slim.py`; `network` is a convolutional one."""
    widths = tuple(widths)
    return _flexible(Slim, **locals())


def shuffle(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    variant: Variant = "plain",
    table: Table = "shared",
    embedding: int = 32,
    dropout: float = 0.0,
    weight: float = 1.0,
    drop: float = 0.2,
) -> Shuffle:
    """Layers that may be left out and run in any order. See `methods/shuffle.py`; `network` is a plain ViT."""
    return _flexible(Shuffle, **locals())


def skip(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    gate: Gate = "paper",
    target: float | None = None,
    weight: float = 1.0,
    oracle: Oracle = "own",
    inputs: Inputs = "chain",
    dropout: float = 0.25,
    read: Read = "class",
    last_always_on: bool = True,
) -> Skip:
    """Layers that each sample may skip. See `methods/skip.py`; `network` is a plain ViT."""
    return _flexible(Skip, **locals())


def dense(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    dropout: float = 0.25,
    read: Read = "class",
) -> Dense:
    """Layers that read a weighted mean of all earlier ones. See `methods/dense.py`; `network` is a plain ViT."""
    return _flexible(Dense, **locals())


def prunable(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    gamma: float = 1e-4,
    update: Update = "together",
    ratio: float = 0.0,
    ranking: Ranking = "global",
    multiple: int = 1,
    kept: Pairs = (),
) -> Prune:
    """A search for the dimensions that matter. See `methods/prune.py`; `network` is a ViT, DeiT or Swin of timm."""
    kept = tuple(kept)
    return _flexible(Prune, **locals())


def nested(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    widths: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    shapes: Sequence[Kept] = (),
) -> Nested:
    """Widths of a transformer that share its weights. See `methods/nested.py`; `network` as for `prunable`."""
    widths, shapes = tuple(widths), tuple(shapes)
    return _flexible(Nested, **locals())


def merge_tokens(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    tokens: Sequence[int] = (2, 4, 8),
) -> MergeTokens:
    """Tokens that are alike become one, also without training. See `methods/merge_tokens.py`; a plain ViT."""
    tokens = tuple(tokens)
    return _flexible(MergeTokens, **locals())


def elastic(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    widths: Sequence[float] = (0.25, 0.5, 0.75, 1.0),
    at: str | Sequence[str] = (),
    branch: Wanted | Sequence[Wanted] = "linear",
    layers: bool = False,
    tokens: Sequence[int] = (),
    divisor: int = 8,
    points: Sequence[str] = (),
) -> Elastic:
    """Several axes in one: exits and widths; of a plain ViT, layers and tokens too. See `methods/elastic.py`."""
    at = (at,) if isinstance(at, str) else tuple(at)
    branch = branch if isinstance(branch, (str, Mapping)) or not isinstance(branch, Sequence) else tuple(branch)
    widths, tokens, points = tuple(widths), tuple(tokens), tuple(map(str, points))
    return _flexible(Elastic, **locals())


def static(
    network: Network,
    *,
    num_classes: int | None = None,
    input_shape: Shape | None = None,
    pretrained: bool | None = None,
    weights: Path_ | None = None,
    learn: Learn = "all",
    freeze_random: bool = False,
) -> Static:
    """The network as it is, with one point: what the others are compared with. See `methods/static.py`."""
    return _flexible(Static, **locals())


# --- what all of them do ----------------------------------------------------------------------------------------------


def _flexible(
    method: type[M],
    network: Network,
    num_classes: int | None,
    input_shape: Shape | None,
    pretrained: bool | None,
    weights: Path_ | None,
    **settings: Any,
) -> M:
    spec, fresh = None, []
    if isinstance(network, str):
        spec, input_shape, num_classes = _named(network, method, input_shape, num_classes)
        network = network_of(spec, num_classes, input_shape)
        fresh = _filled(network, spec, input_shape, pretrained, weights)
    elif pretrained or weights is not None:
        cause = f"{'weights' if weights is not None else 'pretrained'} is set, but the network is a module."
        raise RecipeError(cause, "Load its weights yourself, or name it.")
    elif input_shape is None:
        raise RecipeError("the shape of an input is not known.", "Say it: input_shape=(3, 224, 224).")
    facts = fitting(method, num_classes=num_classes or 0, input_shape=input_shape)
    model = method(network, **facts, **settings)  # type: ignore[call-arg]
    if spec is None and num_classes is not None and "num_classes" not in facts:  # else the method has seen to it
        check_outputs(model, input_shape, num_classes)
    model.start([name for name in model.state_dict() if not name.startswith("backbone.")])
    model.input_shape, model.backbone_spec, model.task = input_shape, spec, own_task(network) or model.task
    if spec is not None and len(fresh) < len(network.state_dict()):
        model.expected_input = expected_input(spec)
    unfrozen = unfreeze_new(model, [f"backbone.{name}" for name in fresh], bool(settings.get("freeze_random")))
    if unfrozen:
        settings["unfrozen"] = tuple(unfrozen)
    name = next(name for name, kind in METHODS.items() if kind is method)
    model.method_spec = {"name": name, **settings}
    model.classes = tuple(map(str, range(num_classes or 0)))
    return model


def _filled(
    network: nn.Module, spec: dict[str, Any], shape: Shape, pretrained: bool | None, weights: Path_ | None
) -> list[str]:
    """Gives a named network its weights; the names of those that stay random."""
    if pretrained is None:
        pretrained = is_published(spec)
    if weights is not None:
        return start(spec, network, shape, Path(weights))
    return start(spec, network, shape) if pretrained else list(network.state_dict())


def _named(
    name: str, method: type[FlexibleModel], input_shape: Shape | None, num_classes: int | None
) -> tuple[dict[str, Any], Shape, int]:
    """The section of a recipe that stands for a name, every setting written out; and what its data would decide."""
    facts = timm_facts(name)
    if facts is None and name in BACKBONES:
        if input_shape is None or num_classes is None:
            cause = f"the backbone {name} has no input_shape and num_classes of its own."
            raise RecipeError(cause, "Say them: input_shape=(3, 32, 32), num_classes=10.")
        return named_settings("backbone", {"name": name}, BACKBONES, "network"), input_shape, num_classes
    section = section_of_timm(name, method)
    shape = input_shape or (facts.input_size if facts else (3, 224, 224))
    classes = num_classes or (facts.num_classes if facts else 1000)
    return named_settings("backbone", section, BACKBONES, "network"), shape, classes
