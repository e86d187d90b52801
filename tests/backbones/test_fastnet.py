"""FastNet: whitening by hand, partial identities, exits, sizes."""

import pytest
import torch
from torch.testing import assert_close

import supple
from supple.backbones.fastnet import RATE_OF_BIASES, Convolution, FastNet, Whiten
from supple.errors import RecipeError


def test_whitened_patches_are_uncorrelated_and_of_one_size() -> None:
    torch.manual_seed(0)
    images = torch.randn(64, 3, 16, 16).cumsum(2).cumsum(3) / 8  # smooth, as pictures are
    whiten = Whiten(3, 2, 1)
    assert not whiten.weight.any()
    whiten.start_from(images, floor=0.0)
    half = whiten.channels // 2
    assert half == 12
    assert_close(whiten.weight[:half], -whiten.weight[half:])
    seen = torch.nn.functional.conv2d(images, whiten.weight[:half]).permute(1, 0, 2, 3).flatten(1)
    assert_close(seen @ seen.T / seen.shape[1], torch.eye(half), atol=2e-2, rtol=0)


def test_a_convolution_starts_as_the_identity_of_its_first_channels() -> None:
    conv = Convolution(4, 6)[0]
    x = torch.randn(2, 4, 5, 5)
    assert_close(conv(x)[:, :4], x)


@pytest.mark.parametrize("side", [12, 28, 32, 64, 96, 224])
def test_any_size_has_four_exits_that_cost_more_and_more(side: int) -> None:
    model = supple.exits("fastnet", num_classes=7, input_shape=(3, side, side))
    macs = [row.macs or 0 for row in supple.profile(model)]
    assert len(model.points) == 4
    assert macs == sorted(macs)
    assert macs[-1] < 400e6  # larger pictures are seen in larger patches


def test_it_starts_from_its_data_once_and_norm_biases_learn_faster() -> None:
    network = FastNet(num_classes=3, input_shape=(3, 16, 16), widths=(8, 16), head=8)
    assert not network.started
    network.start_from(torch.randn(32, 3, 16, 16))
    assert network.started
    assert len(network.blocks) == len(network.heads) == 3
    slow = [name for name, _ in network.named_parameters() if name not in network.rates]
    assert all(value == RATE_OF_BIASES for value in network.rates.values())
    assert "blocks.0.0.bias" in slow  # of the whitening
    assert set(network.rates) <= {name for name, _ in network.named_parameters()}


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"input_shape": (3, 8, 8)}, "needs 12"), ({"widths": (8,)}, "two groups"), ({"widths": (8, 0)}, "below 1")],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        FastNet(num_classes=3, **settings)  # type: ignore[arg-type]
