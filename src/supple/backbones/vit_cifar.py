"""The small vision transformer of the Dynamic Transformer paper, for images of 32 pixels (arithmetic: 3.1)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supple.errors import RecipeError

Stem = Literal["patch", "conv"]
Scale = Literal["width", "head"]


class VitCifar(nn.Module):
    """Patches, a class token, learned positions, `layers` pre-norm layers, a norm and a linear classifier.

    As in the layout that the paper trained (ViT-CIFAR), attention is divided by the root of the whole width, not of a
    head's, and the MLP ends with an activation and dropout of its own; `scale: head` gives the usual division. Class
    token and positions start from N(0, 1), as the paper says: they are then much larger than what a layer adds, so that
    the order of the layers hardly matters. `init_std: 0.02` is usual elsewhere.
    """

    class_token = True

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        input_shape: tuple[int, ...] = (3, 32, 32),  # of one image
        width: int = 384,  # of a token
        mlp: int = 384,  # hidden width of the MLPs
        heads: int = 12,  # of the attention
        layers: int = 10,
        grid: int = 8,  # patches along a side
        stem: Stem = "patch",  # patch: one linear layer; conv: convolutions of stride 2 down to the grid
        scale: Scale = "width",  # attention is divided by the root of this
        dropout: float = 0.0,  # after attention and inside the MLPs
        init_std: float = 1.0,  # of the class token and the positions; transformers of this kind mostly have 0.02
    ) -> None:
        super().__init__()
        check(width=width, mlp=mlp, heads=heads, layers=layers, grid=grid)
        if width % heads:
            raise RecipeError(
                f"backbone.width {width} is not a multiple of backbone.heads {heads}.", "Change one of them."
            )
        if not 0 <= dropout < 1:
            raise RecipeError(f"backbone.dropout is {dropout}.", "Give a share from 0 to below 1.")
        if not 0 < init_std <= 10:
            raise RecipeError(f"backbone.init_std is {init_std}.", "Give a number above 0, such as 0.02.")
        height, length = input_shape[-2:]
        if height % grid or length % grid:
            raise RecipeError(
                f"backbone.grid is {grid}, which does not divide images of {height}x{length} pixels.",
                "Choose a divisor of both sides.",
            )
        self.width = width
        patch = (height // grid, length // grid)
        if stem == "patch":
            self.patches: nn.Module = nn.Conv2d(in_channels, width, patch, stride=patch)
        else:
            self.patches = conv_stem(in_channels, width, patch)
        self.token = nn.Parameter(init_std * torch.randn(1, 1, width))
        self.positions = nn.Parameter(init_std * torch.randn(1, 1 + grid * grid, width))
        divisor = width if scale == "width" else width // heads
        self.blocks = nn.Sequential(*(Layer(width, mlp, heads, divisor**-0.5, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, num_classes)

    def stem(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # (batch, patches, width)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions

    def head(self, state: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.norm(state[:, 0]))
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and with a residual."""

    def __init__(self, width: int, mlp: int, heads: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.Dropout(dropout))
        hidden = (nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout))
        self.mlp = nn.Sequential(*hidden, nn.Linear(mlp, width), nn.GELU(), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1))  # (batch, tokens, 3, heads, width / heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y: Tensor = self.mlp(self.norm2(x))
        return x + y


def conv_stem(channels: int, width: int, patch: tuple[int, int]) -> nn.Module:
    """Convolutions of stride 2, doubling their channels up to `width`, until a cell is a patch."""
    halvings = patch[0].bit_length() - 1
    if patch != (2**halvings, 2**halvings) or halvings < 1:
        cause = f"backbone.stem is conv, but patches are {patch[0]}x{patch[1]} pixels."
        raise RecipeError(cause, "Choose backbone.grid so that they measure 2, 4, 8, ... pixels.")
    layers: list[nn.Module] = []
    for left in reversed(range(halvings)):
        wide = max(8, width >> left) if left else width
        layers += [nn.Conv2d(channels, wide, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        channels = wide
    return nn.Sequential(*layers[:-1])  # a token is a sum, not what is left of one


def check(**settings: int) -> None:
    for key, value in settings.items():
        if not 1 <= value <= 16384:
            raise RecipeError(f"backbone.{key} is {value}.", "Give a whole number from 1 to 16384.")
