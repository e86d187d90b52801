"""What `supple demo` shows of a network: its stored scores over times of this machine, and answers at three deadlines.

The pictures that come with supple are drawn by benchmarks/sample_pictures.py (CC0 1.0); the page of the server shows
them too.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supple import checkpoint
from supple.errors import DataError
from supple.inference.compare import time_model
from supple.inference.inputs import parts_of
from supple.inference.predictor import AROUND_MS, Predictor
from supple.inference.request import Piped, Refusal
from supple.inference.result import Prediction
from supple.inference.select import of_model
from supple.ladder import Ladder
from supple.model import FlexibleModel
from supple.reporting import write_report

SAMPLES = Path(__file__).parent / "server" / "page" / "samples"
ROUNDS, SECONDS = 100, 5.0  # that timing the points takes at most
SHARE = 0.8  # of the way from the first exit to the second: the shortest deadline
SPARE = 1.4  # times what the full network usually takes: the longest deadline

Given = Path | Piped


@dataclass(frozen=True)
class Shown:
    """A network on this machine, and what it said of some pictures."""

    ladder: Ladder  # stored scores, times measured now
    deadlines_ms: tuple[float, ...]  # for the network alone, shortest first
    answers: tuple[tuple[Prediction, ...], ...]  # of every picture that could be read, one for each deadline
    refused: tuple[Refusal, ...]  # the pictures that could not be
    reading_ms: float | None  # what reading a picture and making it an input takes; None: there was none


def samples(classes: Sequence[str], folder: Path) -> list[Path]:
    """Copies of those drawings that show one of these classes, which is their name."""
    found = [path for path in sorted(SAMPLES.glob("*.png")) if path.stem in classes]
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(path, folder / path.name)) for path in found]


def show(
    model: FlexibleModel,
    folder: Path,
    pictures: Sequence[Given],
    threads: int,
    on_progress: Callable[[int], None] | None = None,
) -> Shown:
    """Times every point of a run with exits, draws the curve into its folder, and answers pictures at three deadlines.
    `on_progress` counts rounds of timing, of ROUNDS."""
    how: dict[str, Any] = {"rounds": ROUNDS, "seconds": SECONDS, "on_progress": on_progress}
    timed = time_model(model, batch=1, threads=threads, **how)
    checkpoint.save_ladder(folder, model.ladder)
    write_report(folder)
    answers, refused, spent = [], [], []
    with of_model(model, threads) as made:
        made.warm()
        deadlines = deadlines_of(usual_ms(made))
        for picture in pictures:
            began = time.perf_counter()
            try:
                x = made.preprocess.arrays(picture)
            except DataError as error:
                refused.append(Refusal.of(picture, error))
                continue
            spent.append(1000 * (time.perf_counter() - began))
            answers.append(tuple(_answer(made, picture, x, ms) for ms in deadlines))
    return Shown(timed, deadlines, tuple(answers), tuple(refused), statistics.median(spent) if spent else None)


def _answer(made: Predictor, picture: Given, x: tuple[object, ...], deadline_ms: float) -> Prediction:
    assert len(x) == len(parts_of(made.shape))
    (found,) = made.predict(x, deadline_ms=deadline_ms)  # type: ignore[misc]
    return replace(found, file=str(picture))


def usual_ms(made: Predictor) -> list[float]:
    """What it usually takes to every exit in turn: the medians of what was measured when the predictor was opened."""
    total, found = AROUND_MS, []
    for k, stage in enumerate(made.stages):
        total += 0.0 if stage.body is None else made.latency.usual_ms(("body", k, 1))
        if stage.point is not None:
            total += made.latency.usual_ms(("head", k, 1))
            found.append(total)
    return found


def deadlines_of(usual_ms: Sequence[float]) -> tuple[float, ...]:
    """Three deadlines: one that leaves time for the first exit but not for the second, one for all of them even on a
    machine that is a little busy, and one halfway between. A single one where there is a single exit."""
    ends = [SPARE * usual_ms[-1]]
    if len(usual_ms) > 1:
        shortest = usual_ms[0] + SHARE * (usual_ms[1] - usual_ms[0])
        ends = [shortest, (shortest + ends[0]) / 2, *ends]
    return tuple(float(f"{ms:.3g}") for ms in ends)
