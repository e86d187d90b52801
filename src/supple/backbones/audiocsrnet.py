"""AudioCSRNet: how many people a picture shows, with the sound of the place to help (SL-ViT, section 2.4)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supple.backbones._cut.tap import Tap
from supple.backbones.fusion import Fusion, initialise
from supple.errors import DataError, RecipeError

Readout = Literal["count", "density"]
Look = Tensor | tuple[Tensor, Tensor | None]  # pictures (batch, 3, height, width), and sounds (batch, 1, 96, 64)
STRIDE = 8  # pixels of the picture for one cell of the map, along each side


class AudioCsrNet(nn.Module):
    """Ten convolutions of VGG-16, six of VGGish, fusion blocks with dilation 2, a density map at an eighth of the size.

    The answer is the map, spread over the pixels so that its sum stays (`density`), or one number for a picture
    (`count`): a layer without bias on the map, all ones at first, so that it starts as the sum (section 4.2). With
    `use_audio` off it is CSRNet, for pictures alone.

    The network offers its stages itself: `vision`, `audio`, `fusion1`, `rest`. What comes before `audio` needs no sound
    and does not run VGGish. Departure: CSRNet has no norms; without sound, those of the fusion blocks stay.
    """

    takes_sound = True
    outputs = 1  # numbers of an answer: what a branch is to give
    classifier = "stages.rest.count"

    def __init__(
        self,
        *,
        num_classes: int,  # 1: one kind of thing is counted
        in_channels: int = 3,  # channels of the pictures
        input_shape: tuple[Any, ...] = (),  # of a picture, or of a picture and a sound
        readout: Readout = "count",  # the answer: one number, or a map of the density
        use_audio: bool = True,  # whether there is sound
        front: tuple[int, ...] = (64, 128, 256, 512),  # channels of VGG-16, level by level
        audio_channels: tuple[int, ...] = (64, 128, 256, 512),  # channels of VGGish, level by level
        back: tuple[int, ...] = (512, 512, 512, 256, 128, 64),  # channels of the fusion blocks
    ) -> None:
        super().__init__()
        height, width = _check(num_classes, in_channels, input_shape, use_audio, front, audio_channels, back)
        sound = audio_channels[-1] if use_audio else 0
        self.stages = nn.ModuleDict({"vision": Vision(in_channels, front, use_audio)})
        if use_audio:
            self.stages["audio"] = Audio(audio_channels)
        self.stages["fusion1"] = Fused(Fusion(front[-1], back[0], sound))
        self.stages["rest"] = Rest(back, sound, height, width, readout)
        self.reads = {"vision": Tap("nchw", front[-1], height, width)}  # by a branch, after each stage
        if use_audio:
            self.reads["audio"] = Tap("nchw", front[-1], height, width, sound=sound)
        self.reads["fusion1"] = Tap("nchw", back[0], height, width)

    def forward(self, x: Look) -> Tensor:
        state: Any = x
        for stage in self.stages.values():
            state = stage(state)
        answer: Tensor = state[0]
        return answer


class Vision(nn.Module):
    """The first ten layers of VGG-16: picture to map. The sound, not yet listened to, is handed on."""

    def __init__(self, in_channels: int, widths: Sequence[int], use_audio: bool) -> None:
        super().__init__()
        self.layers = vgg(in_channels, widths, (2, 2, 3, 3), last_pool=False)
        self.use_audio = use_audio

    def forward(self, x: Look) -> tuple[Tensor | None, ...]:
        image, sound = (x, None) if isinstance(x, Tensor) else x
        seen = self.layers(image)
        return (seen, sound) if self.use_audio else (seen,)


class Audio(nn.Module):
    """The first six layers of VGGish and the mean over time and pitch: what was heard, (batch, channels)."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = vgg(1, widths, (1, 1, 2, 2), last_pool=True)

    def forward(self, state: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
        seen, sound = state
        if sound is None:
            raise DataError(
                "there is no sound with this picture, and all that comes after the stage vision listens.",
                "Put NAME.wav beside NAME.jpg, or ask for an exit at vision, if there is one: --point exit=1.",
            )
        return seen, self.layers(sound).mean((2, 3))


class Fused(nn.Module):
    """A fusion block as a stage; what was heard is handed on."""

    def __init__(self, block: Fusion) -> None:
        super().__init__()
        self.block = block

    def forward(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self.block(*state), *state[1:])


class Rest(nn.Module):
    """The other fusion blocks, the map, and the answer read from it."""

    def __init__(self, widths: Sequence[int], sound: int, height: int, width: int, readout: Readout) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Fused(Fusion(a, b, sound)) for a, b in pairwise(widths)))
        self.map = nn.Conv2d(widths[-1], 1, 1)
        nn.init.normal_(self.map.weight, std=0.01)
        assert self.map.bias is not None
        nn.init.zeros_(self.map.bias)
        self.count = Count(height * width, learns=readout == "count")
        self.readout = readout

    def forward(self, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        density = self.map(self.blocks(state)[0])
        return (self.count(density.flatten(1)) if self.readout == "count" else spread(density),)


class Count(nn.Module):
    """The sum of the cells, whose weights may learn.

    They are saved in either case: a run that learns the density is what one that learns the count starts from.
    """

    weight: Tensor

    def __init__(self, cells: int, learns: bool) -> None:
        super().__init__()
        weight = torch.ones(1, cells)
        if learns:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, cells: Tensor) -> Tensor:
        return F.linear(cells, self.weight)


