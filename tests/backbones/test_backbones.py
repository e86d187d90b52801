import copy
import inspect
import math
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from supple.backbones import BACKBONES, MobileNetV1, MSDNet
from supple.backbones.mobilenet import scaled
from supple.backbones.msdnet import Layer, LayerPlan, block_steps, layer_plan
from supple.errors import RecipeError

TINY: dict[str, Any] = {"num_classes": 5, "blocks": 3, "base": 2, "step": 1, "channels": 4, "growth_rate": 2}
TINY_MOBILE: dict[str, Any] = {"num_classes": 5, "channels": (4, 8, 8), "strides": (1, 2)}


def count_macs(module: nn.Module, x: Any) -> tuple[int, Any]:
    with FlopCounterMode(display=False) as counter:
        out = module(x)
    return counter.get_total_flops() // 2, out


def count_params(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def exits(net: nn.Module, x: Tensor) -> list[Tensor]:
    state: Any = x
    logits = []
    for block, head in zip(net.blocks, net.heads):
        state = block(state)
        logits.append(head(state))
    return logits


# Exit: MACs with its own head, MACs with all heads passed, params with its own head, params with all heads passed.
MSDNET_COUNTS = {
    10: {
        1: (14_955_776, 14_955_776, 422_266, 422_266),
        3: (28_780_800, 36_745_984, 517_670, 1_240_122),
        4: (34_789_632, 45_926_400, 616_118, 1_649_108),
        6: (46_326_016, 66_460_160, 713_638, 2_533_592),
    },
    100: {
        1: (14_967_296, 14_967_296, 433_876, 433_876),
        3: (28_792_320, 36_780_544, 529_280, 1_274_952),
        4: (34_801_152, 45_972_480, 627_728, 1_695_548),
        6: (46_337_536, 66_529_280, 725_248, 2_603_252),
    },
}


@cache
def msdnet_counts(num_classes: int) -> dict[int, tuple[int, int, int, int]]:
    with torch.device("meta"):
        net = MSDNet(num_classes=num_classes).eval()
        state: Any = torch.empty(1, 3, 32, 32)
    counts = {}
    trunk = passed = 0
    for k, (block, head) in enumerate(zip(net.blocks, net.heads), 1):
        macs, state = count_macs(block, state)
        own, _ = count_macs(head, state)
        trunk, passed = trunk + macs, passed + own
        params = count_params([*net.blocks[:k], head]), count_params([*net.blocks[:k], *net.heads[:k]])
        counts[k] = (trunk + own, trunk + passed, *params)
    return counts


@pytest.mark.parametrize("exit", [1, 3, 4, 6])
@pytest.mark.parametrize("num_classes", [10, 100])
def test_msdnet_has_the_macs_and_parameters_of_the_reference(num_classes: int, exit: int) -> None:
    assert msdnet_counts(num_classes)[exit] == MSDNET_COUNTS[num_classes][exit]


@pytest.mark.parametrize(
    ("num_classes", "first", "last"), [(10, 15_128_842, 75_856_454), (100, 15_140_452, 75_937_724)]
)
def test_msdnet_with_activations_and_pools_counted_has_the_operations_of_the_reference(
    num_classes: int, first: int, last: int
) -> None:
    # The reference adds one operation per ReLU output, the 2x2x128 inputs of each pool and the bias of each linear
    # layer to the MACs, over all heads passed.
    with torch.device("meta"):
        net = MSDNet(num_classes=num_classes).eval()
        x = torch.empty(1, 3, 32, 32)
    extra = 0

    def add(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal extra
        extra += {nn.ReLU: out.numel(), nn.AdaptiveAvgPool2d: args[0].numel(), nn.Linear: num_classes}[type(module)]

    for module in net.modules():
        if isinstance(module, nn.ReLU | nn.AdaptiveAvgPool2d | nn.Linear):
            module.register_forward_hook(add)
    net.heads[0](net.blocks[0](x))
    assert msdnet_counts(num_classes)[1][1] + extra == first
    extra = 0
    exits(net, x)
    assert msdnet_counts(num_classes)[7][1] + extra == last


def test_msdnet_parameters_fall_where_a_transition_cuts_channels() -> None:
    params = {k: row[2] for k, row in msdnet_counts(10).items()}
    assert params[3] < params[2]
    assert params[6] < params[5]
    macs = [row[0] for row in msdnet_counts(10).values()]
    assert macs == sorted(macs)


# scales read, scales kept, base channels read, base channels after a transition
def rows(plan: list[LayerPlan]) -> list[tuple[int, int, int, int | None]]:
    return [(p.in_scales, p.out_scales, p.channels, p.transition) for p in plan]


def test_default_plan_drops_a_scale_at_layers_7_and_13_and_halves_the_channels() -> None:
    plan = layer_plan(16, scales=3, channels=16, growth_rate=6, prune="max", reduction=0.5)
    assert rows(plan) == [
        *((3, 3, c, None) for c in (16, 22, 28, 34, 40, 46)),
        (3, 2, 52, 29),  # 58 -> 29
        *((2, 2, c, None) for c in (29, 35, 41, 47, 53)),
        (2, 1, 59, 32),  # 65 -> 32: rounded down
        *((1, 1, c, None) for c in (32, 38, 44)),
    ]


def test_min_plan_by_hand() -> None:
    plan = layer_plan(6, scales=3, channels=16, growth_rate=6, prune="min", reduction=0.5)
    assert rows(plan) == [
        (3, 3, 16, None),
        (3, 3, 22, 14),  # after a third of the layers: 28 -> 14
        (3, 3, 14, None),
        (3, 3, 20, 13),  # after two thirds: 26 -> 13
        (3, 2, 13, None),
        (2, 1, 19, None),  # the last head reads one scale only
    ]


@pytest.mark.parametrize("prune", ["max", "min"])
def test_zero_reduction_drops_scales_without_transitions(prune: Any) -> None:
    plan = layer_plan(7, scales=3, channels=4, growth_rate=2, prune=prune, reduction=0.0)
    assert [p.channels for p in plan] == [4, 6, 8, 10, 12, 14, 16]
    assert all(p.transition is None for p in plan)
    assert plan[-1].out_scales == 1


def test_plan_without_pruning_keeps_all_scales_and_channels() -> None:
    plan = layer_plan(4, scales=2, channels=3, growth_rate=2, prune="none", reduction=0.5)
    assert rows(plan) == [(2, 2, c, None) for c in (3, 5, 7, 9)]


@pytest.mark.parametrize("scales", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8, 16, 21])
@pytest.mark.parametrize("prune", ["max", "min", "none"])
def test_every_layer_finds_the_scales_it_reads(prune: Any, layers: int, scales: int) -> None:
    alive = scales
    for p in layer_plan(layers, scales, channels=8, growth_rate=2, prune=prune, reduction=0.5):
        assert 1 <= p.out_scales <= p.in_scales <= alive
        assert p.in_scales - p.out_scales <= 1  # a kept scale needs the next finer one
        alive = p.out_scales


def test_steps_by_hand() -> None:
    assert block_steps(7, base=4, step=2, stepmode="even") == [4, 2, 2, 2, 2, 2, 2]
    assert block_steps(4, base=4, step=2, stepmode="lin_grow") == [4, 3, 5, 7]
    assert block_steps(1, base=3, step=9, stepmode="lin_grow") == [3]


def test_parameters_of_one_layer_by_hand() -> None:
    # Two scales, factors 1 and 2, base channels 3, growth 2. Each convolution cin -> cout has a batch norm of 2 cout.
    # Finest: 3 -> min(3, 1*2) = 2 by 1x1, 2 -> 2 by 3x3: 6 + 4 + 36 + 4 = 50.
    # Coarse, from itself: 6 -> min(6, 2*2) = 4, 4 -> 2: 24 + 8 + 72 + 4 = 108.
    # Coarse, from the finer one: 3 -> min(3, 1*2) = 2, 2 -> 2: 6 + 4 + 36 + 4 = 50.
    both, dropped = LayerPlan(2, 2, channels=3), LayerPlan(2, 1, channels=3)
    factors: dict[str, Any] = {"growth_rate": 2, "growth": (1, 2), "narrow": (1, 2)}
    assert count_params([Layer(both, **factors, bottleneck=True)]) == 50 + 108 + 50
    assert count_params([Layer(dropped, **factors, bottleneck=True)]) == 108 + 50
    # Without bottlenecks: 54 + 4, 108 + 4 and 54 + 4.
    assert count_params([Layer(both, **factors, bottleneck=False)]) == 58 + 112 + 58


def test_a_layer_keeps_its_input_and_reads_the_scale_it_drops() -> None:
    torch.manual_seed(0)
    layer = Layer(LayerPlan(2, 1, channels=3), growth_rate=2, growth=(1, 2), narrow=(1, 2), bottleneck=True).eval()
    fine, coarse = torch.randn(2, 3, 8, 8), torch.randn(2, 6, 4, 4)
    (out,) = layer((fine, coarse))
    assert out.shape == (2, 10, 4, 4)
    assert_close(out[:, :6], coarse, rtol=0, atol=0)
    (other,) = layer((torch.zeros_like(fine), coarse))
    assert not torch.equal(out[:, 6:8], other[:, 6:8])  # from the finer scale
    assert torch.equal(out[:, 8:], other[:, 8:])  # from the scale itself


@pytest.mark.parametrize("prune", ["max", "min", "none"])
def test_exit_is_unchanged_when_later_blocks_are_removed(prune: Any) -> None:
    torch.manual_seed(0)
    net = MSDNet(**TINY, prune=prune).eval()
    x = torch.randn(2, 3, 16, 16)
    full = exits(net, x)
    for k in range(1, 4):
        short = copy.deepcopy(net)
        del short.blocks[k:], short.heads[k:]
        assert torch.equal(short(x), full[k - 1])
        later = [*net.blocks[k:], *net.heads[k:]]
        own = {id(p) for p in [*net.blocks[:k].parameters(), *net.heads[:k].parameters()]}
        assert all(id(p) not in own for module in later for p in module.parameters())
    assert torch.equal(net(x), full[-1])


@pytest.mark.parametrize("size", [8, 16, 32, 15])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prune": "min", "stepmode": "lin_grow"},
        {"prune": "none", "bottleneck": False},
        {"growth_factors": (1,), "bottleneck_factors": (1,), "in_channels": 1},
        {"blocks": 1, "base": 1, "prune": "min"},
    ],
    ids=["max", "min", "none", "one scale", "one layer"],
)
def test_state_holds_the_planned_scales_and_each_exit_gives_finite_logits(changes: Any, size: int) -> None:
    torch.manual_seed(0)
    settings = TINY | changes
    net = MSDNet(**settings)
    scales = len(settings.get("growth_factors", (1, 2, 4)))
    steps = block_steps(settings["blocks"], settings["base"], settings["step"], settings.get("stepmode", "even"))
    plan = layer_plan(sum(steps), scales, 4, 2, settings.get("prune", "max"), 0.5)
    state: Any = torch.randn(4, settings.get("in_channels", 3), size, size)
    for k, (block, head) in enumerate(zip(net.blocks, net.heads), 1):
        state = block(state)
        alive = plan[sum(steps[:k]) - 1].out_scales
        assert [s.shape[-1] for s in state] == [math.ceil(size / 2**i) for i in range(scales - alive, scales)]
        logits = head(state)
        assert logits.shape == (4, 5)
        assert logits.isfinite().all()


