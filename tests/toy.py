"""A trunk small enough to follow by hand: a token of one number, and layers that multiply and add."""

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """x * times + plus; counts how often it ran."""

    def __init__(self, times: float, plus: float) -> None:
        super().__init__()
        self.times = nn.Parameter(torch.tensor(float(times)))
        self.plus = nn.Parameter(torch.tensor(float(plus)))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.times + self.plus


class Toy(nn.Module):
    """Takes (batch, 1) numbers, makes each the one token of its sample, and gives it back after the layers."""

    width = 1
    class_token = True

    def __init__(self, *layers: tuple[float, float]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Affine(times, plus) for times, plus in layers))
        self.stems = 0

    def stem(self, x: Tensor) -> Tensor:
        self.stems += 1
        return x[:, None]  # (batch, tokens, width)

    def head(self, state: Tensor) -> Tensor:
        return state[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def numbers(*values: float) -> Tensor:
    """A batch of them, one sample each."""
    return torch.tensor(values, dtype=torch.float32)[:, None]
