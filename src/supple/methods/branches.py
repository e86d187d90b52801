"""Early-exit branches: small networks that turn the tensor at a cut into logits (SL-ViT paper, sections 3.1 and 4.3).

A branch is made for one tap and reads the batch in the tap's own layout; where the tap has sound, it is given a pair:
the map, and what was heard (batch, sound). Its settings are its keyword arguments; in a recipe they stand under
`method.branch`. To add one, write its class here and name it in `BRANCHES`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supple.backbones._cut.tap import Tap, as_map, parted
from supple.backbones.fusion import Fusion, initialise
from supple.cost import count_params
from supple.errors import RecipeError
from supple.recipe import named_settings
from supple.text import quantity


class EncoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and with a residual; the one around the MLP can be left out."""

    def __init__(self, d: int, heads: int, mlp_ratio: int, residual: bool) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(d), SelfAttention(d, heads))
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, mlp_ratio * d), nn.GELU(), nn.Linear(mlp_ratio * d, d))
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y: Tensor = self.mlp(x)
        return x + y if self.residual else y


class SelfAttention(nn.Module):
    """Multi-head attention whose heads are as wide as its input, eq. (2): the usual d / heads is another model."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * heads * d)
        self.out = nn.Linear(heads * d, d)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1))  # (batch, tokens, 3, heads, d)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)  # scale 1 / sqrt(d)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


Read = Literal["auto", "class", "mean"]

LEAST, MOST = 1, 4096  # of the whole-number settings, save these
LEAST_OF, MOST_OF = {"patch": 0, "padding": 0, "dropout": 0}, {"layers": 64}
START_STD = 0.01  # of the linear layer of `conv`


class Cnn(nn.Module):
    """The paper's baseline (figure 5): convolutions with ReLU, a max pool, the MLP head.

    Where there is sound, the first convolution listens as a fusion block does (section 4.3).

    `padding` is that of the first convolution; later ones keep the size of the map, so that the two-layer branch of
    table 11 is `layers=2`. Crowd counting takes `padding=1, pool=4`.
    """

    def __init__(
        self,
        tap: Tap,
        num_classes: int,
        *,
        kernel: int = 3,  # side of the convolutions
        dilation: int = 1,  # step between the cells a kernel reads
        filters: int = 16,  # channels of every convolution
        padding: int = 0,  # zeros around the map before the first convolution
        pool: int = 2,  # side of the max pool
        layers: int = 1,  # convolutions
        dropout: float = 0.5,  # share of the head's hidden units dropped in training
        hidden: int = 256,  # width of the head's two hidden layers
    ) -> None:
        super().__init__()
        check_tap("cnn", tap)
        check_ranges(kernel=kernel, dilation=dilation, filters=filters, padding=padding, pool=pool)
        check_ranges(layers=layers, dropout=dropout, hidden=hidden)
        reach = dilation * (kernel - 1)  # beyond the first cell
        height, width = (side + 2 * padding - reach for side in (tap.height, tap.width))
        if min(height, width) < 1:
            raise RecipeError(
                f"method.branch.kernel is {kernel}: with dilation {dilation} it spans {reach + 1} cells, "
                f"more than the map {tap} with padding {padding} has.",
                "Use a smaller kernel or dilation, or a larger padding.",
            )
        if min(height, width) < pool:
            raise RecipeError(
                f"method.branch.pool is {pool}, but the map after the convolution is {height}x{width}.",
                f"Use a pool of at most {min(height, width)}.",
            )
        if layers > 1 and reach % 2:
            raise RecipeError(
                f"method.branch.kernel is {kernel}: with dilation {dilation} further layers cannot keep the size.",
                "Use an odd kernel, or one layer.",
            )
        self.tap = tap
        convs: list[nn.Module] = []
        for layer in range(layers):
            cin, around = (tap.channels, padding) if layer == 0 else (filters, reach // 2)
            if layer == 0 and tap.sound:
                continue
            convs += [nn.Conv2d(cin, filters, kernel, padding=around, dilation=dilation), nn.ReLU(inplace=True)]
        self.convs = nn.Sequential(*convs, nn.MaxPool2d(pool))
        self.head = mlp_head(filters * (height // pool) * (width // pool), hidden, num_classes, dropout)
        self.apply(initialise)
        self.fusion = Fusion(tap.channels, filters, tap.sound, kernel, padding, dilation) if tap.sound else None

    def forward(self, x: Any) -> Tensor:
        seen, heard = parted(x, self.tap)
        logits: Tensor = self.head(self.convs(seen if self.fusion is None else self.fusion(seen, heard)))
        return logits


class SlVit(nn.Module):
    """A single-layer vision transformer (figure 6): patches of the map, one encoder layer, the same MLP head.

    No class token and no norm at the end: the whole output of the encoder goes to the head. Every head is as wide as
    the embedding. `last_residual=False` leaves out the last residual of the last layer (table 12).

    Where there is sound, what was heard is one patch more, the same at every place of it, and goes through the same
    embedding (section 3.2); every other patch can attend to it.
    """

    def __init__(
        self,
        tap: Tap,
        num_classes: int,
        *,
        patch: int = 0,  # side of a patch; 0: the one nearest to the square root of the map's height
        d: int = 32,  # width of the embedding, and of each attention head
        heads: int = 12,  # attention heads
        layers: int = 1,  # encoder layers
        last_residual: bool = True,  # add the input of the last layer's MLP to its output
        mlp_ratio: int = 2,  # hidden width of the encoder's MLP over d
        fan_in: Literal["d", "heads*d"] = "d",  # of the first queries, keys and values, which the paper leaves open
        dropout: float = 0.5,  # share of the head's hidden units dropped in training
        hidden: int = 256,  # width of the head's two hidden layers
    ) -> None:
        super().__init__()
        check_tap("sl_vit", tap)
        check_ranges(patch=patch, d=d, heads=heads, layers=layers, mlp_ratio=mlp_ratio)
        check_ranges(dropout=dropout, hidden=hidden)
        patch = patch or automatic_patch(tap)
        if patch not in patches(tap):
            raise RecipeError(
                f"method.branch.patch is {patch}, which does not divide the map {tap}.",
                f"Use {', '.join(map(str, patches(tap)))}, or 0 to let it be chosen.",
            )
        if tap.sound not in (0, tap.channels):
            raise RecipeError(
                f"method.branch.name is sl_vit, which embeds sound as it embeds patches, but it would read {tap}.",
                "Use cnn, or as many channels for what is heard (backbone.audio_channels) as for what is seen (front).",
            )
        number = (tap.height // patch) * (tap.width // patch) + (1 if tap.sound else 0)
        self.tap = tap
        self.embed = nn.Conv2d(tap.channels, d, patch, stride=patch)  # a dense layer on every patch, without copying
        self.position = nn.Parameter(torch.empty(number, d))
        self.layers = nn.ModuleList(
            EncoderLayer(d, heads, mlp_ratio, residual=last_residual or layer < layers - 1) for layer in range(layers)
        )
        self.head = mlp_head(number * d, hidden, num_classes, dropout)
        self.apply(initialise)
        nn.init.normal_(self.position, std=0.02)
        for attention in (part for part in self.modules() if isinstance(part, SelfAttention) and fan_in == "heads*d"):
            attention.qkv.weight.data /= math.sqrt(heads)

    def forward(self, x: Any) -> Tensor:
        seen, heard = parted(x, self.tap)
        x = self.embed(seen).flatten(2)  # (batch, d, patches)
        if heard is not None:
            patch = heard[:, :, None, None].expand(-1, -1, *self.embed.kernel_size)
            x = torch.cat([x, self.embed(patch).flatten(2)], 2)
        x = x.transpose(1, 2) + self.position  # (batch, patches, d)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


class Linear(nn.Module):
    """One vector per sample, with what was heard behind it, and a linear layer on it. Flat features are that vector."""

    def __init__(
        self,
        tap: Tap,
        num_classes: int,
        *,
        read: Read = "auto",  # class: the class token; mean: that of the map; auto: class where there is one, else mean
        norm: bool = False,  # a layer norm before the linear layer
    ) -> None:
        super().__init__()
        if read == "class" and not has_class_token(tap):
            raise RecipeError(
                f"method.branch.read is class, but there is no class token in {tap}.", "Use mean, or auto."
            )
        self.tap = tap
        self.read_class = read != "mean" and has_class_token(tap)
        features = tap.channels + tap.sound
        self.norm = nn.LayerNorm(features) if norm else nn.Identity()
        self.linear = nn.Linear(features, num_classes)
        self.apply(initialise)

    def forward(self, x: Any) -> Tensor:
        if self.tap.sound:
            seen, heard = parted(x, self.tap)
            x = torch.cat([seen.mean((2, 3)), heard], 1)
        elif self.read_class:
            x = x[:, 0]
        elif self.tap.layout != "flat":
            x = as_map(x, self.tap).mean((2, 3))
        logits: Tensor = self.linear(self.norm(x))
        return logits


class Conv(nn.Module):
    """A 3x3 convolution with a batch norm on a map of few cells, the mean of each channel, a linear layer.

    For networks that are fine-tuned with their branches; not one of the paper's.
    """

    def __init__(
        self,
        tap: Tap,
        num_classes: int,
        *,
        channels: int = 128,  # of the convolution
        cells: int = 8,  # of the map's side, at most: a larger one is pooled first
        dropout: float = 0.0,  # share of the channels dropped in training
    ) -> None:
        super().__init__()
        check_tap("conv", tap)
        check_ranges(channels=channels, cells=cells, dropout=dropout)
        if tap.sound:
            raise RecipeError("method.branch.name is conv, which cannot use sound.", "Use cnn, sl_vit or linear.")
        pool = -(-min(tap.height, tap.width) // cells)
        convolution = nn.Conv2d(tap.channels, channels, 3, padding=1, bias=False)
        self.tap = tap
        self.features = nn.Sequential(
            nn.AvgPool2d(pool) if pool > 1 else nn.Identity(),
            nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)),
        )
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels, num_classes)
        nn.init.normal_(self.linear.weight, std=START_STD)  # so that what is trained is not pulled at by what is not
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.dropout(self.features(as_map(x, self.tap)).mean((2, 3))))
        return logits


def mlp_head(features: int, hidden: int, num_classes: int, dropout: float) -> nn.Sequential:
    """The head that `cnn` and `sl_vit` share. The paper gives no activation and no rate: ReLU, and 0.5 by default."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, num_classes),
    )