def test_imagenet_stem_starts_at_a_quarter_and_its_heads_keep_their_width() -> None:
    torch.manual_seed(0)
    net = MSDNet(**TINY, stem="imagenet").eval()
    state = net.blocks[0](torch.randn(1, 3, 64, 64))
    assert [s.shape[-1] for s in state] == [16, 8, 4]
    assert [[m.in_channels, m.out_channels] for m in net.heads[0] if isinstance(m, nn.Conv2d)] == [
        [state[-1].shape[1]] * 2
    ] * 2
    assert net(torch.randn(2, 3, 64, 64)).shape == (2, 5)


@pytest.mark.parametrize(("stem", "size"), [("cifar", 32), ("imagenet", 224)])
def test_head_pool_equals_an_average_of_two_at_the_papers_sizes(stem: Any, size: int) -> None:
    factors = (1, 2, 4) if stem == "cifar" else (1, 2, 4, 4)
    with torch.device("meta"):
        net = MSDNet(**TINY, stem=stem, growth_factors=factors, bottleneck_factors=factors).eval()
        x = torch.empty(1, 3, size, size)
    seen: list[torch.Size] = []
    for head in net.heads:
        pool = next(m for m in head if isinstance(m, nn.AdaptiveAvgPool2d))
        pool.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[2:]))
    exits(net, x)
    assert seen == [(2, 2)] * 3


