"""Put exits on a network of your own, train it with them, and see what each exit costs and scores.

    python examples/exits_on_your_network.py runs/own

The network is an ordinary nn.Module: nothing in it knows of exits. It becomes a backbone by a line in a dict; then
recipes, `supple.load` and everything else know it by name (as long as that line has run).
"""

import sys
from pathlib import Path

from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.models.resnet import BasicBlock, ResNet

import supple
from supple.backbones import BACKBONES
from supple.recipe import make_recipe
from supple.training.loop import train


class Own(ResNet):
    """A small ResNet of torchvision, which sees grey pictures of 8 pixels enlarged to 32."""

    def __init__(self, *, num_classes: int, in_channels: int = 1) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=num_classes)
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(interpolate(x, scale_factor=4))


BACKBONES["own"] = Own


def main(out: str = "runs/own", epochs: int = 4) -> None:
    # Where it can be cut: supple.cuts(Own(num_classes=10), (1, 8, 8)). A branch must cost less than what it spares.
    recipe = make_recipe(
        {
            "data": {"name": "digits", "batch_size": 64},
            "backbone": {"name": "own"},
            "method": {"name": "exits", "at": ["layer1", "layer2"], "branch": "linear", "way": "end_to_end"},
            "train": {"epochs": epochs, "optimizer": "adamw", "lr": 1e-3},
        }
    )
    print(supple.bench(train(recipe, Path(out), quiet=True)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
