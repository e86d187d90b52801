"""Where in a picture there may be something (region proposal network; Ren et al. 2015)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.rpn import RPNHead, permute_and_flatten
from torchvision.ops import batched_nms, box_area, box_iou
from torchvision.ops.boxes import _box_inter_union

from supple.data.detection.batch import Objects

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
        common, _ = _box_inter_union(boxes, known.crowds)
        share = common / box_area(boxes).clamp_min(1e-6)[:, None]
        found = torch.where((found == BELOW) & (share > MOSTLY).any(1), torch.full_like(found, BETWEEN), found)
    return found


def drawn(matches: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """At most `count` of the boxes by chance: those with an object, up to this share, and background for the rest."""
    some, none = (matches >= 0).nonzero().flatten(), (matches == BELOW).nonzero().flatten()
    some = some[torch.randperm(len(some), device=some.device)[: int(count * share)]]
    none = none[torch.randperm(len(none), device=none.device)[: count - len(some)]]
    return some, none


RATIOS = (0.5, 1.0, 2.0)
OVERLAP = 0.7  # of two proposals of a map with more, the worse one goes


class Proposals(nn.Module):
    """Anchors at every place of every map, judged and moved by one small head."""

    def __init__(self, channels: int, strides: Sequence[int], anchors: Sequence[int], kept: int, samples: int) -> None:
        super().__init__()
        self.head = RPNHead(channels, len(RATIOS))
        self.anchors = AnchorGenerator(tuple((size,) for size in anchors), (RATIOS,) * len(anchors))
        self.strides, self.kept, self.samples = tuple(strides), kept, samples
        self.coder = BoxCoder((1.0, 1.0, 1.0, 1.0))
        self.matcher = Matcher(0.7, 0.3, allow_low_quality_matches=True)

    def forward(
        self, maps: Sequence[Tensor], sizes: Tensor, known: Sequence[Known] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The proposals of each picture, best first, and losses if its objects are known."""
        scores, moves = (
            [permute_and_flatten(one, len(one), len(RATIOS), width, *one.shape[2:]) for one in part]
            for part, width in zip(self.head(list(maps)), (1, 4))
        )  # of each map: (batch, anchors, 1 or 4)
        anchors = self._anchors(maps)
        proposals = self._best([score[..., 0].detach().float() for score in scores], moves, anchors, sizes)
        if known is None:
            return proposals, {}
        return proposals, self._losses(torch.cat(scores, 1)[..., 0], torch.cat(moves, 1), torch.cat(anchors), known)

    @property
    def most(self) -> int:
        """How many are looked at on each level, and then kept of all."""
        return 2 * self.kept if self.training else self.kept

    def _anchors(self, maps: Sequence[Tensor]) -> list[Tensor]:
        self.anchors.set_cell_anchors(torch.float32, maps[0].device)
        found: list[Tensor] = self.anchors.grid_anchors(
            [list(one.shape[-2:]) for one in maps], [[stride, stride] for stride in self.strides]
        )
        return found

    @torch.no_grad()
    def _best(self, scores: list[Tensor], moves: list[Tensor], anchors: list[Tensor], sizes: Tensor) -> list[Tensor]:
        values, boxes, levels = [], [], []
        for level, (score, move, anchor) in enumerate(zip(scores, moves, anchors)):
            top = score.topk(min(self.most, score.shape[1]), 1)
            chosen = move.float().gather(1, top.indices[..., None].expand(-1, -1, 4))
            moved = self.coder.decode_single(chosen.flatten(0, 1), anchor[top.indices].flatten(0, 1))
            boxes.append(clipped(moved.view(*chosen.shape), sizes))
            values.append(top.values)
            levels.append(torch.full_like(top.indices, level))
        value, box, where = torch.cat(values, 1), torch.cat(boxes, 1), torch.cat(levels, 1)
        if value.is_meta:  # as many as there can be
            return list(box[:, : self.most])
        return [self._thinned(*one) for one in zip(value, box, where)]

    def _thinned(self, value: Tensor, box: Tensor, level: Tensor) -> Tensor:
        real = ((box[:, 2:] - box[:, :2]) > 1e-3).all(1)
        value, box, level = value[real], box[real], level[real]
        return box[batched_nms(box, value, level, OVERLAP)[: self.most]]

    def _losses(self, scores: Tensor, moves: Tensor, anchors: Tensor, known: Sequence[Known]) -> dict[str, Tensor]:
        judged, placed, count = [], [], 0
        for score, move, objects in zip(scores, moves, known):
            matches = matched(anchors, objects, self.matcher)
            some, none = drawn(matches, self.samples, 0.5)
            both = torch.cat([some, none])
            truth = (matches[both] >= 0).float()
            judged.append(F.binary_cross_entropy_with_logits(score[both].float(), truth, reduction="sum"))
            wanted = self.coder.encode_single(objects.boxes[matches[some]], anchors[some])
            placed.append(F.smooth_l1_loss(move[some].float(), wanted, beta=1 / 9, reduction="sum"))
            count += len(both)
        return {"anchors": sum(judged) / max(1, count), "anchor_boxes": sum(placed) / max(1, count)}  # type: ignore[dict-item]


def clipped(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (batch, n, 4) inside their pictures."""
    most = sizes.flip(1).repeat(1, 2)[:, None].to(boxes)  # width height width height
    return boxes.clamp_min(0).minimum(most)