# Width: params and MACs on 32x32.
MOBILENET_COUNTS = {
    10: {0.25: (215_642, 3_331_072), 0.75: (1_824_250, 26_508_288), 1.0: (3_217_226, 46_354_432)},
    100: {0.25: (238_772, 3_354_112), 0.75: (1_893_460, 26_577_408), 1.0: (3_309_476, 46_446_592)},
}


def mobilenet_counts(size: int, **settings: Any) -> tuple[int, int]:
    with torch.device("meta"):
        net = MobileNetV1(**settings).eval()
        macs, _ = count_macs(net, torch.empty(1, 3, size, size))
    return count_params([net]), macs


@pytest.mark.parametrize("multiplier", [0.25, 0.75, 1.0])
@pytest.mark.parametrize("num_classes", [10, 100])
def test_mobilenet_has_the_parameters_and_macs_of_the_formula(num_classes: int, multiplier: float) -> None:
    counts = mobilenet_counts(32, num_classes=num_classes, multiplier=multiplier)
    assert counts == MOBILENET_COUNTS[num_classes][multiplier]


def test_mobilenet_of_half_width_by_hand() -> None:
    # Channels in, channels out, side of the output, repeated; the stem has 27 weights per channel on 32x32.
    layers = [(16, 32, 32), (32, 64, 16), (64, 64, 16), (64, 128, 8), (128, 128, 8), (128, 256, 4)]
    layers += [(256, 256, 4)] * 5 + [(256, 512, 2), (512, 512, 2)]
    params = 29 * 16 + sum(9 * i + 2 * i + i * o + 2 * o for i, o, _ in layers) + 513 * 10
    macs = 27 * 16 * 32**2 + sum((9 * i + i * o) * side**2 for i, o, side in layers) + 512 * 10
    assert mobilenet_counts(32, num_classes=10, multiplier=0.5) == (params, macs)


