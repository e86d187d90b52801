"""What a worker says of a model that it opened, by hand."""

from supple.inference.engines import Stage
from supple.ladder import Ladder, Row
from supple.policy.policy import Policy
from supple.server.messages import Facts


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
