"""What a box holds and where it really lies, and which of its pixels belong to the object: one stage of each."""

from torch import Tensor, nn

POOLED = 7  # pixels of a side that a box is read with; twice as many for masks


class BoxHead(nn.Module):
    """Four convolutions and one dense layer; classes (the last: background), and a move of the box for each class."""

    def __init__(self, channels: int, width: int, classes: int, convs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(convs):
            conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(channels), nn.ReLU()]
        self.convs = nn.Sequential(*layers)
        self.dense = nn.Sequential(nn.Flatten(), nn.Linear(channels * POOLED**2, width), nn.ReLU())
        self.scores = nn.Linear(width, classes + 1)
        self.moves = nn.Linear(width, 4 * classes)
        nn.init.xavier_uniform_(self.dense[1].weight)  # type: ignore[arg-type]
        for linear, spread in ((self.scores, 0.01), (self.moves, 0.001)):
            nn.init.normal_(linear.weight, std=spread)
            nn.init.zeros_(linear.bias)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """(boxes, channels, 7, 7) to (boxes, classes + 1) and (boxes, classes, 4)."""
        read = self.dense(self.convs(seen))
        return self.scores(read).float(), self.moves(read).float().unflatten(1, (-1, 4))


class MaskHead(nn.Module):
    """Four convolutions, twice the resolution, and a mask for each class."""

    def __init__(self, channels: int, classes: int, convs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(convs):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        layers += [nn.ConvTranspose2d(channels, channels, 2, 2), nn.ReLU(), nn.Conv2d(channels, classes, 1)]
        self.layers = nn.Sequential(*layers)
        for layer in layers:
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, seen: Tensor) -> Tensor:
        """(boxes, channels, 14, 14) to (boxes, classes, 28, 28)."""
        masks: Tensor = self.layers(seen)
        return masks.float()
