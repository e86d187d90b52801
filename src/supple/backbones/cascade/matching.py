"""Which boxes belong to which objects, and which of them a step learns from."""

from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.models.detection._utils import Matcher
from torchvision.ops import box_area, box_iou

from supple.scenes import Objects

BELOW, BETWEEN = Matcher.BELOW_LOW_THRESHOLD, Matcher.BETWEEN_THRESHOLDS
MOSTLY = 0.5  # a box with this share of its area in a crowd is neither object nor background


class Known(NamedTuple):
    """The objects of one picture that can be learnt, and its crowds."""

    boxes: Tensor  # (objects, 4)
    labels: Tensor  # (objects,)
    shapes: Tensor  # (objects, GRID, GRID)
    crowds: Tensor  # (crowds, 4)


def by_picture(objects: Objects) -> list[Known]:
    """The objects of each picture, without the rows that are left over."""
    found = []
    for boxes, labels, crowd, shapes in zip(*objects):
        single = (labels >= 0) & ~crowd
        found.append(Known(boxes[single], labels[single], shapes[single], boxes[(labels >= 0) & crowd]))
    return found


def matched(boxes: Tensor, known: Known, matcher: Matcher) -> Tensor:
    """For each box the object that it belongs to; BELOW: background; BETWEEN: nothing is to be learnt from it."""
    if len(known.boxes) and len(boxes):
        found: Tensor = matcher(box_iou(known.boxes, boxes))
    else:
        found = torch.full((len(boxes),), BELOW, dtype=torch.long, device=boxes.device)
    if len(known.crowds) and len(boxes):
        first, second = boxes[:, None], known.crowds[None]
        sides = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])).clamp(
            0
        )
        share = sides.prod(-1) / box_area(boxes).clamp_min(1e-6)[:, None]
        found = torch.where((found == BELOW) & (share > MOSTLY).any(1), torch.full_like(found, BETWEEN), found)
    return found


def drawn(matches: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """At most `count` of the boxes by chance: those with an object, up to this share, and background for the rest."""
    some, none = (matches >= 0).nonzero().flatten(), (matches == BELOW).nonzero().flatten()
    some = some[torch.randperm(len(some), device=some.device)[: int(count * share)]]
    none = none[torch.randperm(len(none), device=none.device)[: count - len(some)]]
    return some, none
