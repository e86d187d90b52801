"""What a policy is asked to reach, as people write it: 2e6 MACs, 0.5x of the full model, a point of accuracy."""

import math
from dataclasses import dataclass

from supple.errors import RecipeError


@dataclass(frozen=True)
class Goal:
    """What is asked for: a mean cost, or an accuracy at most so far below the full model's."""

    kind: str  # budget_macs, budget_ms or accuracy_drop
    value: float
    relative: bool  # a share of the full model's cost
    given: str

    @property
    def unit(self) -> str:
        return "ms" if self.kind == "budget_ms" else "macs"

    @classmethod
    def parse(cls, kind: str, text: str) -> "Goal":
        option = "--" + kind.replace("_", "-")
        number = text.strip()
        relative = kind != "accuracy_drop" and number.endswith("x")
        try:
            value = float(number.removesuffix("x") if relative else number)
        except ValueError:
            value = math.nan
        if kind == "accuracy_drop":
            if not 0 <= value < 1:
                raise RecipeError(f'{option} is "{text}".', "Give a share below 1: 0.01 is one percentage point.")
        elif not 0 < value < math.inf:
            example = "4" if kind == "budget_ms" else "2e6"
            raise RecipeError(f'{option} is "{text}".', f"Give {example}, or 0.5x for half of the full model's cost.")
        return cls(kind, value, relative, number)
