"""Let every image leave at the first exit that is sure of it.

    supple demo
    python examples/stop_when_sure.py runs/demo 0.9

`model.run` yields each exit's answer as soon as it exists; sending back the samples that are not sure yet lets the
others leave the batch, so that later stages run on fewer images.
"""

import sys

import torch

import supple
from supple.assemble import data_of


@torch.inference_mode()
def main(run: str = "runs/demo", confidence: float = 0.9) -> None:
    model = supple.load(run)
    images, labels = (test := data_of(run).test).batch(torch.arange(len(test)))
    left = torch.arange(len(images))  # who is still in the batch
    answers = torch.empty_like(labels)
    stages = model.run(images, model.points)
    output = next(stages)
    while True:
        sure, answer = output.logits.softmax(1).max(1)
        stay = (sure < confidence).nonzero().squeeze(1)
        answers[left] = answer  # the last word so far; those who stay will have another
        print(f"{output.point!s:8} answers {len(left) - len(stay):4} images; {len(stay):4} go on")
        left = left[stay]
        try:
            output = stages.send(stay)
        except StopIteration:
            break
    print(f"accuracy {100 * (answers == labels).float().mean():.1f} % at confidence {confidence:g}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(float, sys.argv[2:3]))
