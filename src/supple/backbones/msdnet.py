"""MSDNet: a multi-scale densely connected network with a head after every block (Huang et al., ICLR 2018).

Every layer keeps several scales alive, so that the coarse features a head needs exist from the first block on. Scales
are counted from 0, the finest; channels are kept in base units and multiplied by the growth factor of their scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from supple.backbones.classifier import check_choice, check_counts
from supple.errors import RecipeError

State = tuple[Tensor, ...]  # the scales alive, coarsest last
StepMode = Literal["even", "lin_grow"]
Prune = Literal["max", "min", "none"]
StemKind = Literal["cifar", "imagenet"]


@dataclass(frozen=True)
class LayerPlan:
    in_scales: int  # scales the layer reads
    out_scales: int  # scales it keeps: the coarsest ones
    channels: int  # base channels it reads
    transition: int | None = None  # base channels after the 1x1 convolutions that follow it; None: nothing follows


def block_steps(blocks: int, base: int, step: int, stepmode: StepMode) -> list[int]:
    """Number of layers in each block."""
    return [base] + [step if stepmode == "even" else step * i + 1 for i in range(1, blocks)]


def layer_plan(
    layers: int, scales: int, channels: int, growth_rate: int, prune: Prune, reduction: float
) -> list[LayerPlan]:
    """Which scales every layer reads and keeps, and where the channels are cut.

    "max" drops the finest scale after each of `scales` equal stretches of layers; "min" keeps a scale as long as the
    last head can still be reached from it; "none" keeps all.
    """
    interval = math.ceil(layers / scales)
    plan = []
    for layer in range(1, layers + 1):
        in_scales = out_scales = scales
        cut = False
        if prune == "max":
            in_scales -= max(0, layer - 2) // interval
            out_scales -= (layer - 1) // interval
            cut = out_scales < in_scales
        elif prune == "min":
            in_scales = min(scales, layers - layer + 2)
            out_scales = min(scales, layers - layer + 1)
            cut = layer in (layers // 3, 2 * layers // 3)
        grown = channels + growth_rate
        transition = math.floor(reduction * grown) if cut and reduction > 0 else None
        plan.append(LayerPlan(in_scales, out_scales, channels, transition))
        channels = grown if transition is None else transition
    return plan


def conv_bn(cin: int, cout: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(cin, cout, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]


class Stem(nn.Module):
    """Image to all scales, each made from the one before it."""

    def __init__(self, in_channels: int, widths: Sequence[int], stem: StemKind) -> None:
        super().__init__()
        if stem == "cifar":
            finest = conv_bn(in_channels, widths[0], 3)
        else:
            finest = [*conv_bn(in_channels, widths[0], 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)]
        coarser = [conv_bn(cin, cout, 3, stride=2) for cin, cout in pairwise(widths)]
        self.scales = nn.ModuleList(nn.Sequential(*layers) for layers in [finest, *coarser])

    def forward(self, x: Tensor) -> State:
        state = []
        for scale in self.scales:
            x = scale(x)
            state.append(x)
        return tuple(state)


class Layer(nn.Module):
    """Adds to every kept scale features computed from it and, where there is one, from the next finer scale."""

    def __init__(
        self, plan: LayerPlan, growth_rate: int, growth: Sequence[int], narrow: Sequence[int], bottleneck: bool
    ) -> None:
        super().__init__()

        def unit(scale: int, cout: int, stride: int) -> nn.Sequential:
            cin = plan.channels * growth[scale]
            inner = min(cin, narrow[scale] * cout) if bottleneck else cin
            squeeze = conv_bn(cin, inner, 1) if bottleneck else []
            return nn.Sequential(*squeeze, *conv_bn(inner, cout, 3, stride))

        self.same = nn.ModuleList()  # one per kept scale
        self.down = nn.ModuleList()  # one per kept scale that has a finer one to read
        for scale in range(len(growth) - plan.out_scales, len(growth)):
            new = growth_rate * growth[scale]
            if scale == len(growth) - plan.in_scales:
                self.same.append(unit(scale, new, stride=1))
            else:
                self.same.append(unit(scale, new // 2, stride=1))
                self.down.append(unit(scale - 1, new // 2, stride=2))

    def forward(self, state: State) -> State:
        kept = state[-len(self.same) :]
        finer = state[-len(self.down) - 1 : -1]
        from_finer: list[State] = [(down(x),) for down, x in zip(self.down, finer)]
        if len(from_finer) < len(kept):
            from_finer.insert(0, ())
        return tuple(torch.cat((x, *extra, same(x)), 1) for x, extra, same in zip(kept, from_finer, self.same))


class Transition(nn.Module):
    """A 1x1 convolution on every scale alive, from one number of base channels to another."""

    def __init__(self, before: int, after: int, growth: Sequence[int]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(nn.Sequential(*conv_bn(before * g, after * g, 1)) for g in growth)

    def forward(self, state: State) -> State:
        return tuple(scale(x) for scale, x in zip(self.scales, state))


class Coarsest(nn.Module):
    def forward(self, state: State) -> Tensor:
        return state[-1]


def head(cin: int, width: int, num_classes: int) -> nn.Sequential:
    """State to logits.

    Departure: the pool is global. At 32 and 224 pixels that equals the paper's average pool of 2; here small images
    work as well.
    """
    convs = [*conv_bn(cin, width, 3, stride=2), *conv_bn(width, width, 3, stride=2)]
    return nn.Sequential(Coarsest(), *convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))


class MSDNet(nn.Module):
    """MSDNet as `blocks` and `heads`. The defaults are the seven exits of the IPKD-TA paper (Ozerov & Duong).

    A state is the tuple of scales alive at the cut, coarsest last.
    """

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        blocks: int = 7,  # blocks, each with an exit
        base: int = 4,  # layers of the first block
        step: int = 2,  # layers of the later blocks
        stepmode: StepMode = "even",  # later blocks have: even step layers, lin_grow step*i+1 layers (i = 1, 2, ...)
        channels: int = 16,  # base channels of the stem
        growth_rate: int = 6,  # base channels a layer adds
        growth_factors: tuple[int, ...] = (1, 2, 4),  # times the base channels, one per scale, finest first
        bottleneck_factors: tuple[int, ...] = (1, 2, 4),  # bottleneck width over a unit's output, one per scale
        bottleneck: bool = True,  # squeeze with a 1x1 convolution before each 3x3
        prune: Prune = "max",  # drop fine scales: max in equal stretches, min as late as possible, none never
        reduction: float = 0.5,  # share of base channels a transition keeps; 0: no transitions
        stem: StemKind = "cifar",  # first layer: cifar 3x3, imagenet 7x7 of stride 2 and a max pool
        head_channels: int = 128,  # width of cifar heads; imagenet heads keep the width of their input
    ) -> None:
        super().__init__()
        check_counts("msdnet", num_classes=num_classes, in_channels=in_channels, blocks=blocks, base=base, step=step)
        check_counts("msdnet", channels=channels, growth_rate=growth_rate, head_channels=head_channels)
        check_counts("msdnet", growth_factors=growth_factors, bottleneck_factors=bottleneck_factors)
        check_choice("msdnet", "stepmode", stepmode, StepMode)
        check_choice("msdnet", "prune", prune, Prune)
        check_choice("msdnet", "stem", stem, StemKind)
        check_factors(growth_rate, growth_factors, bottleneck_factors)
        if not 0 <= reduction <= 1:
            raise RecipeError(f"msdnet: reduction is {reduction}.", "Give a share from 0 (no transitions) to 1.")

        steps = block_steps(blocks, base, step, stepmode)
        layers = layer_plan(sum(steps), len(growth_factors), channels, growth_rate, prune, reduction)
        if any(plan.transition == 0 for plan in layers):
            raise RecipeError(
                f"msdnet: reduction {reduction} leaves no channels at a transition.",
                "Raise reduction, channels or growth_rate.",
            )

        self.blocks = nn.ModuleList()
        self.heads = nn.ModuleList()
        remaining = iter(layers)
        parts: list[nn.Module] = [Stem(in_channels, [channels * g for g in growth_factors], stem)]
        for count in steps:
            for plan in islice(remaining, count):
                parts.append(Layer(plan, growth_rate, growth_factors, bottleneck_factors, bottleneck))
                out = plan.channels + growth_rate
                if plan.transition is not None:
                    parts.append(Transition(out, plan.transition, growth_factors[-plan.out_scales :]))
                    out = plan.transition
            self.blocks.append(nn.Sequential(*parts))
            parts = []
            cin = out * growth_factors[-1]
            self.heads.append(head(cin, head_channels if stem == "cifar" else cin, num_classes))
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor | State = x
        for block in self.blocks:
            state = block(state)
        logits: Tensor = self.heads[-1](state)
        return logits


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):  # std sqrt(2 / (kernel * kernel * channels out))
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def check_factors(growth_rate: int, growth: Sequence[int], narrow: Sequence[int]) -> None:
    if not growth or len(growth) != len(narrow):
        raise RecipeError(
            f"msdnet: growth_factors has {len(growth)} numbers and bottleneck_factors has {len(narrow)}.",
            "Give both one number per scale, finest first, such as [1, 2, 4].",
        )
    # Half of what a coarser scale gains comes from the scale before it.
    odd = [factor for factor in growth[1:] if growth_rate * factor % 2]
    if odd:
        raise RecipeError(
            f"msdnet: growth_rate {growth_rate} times growth factor {odd[0]} is odd and cannot be halved.",
            "Give an even growth_rate, or even growth_factors after the first.",
        )