def spread(density: Tensor) -> Tensor:
    """Every cell of a map becomes the pixels it stands for, which share what it holds: the sum stays."""
    return F.interpolate(density, scale_factor=STRIDE, mode="nearest") / STRIDE**2


def vgg(channels: int, widths: Sequence[int], depths: Sequence[int], last_pool: bool) -> nn.Sequential:
    """3x3 convolutions with bias and ReLU, `depths` of them on each level, and a pool between two levels."""
    layers: list[nn.Module] = []
    for level, (width, depth) in enumerate(zip(widths, depths)):
        for _ in range(depth):
            conv = nn.Conv2d(channels, width, 3, padding=1)
            initialise(conv)
            layers += [conv, nn.ReLU(inplace=True)]
            channels = width
        if last_pool or level < len(widths) - 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _check(
    num_classes: int, in_channels: int, shape: tuple[Any, ...], use_audio: bool, *widths: tuple[int, ...]
) -> tuple[int, int]:
    """Refuses what cannot be built; gives height and width of the map."""
    if num_classes != 1 or in_channels < 1:
        raise RecipeError(
            f"audiocsrnet counts one kind of thing in pictures; the data have {num_classes} classes.",
            "Use data.name=crowd or disco, or a backbone that tells classes apart.",
        )
    for name, given, levels in zip(("front", "audio_channels", "back"), widths, (4, 4, None)):
        if len(given) != (levels or max(1, len(given))) or min(given) < 1:
            need = f"{levels} numbers" if levels else "at least one number"
            raise RecipeError(f"backbone.{name} is {given}.", f"Give {need} of channels, each 1 or more.")
    several = bool(shape) and not isinstance(shape[0], int)
    if use_audio and shape and not several:
        raise RecipeError(
            "backbone.use_audio is true, but the pictures of these data have no sound.",
            "Set backbone.use_audio=false, or put NAME.wav beside every picture.",
        )
    picture = shape[0] if several else shape
    if len(picture) != 3 or min(picture[1:]) < STRIDE or any(side % STRIDE for side in picture[1:]):
        sides = "x".join(map(str, picture[1:])) or "unknown size"
        raise RecipeError(
            f"audiocsrnet cannot take pictures of {sides}: both sides are to be multiples of {STRIDE}.",
            "Set data.size=[height, width], such as [288, 512].",
        )
    return picture[1] // STRIDE, picture[2] // STRIDE
