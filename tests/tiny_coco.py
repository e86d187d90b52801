"""A small COCO folder of drawn shapes, a detector small enough for tests, and pictures with objects as tensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from supple.data.detection.batch import GRID, DetectionBatch, Objects
from supple.recipe import Recipe, make_recipe

CATEGORIES = [{"id": 7, "name": "disc"}, {"id": 3, "name": "block"}]  # in the order of their ids: block, disc
DETECTOR: dict[str, Any] = {
    "name": "cascade_rcnn",
    "args": {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 4},
    "channels": 16,
    "width": 16,
    "convs": 1,
    "proposals": 24,
    "samples": 16,
    "anchor_samples": 32,
}


def document(names: list[str], first: int, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Image.Image]]:
    """Pictures of one or two shapes on grey; the first has nothing on it, the second a crowd in its corner."""
    images, annotations, pictures = [], [], {}
    for place, name in enumerate(names):
        width, height = (96, 64) if place % 2 else (64, 80)
        picture = Image.new("RGB", (width, height), (90, 90, 90))
        number = first + place
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for _ in range(0 if place == 0 else 1 + place % 2):
            side, kind = int(rng.integers(20, 36)), int(rng.integers(2))
            x, y = int(rng.integers(0, width - side)), int(rng.integers(0, height - side))
            pen = ImageDraw.Draw(picture)
            if kind:
                pen.ellipse((x, y, x + side, y + side), fill=(230, 60, 60))
                turns = np.linspace(0, 2 * np.pi, 24, endpoint=False)
                corners = np.stack([x + side / 2 * (1 + np.cos(turns)), y + side / 2 * (1 + np.sin(turns))], 1)
            else:
                pen.rectangle((x, y, x + side, y + side), fill=(60, 60, 230))
                corners = np.array([[x, y], [x + side, y], [x + side, y + side], [x, y + side]])
            annotations.append(
                {
                    "id": 100 * number + len(annotations),
                    "image_id": number,
                    "category_id": 7 if kind else 3,
                    "bbox": [x, y, side, side],
                    "area": side * side,
                    "iscrowd": 0,
                    "segmentation": [corners.round(2).flatten().tolist()],
                }
            )
        if place == 1:  # ten columns of the whole height
            annotations.append(
                {
                    "id": 99_000 + first,
                    "image_id": number,
                    "category_id": 3,
                    "bbox": [0, 0, 10, height],
                    "area": 10 * height,
                    "iscrowd": 1,
                    "segmentation": {"size": [height, width], "counts": [0, 10 * height, (width - 10) * height]},
                }
            )
        pictures[name] = picture
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}, pictures


def write_coco(root: Path, train: int = 8, val: int = 4) -> Path:
    rng = np.random.default_rng(0)
    for folder in ("images", "annotations"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for part, count, first in (("train", train, 1), ("val", val, 501)):
        content, pictures = document([f"{part}{place}.png" for place in range(count)], first, rng)
        (root / "annotations" / f"{part}.json").write_text(json.dumps(content))
        for name, picture in pictures.items():
            picture.save(root / "images" / name)
    return root


def coco_recipe(root: Path, **sections: dict[str, Any]) -> Recipe:
    document: dict[str, Any] = {
        "data": {"name": "coco", "root": str(root), "batch_size": 4, "sizes": [64], "longest": 96, "holdout": 2},
        "backbone": DETECTOR,
        "method": {"name": "prune"},
        "loss": {"name": "own"},
        "train": {"epochs": 1, "optimizer": "adamw", "lr": 2e-3, "threads": 1},
    }
    return make_recipe({**document, **{part: {**document[part], **more} for part, more in sections.items()}})


def scenes(count: int = 2, side: int = 64, classes: int = 4, seed: int = 0) -> DetectionBatch:
    """Noise with two objects in every picture."""
    rng = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, 2, generator=rng) * side / 2
    boxes = torch.cat([corners, corners + side / 3], 2)
    labels = torch.randint(classes, (count, 2), generator=rng)
    shapes = torch.full((count, 2, GRID, GRID), 255, dtype=torch.uint8)
    sizes = torch.tensor([[side, side]]).expand(count, 2)
    objects = Objects(boxes, labels, torch.zeros(count, 2, dtype=torch.bool), shapes)
    return DetectionBatch(torch.randn(count, 3, side, side, generator=rng), sizes, sizes, objects)
