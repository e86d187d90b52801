"""A GPU that is not there: PyTorch says that it has one, whatever is moved to it stays where it is, and is counted."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

NAME = "NVIDIA Pretend 9000"


def pretend(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What happened, and how often: "inputs" and "weights" that were moved to the GPU, "waited" for it."""
    seen: Counter[str] = Counter()

    def moving(kind: type[Any], what: str) -> None:
        real = kind.to

        def to(self: Any, *given: Any, **named: Any) -> Any:
            seen[what] += "cuda:0" in map(str, given)
            given = tuple(one for one in given if str(one) != "cuda:0")
            return real(self, *given, **named) if given or named else self

        monkeypatch.setattr(kind, "to", to)

    moving(Tensor, "inputs")
    moving(nn.Module, "weights")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: NAME)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: seen.update([f"waited for {device}"]))
    return seen
