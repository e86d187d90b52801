"""The classifier of a network, how to put another one in its place, and the checks of settings that backbones share."""

from typing import get_args

from torch import nn

from supple.errors import RecipeError


def dense_classifier(features: int, hidden: int, num_classes: int, dropout: float) -> nn.Module:
    """`hidden` 0: one linear layer. Otherwise the new classifier of SL-ViT, section 4.2: two of them and dropout.

    The paper leaves the width of the first dense layer, its activation and the dropout rate open.
    """
    if hidden == 0:
        return nn.Linear(features, num_classes)
    return nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, num_classes)
    )


def replace_classifier(network: nn.Module, name: str, num_classes: int, hidden: int = 0, dropout: float = 0.5) -> None:
    """Puts a fresh `dense_classifier` in the place of a linear one; `name` is its path, such as head.fc."""
    try:
        old = network.get_submodule(name)
    except AttributeError:
        old = None
    if not name or not isinstance(old, nn.Linear):
        found = f"is a {type(old).__name__}" if old is not None and name else "does not exist"
        raise RecipeError(
            f'{type(network).__name__} can have no new classifier at "{name}": it {found}.',
            "Name the linear layer that gives the logits.",
        )
    swap(network, name, dense_classifier(old.in_features, hidden, num_classes, dropout))


def swap(network: nn.Module, name: str, module: nn.Module) -> None:
    """Puts `module` at a dotted path that exists; the order of the modules around it stays."""
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)


def check_common(backbone: str, num_classes: int, in_channels: int, classifier: int, dropout: float) -> None:
    """The settings that every backbone with a replaceable classifier shares."""
    check_counts(backbone, num_classes=num_classes, in_channels=in_channels)
    if classifier < 0:
        cure = "Give 0 for one linear layer, or a number of hidden units such as 256."
        raise RecipeError(f"{backbone}: classifier is {classifier}.", cure)
    if not 0 <= dropout < 1:
        raise RecipeError(f"{backbone}: dropout is {dropout}.", "Give a share from 0 up to, but not including, 1.")


def check_counts(backbone: str, **settings: int | tuple[int, ...]) -> None:
    """Numbers of things, alone or in a row: each must be at least 1."""
    for name, value in settings.items():
        if isinstance(value, tuple) and any(count < 1 for count in value):
            raise RecipeError(
                f"{backbone}: {name} {list(value)} holds a number below 1.", "Give at least 1 everywhere."
            )
        if isinstance(value, int) and value < 1:
            raise RecipeError(f"{backbone}: {name} is {value}.", f"Give {name} a whole number of at least 1.")


def check_choice(backbone: str, name: str, value: str, kind: object) -> None:
    """`kind` is a Literal."""
    if value not in get_args(kind):
        raise RecipeError(f'{backbone}: unknown {name} "{value}".', f"Use one of: {', '.join(get_args(kind))}.")


def check_size(backbone: str, input_shape: tuple[int, ...], smallest: int) -> None:
    """Refuses images of which nothing would be left before the classifier; an unknown shape passes."""
    if input_shape and min(input_shape[1:]) < smallest:
        height, width = input_shape[1:]
        raise RecipeError(
            f"{backbone} cannot take images of {height}x{width} pixels: it needs {smallest} a side.",
            f"Set data.size={smallest} or more.",
        )
