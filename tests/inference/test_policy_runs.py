"""Running a policy on a batch: who leaves early, and that nobody notices."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from supple import FULL, Point, load
from supple.inference.calibration import stopping_at, time_policy, time_walks
from supple.inference.predictor import Predictor
from supple.inference.select import of_model
from supple.model import FlexibleModel
from supple.policy.policy import Policy, stop_above
from supple.training.build import data_of
from test_contract import make


@pytest.fixture(scope="module")
def model(exits_run) -> FlexibleModel:
    return load(exits_run)


@pytest.fixture
def predictor(model) -> Predictor:
    return of_model(model, 1)


@pytest.fixture(scope="module")
def images(exits_run) -> torch.Tensor:
    return data_of(exits_run).test.batch(torch.arange(40))[0]


@pytest.fixture(scope="module")
def policy(model, images) -> Policy:
    """Thresholds at the medians of what these images give: some stop at every point."""
    levels = [output.logits.softmax(1).amax(1).median().item() for output in model(images, model.points)]
    return Policy(model.points, (levels[0] + 1e-4, levels[1] + 1e-4), (1.0, 1.0, 1.0))


def counted(predictor: Predictor, monkeypatch) -> list[int]:
    """Records how many samples each head is asked about."""
    sizes: list[int] = []
    run = predictor.engine.run

    def noted(graph, state):
        if graph.startswith("head"):
            sizes.append(len(state[0]))
        return run(graph, state)

    monkeypatch.setattr(predictor.engine, "run", noted)
    return sizes


def reached(predictor: Predictor, images: torch.Tensor, policy: Policy) -> tuple[list[int], torch.Tensor]:
    """Where each image stopped, a place in the policy's points, and its logits."""
    found = predictor.walk((images.numpy(),), policy)
    names = [str(point) for point in policy.points]
    return [names.index(one.point) for one in found], torch.stack([torch.from_numpy(one.logits) for one in found])


def test_a_batch_gives_each_image_the_answer_it_gets_alone(predictor, model, images, policy):
    exits, logits = reached(predictor, images, policy)
    assert set(exits) == {0, 1, 2}
    for i, image in enumerate(images):
        alone, own = reached(predictor, image[None], policy)
        assert alone == [exits[i]]
        assert_close(own[0], logits[i], atol=1e-5, rtol=1e-5)
        assert_close(logits[i], model(image[None], policy.points[exits[i]])[0], atol=1e-5, rtol=1e-5)


def test_those_who_stop_leave_the_batch(predictor, images, policy, monkeypatch):
    sizes = counted(predictor, monkeypatch)
    exits, _ = reached(predictor, images, policy)
    assert sizes == [40, 40 - exits.count(0), exits.count(2)]


@pytest.mark.parametrize(("least", "exits", "heads"), [(0.0, 0, [40]), (1.5, 2, [40, 40, 40])])
def test_all_at_once_or_nobody_before_the_end(predictor, model, images, monkeypatch, least, exits, heads):
    sizes = counted(predictor, monkeypatch)
    stopped, logits = reached(predictor, images, stop_above(model.points, least))
    assert stopped == [exits] * 40
    assert sizes == heads
    assert_close(logits, model(images, model.points[exits]), atol=1e-5, rtol=1e-5)


def test_points_left_out_are_not_looked_at(predictor, images, policy, monkeypatch):
    sizes = counted(predictor, monkeypatch)
    exits, _ = reached(predictor, images, Policy((Point(exit=1), FULL), policy.thresholds[:1], (1.0, 1.0)))
    assert sizes == [40, sum(exits)]
    assert reached(predictor, images, Policy((FULL,), (), (1.0,)))[0] == [0] * 40


