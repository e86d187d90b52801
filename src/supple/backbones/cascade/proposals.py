"""Where in a picture there may be something (region proposal network; Ren et al. 2015)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import batched_nms

from supple.backbones.cascade.matching import Known, drawn, matched

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
            [_listed(one, width) for one in part] for part, width in zip(self.head(list(maps)), (1, 4))
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


def _listed(map: Tensor, width: int) -> Tensor:
    """(batch, anchors * width, height, width) as (batch, all anchors, width), in the order of the anchors."""
    batch, _, height, across = map.shape
    return map.view(batch, -1, width, height, across).permute(0, 3, 4, 1, 2).reshape(batch, -1, width)


def clipped(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (batch, n, 4) inside their pictures."""
    most = sizes.flip(1).repeat(1, 2)[:, None].to(boxes)  # width height width height
    return boxes.clamp_min(0).minimum(most)
