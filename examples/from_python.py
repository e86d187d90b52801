"""From a network of torchvision and a DataLoader to a ladder, a policy, exported graphs, and answers within a deadline.

python examples/from_python.py runs/from-python
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchvision.models import resnet18

import supple


def main(out: str = "runs/from-python", epochs: int = 6) -> None:
    digits = load_digits()
    images = interpolate(torch.from_numpy(digits.images).float()[:, None] / 16, 32).expand(-1, 3, -1, -1)
    data = TensorDataset(images, torch.from_numpy(digits.target))
    train, val, test = random_split(data, (0.6, 0.2, 0.2), torch.Generator().manual_seed(0))

    network = resnet18(num_classes=10)
    model = supple.exits(network, at=["layer1", "layer2"], branch="cnn", input_shape=(3, 32, 32), way="end_to_end")
    supple.fit(model, DataLoader(train, 64, shuffle=True), val, epochs=epochs, lr=0.05, out=out, progress=True)
    supple.bench(model)
    print(supple.evaluate(model, test), model.ladder, sep="\n\n")
    policy = supple.calibrate(model, val, budget_macs="0.6x")
    print(f"\nstop at {', '.join(map(str, policy.points))} when as sure as {policy.thresholds}")
    exported = supple.export(model, f"{out}/export", calibration=val)
    with supple.predictor(exported) as predictor:
        for answer in predictor.predict(images[:3].numpy(), deadline_ms=20):
            print(f"{answer.label}: {answer.point}, because of the {answer.reason}, in {answer.elapsed_ms:.1f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:2])
