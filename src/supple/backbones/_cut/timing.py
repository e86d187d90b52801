"""Where the time of a network goes, and the places to cut it at that come at given shares of it."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from supple.backbones._cut.cut_points import CutPoint
from supple.backbones._cut.tap import Tap
from supple.errors import RecipeError
from supple.model import example


def nearest_in_time(
    network: nn.Module,
    places: Sequence[CutPoint],
    shape: tuple[int, ...],
    wanted: Sequence[float],
    branch: Callable[[Tap], nn.Module] = lambda tap: nn.Identity(),
) -> list[tuple[CutPoint, float]]:
    """The places to cut at where a branch answers nearest to these shares of a network's time, with their shares. It is
    to read all that the network has found so far: none is put inside a residual, where the other part passes it by.
    """
    known = [place for place in places if "#" not in place.name]  # a module that is called again returns twice
    usable = [place for place in known if place.tap is not None and place.tap.layout != "flat"]
    least = min((place.alive for place in usable), default=1)
    usable = [place for place in usable if place.alive == least]
    shares = time_shares(network, {place.name: branch(place.tap) for place in usable if place.tap}, shape)
    found: dict[str, tuple[CutPoint, float]] = {}
    for share in wanted:
        free = [place for place in usable if place.name not in found and 0.05 < shares[place.name] < 0.95]
        if free:  # of two as near, the end of a larger part
            best = min(free, key=lambda p: (round(abs(shares[p.name] - share), 2), p.name.count(".")))
            found[best.name] = (best, shares[best.name])
    if not found:
        cause = f"{type(network).__name__} has no place where an exit would save time."
        raise RecipeError(cause, "Choose another network with --network, or --method static.")
    return sorted(found.values(), key=lambda pair: pair[1])


@torch.inference_mode()
def time_shares(
    network: nn.Module, branches: Mapping[str, nn.Module], shape: tuple[int, ...], rounds: int = 15
) -> dict[str, float]:
    """Of the time of one picture, what has passed when the branch behind each of these modules answers; medians."""
    passed: dict[str, list[float]] = {name: [] for name in branches}
    found: dict[str, Any] = {}
    began = [0.0]

    def note(name: str) -> Any:
        def returned(module: nn.Module, given: Any, output: Any) -> None:
            passed[name].append(time.perf_counter() - began[0])
            found[name] = output

        return returned

    network.eval()
    hooks = [network.get_submodule(name).register_forward_hook(note(name)) for name in branches]
    whole = []
    x = example(shape, 1, torch.randn)
    try:
        for _ in range(rounds + 2):
            began[0] = time.perf_counter()
            network(x)
            whole.append(time.perf_counter() - began[0])
            for name, branch in branches.items():
                start = time.perf_counter()
                branch.eval()(found[name])
                passed[name][-1] += time.perf_counter() - start
    finally:
        for hook in hooks:
            hook.remove()
    shares = {name: [spent / total for spent, total in zip(times, whole)] for name, times in passed.items()}
    return {name: statistics.median(each[2:]) for name, each in shares.items()}
