"""Points are written, read back and compared; text that is no point is refused with a cure."""

import copy
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_utilities.core.apply_func import apply_to_collection

from supple.errors import PointError
from supple.methods.exits import Exits
from supple.model import Output
from supple.point import FIELDS, FULL, Field, Group, Point, add_field
from test_model import TwoTensors

COUNTS = st.integers(1, 10**12)
POINTS = st.builds(
    Point,
    exit=st.none() | COUNTS,
    width=st.floats(0, 1, exclude_min=True),
    layers=st.none() | st.lists(COUNTS, min_size=1, max_size=30),
    skip=st.none() | st.floats(0, 1),
    tokens=st.integers(0, 64),
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
    assert "is not" in caught.value.cause
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
        *({"tokens": value} for value in (-1, 1.5, True, "2", None)),
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


# --- a field added at run time ---


def some_windows(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError
    return value


WINDOWS = Field("windows", None, int, some_windows, "windows are whole numbers from 1", "64")


@pytest.fixture
def windows() -> Iterator[None]:
    """Points have a fifth axis while a test runs."""
    add_field(WINDOWS)
    yield
    del FIELDS["windows"]


@pytest.mark.usefixtures("windows")
@settings(deadline=None)
@given(POINTS, st.none() | COUNTS)
def test_an_added_field_is_written_read_copied_and_pickled_like_the_others(point: Point, count: int | None) -> None:
    more = point._replace(windows=count)
    assert (more.windows, more.exit, more.width) == (count, point.exit, point.width)
    assert (more == point) == (count is None)
    assert Point.parse(str(more)) == more
    assert eval(repr(more), {"Point": Point}) == more
    for copied in (copy.deepcopy(more), pickle.loads(pickle.dumps(more)), type(more)(*more)):
        assert copied == more
        assert hash(copied) == hash(more)


@pytest.mark.usefixtures("windows")
def test_an_added_field_is_checked_printed_last_and_named_in_the_cures() -> None:
    assert str(Point(windows=64, exit=2)) == "exit=2,windows=64"
    assert repr(Point(windows=64)) == "Point(windows=64)"
    for refused in (lambda: Point(windows=0), lambda: Point.parse("windows=0"), lambda: Point.parse("windows=few")):
        with pytest.raises(PointError, match="windows are whole numbers from 1") as caught:
            refused()
        assert "windows=64" in caught.value.cure


def test_points_made_before_a_field_was_added_equal_the_same_afterwards() -> None:
    before = [FULL, Point(exit=2), Point(width=0.5), Point(skip=0.5)]
    hashes, texts = [hash(point) for point in before], [str(point) for point in before]
    add_field(WINDOWS)
    try:
        after = [Point(), Point(exit=2), Point(width=0.5), Point(skip=0.5, windows=None)]
        assert after == before
        assert [hash(point) for point in after] == hashes
        assert [str(point) for point in before] == texts
        assert [point.windows for point in before] == [None] * 4
        moved = apply_to_collection((*before, Point(windows=3)), torch.Tensor, lambda tensor: tensor + 1)
        assert moved == (*before, Point(windows=3))
    finally:
        del FIELDS["windows"]
    with pytest.raises(PointError, match='no field "windows"'):
        Point(windows=3)
    with pytest.raises(AttributeError, match="no field 'windows'"):
        _ = before[0].windows


@pytest.mark.parametrize("name", ["full", "two words", "parse", "count", ""])
def test_a_field_needs_a_name_of_its_own(name: str) -> None:
    with pytest.raises(PointError, match="cannot be called"):
        add_field(Field(name, None, int, some_windows, "", "2"))
    assert list(FIELDS) == ["exit", "width", "layers", "skip", "tokens"]


def test_a_field_is_added_once() -> None:
    with pytest.raises(PointError, match='already have a field "exit"'):
        add_field(Field("exit", None, int, some_windows, "", "2"))


def test_a_field_whose_example_is_its_default_is_refused() -> None:
    with pytest.raises(PointError, match="field windows has default=64"):
        add_field(Field("windows", 64, int, some_windows, "", "64"))


def test_an_imported_module_adds_a_field_and_its_points_cross_to_another_process(tmp_path: Path) -> None:
    """The other process has added its fields in another order, which does not matter."""
    field = "add_field(Field({!r}, None, int, lambda value: value, 'numbers', '3'))"
    (tmp_path / "ours.py").write_text(
        f"from supple.point import Field, add_field\n{field.format('heads')}\n{field.format('windows')}\n"
    )
    (tmp_path / "theirs.py").write_text(
        f"from supple.point import Field, add_field\n{field.format('windows')}\n{field.format('heads')}\n"
    )
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    made = "import ours, pickle, sys; from supple import Point; point = Point(exit=1, windows=7)"
    write = f"{made}; sys.stdout.buffer.write(pickle.dumps(point))"
    read = "import theirs, pickle, sys; print(pickle.loads(sys.stdin.buffer.read()))"
    sent = subprocess.run([sys.executable, "-c", write], env=there, capture_output=True, check=True).stdout
    got = subprocess.run([sys.executable, "-c", read], env=there, input=sent, capture_output=True, check=True).stdout
    assert got.decode().strip() == "exit=1,windows=7"


@pytest.mark.usefixtures("windows")
def test_a_model_names_the_axis_that_it_does_not_have() -> None:
    with pytest.raises(PointError) as caught:
        Exits(TwoTensors()).check("exit=1,windows=3")
    assert caught.value.cause == (
        "this model cannot run Point(exit=1, windows=3): it has no axis windows, its points differ in exit."
    )
    assert caught.value.cure == "Use one of its points: exit=1, exit=2, full."