@pytest.mark.parametrize(("multiplier", "mmacs"), [(1.0, 568.7), (0.75, 325.4), (0.5, 149.5), (0.25, 41.0)])
def test_mobilenet_at_224_pixels_has_the_published_macs(multiplier: float, mmacs: float) -> None:
    _, macs = mobilenet_counts(224, num_classes=1000, multiplier=multiplier, stem="imagenet")
    assert round(macs / 1e6, 1) == mmacs


def test_scaled_channels_round_halves_up_and_never_vanish() -> None:
    assert [scaled(c, 0.5) for c in (1, 3, 5, 8)] == [1, 2, 3, 4]
    assert scaled(8, 0.01) == 1


@pytest.mark.parametrize(("stem", "sides"), [("cifar", [16, 16, 16, 8, 8]), ("imagenet", [8, 8, 8, 4, 4])])
def test_mobilenet_is_a_flat_sequence_with_the_planned_strides(stem: Any, sides: list[int]) -> None:
    torch.manual_seed(0)
    net = MobileNetV1(**TINY_MOBILE, stem=stem)
    assert all(not list(layer.children()) for layer in net)
    x = torch.randn(4, 3, 16, 16)
    seen = []
    for layer in net:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            seen.append(x.shape[-1])
    assert seen == sides
    assert x.shape == (4, 5)
    assert x.isfinite().all()


OWN = ("msdnet", "mobilenet_v1")


def tiny(name: str) -> nn.Module:
    return BACKBONES[name](**{"msdnet": TINY, "mobilenet_v1": TINY_MOBILE}[name])


