"""A model as the server knows it, from facts made by hand."""

import pytest

from supple.inference.costs import points_of
from supple.inference.engines import Stage
from supple.ladder import Ladder, Row
from supple.policy.policy import Policy, stop_above
from supple.server import openapi
from supple.server.messages import Facts
from supple.server.requests import Options
from supple.server.served import Served


def facts(points: tuple[str, ...], chain: bool = True, policy: Policy | None = None) -> Facts:
    """Points that take 1, 2, 3, ... ms and MACs; along a chain, or each from the start."""
    stages = tuple(Stage(f"body{k}", f"head{k}", point) for k, point in enumerate(points)) if chain else ()
    ladder = Ladder([Row(point, macs=k) for k, point in enumerate(points, 1)])
    return Facts(
        name="m",
        task="classes",
        classes=("a", "b"),
        shape=(1, 2, 2),
        engine="onnxruntime",
        precision="fp32",
        skips=False,
        ladder=ladder.to_json(),
        points=points,
        stages=stages,
        policy=policy,
        policy_stages=stages,
        preprocess=None,
        kind="",
        endings=(),
        bodies={k: {1: 1.0} for k in range(len(stages))},
        heads={k: {1: 0.0} for k in range(len(stages))},
        whole={point: {1: float(k)} for k, point in enumerate(points, 1)},
    )


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("points", [("exit=1", "exit=2"), ("exit=1", "full")])
def test_every_reason_is_one_that_the_description_names(points, chain):
    policy = stop_above(points_of([Stage(None, "x", point) for point in points]), 0.9)
    served = Served(facts(points, chain, policy if chain else None))
    asked = [Options(), Options(point="exit=1"), Options(budget_macs=1), Options(min_confidence=0.9)]
    reasons = [served.way(options).reason for options in asked + ([Options(policy=True)] if chain else [])]
    assert set(reasons) <= set(openapi.REASONS)
    assert reasons[0] == "full"  # as far as what is served goes
