"""The three classifiers of SL-ViT against the paper arithmetic, Keras' published sizes and small examples."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.testing import assert_close

from supple.backbones import BACKBONES, DenseNet, ResNetV1
from supple.backbones.classifier import dense_classifier, replace_classifier, swap
from supple.backbones.protocols import classifier_of
from supple.cost import count_macs, count_params
from supple.errors import RecipeError

NAMES = ("resnet_v1", "densenet", "inception_v3")
TINY: dict[str, dict[str, Any]] = {
    "resnet_v1": {"layers": (1, 2, 1, 1), "width": 4},
    "densenet": {"growth_rate": 4, "blocks": (1, 2, 1, 1), "init_features": 8},
    "inception_v3": {},
}
SMALL = {"resnet_v1": 32, "densenet": 32, "inception_v3": 75}  # pixels that are enough


@cache
def full_size(name: str) -> nn.Module:
    with torch.device("meta"):
        return BACKBONES[name](num_classes=1000).eval()


def tiny(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return BACKBONES[name](**{"num_classes": 5, **TINY[name], **settings})


def image(side: int = 224, channels: int = 3, device: str = "meta") -> Tensor:
    return torch.ones(2, channels, side, side, device=device)


class Reached(Exception):
    """The run has come to a tap."""


def until(net: nn.Module, path: str) -> tuple[int, tuple[int, ...]]:
    """MACs up to the first output of a module, for one image of 224 pixels, and the shape of that output."""
    shape: tuple[int, ...] = ()

    def stop(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal shape
        shape = tuple(output.shape[1:])
        raise Reached

    def call() -> None:
        with pytest.raises(Reached):
            net(image()[:1])

    handle = net.get_submodule(path).register_forward_hook(stop)
    try:
        return count_macs(call), shape
    finally:
        handle.remove()


MACS = {"resnet_v1": 11_280_367_616, "densenet": 4_289_445_888, "inception_v3": 2_835_873_120}


@pytest.mark.parametrize("name", NAMES)
def test_at_224_pixels_everything_but_the_classifier_costs_what_the_arithmetic_says(name):
    net = full_size(name)
    classifier = net.get_submodule(classifier_of(net))
    assert isinstance(classifier, nn.Linear)
    assert count_macs(lambda: net(image()[:1])) == MACS[name] + classifier.in_features * 1000


TAPS = {  # MACs up to the tensor, and its shape
    ("resnet_v1", "conv12"): (811_646_976, (128, 28, 28)),
    ("resnet_v1", "conv36"): (2_609_954_816, (512, 28, 28)),
    ("densenet", "transition1"): (1_261_223_936, (128, 28, 28)),
    ("densenet", "transition2"): (2_076_884_992, (256, 28, 28)),
    ("inception_v3", "concat1"): (1_060_022_112, (288, 25, 25)),
    ("inception_v3", "concat2"): (1_237_622_112, (288, 25, 25)),
}


@pytest.mark.parametrize(("name", "tap"), TAPS)
def test_the_papers_ordinals_name_the_tensors_its_figures_need(name, tap):
    net = full_size(name)
    assert until(net, net.taps[tap]) == TAPS[name, tap]


def test_the_12th_and_36th_convolutions_are_counted_with_those_of_the_shortcuts():
    convs = [path for path, module in full_size("resnet_v1").named_modules() if isinstance(module, nn.Conv2d)]
    blocks = [path for path in convs if path.startswith(("conv1", "layer1", "layer2"))]
    assert len(blocks) == 36  # 1 + 10 + 25
    assert blocks[11] == "layer2.0.conv1"


@pytest.mark.parametrize(
    ("name", "published"), [("resnet_v1", 60_419_944), ("densenet", 20_242_984), ("inception_v3", 23_851_784 + 17_216)]
)
def test_a_network_for_1000_classes_is_as_large_as_the_keras_one(name, published):
    # Keras counts the norms' running means and variances; its Inception norms have no scale (17,216 channels).
    net = full_size(name)
    statistics = sum(b.numel() for path, b in net.named_buffers() if path.endswith(("running_mean", "running_var")))
    assert count_params(net.parameters()) + statistics == published


def test_version_1_halves_the_map_in_the_first_1x1_convolution_of_a_layer():
    net = full_size("resnet_v1")
    strided = {path for path, m in net.named_modules() if isinstance(m, nn.Conv2d) and m.stride != (1, 1)}
    firsts = {f"layer{k}.0.{part}" for k in (2, 3, 4) for part in ("conv1", "downsample.0")}
    assert strided == {"conv1", *firsts}
    assert all(net.get_submodule(path).stride == (2, 2) for path in strided)


def test_only_the_resnet_has_convolution_biases():
    biased = {n: {m.bias is not None for m in full_size(n).modules() if isinstance(m, nn.Conv2d)} for n in NAMES}
    assert biased == {"resnet_v1": {True}, "densenet": {False}, "inception_v3": {False}}
    assert all((m.bias == 0).all() for m in tiny("resnet_v1").modules() if isinstance(m, nn.Conv2d))


def test_a_resnet_block_by_hand():
    # All weights 0 but the shortcut's, norms at rest: the block is relu(shortcut(x)), at half the size.
    block = tiny("resnet_v1", width=1).eval().layer2[0]
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.zeros_(module.weight)
    nn.init.constant_(block.downsample[0].weight, 0.25)  # the mean of the 4 channels
    block.downsample[0].bias.data.fill_(-2.0)
    x = torch.arange(4 * 4 * 4.0).view(1, 4, 4, 4)
    expected = (x[:, :, ::2, ::2].mean(1, keepdim=True) - 2).relu() / (1 + 1e-5) ** 0.5
    assert_close(block(x), expected.expand(1, 8, 2, 2))


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("cifar", 32)])
def test_the_cifar_stem_keeps_the_size_of_the_image(stem, side):
    net = tiny("resnet_v1", stem=stem)
    x = net.maxpool(net.relu(net.bn1(net.conv1(image(32, device="cpu")))))
    assert x.shape == (2, 4, side, side)
    assert net(image(32, device="cpu")).shape == (2, 5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [True, False])
def test_a_traced_network_says_the_same(name, training):
    net = tiny(name, dropout=0.0, classifier=6).train(training)
    x = torch.randn(2, 3, SMALL[name], SMALL[name])
    assert_close(fx.symbolic_trace(net)(x), net(x))


@pytest.mark.parametrize("name", NAMES)
def test_every_tap_exists_in_every_size_of_network(name):
    net = tiny(name)
    paths = dict(net.named_modules())
    assert all(path in paths for path in net.taps.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("channels", [1, 2])
def test_images_may_have_other_channels(name, channels):
    net, usual = tiny(name, in_channels=channels), tiny(name)
    assert net(image(SMALL[name], channels, "cpu")).shape == (2, 5)
    first, other = (next(m for m in n.modules() if isinstance(m, nn.Conv2d)) for n in (net, usual))
    assert first.weight.shape == (other.out_channels, channels, *other.kernel_size)
    same = ("stride", "padding", "out_channels")
    assert [getattr(first, key) for key in same] == [getattr(other, key) for key in same]
    assert (first.bias is None) == (other.bias is None)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_torchvision_fit_but_for_the_top(name):
    import torchvision

    settings = {"inception_v3": {"aux_logits": False, "init_weights": False}}.get(name, {})
    maker = {"resnet_v1": "resnet152", "densenet": "densenet201", "inception_v3": "inception_v3"}[name]
    with torch.device("meta"):
        theirs = getattr(torchvision.models, maker)(**settings).state_dict()
    ours = {path: value.shape for path, value in full_size(name).state_dict().items()}
    theirs = {path: value.shape for path, value in theirs.items() if not path.startswith("classifier.")}
    assert theirs.items() <= ours.items()
    assert all(path.endswith(".bias") for path in ours.keys() - theirs.keys() if not path.startswith("fc."))


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_network_is_no_constant_and_every_weight_learns(name):
    net = tiny(name, classifier=6, dropout=0.0).train()
    logits = net(torch.randn(4, 3, SMALL[name], SMALL[name]))
    assert logits.std(0).min() > 0
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


# --- the classifier ---


@pytest.mark.parametrize("name", NAMES)
def test_the_new_classifier_is_two_dense_layers_with_dropout_between(name):
    plain, dense = tiny(name), tiny(name, classifier=7, dropout=0.25)
    linear, classifier = (net.get_submodule(net.classifier) for net in (plain, dense))
    assert isinstance(linear, nn.Linear)
    assert [type(part) for part in classifier] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert (classifier[0].in_features, classifier[0].out_features) == (linear.in_features, 7)
    assert (classifier[2].p, classifier[3].out_features) == (0.25, 5)
    rest = [p for path, p in plain.named_parameters() if not path.startswith(plain.classifier)]
    size = (linear.in_features + 1) * 7 + (7 + 1) * 5
    assert count_params(dense.parameters()) == count_params(rest) + size


def test_a_dense_classifier_by_hand():
    classifier = dense_classifier(2, 2, 1, dropout=0.5).eval()
    classifier.load_state_dict(
        {
            "0.weight": torch.tensor([[1.0, 0.0], [0.0, -1.0]]),
            "0.bias": torch.tensor([1.0, 0.0]),
            "3.weight": torch.tensor([[2.0, 5.0]]),
            "3.bias": torch.tensor([0.5]),
        }
    )
    assert classifier(torch.tensor([[3.0, 4.0]])).item() == 2 * 4 + 5 * 0 + 0.5


def test_a_classifier_is_replaced_wherever_it_lies_and_the_order_of_modules_stays():
    net = nn.Sequential()
    net.add_module("head", nn.Sequential(nn.Flatten(), nn.Linear(12, 1000)))
    net.add_module("end", nn.Identity())
    replace_classifier(net, "head.1", 3, hidden=4, dropout=0.1)
    assert [name for name, _ in net.named_children()] == ["head", "end"]
    assert (net.head[1][0].in_features, net.head[1][3].out_features) == (12, 3)
    assert net(torch.zeros(2, 3, 2, 2)).shape == (2, 3)
    replace_classifier(net, "head.1.3", 9)
    assert net(torch.zeros(2, 3, 2, 2)).shape == (2, 9)
    swap(net, "head", nn.Flatten())
    assert net(torch.zeros(2, 3, 2, 2)).shape == (2, 12)


@pytest.mark.parametrize("path", ["fc", "conv.weight", "conv", "", "conv.0"])
def test_a_classifier_that_is_no_linear_layer_is_refused(path):
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(3, 4, 1))
    with pytest.raises(RecipeError, match="can have no new classifier"):
        replace_classifier(net, path, 3)


def test_a_network_tells_where_its_classifier_is_or_not():
    assert [classifier_of(full_size(name)) for name in NAMES] == ["fc"] * 3
    assert classifier_of(nn.Linear(1, 1)) is None
    timm_like = nn.Linear(1, 1)
    timm_like.pretrained_cfg = {"classifier": "head.fc"}
    assert classifier_of(timm_like) == "head.fc"
    timm_like.pretrained_cfg = {"classifier": ("head", "head_dist")}  # two classifiers: no one path
    assert classifier_of(timm_like) is None


# --- what is refused ---


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [{"num_classes": 0}, {"in_channels": 0}, {"classifier": -1}, {"dropout": 1.0}])
def test_common_settings_out_of_range_are_refused(name, bad):
    with pytest.raises(RecipeError, match=f"{name}: .*{next(iter(bad))}"):
        tiny(name, **bad)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (ResNetV1, {"layers": (1, 1, 1)}),
        (ResNetV1, {"layers": (1, 0, 1, 1)}),
        (ResNetV1, {"width": 0}),
        (ResNetV1, {"stem": "mnist"}),
        (DenseNet, {"blocks": ()}),
        (DenseNet, {"blocks": (2, 0)}),
        (DenseNet, {"growth_rate": 0}),
        (DenseNet, {"init_features": 0}),
    ],
)
def test_settings_out_of_range_are_refused(kind, bad):
    with pytest.raises(RecipeError, match=next(iter(bad))):
        kind(num_classes=2, **bad)


@pytest.mark.parametrize(
    ("name", "settings", "smallest"),
    [("inception_v3", {}, 75), ("densenet", {}, 29), ("densenet", {"blocks": (1, 1)}, 5)],
)
def test_images_of_which_nothing_would_be_left_are_refused(name, settings, smallest):
    with torch.device("meta"):
        net = tiny(name, **settings).eval()
    assert net(image(smallest)).shape == (2, 5)
    with pytest.raises(RuntimeError):
        net(image(smallest - 1))
    tiny(name, **settings, input_shape=(3, smallest, smallest))
    with pytest.raises(RecipeError, match=f"needs {smallest} a side"):
        tiny(name, **settings, input_shape=(3, smallest + 1, smallest - 1))


def test_a_resnet_takes_any_image():
    assert tiny("resnet_v1").eval()(image(1, device="cpu")).shape == (2, 5)
