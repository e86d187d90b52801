"""The objectives of IPKD-TA, worked out by hand."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.nn import functional as F
from torch.testing import assert_close

from supple.errors import RecipeError
from supple.losses import distill, distill_objective, restrict, teach_from, teacher_matrix
from supple.model import Output
from supple.point import FULL, Point

# Logits of probabilities (1/2, 1/2), (3/4, 1/4) and (4/5, 1/5).
HALF, THREE, FOUR = tensor([[0.0, 0.0]]), tensor([[log(3), 0.0]]), tensor([[log(4), 0.0]])
LABEL = tensor([0])


def distillation(student, teacher, tau: float = 1.0, kind: str = "kl"):
    """What the teacher adds to the loss: the labels of the student weigh nothing, those of the teacher go off."""
    both = distill([student, teacher], LABEL, teach_from("next", 2), lam=1.0, tau=tau, kind=kind)
    return both - F.cross_entropy(teacher, LABEL)


def kl(p: float, q: float) -> float:
    return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))


def test_teacher_matrices_of_three_points():
    assert teach_from("none", 3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert teach_from("largest", 3).tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert teach_from("next", 3).tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert teach_from("all", 3).tolist() == [[0, 0.5, 0.5], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(("scheme", "terms"), [("none", 0), ("largest", 6), ("next", 6), ("all", 21)])
def test_number_of_distillation_terms_for_seven_exits(scheme, terms):
    matrix = teach_from(scheme, 7)
    assert int((matrix > 0).sum()) == terms
    assert_close(matrix.sum(1), tensor([0.0 if scheme == "none" else 1.0] * 6 + [0.0]))


def test_distill_two_points_by_hand():
    # CE(teacher) = -ln 3/4; CE(student) = ln 2; KL = 3/4 ln(3/2) + 1/4 ln(1/2)
    expected = -log(0.75) + 0.2 * log(2) + 0.8 * (0.75 * log(1.5) + 0.25 * log(0.5))
    assert_close(distill([HALF, THREE], LABEL, teach_from("next", 2), lam=0.8, tau=1), tensor(expected))


@pytest.mark.parametrize(
    ("scheme", "teaching"),
    [
        ("none", None),
        ("largest", kl(0.8, 0.5) + kl(0.8, 0.75)),
        ("next", kl(0.75, 0.5) + kl(0.8, 0.75)),
        ("all", (kl(0.75, 0.5) + kl(0.8, 0.5)) / 2 + kl(0.8, 0.75)),
    ],
)
def test_the_four_objectives_of_three_points_by_hand(scheme, teaching):
    hard = [log(2), -log(0.75), -log(0.8)]
    expected = sum(hard) if teaching is None else hard[2] + 0.2 * (hard[0] + hard[1]) + 0.8 * teaching
    assert_close(distill([HALF, THREE, FOUR], LABEL, teach_from(scheme, 3), lam=0.8), tensor(expected))


def test_kinds_by_hand():
    assert_close(distillation(HALF, THREE, kind="kl"), tensor(kl(0.75, 0.5)))
    assert_close(distillation(HALF, THREE, kind="reverse_kl"), tensor(kl(0.5, 0.75)))
    assert_close(distillation(HALF, THREE, kind="ce"), tensor(log(2)))


def test_temperature_softens_both_sides_and_scales_by_its_square():
    # tau = 2: logits ln 9 / 2 = ln 3, so the teacher (9/10, 1/10) is seen as (3/4, 1/4).
    assert_close(distillation(HALF, tensor([[log(9), 0.0]]), tau=2), tensor(4 * kl(0.75, 0.5)))


def test_label_smoothing_by_hand():
    # Half of 0.2 goes to each class: target (0.9, 0.1).
    expected = -(0.9 * log(0.75) + 0.1 * log(0.25))
    assert_close(distill([THREE], LABEL, teach_from("none", 1), smoothing=0.2), tensor(expected))


def test_no_gradient_reaches_a_teacher_through_its_pupil():
    student, teacher = HALF.clone().requires_grad_(), THREE.clone().requires_grad_()
    for kind in ("kl", "ce", "reverse_kl"):
        gradients = torch.autograd.grad(distillation(student, teacher, kind=kind), [student, teacher])
        assert gradients[0].abs().sum() > 0
        assert not gradients[1].any()


def test_kl_and_ce_have_the_same_gradient_and_reverse_kl_another():
    def gradient(kind: str) -> torch.Tensor:
        student = tensor([[0.3, -0.2, 0.1]], requires_grad=True)
        return torch.autograd.grad(distillation(student, tensor([[1.0, 0.5, -1.0]]), 2.0, kind), student)[0]

    assert_close(gradient("kl"), gradient("ce"))
    assert not torch.allclose(gradient("kl"), gradient("reverse_kl"), atol=1e-3)


logits = st.lists(st.floats(-4, 4), min_size=3, max_size=3).map(lambda row: tensor([row]))


@given(st.lists(logits, min_size=2, max_size=2), st.floats(0, 1), st.floats(0.5, 5))
def test_with_two_points_all_schemes_with_teachers_agree(points, lam, tau):
    values = [distill(points, LABEL, teach_from(s, 2), lam, tau) for s in ("largest", "next", "all")]
    assert_close(values[0], values[1])
    assert_close(values[0], values[2])


@given(st.lists(logits, min_size=1, max_size=4), st.sampled_from(["none", "largest", "next", "all"]))
def test_without_weight_on_the_teachers_it_is_the_sum_of_cross_entropies(points, scheme):
    value = distill(points, LABEL, teach_from(scheme, len(points)), lam=0)
    assert_close(value, sum(F.cross_entropy(point, LABEL) for point in points))


@given(logits, logits, st.floats(0.5, 5))
def test_distillation_is_never_negative_and_zero_for_equals(student, teacher, tau):
    for kind in ("kl", "reverse_kl"):
        assert distillation(student, teacher, tau, kind) >= -1e-5
        assert_close(distillation(student, student, tau, kind), tensor(0.0))


def test_restricting_keeps_rows_summing_to_one_or_zero():
    part = restrict(teach_from("all", 4), [0, 2, 3])  # row 0 was 1/3 each
    assert_close(part, tensor([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    # Point 2's only teacher under "next" is point 3, which is not there: it learns from the labels alone.
    assert restrict(teach_from("next", 4), [0, 1, 3]).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_objective_matches_outputs_by_point_in_any_order():
    points = (Point(exit=1), Point(exit=2), FULL)
    objective = distill_objective(points, teachers="all", lam=0.8)
    outputs = [Output(FULL, FOUR), Output(points[0], HALF), Output(points[1], THREE)]
    assert_close(objective(outputs, LABEL), distill([HALF, THREE, FOUR], LABEL, teach_from("all", 3), 0.8))
    sampled = [Output(FULL, FOUR), Output(points[0], HALF)]
    assert_close(objective(sampled, LABEL), distill([HALF, FOUR], LABEL, teach_from("largest", 2), 0.8))


def test_a_custom_matrix_is_used_as_given():
    rows = ((0.0, 0.25, 0.75), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    objective = distill_objective((Point(exit=1), Point(exit=2), FULL), teachers=rows, lam=1.0)
    outputs = [Output(Point(exit=1), HALF), Output(Point(exit=2), THREE), Output(FULL, FOUR)]
    expected = -log(0.8) + 0.25 * kl(0.75, 0.5) + 0.75 * kl(0.8, 0.5) + kl(0.8, 0.75)
    assert_close(objective(outputs, LABEL), tensor(expected))


@pytest.mark.parametrize(
    "rows", [((0, 1), (0, 0), (0, 0)), ((0, 0.5), (0, 0)), ((0, -1), (0, 0)), ((1, 0), (0, 0)), ((0, 1, 0), (0, 0, 0))]
)
def test_an_invalid_teacher_matrix_is_refused(rows):
    with pytest.raises(RecipeError, match="sums to 1"):
        teacher_matrix(rows, 2)


def test_unknown_schemes_and_kinds_are_refused_with_a_guess():
    with pytest.raises(RecipeError, match="largest"):
        teach_from("larges", 3)
    with pytest.raises(RecipeError, match="reverse_kl"):
        distillation(HALF, THREE, kind="reverse-kl")


def test_weights_scale_each_points_own_loss():
    # Cross-entropies ln 2 and ln 4/3.
    loss = distill([HALF, THREE], LABEL, teach_from("none", 2), weights=[2.0, 0.5])
    assert_close(loss, tensor(2 * log(2) + 0.5 * log(4 / 3)))
    taught = distill([HALF, THREE], LABEL, teach_from("next", 2), lam=0.5, weights=[1.0, 0.0])
    assert_close(taught, tensor(0.5 * log(2) + 0.5 * kl(3 / 4, 1 / 2)))


def test_weights_follow_the_points_that_were_sampled():
    points = [Point(exit=1), Point(exit=2), FULL]
    objective = distill_objective(points, weights=(1.0, 0.0, 3.0))
    outputs = [Output(FULL, HALF), Output(Point(exit=2), HALF)]
    assert_close(objective(outputs, LABEL), tensor(3 * log(2)))
    for bad in ((1.0,), (1.0, -1.0, 1.0), (0.0, 0.0, 0.0)):
        with pytest.raises(RecipeError, match="loss.weights"):
            distill_objective(points, weights=bad)
