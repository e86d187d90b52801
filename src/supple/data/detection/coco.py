"""COCO: pictures with boxes and masks, listed in json files. A folder or a zip of one, only read, never written to.

`images/` with `annotations/train.json` and `val.json`, or COCO's own names (`train2017/`, `instances_train2017.json`).
`val.json` is the test part; validation pictures are taken from the training pictures.
"""

import json
import math
from typing import Any

import torch

from supple.data._io.decode import SUFFIXES
from supple.data._io.paths import Source, files_below, read_bytes, wanted
from supple.data.detection.dataset import Picture, Pictures
from supple.data.detection.masks import check
from supple.errors import DataError
from supple.text import say

PARTS = {"train": ("train.json", "instances_train2017.json"), "val": ("val.json", "instances_val2017.json")}
LAYOUT = "Expected images/ and annotations/train.json and val.json, or COCO's own names."
SLACK = 1.0  # pixels that a box may lie outside its picture: rounding
THINNEST = 0.01  # pixels of a box's side


def coco(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    skip_broken: bool = False,  # leave out objects that cannot be right, such as boxes without area
) -> Pictures:
    """COCO: pictures with boxes and masks of objects.

    The pictures of each part in the order of their files. Broken objects (a box without area or outside its picture,
    or no outline) are refused, or left out.
    """
    place = wanted(root, "coco", f"Set data.root to a folder or a zip. {LAYOUT}")
    lists, _ = files_below(place, (".json",))
    images, _ = files_below(place, SUFFIXES)
    found = {part: [path for path in lists if path[-1] in names] for part, names in PARTS.items()}
    for part, paths in found.items():
        if len(paths) != 1:
            seen = "none" if not paths else " and ".join("/".join(path) for path in sorted(paths))
            raise DataError(f"{place}: of {' and '.join(PARTS[part])} there must be one; found: {seen}.", LAYOUT)
    documents = {part: _document(lists[path], f"{place}/{'/'.join(path)}") for part, [path] in found.items()}
    categories = {part: _categories(document, where) for part, (document, where) in documents.items()}
    if categories["train"] != categories["val"]:
        raise DataError(f"{place}: the categories of train and val differ.", "Give both files the same categories.")
    numbers = {number: label for label, number in enumerate(categories["train"])}
    by_name: dict[str, dict[tuple[str, ...], Source]] = {}
    for path, source in images.items():
        by_name.setdefault(path[-1], {})[path] = source
    parts, broken = {}, 0
    for part, (document, where) in documents.items():
        sources = _sources(document, where, by_name, part)
        objects, bad = _objects(document, where, sources, numbers, skip_broken)
        parts[part] = [_picture(entry, source, objects[number]) for number, (entry, source) in sources.items()]
        broken += bad
    if not any(len(one.labels) for one in parts["train"]):
        cause = f"{root}: no picture to train on has an object{', the broken ones left out' if broken else ''}."
        raise DataError(cause, "List objects with bbox, category_id and segmentation in the json of train.")
    if broken:
        say(f"{root}: {broken} broken objects were left out (data.skip_broken)")
    return Pictures(parts["train"], parts["val"], tuple(categories["train"].values()))


def _document(source: Source, where: str) -> tuple[dict[str, Any], str]:
    try:
        document = json.loads(read_bytes(source))
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{where} is not valid JSON: {problem}.", "Restore it.") from None
    for key in ("images", "annotations", "categories"):
        entries = document.get(key) if isinstance(document, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f'{where} has no list "{key}".', "Give a json of COCO objects: instances, not captions.")
        ids = [entry.get("id") for entry in entries]
        if not all(isinstance(one, int) for one in ids):
            raise DataError(f'{where}: an entry of "{key}" has no whole number as its id.', "Give each an id.")
        if len(set(ids)) < len(ids):
            twice = next(one for place, one in enumerate(ids) if one in set(ids[:place]))
            raise DataError(f'{where}: the id {twice} stands twice in "{key}".', "Ids must be unique: renumber them.")
    return document, where


def _categories(document: dict[str, Any], where: str) -> dict[int, str]:
    """Names by the file's own numbers, in their order."""
    names = {entry["id"]: str(entry.get("name", entry["id"])) for entry in document["categories"]}
    if not names:
        raise DataError(f"{where} has no categories.", "List them: {id, name}.")
    if len(set(names.values())) < len(names):
        raise DataError(f"{where} has two categories of one name.", "Give each a name of its own.")
    return dict(sorted(names.items()))


