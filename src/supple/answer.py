"""Answers for image or sound files: choose the point, decode, run, say which point ran and why."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from supple.cost import profile
from supple.data.decode import decode
from supple.early import run_policy
from supple.errors import DataError
from supple.ladder import Ladder
from supple.machine import machine
from supple.model import FlexibleModel, Output
from supple.point import FULL, Point
from supple.policies import Confident, choose_point
from supple.request import Refusal
from supple.runtime.answers import Prediction
from supple.runtime.measure import time_into
from supple.tasks import get_task


@torch.inference_mode()
def classify(
    model: FlexibleModel,
    files: Iterable[Path],
    *,
    asked: Point | None = None,
    deadline_ms: float | None = None,
    budget_macs: float | None = None,
    policy: Confident | None = None,
    min_score: float | None = None,
    draw: Callable[[Path, Image.Image], None] | None = None,
) -> Iterator[Prediction | Refusal]:
    """One answer per file, in order; a file that cannot be read is refused.

    With a policy each file stops at the first point that is sure, for the reason `confident`. What no point is sure of
    is answered by the policy's last one: the full model, for the reason `full`, or the deepest that its budget allows,
    for the reason `budget`. Scores are at the point's temperature. `min_score`: where the task lists what it finds,
    only what scores this much. `draw` is given each file with its answer drawn on it, where the task can draw; the time
    is then already taken.
    """
    ladder: Ladder = model.ladder if len(model.ladder) else Ladder(profile(model))
    key: dict[str, Any] = {"engine": "torch", "precision": "fp32"}
    task = get_task(model.task)
    options = {} if min_score is None or task.min_score is None else {"min_score": min_score}
    if deadline_ms is not None:
        key |= {"machine": machine(), "batch": 1, "threads": torch.get_num_threads()}
        ladder = timed_here(model, key)
    warm_up(model)
    for file in files:
        start = time.perf_counter()
        try:
            x = model.preprocess.input(file)
            # Decoding has used up part of the deadline: the point is chosen for what is left.
            left = None if deadline_ms is None else deadline_ms - 1000 * (time.perf_counter() - start)
            if policy is None:
                point, reason = choose_point(ladder, asked=asked, deadline_ms=left, budget_macs=budget_macs, **key)
                output = next(model.run(x, (point,)))
            else:
                output, reason = _stopped(model, x, policy)
                point = output.point
        except DataError as error:  # unreadable, or something that the point needs is not there
            yield Refusal.of(file, error)
            continue
        logits = output.logits.float().cpu().numpy()
        [(label, scores, details)] = task.answer(logits, model.classes, **options)
        elapsed = 1000 * (time.perf_counter() - start)
        in_time = None if deadline_ms is None else elapsed <= deadline_ms
        within = None if budget_macs is None else _ceiling(ladder, point) <= budget_macs
        if draw is not None and task.draw is not None:
            try:
                aux = {name: value[0].float().cpu().numpy() for name, value in output.aux.items()}
                picture = decode(file, model.preprocess.max_pixels)
                draw(file, task.draw(picture, logits[0], aux, model.classes, **options))
            except DataError as error:
                yield Refusal.of(file, error)
        yield Prediction(
            label, scores, str(point), reason, elapsed, in_time, within, details, file=str(file), logits=logits[0]
        )


def _stopped(model: FlexibleModel, x: Any, policy: Confident) -> tuple[Output, str]:
    """The output of the first point that is sure, at its temperature, and the reason why it is that one."""
    stopped = run_policy(model, x, policy)
    place = int(stopped.exits[0])
    point = policy.points[place]
    left_over = place == len(policy.thresholds) and place > 0
    reason = "full" if point == FULL else "budget" if left_over else "confident"
    return Output(point, stopped.logits / policy.temperatures[place]), reason


def _ceiling(ladder: Ladder, point: Point) -> float:
    return next((row.ceiling or 0 for row in ladder if row.point == str(point)), 0)


def warm_up(model: FlexibleModel) -> None:
    """Decodes and runs a small file of nothing at every point: the first of everything pays for set-up."""
    for _ in model.run(model.preprocess.blank(), model.points):
        pass


def timed_here(model: FlexibleModel, key: dict[str, Any]) -> Ladder:
    """The model's ladder with times of this machine; measured now, briefly, if `supple bench` has not run here."""
    timed = {row.point for row in model.ladder.where(**key) if row.p95_ms is not None}
    if timed.issuperset(map(str, model.points)):
        return model.ladder
    ladder = Ladder(model.ladder)
    time_into(ladder, model, list(model.points), batch=1, threads=key["threads"], rounds=15, seconds=3)
    return ladder
