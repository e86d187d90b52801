"""Let every image leave at the first exit that is sure of it.

    supple demo --train --out runs/digits
    supple calibrate runs/digits --budget-macs 0.5x
    python examples/stop_when_sure.py runs/digits        # with the thresholds found for that budget
    python examples/stop_when_sure.py runs/digits 0.9    # with one confidence for every exit, nothing calibrated

The sure ones leave the batch, so that later stages run on fewer images; answers come back in order.
"""

import sys
from collections import Counter

import torch

import supple
from supple.training.build import data_of


def main(run: str = "runs/digits", confidence: float | None = None) -> None:
    predictor = supple.predictor(run, engine="torch")
    if confidence is None and predictor.policy is None:
        sys.exit(f"{run} is not calibrated yet: supple calibrate {run} --budget-macs 0.5x")
    images, labels = (test := data_of(run).test).batch(torch.arange(len(test)))
    how = {"confident": True} if confidence is None else {"min_confidence": confidence}
    answers = predictor.predict(images.numpy(), **how)
    left, answered = len(answers), Counter(answer.point for answer in answers)
    for stage in predictor.stages:
        if left and stage.point:
            left -= answered[stage.point]
            print(f"{stage.point:8} answers {answered[stage.point]:4} images; {left:4} go on")
    right = sum(answer.label == predictor.classes[label] for answer, label in zip(answers, labels.tolist()))
    how = "as calibrated" if confidence is None else f"at confidence {confidence:g}"
    print(f"accuracy {100 * right / len(answers):.1f} % {how}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(float, sys.argv[2:3]))