def _sources(
    document: dict[str, Any], where: str, by_name: dict[str, dict[tuple[str, ...], Source]], part: str
) -> dict[int, tuple[dict[str, Any], Source]]:
    """The file of each picture, in the order of their names."""
    found: dict[int, tuple[dict[str, Any], Source]] = {}
    seen, missing = set(), []
    for entry in sorted(document["images"], key=lambda entry: str(entry.get("file_name"))):
        name, sides = entry.get("file_name"), (entry.get("width"), entry.get("height"))
        if not isinstance(name, str) or not all(isinstance(side, int) and side > 0 for side in sides):
            raise DataError(f"{where}: picture {entry['id']} has no file_name, width and height.", "Add them.")
        if name in seen:
            raise DataError(f"{where}: the picture {name} is listed twice.", "List every picture once.")
        seen.add(name)
        candidates = by_name.get(name.split("/")[-1], {})
        fitting = [path for path in candidates if path[-name.count("/") - 1 :] == tuple(name.split("/"))]
        own = [path for path in fitting if any(step.startswith(part) for step in path[:-1])] or fitting
        if own:
            found[entry["id"]] = entry, candidates[min(own, key=len)]
        else:
            missing.append(name)
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(f"{where} lists {missing[0]}{more}, which is not there.", "Add the pictures, or unlist them.")
    if not found:
        raise DataError(f"{where} lists no pictures.", LAYOUT)
    return found


Object = tuple[list[float], int, bool, Any]  # box, label, crowd, outline


def _objects(
    document: dict[str, Any],
    where: str,
    sources: dict[int, tuple[dict[str, Any], Source]],
    numbers: dict[int, int],
    skip_broken: bool,
) -> tuple[dict[int, list[Object]], int]:
    objects: dict[int, list[Object]] = {number: [] for number in sources}
    broken = 0
    for entry in document["annotations"]:
        which = f"{where}: object {entry['id']}"
        number, category = entry.get("image_id"), entry.get("category_id")
        if not isinstance(number, int) or number not in sources:
            raise DataError(f"{which} is in picture {number}, which is not listed.", "List the picture, or remove it.")
        if not isinstance(category, int) or category not in numbers:
            raise DataError(f"{which} has the unknown category {category}.", "List it in categories, or correct it.")
        about = sources[number][0]
        try:
            box = _box(entry.get("bbox"), about["height"], about["width"])
            outline = check(entry.get("segmentation"), about["height"], about["width"])
        except (ValueError, TypeError, OverflowError) as problem:
            if not skip_broken:
                raise DataError(
                    f"{which} in {about['file_name']} is broken: {problem}.",
                    "Correct or remove it, or leave such objects out: data.skip_broken=true.",
                ) from None
            broken += 1
            continue
        objects[number].append((box, numbers[category], bool(entry.get("iscrowd", 0)), outline))
    return objects, broken


def _box(given: Any, height: int, width: int) -> list[float]:
    """x1 y1 x2 y2 from x y width height; ValueError says what is wrong with it."""
    if not isinstance(given, list) or len(given) != 4 or not all(isinstance(side, int | float) for side in given):
        raise ValueError(f"its bbox is {given}, not [x, y, width, height]")
    x, y, across, down = map(float, given)
    if not all(map(math.isfinite, (x, y, across, down))) or across <= 0 or down <= 0:
        raise ValueError(f"its box {given} has no area")
    if x < -SLACK or y < -SLACK or x + across > width + SLACK or y + down > height + SLACK:
        raise ValueError(f"its box {given} lies outside the picture of {width} x {height} pixels")
    box = [max(0.0, x), max(0.0, y), min(float(width), x + across), min(float(height), y + down)]
    if box[2] - box[0] < THINNEST or box[3] - box[1] < THINNEST:
        raise ValueError(f"its box {given} has no area inside the picture of {width} x {height} pixels")
    return box


def _picture(entry: dict[str, Any], source: Source, objects: list[Object]) -> Picture:
    boxes, labels, crowd, outlines = zip(*objects) if objects else ((), (), (), ())
    return Picture(
        source,
        entry["file_name"],
        entry["height"],
        entry["width"],
        torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        torch.tensor(labels, dtype=torch.long),
        torch.tensor(crowd, dtype=torch.bool),
        tuple(outlines),
    )
