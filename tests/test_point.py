"""Points are written, read back and compared; text that is no point is refused with a cure."""

import copy
import pickle
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_utilities.core.apply_func import apply_to_collection

from supple.errors import PointError
from supple.model import Output
from supple.point import FULL, Group, Point

COUNTS = st.integers(1, 10**12)
POINTS = st.builds(
    Point,
    exit=st.none() | COUNTS,
    width=st.floats(0, 1, exclude_min=True),
    layers=st.none() | st.lists(COUNTS, min_size=1, max_size=30),
    skip=st.none() | st.floats(0, 1),
)


@settings(deadline=None)
@given(POINTS)
def test_every_point_survives_writing_reading_copying_and_pickling(point: Point) -> None:
    assert Point.parse(str(point)) == point
    assert eval(repr(point), {"Point": Point}) == point
    for copied in (copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert copied == point
        assert type(copied) is Point
        assert hash(copied) == hash(point)


@settings(deadline=None)
@given(POINTS, POINTS)
def test_two_points_are_equal_exactly_when_they_are_written_alike(one: Point, other: Point) -> None:
    assert (one == other) == (str(one) == str(other))


@pytest.mark.parametrize(
    ("text", "point"),
    [
        *((text, FULL) for text in ("full", " full ", "width=1", "width=1.0", "width = 1e0")),
        ("exit=2", Point(exit=2)),
        ("width=0.5,exit=2", Point(exit=2, width=0.5)),
        (" exit = 2 , width=.5 ", Point(exit=2, width=0.5)),
        ("exit=2,width=1", Point(exit=2)),
        ("layers=3-1-7", Point(layers=(3, 1, 7))),
        ("layers=7", Point(layers=[7])),
        ("layers=2-2", Point(layers=(2, 2))),
        ("skip=0", Point(skip=0.0)),
        ("skip=1", Point(skip=1)),
    ],
)
def test_other_spellings_give_the_same_point(text: str, point: Point) -> None:
    assert Point.parse(text) == point


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (FULL, "full"),
        (Point(width=1), "full"),
        (Point(width=0.5, exit=2), "exit=2,width=0.5"),
        (Point(layers=(3, 1, 7)), "layers=3-1-7"),
        (Point(skip=0), "skip=0.0"),  # 0 is a threshold; None is no skipping
    ],
)
def test_points_are_written_in_one_short_form(point: Point, text: str) -> None:
    assert str(point) == text


def test_points_are_hashable_and_frozen() -> None:
    assert {Point(exit=2): "two"}[Point(exit=2, width=1)] == "two"
    assert len({Point(), FULL, Point(width=1), Point(exit=1)}) == 2
    for name in ("exit", "width", "anything"):
        with pytest.raises(AttributeError):
            setattr(Point(exit=2), name, 3)


MALFORMED = [
    *("", " ", ",", "exit", "exit=", "=2", "exit=2,", ",exit=2", "exit=2,,width=1", "exit=2;width=1", "2", "Full"),
    *("full,exit=2", "exit=2 full", "depth=2", "Exit=2", "exit=2,exit=2", "width=1,width=0.5"),
    *("exit=0", "exit=-1", "exit=1.5", "exit=two", "exit==2", "exit=2=3", "exit=1e1", "exit=inf", "exit=None"),
    *("width=0", "width=-0.5", "width=1.01", "width=nan", "width=inf", "width=half", "width=0,5"),
    *("layers=", "layers=0", "layers=1-", "layers=-1", "layers=1--2", "layers=1,2", "layers=1-0", "layers=a-b"),
    *("layers=1.5", "skip=-0.1", "skip=1.1", "skip=nan", "skip=x", "exit=\n", f"exit={'9' * 5000}"),
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: repr(text[:20]))
def test_text_that_is_no_point_is_refused_with_cause_and_cure(text: str) -> None:
    with pytest.raises(PointError) as caught:
        Point.parse(text)
    assert "is no" in caught.value.cause
    assert "exit=2" in caught.value.cure
    assert caught.value.status == 2


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="exitwdhlayrskpfu=,-.0123456789 ", max_size=20) | st.text(max_size=10))
def test_any_text_is_a_point_or_a_point_error(text: str) -> None:
    try:
        point = Point.parse(text)
    except PointError:
        return
    assert Point.parse(str(point)) == point


@pytest.mark.parametrize(
    "fields",
    [
        *({"exit": value} for value in (0, -1, 1.0, "2", True)),
        *({"width": value} for value in (0, -1, 1.5, float("nan"), "0.5", None)),
        *({"layers": value} for value in ((), (0,), (1, -1), (1.0,), "12", [True])),
        *({"skip": value} for value in (-0.1, 1.1, float("nan"), "0.5")),
    ],
    ids=str,
)
def test_a_point_with_a_field_out_of_range_cannot_be_made(fields: dict[str, Any]) -> None:
    with pytest.raises(PointError) as caught:
        Point(**fields)
    assert next(iter(fields)) in caught.value.cause
    assert caught.value.cure


def six_of_twelve(rng: random.Random) -> Point:
    return Point(layers=sorted(rng.sample(range(1, 13), 6)))


def test_a_group_draws_the_same_points_from_the_same_seed_and_only_points() -> None:
    group = Group("any 6 of 12", six_of_twelve)
    draws = [group.sample(rng) for rng in [random.Random(0)] for _ in range(50)]
    assert draws == [group.sample(rng) for rng in [random.Random(0)] for _ in range(50)]
    assert draws != [group.sample(rng) for rng in [random.Random(1)] for _ in range(50)]
    assert len(set(draws)) > 25  # 924 subsets: a distribution, not one point
    for point in draws:
        assert len(set(point.layers)) == 6
        assert Point.parse(str(point)) == point
    assert str(group) == "any 6 of 12"
    with pytest.raises(PointError):  # the name of a group is no point: a ladder tells the two apart by this
        Point.parse(str(group))


def test_wrappers_for_devices_see_through_outputs_and_leave_points_unchanged() -> None:
    """Fabric moves what forward returns with apply_to_collection, which cannot enter frozen dataclasses."""
    points = (Point(exit=2, width=0.5), Point(layers=(3, 1), skip=0.5), FULL)
    outputs = tuple(Output(point, torch.ones(2, 3), aux={"gate": torch.ones(1)}) for point in points)
    moved = apply_to_collection(outputs, torch.Tensor, lambda tensor: tensor + 1)
    assert isinstance(moved, tuple)
    for point, output in zip(points, moved):
        assert output.point == point
        assert type(output.point) is Point
        assert str(output.point) == str(point)
        assert torch.equal(output.logits, torch.full((2, 3), 2.0))
        assert torch.equal(output.aux["gate"], torch.full((1,), 2.0))
    assert torch.equal(outputs[0].logits, torch.ones(2, 3))