@pytest.mark.parametrize("name", BACKBONES)
def test_constructor_can_become_a_recipe_schema(name: str) -> None:
    arguments = inspect.signature(BACKBONES[name]).parameters
    assert all(a.kind is inspect.Parameter.KEYWORD_ONLY for a in arguments.values())
    assert all(a.annotation is not inspect.Parameter.empty for a in arguments.values())
    assert not any(isinstance(a.annotation, str) for a in arguments.values())
    required = [a.name for a in arguments.values() if a.default is inspect.Parameter.empty]
    assert required == (["num_classes", "model"] if name in ("timm", "torchvision", "vit") else ["num_classes"])
    assert arguments["in_channels"].default == 3


@pytest.mark.parametrize("name", OWN)
def test_every_convolution_is_followed_by_its_batch_norm(name: str) -> None:
    net = tiny(name)
    sequences = [list(m) for m in net.modules() if isinstance(m, nn.Sequential)]
    followed = [
        conv
        for layers in sequences
        for conv, norm in pairwise(layers)
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.num_features == conv.out_channels
    ]
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(followed) == len(convs) > 0
    assert all(conv.bias is None for conv in convs)


@pytest.mark.parametrize("name", OWN)
def test_fresh_weights_have_the_stated_spread(name: str) -> None:
    torch.manual_seed(0)
    net = BACKBONES[name](num_classes=100)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            z = module.weight * math.sqrt(module.kernel_size[0] ** 2 * module.out_channels / 2)  # standard normal
            assert abs(z.square().mean().item() - 1) < 6 * math.sqrt(2 / z.numel())  # six deviations
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
        elif isinstance(module, nn.Linear):
            assert (module.bias == 0).all()
            if name == "mobilenet_v1":
                assert 0.0098 < module.weight.std().item() < 0.0102


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_classes": 0}, "num_classes is 0"),
        ({"blocks": 0}, "blocks is 0"),
        ({"base": 0}, "base is 0"),
        ({"step": 0}, "step is 0"),
        ({"growth_rate": -2}, "growth_rate is -2"),
        ({"growth_factors": (1, 2)}, "growth_factors has 2 .* bottleneck_factors has 3"),
        ({"growth_factors": (), "bottleneck_factors": ()}, "growth_factors has 0"),
        ({"growth_factors": (1, 2, 0)}, "below 1"),
        ({"growth_rate": 3, "growth_factors": (1, 2, 3)}, "3 times growth factor 3 is odd"),
        ({"reduction": 1.5}, "reduction is 1.5"),
        ({"reduction": math.nan}, "reduction is nan"),
        ({"reduction": 0.01}, "leaves no channels"),
        ({"stepmode": "log"}, 'unknown stepmode "log"'),
        ({"prune": "all"}, 'unknown prune "all"'),
        ({"stem": "mnist"}, 'unknown stem "mnist"'),
    ],
)
def test_msdnet_refuses_settings_that_cannot_work(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(RecipeError, match=named) as error:
        MSDNet(**TINY | settings)
    assert error.value.cure


def test_odd_growth_is_fine_on_the_finest_scale_which_has_nothing_finer_to_read() -> None:
    net = MSDNet(**TINY | {"growth_rate": 3, "growth_factors": (1, 2, 4)}).eval()
    assert net(torch.zeros(1, 3, 8, 8)).shape == (1, 5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_classes": 0}, "num_classes is 0"),
        ({"in_channels": 0}, "in_channels is 0"),
        ({"multiplier": 0.0}, "multiplier is 0.0"),
        ({"multiplier": math.nan}, "multiplier is nan"),
        ({"stem": "mnist"}, 'unknown stem "mnist"'),
        ({"strides": (1,)}, "3 channels and 1 strides"),
        ({"channels": (4, 8, 0)}, "below 1"),
        ({"strides": (1, 0)}, "below 1"),
    ],
)
def test_mobilenet_refuses_settings_that_cannot_work(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(RecipeError, match=named) as error:
        MobileNetV1(**TINY_MOBILE | settings)
    assert error.value.cure
