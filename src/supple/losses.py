"""Losses are pure functions: tensors in, one tensor out.

The four objectives of IPKD-TA (Ozerov & Duong), eqs. (4)-(7), are one formula with a teacher matrix.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from supple.errors import RecipeError
from supple.model import Output
from supple.point import Point
from supple.tasks import TASKS, get_task
from supple.tasks.count import apart
from supple.text import did_you_mean

Kind = Literal["kl", "ce", "reverse_kl"]
Scheme = Literal["none", "largest", "next", "all"]


def teach_from(scheme: str, n: int) -> Tensor:
    """The n x n teacher matrix: entry [i, j] is how much point j teaches point i; points go from small to large.

    "none": plain joint training, eq. (4). "largest": IPKD, eq. (5). "next": TA-1, eq. (6). "all": TA-M, eq. (7).
    """
    teachers = torch.zeros(n, n)
    if scheme == "largest":
        teachers[: n - 1, n - 1] = 1
    elif scheme == "next":
        teachers.diagonal(1).fill_(1)
    elif scheme == "all":
        for i in range(n - 1):
            teachers[i, i + 1 :] = 1 / (n - 1 - i)
    elif scheme != "none":
        raise RecipeError(f'there are no teachers "{scheme}".', did_you_mean(scheme, get_args(Scheme)))
    return teachers


def teacher_matrix(rows: Sequence[Sequence[float]], n: int) -> Tensor:
    """A custom teacher matrix, checked: n x n, no negative entry, nobody teaches itself, rows sum to 1 or to 0."""
    cure = "Each row says who teaches that point and sums to 1, or to 0 for a point without a teacher."
    if len(rows) != n or any(len(row) != n for row in rows):
        raise RecipeError(f"loss.teachers has {len(rows)} rows of {[len(row) for row in rows]}, not {n} x {n}.", cure)
    teachers = torch.tensor(rows, dtype=torch.float32)
    sums = teachers.sum(1)
    if (teachers < 0).any() or teachers.diagonal().any() or not (((sums - 1).abs() < 1e-4) | (sums == 0)).all():
        raise RecipeError(f"loss.teachers {teachers.tolist()} is not a valid teacher matrix.", cure)
    return teachers


def restrict(teachers: Tensor, indices: Sequence[int]) -> Tensor:
    """The teacher matrix of some of the points only, its rows made to sum to 1 again (or 0: nobody left to teach)."""
    part = teachers[list(indices)][:, list(indices)]
    sums = part.sum(1, keepdim=True)
    return torch.where(sums > 0, part / sums.clamp_min(1e-12), part)


def _apart(log_student: Tensor, log_teacher: Tensor, kind: str) -> Tensor:
    """How far a student is from a teacher, eq. (2), from log-probabilities: mean over the batch, teachers detached.

    "kl": KL(teacher || student); "ce": the cross-entropy (the same gradient); "reverse_kl": KL(student || teacher), as
    eq. (2) is printed.
    """
    log_teacher = log_teacher.detach()
    if kind == "kl":
        return F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
    if kind == "ce":
        return -(log_teacher.exp() * log_student).sum(1).mean()
    if kind == "reverse_kl":
        return F.kl_div(log_teacher, log_student, reduction="batchmean", log_target=True)
    raise RecipeError(f'there is no distillation kind "{kind}".', did_you_mean(kind, get_args(Kind)))


def distill(
    logits: Sequence[Tensor],
    target: Tensor,
    teachers: Tensor,
    lam: float = 0.8,
    tau: float = 1.0,
    kind: str = "kl",
    smoothing: float = 0.0,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """In-place distillation among nested points, eqs. (4)-(7) of Ozerov & Duong.

    logits[i] belongs to point i, smallest first; target: a class for each sample, or a row of shares of the classes.
    teachers[i, j] is how much point j teaches point i; each row sums to 1, or to 0 for a point without a teacher, which
    learns from the labels alone. IPKD, TA-1 and TA-M differ only in this matrix: see `teach_from`. The points' losses
    are summed, not averaged, each times its weight (None: all 1). `smoothing` softens the labels.

    Departure: (1) and (2) print the student as the first argument, which would put the logarithm on a one-hot label.
    We read both with the target first, so (2) is KL(teacher || student). Teachers are detached. As usual, a divergence
    at the temperature tau counts tau^2 times, so that its gradient does not shrink.
    """
    total = logits[0].new_zeros(())
    matrix = teachers.tolist()
    soft = [F.log_softmax(one / tau, dim=1) for one in logits] if any(map(any, matrix)) else []
    for i, student in enumerate(logits):
        taught = sum(matrix[i]) > 0
        hard = F.cross_entropy(student, target, label_smoothing=smoothing)
        share = 1.0 if weights is None else weights[i]
        total = total + share * ((1 - lam) * hard if taught else hard)
        for j, weight in enumerate(matrix[i]):
            if weight:
                total = total + share * lam * weight * tau**2 * _apart(soft[i], soft[j], kind)
    return total


Objective = Callable[[Sequence[Output], Any], Tensor]


def distill_objective(
    points: Sequence[Point],
    *,
    teachers: Scheme | tuple[tuple[float, ...], ...] = "none",  # who teaches whom: a scheme, or one row per point
    lam: float = 0.8,  # weight of the teachers against the labels
    tau: float = 1.0,  # temperature
    kind: Kind = "kl",  # how far a student is from its teacher
    smoothing: float = 0.0,  # label smoothing of the hard part
    weights: tuple[float, ...] = (),  # of each point's loss, cheapest first; none given: all 1
    warmup: float = 0.0,  # epochs over which lam rises from 0, while the teachers learn
    epoch: float = math.inf,  # how many are over
) -> Objective:
    """Cross-entropy of every point and, if wanted, distillation from larger points to smaller ones.

    Outputs of all or some of `points` are matched by point. Where another point is among them (one that was drawn),
    they are taken as they come, cheapest first: a scheme is applied to just these, other teachers to none.
    """
    if not 0 <= lam <= 1 or tau <= 0 or not 0 <= smoothing < 1 or warmup < 0:
        cure = "lam lies in 0..1, tau is above 0, smoothing in 0..1 (below 1), warmup not below 0."
        raise RecipeError(
            f"loss.lam={lam}, loss.tau={tau}, loss.smoothing={smoothing}, loss.warmup={warmup}: out of range.", cure
        )
    n = len(points)
    check_weights(weights, n)
    matrix = teach_from(teachers, n) if isinstance(teachers, str) else teacher_matrix(teachers, n)
    places = {point: i for i, point in enumerate(points)}
    lam *= min(1.0, epoch / warmup) if warmup else 1.0

    def objective(outputs: Sequence[Output], target: Tensor) -> Tensor:
        if any(output.point not in places for output in outputs):
            drawn = teach_from(teachers if isinstance(teachers, str) else "none", len(outputs))
            return distill([o.logits.float() for o in outputs], target, drawn, lam, tau, kind, smoothing)
        ordered = sorted(outputs, key=lambda output: places[output.point])
        chosen = [places[output.point] for output in ordered]
        shares = [weights[place] for place in chosen] if weights else None
        logits = [output.logits.float() for output in ordered]
        return distill(logits, target, restrict(matrix, chosen), lam, tau, kind, smoothing, shares)

    return objective


def count_objective(
    points: Sequence[Point],
    *,
    weights: tuple[float, ...] = (),  # of each point's loss, cheapest first; none given: all 1
) -> Objective:
    """How many heads a point is off, in the mean (MAE), summed over the points (SL-ViT, sections 4.2 and 4.3)."""
    check_weights(weights, len(points))
    share = dict(zip(points, weights))

    def objective(outputs: Sequence[Output], target: Any) -> Tensor:
        each = [share.get(output.point, 1.0) * apart(output, target).mean() for output in outputs]
        return torch.stack(each).sum()

    return objective


def density_objective(points: Sequence[Point]) -> Objective:
    """Half the squared distance of a map from the true one, in the mean over the pictures (L2, as CSRNet writes it)."""

    def objective(outputs: Sequence[Output], target: Any) -> Tensor:
        for output in outputs:
            if output.logits.shape != target.density.shape:
                cause = f"loss.name is density, but the point {output.point} gives no map of the picture's size."
                raise RecipeError(cause, "Set backbone.readout=density and method static, or use loss.name=count.")
        each = [(o.logits.float() - target.density).square().flatten(1).sum(1).mean() / 2 for o in outputs]
        return torch.stack(each).sum()

    return objective


def own_objective(points: Sequence[Point]) -> Objective:
    """The sum of all losses that the model computes itself (detectors), over all points."""

    def objective(outputs: Sequence[Output], target: Any) -> Tensor:
        losses = [loss for output in outputs for loss in (output.losses or {}).values()]
        if not losses:
            raise RecipeError("loss own needs a model with losses of its own.", "Use a detector, or loss.name=distill.")
        return torch.stack(losses).sum()

    return objective


def check_weights(weights: Sequence[float], n: int) -> None:
    if weights and (len(weights) != n or min(weights) < 0 or max(weights) <= 0):
        raise RecipeError(f"loss.weights is {weights} for {n} points.", "Give one weight per point, none below 0.")


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "distill": distill_objective,
    "count": count_objective,
    "density": density_objective,
    "own": own_objective,
}


def usual_loss(task: str) -> str:
    """The loss of a task that a model is trained for without a recipe."""
    return get_task(task).objectives[0]


def make_objective(loss: Mapping[str, Any], points: Sequence[Point], task: str, epoch: float = math.inf) -> Objective:
    """The objective of a recipe's `loss` section, for models of a task. One that no task declares trains any task.

    epoch: how many are over, for those that change with it.
    """
    name = loss["name"]
    declaring = [other.name for other in TASKS.values() if name in other.objectives]
    if declaring and task not in declaring:
        raise RecipeError(
            f"loss.name is {name}, which is for {' or '.join(declaring)}, but the task of these data is {task}.",
            f"Set loss.name={' or '.join(get_task(task).objectives) or 'one of your own'}.",
        )
    make = OBJECTIVES[name]
    when = {"epoch": epoch} if "epoch" in inspect.signature(make).parameters else {}
    return make(points, **{key: value for key, value in loss.items() if key != "name"}, **when)
