"""Optimizers by name: which one is meant, what it is given, what is refused, and that all they keep survives."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supple.errors import RecipeError
from supple.recipe import Train, make_recipe
from supple.training.optim import OPTIMIZERS, build_optimizer, find_optimizer, set_rates


def built(parameter: nn.Parameter, **settings: Any) -> torch.optim.Optimizer:
    return build_optimizer([{"params": [parameter]}], Train(**settings))


def test_torch_comes_first_and_timm_after_it() -> None:
    assert find_optimizer("rmsprop") is torch.optim.RMSprop
    assert find_optimizer("adamw") is torch.optim.AdamW
    assert find_optimizer("lion").__module__.startswith("timm.")
    muon = built(nn.Parameter(torch.zeros(3)), optimizer="muon")  # a bias: torch's own muon would refuse it
    assert type(muon).__module__.startswith("timm.")


def test_sgd_has_plain_momentum_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = built(weight, lr=0.1, weight_decay=0)
    for expected in (1 - 0.1 * 2, 0.8 - 0.1 * (0.9 * 2 + 2)):  # the gradient is 2: the velocity 2, then 3.8
        optimizer.zero_grad()
        (2 * weight).sum().backward()
        optimizer.step()
        assert weight.item() == pytest.approx(expected)


def test_arguments_reach_the_optimizer_and_defaults_are_written_out() -> None:
    settings = Train(optimizer={"name": "adamw", "betas": [0.9, "9.5e-1"], "eps": "1e-6"}, lr=0.01, weight_decay=0.3)
    assert settings.optimizer == {"name": "adamw", "betas": (0.9, 0.95), "eps": 1e-6}
    (group,) = build_optimizer([{"params": [nn.Parameter(torch.zeros(1))]}], settings).param_groups
    assert (group["betas"], group["eps"], group["lr"], group["weight_decay"]) == ((0.9, 0.95), 1e-6, 0.01, 0.3)
    assert Train(optimizer="adam").optimizer == {"name": "adam", "betas": (0.9, 0.999), "eps": 1e-8}
    assert Train(optimizer={"momentum": 0.5}).optimizer["name"] == "sgd"
    assert Train(optimizer={"nesterov": False, "fused": None}) == Train()  # said or not: resumed as the same training
    assert Train(**settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("given", "cause", "cure"),
    [
        ("adan_w", 'train.optimizer "adan_w" is unknown', 'Did you mean "adanw"?'),
        ("NAdam", 'train.optimizer "NAdam" is unknown', 'Did you mean "nadam"?'),
        ("lbfgs", "train.optimizer lbfgs does not fit this loop", "another"),
        (
            {"name": "adam", "beta": 1},
            'unknown key "train.optimizer.beta"',
            'Did you mean "betas"? adam takes betas, eps,',
        ),
        ({"name": "adam", "lr": 1}, 'unknown key "train.optimizer.lr"', "The rate is train.lr"),
        ({"name": "adam", "betas": [0.9]}, "train.optimizer.betas is [0.9]", "The default is (0.9, 0.999)"),
        ({"name": "sgd", "nesterov": "maybe"}, "train.optimizer.nesterov is 'maybe'", "boolean"),
        ({"name": "adam", "eps": math.inf}, "train.optimizer.eps is inf", "finite"),
    ],
    ids=str,
)
def test_what_is_unknown_or_of_another_type_is_refused_with_the_recipe(given: Any, cause: str, cure: str) -> None:
    recipe = {"data": {"name": "digits"}, "backbone": {"name": "msdnet"}, "method": {"name": "exits"}}
    with pytest.raises(RecipeError) as caught:
        make_recipe({**recipe, "train": {"optimizer": given}}, where="mine.yaml")
    assert caught.value.cause.startswith(f"mine.yaml: {cause}")
    assert cure in caught.value.cure


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "adam", "betas": [0.9, 1.5]}, "Invalid beta parameter at index 1: 1.5"),
        ({"name": "sgd", "momentum": -1}, "Invalid momentum value: -1"),
        ({"name": "sgd", "momentum": 0, "nesterov": True}, "Nesterov momentum requires a momentum"),
        ("rprop", "rprop has no weight decay"),
    ],
    ids=str,
)
def test_values_that_an_optimizer_refuses_are_refused_when_it_is_built(given: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        built(nn.Parameter(torch.zeros(1)), optimizer=given)


def test_each_group_follows_the_schedule_from_its_own_base_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(params: Any, lr: float = 0.1, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        first, second = params
        return torch.optim.SGD([first, {**second, "lr": lr / 2}], lr, weight_decay=weight_decay)

    monkeypatch.setitem(OPTIMIZERS, "halved", halved)
    groups = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = build_optimizer(groups, Train(optimizer="halved", lr=0.4))
    for factor, rates in ((1.0, [0.4, 0.2]), (0.25, [0.1, 0.05]), (0.5, [0.2, 0.1])):
        set_rates(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates)


class Counting(torch.optim.Optimizer):
    """Gradient descent whose rate falls with counts that it keeps: per parameter, nested, and in the group."""

    def __init__(self, params: Any, lr: float = 0.1, weight_decay: float = 0.0, *, every: int = 2) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "every": every, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(count=0, seen={"signs": (0, [0.0, None]), 1: torch.zeros_like(parameter)})
                if parameter.grad is None:
                    continue
                state["count"] += 1
                total, (last, nothing) = state["seen"]["signs"]
                assert nothing is None
                state["seen"]["signs"] = (total + 1, [float(parameter.grad.sum()), None])
                state["seen"][1] += parameter.grad
                slower = group["steps"] // group["every"] + state["count"] + total + abs(last)
                parameter -= group["lr"] / slower * (parameter.grad + 0.1 * state["seen"][1])


@pytest.mark.parametrize("name", ["counting", "lamb", "adafactorbv"])  # the last two: counts in groups, dtypes
def test_a_training_resumes_bit_identically_with_state_that_is_not_tensors(monkeypatch, tmp_path, name):
    from test_train import interrupted, metrics, recipe, train, weights

    monkeypatch.setitem(OPTIMIZERS, "counting", Counting)
    settings = {"epochs": 2, "optimizer": name, "lr": 0.02, "schedule": "one_cycle"}
    whole = train(recipe(**settings), tmp_path / "whole", quiet=True)
    interrupted(monkeypatch, tmp_path / "run", 5, **settings)
    interrupted(monkeypatch, tmp_path / "run", 6, **settings)
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert weights(tmp_path / "run") == weights(whole)
    assert [line["lr"] for line in metrics(tmp_path / "run")] == [line["lr"] for line in metrics(whole)]


def test_what_cannot_be_saved_is_named(tmp_path, monkeypatch):
    from test_train import recipe, train

    from supple.errors import SaveError

    class Odd(Counting):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.param_groups[0]["odd"] = object()

    monkeypatch.setitem(OPTIMIZERS, "odd", Odd)
    with pytest.raises(SaveError, match=r"optimizer.param_groups.0.odd is a object"):
        train(recipe(epochs=1, optimizer="odd"), tmp_path / "run", quiet=True)


def test_a_step_moves_a_weight_by_base_rate_times_factor() -> None:
    weight: Tensor = nn.Parameter(torch.tensor([1.0]))
    optimizer = built(weight, optimizer={"momentum": 0}, lr=0.5, weight_decay=0)
    set_rates(optimizer, 0.2)
    weight.sum().backward()
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.5 * 0.2)
