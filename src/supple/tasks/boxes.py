"""What lies where: boxes, classes and masks of objects, scored by COCO's mean average precision."""

import colorsys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from supple.errors import DataError
from supple.tasks.task import Answer, Array, Metric, Result, Task

if TYPE_CHECKING:
    from torch import Tensor

    from supple.data.detection.batch import Truth
    from supple.model import FlexibleModel, Output

# COCO's own, in double precision: torchmetrics' defaults are rounded, and a recall of 3 in 5 falls short of 0.6.
IOUS = np.linspace(0.5, 0.95, 10).tolist()
RECALLS = np.linspace(0, 1, 101).tolist()
MIN_SCORE = 0.3  # objects with a lower score are neither listed nor drawn, unless asked for
SHADE = 0.45  # how much of a mask's colour lies over the picture


def losses(output: "Output", target: Any) -> "Tensor":
    """The sum of the losses that the detector computed itself; none when it only answered."""
    return sum((output.losses or {}).values(), output.logits.new_zeros(()))


class Precision:
    """Box and mask mAP over all classes, IoU 0.5 to 0.95, in pixels of the files (torchmetrics, faster-coco-eval)."""

    def __init__(self, model: "FlexibleModel") -> None:
        try:
            import faster_coco_eval  # noqa: F401
            from torchmetrics.detection import MeanAveragePrecision
        except ImportError as error:
            raise DataError(
                f"boxes are scored with torchmetrics and faster-coco-eval: {error}.", "pip install 'supple[detect]'"
            ) from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.metric = MeanAveragePrecision(
                iou_type=("bbox", "segm"), backend="faster_coco_eval", iou_thresholds=IOUS, rec_thresholds=RECALLS
            )

    def add(self, output: "Output", target: "Truth") -> None:
        found = [_found(*one) for one in zip(output.logits.cpu(), output.aux["masks"].cpu(), target.originals.cpu())]
        true = [_true(*(part.cpu() for part in one)) for one in zip(*target)]
        self.metric.update(found, true)

    def result(self) -> Result:
        figures = {name: max(0.0, float(value)) for name, value in self.metric.compute().items() if value.dim() == 0}
        score = figures["bbox_map"]
        further = {
            "mask_map": figures["segm_map"],
            "box_ap50": figures["bbox_map_50"],
            "mask_ap50": figures["segm_map_50"],
        }
        return Result(score, 1 - score, further)


def _found(rows: "Tensor", masks: "Tensor", size: "Tensor") -> dict[str, "Tensor"]:
    """What was found in one picture, as torchmetrics wants it."""
    import torch

    from supple.data.detection.batch import paste

    real = rows[:, 4] > 0
    rows, masks = rows[real].float(), masks[real]
    height, width = size.tolist()
    whole = [paste(mask, row[:4], height, width) for mask, row in zip(masks, rows)]
    return {
        "boxes": rows[:, :4],
        "scores": rows[:, 4],
        "labels": rows[:, 5].long(),
        "masks": torch.stack(whole) if whole else torch.zeros(0, height, width, dtype=torch.bool),
    }


def _true(size: "Tensor", boxes: "Tensor", labels: "Tensor", crowd: "Tensor", masks: "Tensor") -> dict[str, "Tensor"]:
    real = labels >= 0
    height, width = size.tolist()
    return {
        "boxes": boxes[real],
        "labels": labels[real],
        "iscrowd": crowd[real].long(),
        "masks": masks[real, :height, :width].expand(-1, height, width),
    }


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(logits: Array, classes: Sequence[str], min_score: float = MIN_SCORE) -> list[Answer]:
    """logits: (batch, objects, 6): x1 y1 x2 y2, score, class; the rows behind the last object are zeros."""
    return [_listed(rows, classes, min_score) for rows in logits.astype(np.float32)]


def _listed(rows: Array, classes: Sequence[str], min_score: float) -> Answer:
    kept = rows[worthy(rows, min_score)]
    names = Counter(classes[int(row[5])] for row in kept)
    listed = ", ".join(f"{count} {name}" for name, count in names.most_common())
    label = f"{len(kept)} {'object' if len(kept) == 1 else 'objects'}: {listed}" if len(kept) else "no objects"
    unsure = rows[worthy(rows, 0.0)]
    if len(unsure) and not len(kept):
        label += f" this sure: at best a {classes[int(unsure[0, 5])]}, {100 * unsure[0, 4]:.0f} %"
    objects = [
        {
            "label": classes[int(row[5])],
            "score": round(float(row[4]), 4),
            "box": [round(side, 1) for side in row[:4].tolist()],
        }
        for row in kept
    ]
    return Answer(label, {}, {"objects": objects})


def worthy(rows: Array, min_score: float) -> Array:
    """Which rows are objects with at least this score."""
    result: Array = (rows[:, 4] > 0) & (rows[:, 4] >= min_score)
    return result


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(
    picture: Array, logits: Array, aux: Mapping[str, Array], classes: Sequence[str], min_score: float = MIN_SCORE
) -> Image.Image:
    """Boxes and masks on their picture, the best on top; every class has its colour."""
    kept = worthy(logits, min_score)
    rows, masks = logits[kept][::-1], aux["masks"][kept][::-1]
    height, width = picture.shape[:2]
    image = Image.fromarray(_shaded(picture, rows, masks))
    pen = ImageDraw.Draw(image)
    line = max(1, round(max(height, width) / 300))
    font = ImageFont.load_default(max(10, round(max(height, width) / 45)))
    for x1, y1, x2, y2, score, label in rows.tolist():
        own = colour(int(label))
        pen.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=own, width=line)
        text = f"{classes[int(label)]} {100 * score:.0f}"
        left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
        across, down = right - left + 6, bottom - top + 6
        x, y = min(max(0, x1), max(0, width - across)), y1 - down if y1 >= down else y1
        pen.rectangle((x, y, x + across, y + down), fill=own)
        pen.text((x + 3 - left, y + 3 - top), text, fill="black", font=font)
    return image


def _shaded(picture: Array, rows: Array, masks: Array) -> Array:
    """The picture with the masks of objects in their colours, the last on top."""
    import torch

    from supple.data.detection.batch import paste

    height, width = picture.shape[:2]
    shaded = picture.astype(np.float32)
    for row, mask in zip(rows, masks):
        inside = paste(torch.from_numpy(mask), torch.from_numpy(row[:4]), height, width).numpy()
        shaded[inside] = (1 - SHADE) * shaded[inside] + SHADE * np.array(colour(int(row[5])), dtype=np.float32)
    return shaded.round().clip(0, 255).astype(np.uint8)


def colour(label: int) -> tuple[int, int, int]:
    """Bright, and far from that of the next label."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1, 0.75, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


BOXES = Task(
    "boxes",
    (
        Metric("box_map", "box mAP", "%"),
        Metric("mask_map", "mask mAP", "%"),
        Metric("box_ap50", "box AP50", "%"),
        Metric("mask_ap50", "mask AP50", "%"),
    ),
    losses,
    answer,
    objectives=("own",),
    meter_of=Precision,
    draw=draw,
    min_score=MIN_SCORE,
    exportable=False,
)
