"""Three box heads in a row, each stricter than the last, and a mask head beside each (Cascade R-CNN; Cai 2018)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.ops import batched_nms, generalized_box_iou_loss, roi_align
from torchvision.ops._utils import convert_boxes_to_roi_format

from supple.backbones.cascade.proposals import BELOW, Known, clipped, drawn, matched
from supple.data.detection.batch import look

FINEST = 56  # boxes up to twice this size (root of the area, pixels) are read from the finest map
POOLED = 7  # pixels of a side that a box is read with; twice as many for masks


class BoxHead(nn.Module):
    """Four convolutions and one dense layer; classes (the last: background), and a move of the box for each class."""

    def __init__(self, channels: int, width: int, classes: int, convs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(convs):
            conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(channels), nn.ReLU()]
        self.convs = nn.Sequential(*layers)
        self.dense = nn.Sequential(nn.Flatten(), nn.Linear(channels * POOLED**2, width), nn.ReLU())
        self.scores = nn.Linear(width, classes + 1)
        self.moves = nn.Linear(width, 4 * classes)
        nn.init.xavier_uniform_(self.dense[1].weight)  # type: ignore[arg-type]
        for linear, spread in ((self.scores, 0.01), (self.moves, 0.001)):
            nn.init.normal_(linear.weight, std=spread)
            nn.init.zeros_(linear.bias)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """(boxes, channels, 7, 7) to (boxes, classes + 1) and (boxes, classes, 4)."""
        read = self.dense(self.convs(seen))
        return self.scores(read).float(), self.moves(read).float().unflatten(1, (-1, 4))


class MaskHead(nn.Module):
    """Four convolutions, twice the resolution, and a mask for each class."""

    def __init__(self, channels: int, classes: int, convs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(convs):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        layers += [nn.ConvTranspose2d(channels, channels, 2, 2), nn.ReLU(), nn.Conv2d(channels, classes, 1)]
        self.layers = nn.Sequential(*layers)
        for layer in layers:
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, seen: Tensor) -> Tensor:
        """(boxes, channels, 14, 14) to (boxes, classes, 28, 28)."""
        masks: Tensor = self.layers(seen)
        return masks.float()


IOUS = (0.5, 0.6, 0.7)  # a box belongs to an object that it overlaps at least so much
CODERS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))  # moves become finer
WEIGHTS = (1.0, 0.5, 0.25)  # of the stages' losses
BOX_WEIGHT = 10.0  # of the generalised IoU, against the classes
SHARE = 0.25  # of the boxes that a stage learns from: those with an object, at most
SAME = 0.5  # of two boxes of a class that overlap more, the worse one goes


class Cascade(nn.Module):
    """`learn` gives losses, `detect` what was found."""

    def __init__(
        self,
        channels: int,
        width: int,
        convs: int,
        classes: int,
        strides: Sequence[int],
        samples: int,
        threshold: float,
    ) -> None:
        super().__init__()
        self.boxes = nn.ModuleList(BoxHead(channels, width, classes, convs) for _ in IOUS)
        self.masks = nn.ModuleList(MaskHead(channels, classes, convs) for _ in IOUS)
        self.classes, self.strides, self.samples, self.threshold = classes, tuple(strides), samples, threshold
        self.coders = [BoxCoder(weights) for weights in CODERS]
        self.matchers = [Matcher(iou, iou) for iou in IOUS]

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(
        self, maps: Sequence[Tensor], boxes: Sequence[Tensor], known: Sequence[Known], sizes: Tensor
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for stage, weight in enumerate(WEIGHTS):
            drawn_here = [self._draw(*one, stage) for one in zip(boxes, known, sizes)]
            boxes, matches, given = (list(part) for part in zip(*drawn_here))
            labels = [
                torch.where(match >= 0, one.labels[match], self.classes)
                if len(one.labels)
                else match + 1 + self.classes
                for match, one in zip(matches, known)
            ]  # without any object all matches are BELOW, which is -1
            label, flat, some = torch.cat(labels), torch.cat(boxes), torch.cat(matches) >= 0
            scores, moves = self.boxes[stage](under(maps, self.strides, boxes, POOLED))
            losses[f"class_{stage + 1}"] = weight * F.cross_entropy(scores, label)
            truth = torch.cat([one.boxes[match[match >= 0]] for match, one in zip(matches, known)])
            moved = self.coders[stage].decode_single(moves[some, label[some]], flat[some])
            apart = generalized_box_iou_loss(moved, truth, reduction="sum") / len(flat)
            losses[f"box_{stage + 1}"] = weight * BOX_WEIGHT * apart
            losses[f"mask_{stage + 1}"] = weight * self._mask_loss(maps, boxes, matches, known, stage)
            if stage + 1 < len(WEIGHTS):
                guess = torch.where(label < self.classes, label, scores[:, :-1].argmax(1))
                refined = self._refined(boxes, moves.detach(), guess, sizes, stage)
                boxes = [box[~own] for box, own in zip(refined, given)]  # the next stage gets the true ones again
        return losses

    @torch.no_grad()
    def _draw(self, boxes: Tensor, known: Known, size: Tensor, stage: int) -> tuple[Tensor, Tensor, Tensor]:
        """The boxes of a picture that this stage learns from, their objects, and whether they are the objects' own."""
        boxes = torch.cat([known.boxes, boxes.to(known.boxes)])
        if not len(boxes):
            boxes = torch.cat([size.new_zeros(2), size.flip(0)])[None].to(known.boxes)
        matches = matched(boxes, known, self.matchers[stage])
        chosen = torch.cat(drawn(matches, self.samples, SHARE))
        if not len(chosen):
            chosen, matches = chosen.new_zeros(1), torch.full_like(matches, BELOW)
        return boxes[chosen], matches[chosen], chosen < len(known.boxes)

    def _mask_loss(
        self,
        maps: Sequence[Tensor],
        boxes: Sequence[Tensor],
        matches: Sequence[Tensor],
        known: Sequence[Known],
        stage: int,
    ) -> Tensor:
        chosen = [box[match >= 0] for box, match in zip(boxes, matches)]
        masks = self.masks[stage](under(maps, self.strides, chosen, 2 * POOLED))
        objects = [match[match >= 0] for match in matches]
        label = torch.cat([one.labels[match] for match, one in zip(objects, known)])
        if not len(label):
            nothing: Tensor = masks.sum() * 0  # a loss all the same, so that every part has a gradient
            return nothing
        wanted = [
            mask_targets(one.shapes[match], one.boxes[match], box, masks.shape[-1])
            for match, one, box in zip(objects, known, chosen)
        ]
        own = masks[torch.arange(len(label), device=label.device), label]
        return F.binary_cross_entropy_with_logits(own, torch.cat(wanted))

    @torch.no_grad()
    def _refined(
        self, boxes: Sequence[Tensor], moves: Tensor, guess: Tensor, sizes: Tensor, stage: int
    ) -> list[Tensor]:
        """Each box moved as the class says that it most likely holds."""
        own = moves.gather(1, guess[:, None, None].expand(-1, 1, 4))[:, 0]
        moved = self.coders[stage].decode_single(own, torch.cat(list(boxes)))
        return [
            clipped(part[None], size[None])[0] for part, size in zip(moved.split([len(box) for box in boxes]), sizes)
        ]

    # --- finding ------------------------------------------------------------------------------------------------------

    def detect(self, maps: Sequence[Tensor], boxes: list[Tensor], sizes: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """What was found in each picture, best first: (batch, limit, 6) and masks (batch, limit, 28, 28)."""
        probabilities = 0
        for stage, head in enumerate(self.boxes):
            scores, moves = head(under(maps, self.strides, boxes, POOLED))
            probabilities = probabilities + scores.softmax(1) / len(IOUS)
            if stage + 1 < len(IOUS):
                boxes = self._refined(boxes, moves, scores[:, :-1].argmax(1), sizes, stage)
        counts = [len(box) for box in boxes]
        moved = self.coders[-1].decode_single(moves.flatten(1), torch.cat(boxes)).unflatten(1, (-1, 4))
        if maps[0].is_meta:  # as many as there can be
            found = [moved.new_empty(limit, 6) for _ in counts]
        else:
            assert isinstance(probabilities, Tensor)
            parts = zip(moved.split(counts), probabilities.split(counts), sizes)
            found = [self._chosen(*part, limit) for part in parts]
        masks = self._masks(maps, found)
        pad = [limit - len(one) for one in found]
        return (
            torch.stack([F.pad(one, (0, 0, 0, more)) for one, more in zip(found, pad)]),
            torch.stack([F.pad(one, (0, 0, 0, 0, 0, more)) for one, more in zip(masks, pad)]),
        )

    def _chosen(self, moved: Tensor, probabilities: Tensor, size: Tensor, limit: int) -> Tensor:
        """x1 y1 x2 y2 score label of the objects in one picture."""
        probabilities = probabilities[:, :-1]
        box, label = (probabilities > self.threshold).nonzero(as_tuple=True)
        boxes, score = clipped(moved[box, label][None], size[None])[0], probabilities[box, label]
        keep = batched_nms(boxes, score, label, SAME)[:limit]
        return torch.cat([boxes[keep], score[keep, None], label[keep, None].to(boxes)], 1)

    def _masks(self, maps: Sequence[Tensor], found: Sequence[Tensor]) -> list[Tensor]:
        seen = under(maps, self.strides, [one[:, :4] for one in found], 2 * POOLED)
        label = torch.cat([one[:, 5] for one in found]).long()
        place = label[:, None, None, None].expand(-1, 1, 4 * POOLED, 4 * POOLED)
        masks = [head(seen).gather(1, place)[:, 0].sigmoid() for head in self.masks]
        return list(torch.split(torch.stack(masks).mean(0), [len(one) for one in found]))


def under(maps: Sequence[Tensor], strides: Sequence[int], boxes: Sequence[Tensor], size: int) -> Tensor:
    """What the maps show under the boxes of each picture: (boxes of all, channels, size, size).

    A box is read from the map whose resolution suits its size. Without weights only the shape is known.
    """
    count = sum(map(len, boxes))
    if maps[0].is_meta:
        return maps[0].new_empty(count, maps[0].shape[1], size, size)
    places = convert_boxes_to_roi_format(list(boxes)).detach()  # picture, x1 y1 x2 y2
    side = (places[:, 3:] - places[:, 1:3]).clamp_min(0).prod(1).sqrt()
    level = (side / FINEST + 1e-6).log2().floor().clamp(0, len(maps) - 1)
    found = maps[0].new_zeros(count, maps[0].shape[1], size, size)
    for place, (one, stride) in enumerate(zip(maps, strides)):
        chosen = (level == place).nonzero().flatten()
        if len(chosen):
            seen = roi_align(one, places[chosen].to(one), size, 1 / stride, sampling_ratio=2, aligned=True)
            found = found.index_copy(0, chosen, seen)
    return found


def mask_targets(shapes: Tensor, own: Tensor, boxes: Tensor, side: int) -> Tensor:
    """What a mask head is to say of boxes: the shapes of objects (n, GRID, GRID), which fill their own boxes (n, 4),
    seen through other boxes (n, 4). 0 or 1: (n, side, side).
    """
    steps = (torch.arange(side, device=boxes.device) + 0.5) / side
    near, far = own[:, None, :2], own[:, None, 2:]
    points = boxes[:, None, :2] + steps[:, None] * (boxes[:, None, 2:] - boxes[:, None, :2])  # (n, side, 2)
    shares = (points - near) / (far - near).clamp_min(1e-6)
    return (look(shapes.float(), shares[..., 0], shares[..., 1]) >= 127.5).float()
