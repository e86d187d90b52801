"""Pictures of any size with objects in them, as batches of tensors: what detectors are given, and what is true."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

GRID = 112  # pixels of a side of an object's shape: four for each one that a mask head gives


class Objects(NamedTuple):
    """What lies in the pictures of a batch. Rows that a picture has no object for have the label -1."""

    boxes: Tensor  # (batch, objects, 4): x1 y1 x2 y2, in pixels of the input
    labels: Tensor  # (batch, objects)
    crowd: Tensor  # (batch, objects): many things in one box; not learnt, nor counted against a model
    shapes: Tensor  # (batch, objects, GRID, GRID), uint8: the mask inside its own box, 255 where the object is


class DetectionBatch(NamedTuple):
    """A batch of pictures. A network in training mode reads the objects; otherwise they are not looked at."""

    images: Tensor  # (batch, 3, height, width); smaller pictures are padded on the right and below
    sizes: Tensor  # (batch, 2): height and width of the picture in it
    originals: Tensor  # (batch, 2): height and width of its file: answers are in pixels of that
    objects: Objects | None = None


class Truth(NamedTuple):
    """What answers are scored against, in pixels of the files. Rows left over have the label -1."""

    originals: Tensor  # (batch, 2)
    boxes: Tensor  # (batch, objects, 4)
    labels: Tensor  # (batch, objects)
    crowd: Tensor  # (batch, objects)
    masks: Tensor  # (batch, objects, height, width), bool; without height and width where nothing is scored


def as_batch(x: "Tensor | DetectionBatch") -> DetectionBatch:
    """A plain batch of images is a batch of pictures without any padding."""
    if isinstance(x, DetectionBatch):
        return x
    sizes = torch.tensor(x.shape[-2:], device=x.device).expand(len(x), 2)
    return DetectionBatch(x, sizes, sizes)


def stacked(parts: list[Tensor], fill: float = 0) -> Tensor:
    """Tensors of one rank as one, each padded at its ends to the largest."""
    largest = [max(sides) for sides in zip(*(part.shape for part in parts))]
    pads = [[pad for side, most in zip(part.shape[::-1], largest[::-1]) for pad in (0, most - side)] for part in parts]
    return torch.stack([F.pad(part, pad, value=fill) for part, pad in zip(parts, pads)])


def paste(mask: Tensor, box: Tensor, height: int, width: int) -> Tensor:
    """A small mask of shares, stretched over its box in a picture: bool (height, width), true from one half on."""
    picture = torch.zeros(height, width, dtype=torch.bool, device=mask.device)
    x1, y1, x2, y2 = box.tolist()
    left, top = max(0, int(x1)), max(0, int(y1))
    right, bottom = min(width, int(x2) + 1), min(height, int(y2) + 1)
    if right <= left or bottom <= top or x2 <= x1 or y2 <= y1:
        return picture
    across = (torch.arange(left, right, device=mask.device) + 0.5 - x1) / (x2 - x1)
    down = (torch.arange(top, bottom, device=mask.device) + 0.5 - y1) / (y2 - y1)
    picture[top:bottom, left:right] = look(mask[None].float(), across[None], down[None])[0] >= 0.5
    return picture


def look(masks: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Masks (n, a, b) at places that are shares of their width and height: (n, x) and (n, y) give (n, y, x).

    Between pixels it is linear; outside 0..1 there is nothing.
    """
    shape = (len(masks), down.shape[1], across.shape[1])
    grid = torch.stack([across[:, None].expand(shape), down[:, :, None].expand(shape)], -1)  # (n, y, x, 2)
    values = F.grid_sample(masks[:, None], 2 * grid - 1, padding_mode="border", align_corners=False)[:, 0]
    inside = ((grid >= 0) & (grid <= 1)).all(-1)
    return values * inside