def patches(tap: Tap) -> list[int]:
    """Sides of the square patches that cover the map without padding."""
    side = math.gcd(tap.height, tap.width)
    return [patch for patch in range(1, side + 1) if side % patch == 0]


def automatic_patch(tap: Tap) -> int:
    """The patch nearest to the square root of the height (section 3.1); of two equally near, the finer."""
    return min(patches(tap), key=lambda patch: abs(patch - math.sqrt(tap.height)))


def has_class_token(tap: Tap) -> bool:
    return tap.layout == "tokens" and tap.prefix > 0


def check_tap(name: str, tap: Tap) -> None:
    if tap.layout == "flat":
        raise RecipeError(
            f"method.branch.name is {name}, which reads a map or tokens, but there are {tap} at the cut.",
            "Use linear: method.branch=linear.",
        )


def check_ranges(**settings: Any) -> None:
    for key, value in settings.items():
        if key == "dropout" and not 0 <= value < 1:
            raise RecipeError(f"method.branch.dropout is {value}.", "Give a share from 0 to below 1.")
        least, most = LEAST_OF.get(key, LEAST), MOST_OF.get(key, MOST)
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= most:
            raise RecipeError(f"method.branch.{key} is {value}.", f"Give a whole number from {least} to {most}.")


BRANCHES: dict[str, type[nn.Module]] = {"cnn": Cnn, "sl_vit": SlVit, "linear": Linear, "conv": Conv}
MOST_PARAMS = 10**9  # of one branch: more is a slip, and would end in a full memory


