"""A plain fine-tuning loop of timm, for comparison with `supple train PICTURES` on the same network, size and epochs.

    python benchmarks/plain_timm.py RUN      # a run of supple train PICTURES: its network, weights, size, epochs, data

The usual forty lines: AdamW, cosine with a short warm-up, crops and flips, label smoothing, averaged weights, one
classifier and no exits. It trains on the run's training pictures and scores the run's test pictures once.
"""

import argparse
import time
from pathlib import Path

import torch
from timm.scheduler import CosineLRScheduler
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from supple.backbones.weights import start
from supple.checkpoint import read_recipe
from supple.data.loaders import as_batches
from supple.methods import build
from supple.training.build import load_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--lr", type=float, default=5e-4)
    given = parser.parse_args()
    recipe = read_recipe(given.run)
    data, batch, epochs = load_data(recipe), recipe.data.batch_size, recipe.train.epochs
    torch.manual_seed(0)
    network = build(recipe.backbone, {"name": "static"}, len(data.train.classes), data.train.shape).backbone
    file = None if recipe.train.init == "pretrained" else Path(recipe.train.init or "")
    start(recipe.backbone, network, data.train.shape, file)
    network.to(memory_format=torch.channels_last)
    average = ModelEmaV3(network, decay=0.999, use_warmup=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=given.lr, weight_decay=0.05)
    batches = as_batches(data.train)
    steps = batches.steps(batch)
    schedule = CosineLRScheduler(optimizer, epochs * steps, warmup_t=steps // 2, warmup_lr_init=1e-6, t_in_epochs=False)
    loss_of, done, began = nn.CrossEntropyLoss(label_smoothing=0.1), 0, time.monotonic()
    for epoch in range(epochs):
        network.train()
        for x, y in batches.training(0, epoch, 0, batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.train.precision == "bf16"):
                loss = loss_of(network(x.contiguous(memory_format=torch.channels_last)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            schedule.step_update(done)
            average.update(network, done)
        print(
            f"epoch {epoch + 1}/{epochs}  loss {loss.item():.3f}  {(time.monotonic() - began) / 60:.1f} min", flush=True
        )
    right = seen = 0
    with torch.inference_mode():
        for x, y, count in as_batches(data.test).in_order(256):
            right += int((average.module(x).argmax(1) == y).sum())
            seen += count
    print(f"plain timm: {100 * right / seen:.2f} % of {seen} test pictures; {(time.monotonic() - began) / 60:.1f} min")


if __name__ == "__main__":
    main()