def test_a_policy_without_an_exit_that_takes_too_long_answers_as_one_that_never_had_it(
    model, images, policy, monkeypatch
):
    calibrated = replace(policy, shares=(0.5, 0.25, 0.25))
    monkeypatch.setattr(model, "policy", calibrated)
    made = of_model(model, 1)
    for size in made.costs.unmeasured(40):
        ms = {
            ("body", 0): size,
            ("body", 1): size,
            ("head", 1): 1000.0,
            ("head", 2): size,
            ("static", "full"): 3 * size,
        }
        for step in (*itertools.product(("body", "head", "note", "take"), range(3)), ("static", "full")):
            made.latency.learn((*step, size), [ms.get(step, 0.0)])
        made.costs.measured(size)
    sizes = counted(made, monkeypatch)
    exits, logits = reached(made, images, calibrated)
    assert sizes == [40, 40 - exits.count(0)]
    kept, own = reached(made, images, calibrated.only((0, 2)))
    assert [(0, 2)[place] for place in kept] == exits
    assert_close(own, logits)
    whole, _ = reached(made, images, policy)  # nobody stops sooner than all exits together would have let them
    assert all(first <= place for first, place in zip(whole, exits))


def test_an_empty_batch_gives_empty_answers(predictor, images, policy):
    assert predictor.walk((images[:0].numpy(),), policy) == []


def test_a_policy_runs_on_widths_too_where_every_point_starts_anew(slim_run):
    slim = load(slim_run)
    images = data_of(slim_run).test.batch(torch.arange(16))[0]
    level = slim(images, Point(width=0.5)).softmax(1).amax(1).median().item() + 1e-4
    exits, logits = reached(of_model(slim, 1), images, stop_above(slim.points, level))
    assert 0 < sum(exits) < 16
    for i, place in enumerate(exits):
        assert_close(logits[i], slim(images[i : i + 1], slim.points[place])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "names"),
    [
        ("fastnet", ("width=0.5", "full")),
        ("fastnet", ("exit=1,width=0.5", "exit=2,width=0.5", "exit=2", "full")),
        ("vit", ("exit=1", "width=0.5,tokens=2", "layers=1-2-3", "full")),
    ],
)
def test_a_cascade_answers_each_image_as_the_point_does_that_was_sure_of_it(backbone, names, monkeypatch):
    elastic = make("elastic", backbone)
    x = torch.randn(24, *elastic.input_shape, generator=torch.Generator().manual_seed(2))
    points = elastic.order(names)
    assert [str(point) for point in points] == list(names)
    with torch.no_grad():
        logits = [output.logits for output in elastic(x, points)]
    levels = [one.softmax(1).amax(1).median().item() + 1e-4 for one in logits[:-1]]
    cascade = Policy(tuple(points), tuple(levels), (1.0,) * len(points))
    expected = []
    for i in range(24):
        stops = [bool(cascade.stops(place, one[i : i + 1].numpy())[0]) for place, one in enumerate(logits)]
        expected.append(stops.index(True))
    made = of_model(elastic, 1)
    ran, run = [], made.engine.run
    monkeypatch.setattr(
        made.engine, "run", lambda graph, state: ran.append((graph, len(state[0]))) or run(graph, state)
    )
    exits, found = reached(made, x, cascade)
    assert exits == expected
    assert len(set(exits)) > 1
    assert_close(found, torch.stack([logits[place][i] for i, place in enumerate(exits)]), atol=1e-4, rtol=1e-4)
    assert ran == [(name, sum(e >= place for e in exits)) for place, name in enumerate(names)]  # those not sure, whole


def test_a_forced_stop_takes_the_same_way_and_ends_where_it_is_told(predictor, images, policy):
    for place in range(3):
        forced = stopping_at(policy, place)
        assert reached(predictor, images, forced)[0] == [place] * 40
        assert (forced.points, forced.temperatures) == (policy.points, policy.temperatures)
    assert stopping_at(policy, 2).thresholds == (math.inf, math.inf)


def test_times_come_per_policy_and_per_point(predictor, images, policy):
    times = time_walks(predictor, [stopping_at(policy, place) for place in range(3)], (images[:1].numpy(),))
    assert len(times) == 3
    assert min(times) > 0
    each = [(image[None].numpy(),) for image in images]
    real, forced = time_policy(predictor, policy, each)
    stopped = reached(predictor, images, policy)[0]
    assert [ms is not None for ms in real] == [place in stopped for place in range(3)]
    assert min(forced) > 0
    real, forced = time_policy(predictor, stopping_at(policy, 0), each)
    assert real[1:] == [None, None]