def checked_branch(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's `method.branch` (a name, or a mapping with a name) with every setting written out."""
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        cure = f"Give a name ({', '.join(BRANCHES)}), or a mapping such as {{name: sl_vit, heads: 4}}."
        raise RecipeError(f"recipe: method.branch is {given!r}.", cure)
    settings = named_settings("method.branch", dict(given), BRANCHES, "recipe")
    check_ranges(**settings)
    return settings


def make_branch(given: str | Mapping[str, Any], tap: Tap, num_classes: int) -> nn.Module:
    """The untrained branch that a recipe asks for, to be put on a tap."""
    settings = checked_branch(given)
    kind = BRANCHES[settings.pop("name")]
    params = branch_params(kind, tap, num_classes, **settings)
    if params > MOST_PARAMS:
        cause = f"method.branch would have {quantity(params)} parameters on {tap}, more than {quantity(MOST_PARAMS)}."
        raise RecipeError(cause, "Use smaller settings, or linear.")
    return kind(tap, num_classes, **settings)


def affordable(
    tap: Tap,
    num_classes: int,
    limit: int | None = None,
    d: Iterable[int] = (16, 24, 32, 36, 48, 64),
    heads: Iterable[int] = (1, 2, 4, 8, 12, 16, 24),
) -> list[dict[str, Any]]:
    """SL-ViT settings (name, patch, d, heads) with their `params`, within a limit of parameters, most first.

    The default limit is what the default CNN branch has on the same tap: the rule of the paper's grid search.
    """
    if limit is None:
        limit = branch_params(Cnn, tap, num_classes)
    found: list[dict[str, Any]] = []
    for width, number in itertools.product(d, heads):
        settings = {"patch": automatic_patch(tap), "d": width, "heads": number}
        params = branch_params(SlVit, tap, num_classes, **settings)
        if params <= limit:
            found.append({"name": "sl_vit", **settings, "params": params})
    return sorted(found, key=lambda row: row["params"], reverse=True)


def branch_params(kind: type[nn.Module], tap: Tap, num_classes: int, **settings: Any) -> int:
    """Counted on a branch without weights."""
    with torch.device("meta"):
        return count_params(kind(tap, num_classes, **settings).parameters())
