"""What merging tokens costs in accuracy and saves in time, without any training: DeiT-Tiny on ImageNet's pictures.

    python benchmarks/token_merging.py --weights deit_tiny_patch16_224.safetensors --pictures ILSVRC2012_img_val_subset
        [--tokens 1,2,...] [--limit N] [--rounds 50] [--threads 2] [--results DIR]

--pictures: a folder of class folders that are called by the numbers of the classes. All of them are scored; batches of
1 and 16 are timed in PyTorch and, exported, on ONNX Runtime, all points in turn inside this process. Prints a Markdown
table, and writes token_merging.json into --results.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import supple
from supple import files
from supple.data.classification.folder import folder
from supple.data.images import ImageSet
from supple.data.parts import Part, labelled
from supple.data.preprocess import Preprocess
from supple.exporting.write import Held, Wanted, export
from supple.inference.bundle import open_bundle
from supple.inference.compare import compare
from supple.inference.predictor import Predictor
from supple.inference.select import Choice, of_bundle, of_model
from supple.machine import machine, versions
from supple.methods.merge_tokens import MergeTokens
from supple.scoring import evaluate

NETWORK, SIZE = "deit_tiny_patch16_224", 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TOKENS = (1, 2, 4, 6, 8, 10, 12, 13, 16)
BATCHES = (1, 16)
MOST_LOST = 1.0  # percentage points: points that lose no more are named
Times = dict[str, dict[str, float]]  # of a point: by engine and batch


def pictures(root: str, limit: int | None) -> ImageSet:
    """All pictures of a folder, as one set; with a limit, so many that are spread evenly over the classes."""
    found = folder(root=root)
    part = joined(found.train, found.test)
    if limit is not None:
        part = part.pick(torch.linspace(0, len(part) - 1, min(limit, len(part))).long())
    prepared = Preprocess(SIZE, 3, MEAN, STD, crop_share=0.9, interpolation="bicubic")
    return ImageSet(part, found.classes, prepared)


def joined(first: Part, second: Part) -> Part:
    """Two parts as one, ordered by class."""
    sources, labels = [*first.images, *second.images], torch.cat([first.targets, second.targets])
    order = sorted(range(len(sources)), key=lambda place: (int(labels[place]), str(sources[place])))
    return labelled([sources[place] for place in order], labels[order])


def timed(model: MergeTokens, data: ImageSet, rounds: int, threads: int) -> tuple[dict[str, Times], list[str]]:
    """Times of every point on every engine, and what could not be exported."""
    made: list[tuple[Choice, Predictor]] = [(Choice("torch"), of_model(model, threads))]
    remarks, found = [], {str(point): Times() for point in model.points}
    with tempfile.TemporaryDirectory() as place:
        try:
            export(model, "", Path(place, "onnx"), Wanted("onnx", chain=False), Held(val=data))
            bundle = open_bundle(Path(place, "onnx"))
            made.append((Choice("onnxruntime", bundle), of_bundle(bundle, "onnxruntime", threads)))
        except supple.SuppleError as error:
            remarks.append(f"not exported: {error.cause}")
        for batch in BATCHES:
            for row in compare(made, batch=batch, threads=threads, rounds=rounds, seconds=600.0):
                found[row.point][f"{row.engine} {batch}"] = {"p50_ms": row.p50_ms or 0.0, "p95_ms": row.p95_ms or 0.0}
        for _, one in made:
            one.close()
    return found, remarks


def table(document: dict[str, Any]) -> str:
    """Accuracy and time of every point, against the full model."""
    points = document["points"]
    full = next(point for point in points if point["point"] == "full")
    ways = sorted({way for point in points for way in point["times"]}, key=lambda way: (way.split()[1] == "16", way))
    head = "".join(f" {engine}, batch {batch}: ms | share |" for engine, batch in map(str.split, ways))
    lines = [f"| r | accuracy | points lost | MMACs |{head}", "|---|---|---|---|" + "---|---|" * len(ways)]
    for point in sorted(points, key=lambda point: -point["macs"]):
        lost = 100 * (full["accuracy"] - point["accuracy"])
        cells = [point["point"].removeprefix("tokens=").replace("full", "0"), f"{100 * point['accuracy']:.2f} %"]
        cells += [f"{lost:+.2f}", f"{point['macs'] / 1e6:.0f}"]
        for way in ways:
            ms, whole = (one["times"].get(way, {}).get("p50_ms") for one in (point, full))
            cells += ["-", "-"] if not ms or not whole else [f"{ms:.1f}", f"{ms / whole:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    kept = [p["point"] for p in points if p is not full and 100 * (full["accuracy"] - p["accuracy"]) <= MOST_LOST]
    remark = f"At most {MOST_LOST:g} point less than the full model: {', '.join(kept) or 'none'}."
    return "\n".join([*lines, "", remark, *document["remarks"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--pictures", required=True)
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--limit", type=int, help="so many pictures only")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tokens = tuple(map(int, given.tokens.split(",")))
    model = supple.merge_tokens(NETWORK, tokens=tokens, weights=given.weights).eval()
    data = pictures(given.pictures, given.limit)
    model.classes, model.preprocess = data.classes, data.preprocess
    costs = {row.point: row.macs for row in supple.profile(model)}
    scores = {score.name: score.score for score in evaluate(model, data, batch_size=50)}
    times, remarks = timed(model, data, given.rounds, given.threads)
    rows = [
        {"point": name, "accuracy": scores[name], "macs": costs[name], "times": times[name]}
        for name in map(str, model.points)
    ]
    facts = {"network": NETWORK, "n": len(data), "threads": given.threads, "machine": machine(), "versions": versions()}
    document = {**facts, "points": rows, "remarks": remarks}
    files.write(given.results / "token_merging.json", json.dumps(document, indent=1))
    print(f"{machine()}, {given.threads} threads; {NETWORK}, {len(data):,} pictures\n\n{table(document)}")


if __name__ == "__main__":
    main()
