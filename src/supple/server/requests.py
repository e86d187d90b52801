"""What is asked, answered and refused: plain data that all parts of the server share. Without torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from supple.errors import PointError
from supple.inference.request import must_be_limits
from supple.inference.result import Prediction

Array = np.ndarray[Any, Any]
Given = bytes | tuple[Array, ...]  # a file as it came, or one sample ready for the network (float32, no batch axis)

MOST_K = 1000  # classes that an answer may list


class Refusal(Exception):
    """What a client is told instead of an answer: an HTTP status, a stable code and one clear sentence."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(status, code, message, retry_after_s)  # as it is pickled between processes
        self.status, self.code, self.message, self.retry_after_s = status, code, message, retry_after_s

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Options:
    """What holds for all inputs of a request. Of point, budget_macs, min_confidence and policy at most one."""

    deadline_ms: float | None = None  # counted from when the body was complete; combines with any of the others
    point: str | None = None
    budget_macs: float | str | None = None  # MACs, or "0.5x" of the full model
    min_confidence: float | None = None
    policy: bool = False  # stop as calibrated
    top_k: int = 5

    def __post_init__(self) -> None:
        chosen = {"point": self.point, "budget_macs": self.budget_macs, "min_confidence": self.min_confidence}
        given = [name for name, value in chosen.items() if value is not None] + (["policy"] if self.policy else [])
        if len(given) > 1:
            raise invalid(f"{' and '.join(given)} are given; give one of them.")
        if not isinstance(self.point, str | None):
            raise invalid(f"point is {self.point!r:.40}; give its name, such as full.")
        if not isinstance(self.policy, bool):
            raise invalid(f"policy is {self.policy!r:.40}; give true or false.")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or not 1 <= self.top_k <= MOST_K:
            raise invalid(f"top_k is {self.top_k!r:.40}; give a whole number from 1 to {MOST_K}.")
        budget = None if isinstance(self.budget_macs, str) else self.budget_macs
        try:
            must_be_limits(deadline_ms=self.deadline_ms, budget_macs=budget, min_confidence=self.min_confidence)
        except PointError as error:
            raise invalid(f"{error.cause} {error.cure}"[:300]) from None


@dataclass(frozen=True)
class Answer:
    """What one input of a request was answered."""

    index: int  # which of the request's inputs
    prediction: Prediction
    queue_ms: float
    compute_ms: float
    final: bool = True  # streaming: False for exits that are followed by a better answer


def invalid(message: str) -> Refusal:
    return Refusal(422, "invalid_options", message)
