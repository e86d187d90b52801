"""Let every image leave at the first exit that is sure of it.

    supple demo
    supple calibrate runs/demo --budget-macs 0.5x
    python examples/stop_when_sure.py runs/demo          # with the thresholds found for that budget
    python examples/stop_when_sure.py runs/demo 0.9      # with one confidence for every exit, nothing calibrated

`run_policy` lets the sure ones leave the batch, so that later stages run on fewer images; answers come back in order.
"""

import sys

import torch
from supple.early import run_policy
from supple.policies import sure_above

import supple
from supple.training.build import data_of


def main(run: str = "runs/demo", confidence: float | None = None) -> None:
    model = supple.load(run)
    policy = model.policy if confidence is None else sure_above(model.points, confidence)
    if policy is None:
        sys.exit(f"{run} is not calibrated yet: supple calibrate {run} --budget-macs 0.5x")
    images, labels = (test := data_of(run).test).batch(torch.arange(len(test)))
    stopped = run_policy(model, images, policy)
    left = len(images)
    for place, point in enumerate(policy.points):
        answered = int((stopped.exits == place).sum())
        if left:
            left -= answered
            print(f"{point!s:8} answers {answered:4} images; {left:4} go on")
    accuracy = (stopped.logits.argmax(1) == labels).float().mean()
    how = "as calibrated" if confidence is None else f"at confidence {confidence:g}"
    print(f"accuracy {100 * accuracy:.1f} % {how}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(float, sys.argv[2:3]))
