"""Put exits on a network of your own, train only the branches, and see what each exit costs and scores.

    python examples/exits_on_your_network.py runs/own

The network is an ordinary nn.Module: nothing in it knows of exits. It becomes a backbone by a line in a dict; then
recipes, `supple.load` and everything else know it by name (as long as that line has run).
"""

import sys
from pathlib import Path

from torch import Tensor, nn

import supple
from supple.backbones import BACKBONES
from supple.recipe import make_recipe
from supple.training.loop import train


class Own(nn.Module):
    def __init__(self, *, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.end = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.classifier(self.end(self.middle(x) + x.mean(1, keepdim=True)).mean((2, 3)))


BACKBONES["own"] = Own
DATA = {"name": "digits", "batch_size": 64}


def main(out: str = "runs/own", epochs: int = 8) -> None:
    fit = {"epochs": epochs, "optimizer": "adam", "lr": 3e-3, "weight_decay": 0}
    whole = {"data": DATA, "backbone": {"name": "own"}, "method": {"name": "static"}, "train": fit}
    network = train(make_recipe(whole), Path(out) / "network", quiet=True)  # the network you already have

    exits = {"name": "exits", "at": ["stem", "middle"], "way": "classifier_wise", "branch": ["linear", "sl_vit"]}
    recipe = make_recipe({**whole, "method": exits, "train": {**fit, "init": str(network)}})
    print(supple.load(train(recipe, Path(out) / "exits", quiet=True)).ladder)


if __name__ == "__main__":
    main(*sys.argv[1:2])
