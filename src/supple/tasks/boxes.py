"""What lies where: boxes, classes and masks of objects, scored by COCO's mean average precision."""

import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supple.errors import DataError
from supple.model import FlexibleModel, Output
from supple.scenes import Truth, paste
from supple.tasks.task import Result, Task, Told

# COCO's own, in double precision: torchmetrics' defaults are rounded, and a recall of 3 in 5 falls short of 0.6.
IOUS = np.linspace(0.5, 0.95, 10).tolist()
RECALLS = np.linspace(0, 1, 101).tolist()
TOLD = 0.3  # objects with a lower score are neither told nor drawn, unless asked for


def losses(output: Output, target: Any) -> Tensor:
    """The sum of the losses that the detector computed itself; none when it only answered."""
    return sum((output.losses or {}).values(), output.logits.new_zeros(()))


class Precision:
    """Box and mask mAP over all classes, IoU 0.5 to 0.95, in pixels of the files (torchmetrics, faster-coco-eval)."""

    def __init__(self, model: FlexibleModel) -> None:
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

    def add(self, output: Output, target: Truth) -> None:
        found = [_found(*one) for one in zip(output.logits.cpu(), output.aux["masks"].cpu(), target.originals.cpu())]
        true = [_true(*(part.cpu() for part in one)) for one in zip(*target)]
        self.metric.update(found, true)

    def result(self) -> Result:
        figures = {name: max(0.0, float(value)) for name, value in self.metric.compute().items() if value.dim() == 0}
        score = figures["bbox_map"]
        also = {
            "mask_map": figures["segm_map"],
            "box_ap50": figures["bbox_map_50"],
            "mask_ap50": figures["segm_map_50"],
        }
        return Result(score, 1 - score, also)


def _found(rows: Tensor, masks: Tensor, size: Tensor) -> dict[str, Tensor]:
    """What was found in one picture, as torchmetrics wants it."""
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


def _true(size: Tensor, boxes: Tensor, labels: Tensor, crowd: Tensor, masks: Tensor) -> dict[str, Tensor]:
    real = labels >= 0
    height, width = size.tolist()
    return {
        "boxes": boxes[real],
        "labels": labels[real],
        "iscrowd": crowd[real].long(),
        "masks": masks[real, :height, :width].expand(-1, height, width),
    }


def told(model: FlexibleModel, output: Output, least: float = TOLD) -> list[tuple[str, float, list[float], Tensor]]:
    """The objects of the first picture worth telling, best first: name, score, box, mask."""
    rows = output.logits[0].float().cpu()
    masks = output.aux["masks"][0].float().cpu()
    return [
        (model.classes[int(row[5])], float(row[4]), row[:4].tolist(), mask)
        for row, mask in zip(rows, masks)
        if row[4] > 0 and row[4] >= least  # the rows behind the last object are zeros
    ]


def tell(model: FlexibleModel, output: Output, least: float = TOLD) -> Told:
    objects = told(model, output, least)
    names = Counter(name for name, *_ in objects)
    listed = ", ".join(f"{count} {name}" for name, count in names.most_common())
    word = "object" if len(objects) == 1 else "objects"
    label = f"{len(objects)} {word}: {listed}" if objects else "no objects"
    if not objects and (unsure := told(model, output, 0.0)):
        label += f" this sure: at best a {unsure[0][0]}, {100 * unsure[0][1]:.0f} %"
    rows = [
        {"label": name, "score": round(score, 4), "box": [round(side, 1) for side in box]}
        for name, score, box, _ in objects
    ]
    return Told(label, {}, {"objects": rows})


def draw(model: FlexibleModel, output: Output, file: Path, least: float = TOLD) -> Image.Image:
    from supple.tasks.drawing import drawn

    return drawn(model.preprocess.open(file), told(model, output, least), model.classes)


def boxes(least: float = TOLD) -> Task:
    """The task whose answers have the objects with at least this score."""
    return Task(
        "box_map",
        True,
        losses,
        partial(tell, least=least),
        meter_of=Precision,
        draw=partial(draw, least=least),
        above=boxes,
    )


BOXES = boxes()
