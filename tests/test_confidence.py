"""How sure an answer is: values by hand, and what holds for all logits."""

from math import log

import pytest
import torch
from torch.testing import assert_close

from supple.confidence import COLDEST, HOTTEST, MEASURES, confidence, fit_temperature


def test_three_measures_by_hand():
    logits = torch.tensor([[log(3.0), 0.0]])  # probabilities 3/4 and 1/4
    entropy = -(0.75 * log(0.75) + 0.25 * log(0.25))
    for measure, expected in (("max_probability", 0.75), ("margin", 0.5), ("entropy", 1 - entropy / log(2))):
        assert_close(confidence(logits, measure), torch.tensor([expected]))
    # At temperature 1/2 the odds of 3 become 9: probabilities 0.9 and 0.1.
    assert_close(confidence(logits, "max_probability", 0.5), torch.tensor([0.9]))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("classes", [1, 2, 10, 1000])
def test_confidence_lies_in_0_to_1_with_a_certain_answer_at_1_and_a_flat_one_lowest(measure, classes):
    rng = torch.Generator().manual_seed(classes)
    some = confidence(100 * torch.randn(200, classes, generator=rng), measure)
    assert ((some >= 0) & (some <= 1)).all()
    certain = torch.full((1, classes), -1e4)
    certain[0, 0] = 0
    assert_close(confidence(certain, measure), torch.ones(1))
    flat = confidence(torch.zeros(1, classes), measure)
    assert_close(flat, torch.tensor([1.0 if classes == 1 else {"max_probability": 1 / classes}.get(measure, 0.0)]))


@pytest.mark.parametrize("measure", MEASURES)
def test_logits_that_are_no_numbers_are_not_sure_at_all(measure):
    assert confidence(torch.tensor([[float("nan"), 0.0], [float("inf"), 0.0]]), measure).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("hot", [0.3, 1.0, 4.0])
def test_the_temperature_that_the_labels_were_drawn_with_is_found(hot):
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 5, generator=rng)
    labels = torch.multinomial((logits / hot).softmax(1), 1, generator=rng).squeeze(1)
    assert fit_temperature(logits, labels) == pytest.approx(hot, rel=0.05)
    assert fit_temperature(logits + 1000, labels) == pytest.approx(hot, rel=0.05)  # only differences matter


def test_no_other_temperature_is_likelier():
    rng = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(300, 4, generator=rng), torch.randint(4, (300,), generator=rng)
    logits[torch.arange(300), labels] += 1
    found = fit_temperature(logits, labels)
    loss = lambda t: torch.nn.functional.cross_entropy(logits.double() / t, labels)
    assert all(loss(found) <= loss(t) + 1e-9 for t in (0.1, 0.5, 0.9 * found, 1.1 * found, 2.0, 10.0))


def test_extremes_stay_within_bounds():
    logits, right = torch.eye(4), torch.arange(4)
    assert fit_temperature(logits, right) == pytest.approx(COLDEST, rel=1e-3)  # always right: as sure as can be
    assert fit_temperature(logits, right.roll(1)) == pytest.approx(HOTTEST, rel=1e-3)  # always wrong
    assert fit_temperature(torch.full((4, 3), float("nan")), torch.zeros(4, dtype=torch.long)) == 1.0
    broken = torch.cat([logits, torch.full((1, 4), float("inf"))])
    assert fit_temperature(broken, torch.arange(5) % 4) == pytest.approx(COLDEST, rel=1e-3)
