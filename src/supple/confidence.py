"""How sure an answer is, from its logits alone: 0 not at all, 1 certain. Higher is always surer."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

COLDEST, HOTTEST = 0.02, 50.0  # temperatures that a fit may give


def max_probability(chances: Tensor) -> Tensor:
    return chances.amax(-1)


def margin(chances: Tensor) -> Tensor:
    """How far the likeliest class is ahead of the next one."""
    if chances.shape[-1] == 1:
        return chances[..., 0]
    first, second = chances.topk(2, dim=-1).values.unbind(-1)
    return first - second


def entropy(chances: Tensor) -> Tensor:
    """1 - H / ln c: 1 for a single class, 0 for c equally likely ones."""
    classes = chances.shape[-1]
    return 1 - torch.special.entr(chances).sum(-1) / math.log(classes) if classes > 1 else chances[..., 0]


MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "max_probability": max_probability,
    "margin": margin,
    "entropy": entropy,
}


def confidence(logits: Tensor, measure: str = "max_probability", temperature: float = 1.0) -> Tensor:
    """One number in 0..1 per sample; 0 where the logits are no numbers. No label is asked for."""
    chances = (logits.float() / temperature).softmax(-1)
    return MEASURES[measure](chances).nan_to_num(0.0).clamp(0, 1)


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """The temperature with the least negative log-likelihood, between COLDEST and HOTTEST.

    In b = 1/T the likelihood is concave (a log-sum-exp minus a line), so the sign of its slope, mean logit under the
    softmax minus the target's, is enough for a bisection that cannot miss. Samples with infinite logits are left out;
    without any sample the temperature is 1.
    """
    logits = logits.float() - logits.float().amax(-1, keepdim=True)
    sound = logits.isfinite().all(-1)
    logits, target = logits[sound], target[sound]
    if len(logits) == 0:
        return 1.0
    wanted = logits.gather(1, target[:, None]).double().mean()
    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)
    for _ in range(24):  # halves a range of 8 until a millionth is left
        middle = (low + high) / 2
        expected = (F.softmax(math.exp(middle) * logits, -1) * logits).sum(-1).double().mean()
        low, high = (low, middle) if expected > wanted else (middle, high)
    return math.exp(-(low + high) / 2)
