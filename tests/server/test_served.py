"""A model as the server knows it, from facts made by hand."""

import pytest

from model_facts import facts
from supple.inference.costs import points_of
from supple.inference.engines import Stage
from supple.policy.policy import stop_above
from supple.server import openapi
from supple.server.requests import Options
from supple.server.served import Served


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("points", [("exit=1", "exit=2"), ("exit=1", "full")])
def test_every_reason_is_one_that_the_description_names(points, chain):
    policy = stop_above(points_of([Stage(None, "x", point) for point in points]), 0.9)
    served = Served(facts(points, chain, policy if chain else None))
    asked = [Options(), Options(point="exit=1"), Options(budget_macs=1), Options(min_confidence=0.9)]
    reasons = [served.way(options).reason for options in asked + ([Options(policy=True)] if chain else [])]
    assert set(reasons) <= set(openapi.REASONS)
    assert reasons[0] == "full"  # as far as what is served goes
