"""FastNet: a small convolutional network with exits that trains well from nothing, in minutes.

After Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv 2404.00498): patches of the image are whitened by
a first layer that is computed from the training images, convolutions start as partial identities, norms have a bias and
no scale, and these biases learn at a higher rate. The exits are ours.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.classifier import check_counts
from supple.errors import RecipeError

State = tuple[Tensor]
POSITIONS = 32  # across the map that the first convolution sees, about
DIRECTIONS = 24  # of patches that are kept, at most; each gives two channels
SMALLEST = 12  # pixels of a side
HEAD_CELLS = 8  # across the map that the convolution of a head sees, at most; it is halved in any case
RATE_OF_BIASES = 64.0
SCALE = 1 / 9  # of the logits


class FastNet(nn.Module):
    """Groups of two convolutions, the first followed by a max pool. Exits after the first group, and after each
    convolution of the second; the last one is the network's own classifier.
    """

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        input_shape: tuple[int, ...] = (),  # of one image; larger ones are seen in larger patches
        widths: tuple[int, ...] = (64, 256, 256),  # channels of each group
        head: int = 128,  # channels of the convolution of an early exit
    ) -> None:
        super().__init__()
        check_counts("fastnet", num_classes=num_classes, in_channels=in_channels, widths=widths, head=head)
        if len(widths) < 2:
            raise RecipeError(
                f"fastnet: widths is {list(widths)}.", "Give at least two groups, such as [64, 256, 256]."
            )
        side = input_shape[-1] if input_shape else POSITIONS
        if side < SMALLEST:
            cause = f"fastnet cannot take images of {side}x{side} pixels: it needs {SMALLEST} a side."
            raise RecipeError(cause, f"Set data.size={SMALLEST} or more.")
        stride = max(1, round(side / POSITIONS))
        whiten = Whiten(in_channels, max(2, stride), stride)
        parts: list[nn.Module] = [whiten]
        before, cells = whiten.channels, (side - whiten.patch) // stride + 1
        sizes = [(before, cells)]  # channels and cells after each part
        for width in widths:
            cells //= 2
            parts += [Convolution(before, width, pool=True), Convolution(width, width)]
            sizes += [(width, cells), (width, cells)]
            before = width
        cuts = sorted({3, 4, 5, len(parts)})  # parts before each exit
        self.blocks = nn.ModuleList(Block(*parts[start:end]) for start, end in zip((0, *cuts), cuts))
        early = [ExitHead(*sizes[cut - 1], head, num_classes) for cut in cuts[:-1]]
        self.heads = nn.ModuleList([*early, Classifier(before, num_classes)])

    @property
    def rates(self) -> Mapping[str, float]:
        """The biases of norms learn faster than the rest."""
        return {f"{name}.bias": RATE_OF_BIASES for name, part in self.named_modules() if isinstance(part, BiasNorm)}

    @property
    def started(self) -> bool:
        return bool(self._whiten.weight.any())

    def start_from(self, images: Tensor) -> None:
        self._whiten.start_from(images)

    @property
    def _whiten(self) -> "Whiten":
        first = self.blocks[0][0]  # type: ignore[index]
        assert isinstance(first, Whiten)
        return first

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor | State = x
        for block in self.blocks:
            state = block(state)
        logits: Tensor = self.heads[-1](state)
        return logits


class Whiten(nn.Module):
    """A convolution whose outputs are uncorrelated and of the same size on the training images; each comes twice, once
    with the other sign. Its weights are computed from images and do not learn; its bias does.
    """

    weight: Tensor

    def __init__(self, in_channels: int, patch: int, stride: int) -> None:
        super().__init__()
        self.patch, self.stride = patch, stride
        self.channels = 2 * min(DIRECTIONS, in_channels * patch**2)
        self.register_buffer("weight", torch.zeros(self.channels, in_channels, patch, patch))
        self.bias = nn.Parameter(torch.zeros(self.channels))

    def start_from(self, images: Tensor, floor: float = 5e-4) -> None:
        """floor: added to the variances, so that directions which hardly occur are not blown up."""
        columns = F.unfold(images.float(), self.patch, stride=max(1, self.patch // 2))
        columns = columns.transpose(1, 2).flatten(0, 1)  # (patches, channels x patch x patch)
        second = (columns.T.double() @ columns.double()) / len(columns)
        variances, directions = torch.linalg.eigh(second)  # rising
        scaled = (directions / (variances.clamp_min(0) + floor).sqrt()).T.flip(0)[: self.channels // 2]
        weight = torch.cat([scaled, -scaled]).view_as(self.weight)
        self.weight.copy_(weight.to(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(F.conv2d(x, self.weight.to(x.dtype), self.bias.to(x.dtype), self.stride))


class BiasNorm(nn.BatchNorm2d):
    """A batch norm with a bias and no scale."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-5, momentum=0.4)
        del self.weight
        self.register_buffer("weight", torch.ones(channels), persistent=False)


class Convolution(nn.Sequential):
    """3x3, perhaps a max pool, norm, GELU. Its first channels start as those of its input."""

    def __init__(self, before: int, after: int, pool: bool = False) -> None:
        conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
        nn.init.dirac_(conv.weight.data[:before])
        parts = [conv, nn.MaxPool2d(2)] if pool else [conv]
        super().__init__(*parts, BiasNorm(after), nn.GELU())


class Block(nn.Sequential):
    """What lies between two exits; its state is one tensor."""

    def forward(self, state: Tensor | State) -> State:
        x = state[0] if isinstance(state, tuple) else state
        return (super().forward(x),)  # type: ignore[no-untyped-call]


class ExitHead(nn.Sequential):
    def __init__(self, channels: int, cells: int, hidden: int, num_classes: int) -> None:
        pool = max(min(2, cells), -(-cells // HEAD_CELLS))
        super().__init__(nn.MaxPool2d(pool), Convolution(channels, hidden), Classifier(hidden, num_classes))

    def forward(self, state: State) -> Tensor:
        logits: Tensor = super().forward(state[0])  # type: ignore[no-untyped-call]
        return logits


class Classifier(nn.Module):
    """The maximum of every channel, and a linear layer. Its outputs are scaled down, which also slows its learning."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, num_classes, bias=False)
        nn.init.normal_(self.linear.weight, std=0.2)

    def forward(self, state: Tensor | State) -> Tensor:
        x = state[0] if isinstance(state, tuple) else state
        logits: Tensor = SCALE * self.linear(x.amax((2, 3)))
        return logits
