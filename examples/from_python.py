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


def main(out: str = "runs/from-python", epochs: int = 4) -> None:
    digits = load_digits()
    images = interpolate(torch.from_numpy(digits.images).float()[:, None] / 16, 32).expand(-1, 3, -1, -1)
    data = TensorDataset(images, torch.from_numpy(digits.target))
    train, val, test = random_split(data, (0.6, 0.2, 0.2), torch.Generator().manual_seed(0))

    network = resnet18(num_classes=10)
    model = supple.exits(network, at=["layer1", "layer2"], branch="linear", input_shape=(3, 32, 32), way="end_to_end")
    supple.fit(model, DataLoader(train, 64, shuffle=True), val, epochs=epochs, optimizer="adamw", lr=1e-3, out=out)
    supple.bench(model)
    print(supple.evaluate(model, test), model.ladder, sep="\n\n")
    policy = supple.calibrate(model, val, budget_macs="0.6x")
    sure = ", ".join(f"{point} from {sure:.3f}" for point, sure in zip(policy.points, policy.thresholds))
    print(f"\nsure enough to stop: {sure}; the rest goes on to {policy.points[-1]}")
    exported = supple.export(model, f"{out}/export", calibration=val)
    with supple.predictor(exported) as predictor:
        for ms in (20, 1):
            [answer] = predictor.predict(images[:1].numpy(), deadline_ms=ms)
            print(f"within {ms} ms: {answer.label} ({answer.point}, {answer.reason}; {answer.elapsed_ms:.1f} ms)")


if __name__ == "__main__":
    main(*sys.argv[1:2])
