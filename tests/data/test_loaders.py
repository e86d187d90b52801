"""Any data as batches: supple's data sets, torch's, and loaders; and training a model in hand with each of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train import EXITS, Stopper
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import supple.training.loop
from supple.data.loaders import as_batches, at_most
from supple.errors import CheckpointError, DataError, RecipeError
from supple.methods import build
from supple.sampling import generator
from supple.scoring import evaluate
from supple.training.loop import fit_model
from supple.training.state import Interrupted

N, SIZE = 40, 8
X = torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = (X.mean((1, 2, 3)) > 0).long() + 2 * (X[:, 0].mean((1, 2)) > 0).long()
SETTINGS = {"epochs": 2, "optimizer": "adam", "lr": 0.01, "threads": 1, "precision": "fp32", "compile": "off"}
SETTINGS = {**SETTINGS, "memory_format": "channels_first"}


class Own:
    """What supple asks of data, and no more."""

    def __len__(self) -> int:
        return N

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return X[indices], Y[indices]


class Reordered:
    """A loader with the order of samples that a data set is given in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return N // SIZE

    def __iter__(self) -> Any:
        order = torch.randperm(N, generator=generator(0, self.epoch))
        self.epoch += 1
        return ((X[some], Y[some]) for some in order.split(SIZE))


class Noisy(Dataset[tuple[Tensor, int]]):
    """A torch data set that draws from torch's global generator, as augmentations do."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index] + 0.1 * torch.randn(3, 8, 8), int(Y[index])


def model() -> Any:
    torch.manual_seed(0)
    return build({**EXITS["backbone"]}, {"name": "exits"}, 4, (3, 8, 8))


def fitted(folder: Path, data: Any, net: Any = None, **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    net = net or model()
    settings = {**SETTINGS, **more.pop("settings", {})}
    fit_model(net, data, TensorDataset(X, Y), folder, settings, about={"batch_size": SIZE}, quiet=True, **more)
    return net, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_data_set_a_torch_data_set_and_a_loader_train_alike(tmp_path):
    nets, losses = [], []
    for name, data in (("own", Own()), ("torch", TensorDataset(X, Y)), ("loader", Reordered())):
        if name == "loader":
            data.epoch = -1  # the first pass is the probe's example
        net, lines = fitted(tmp_path / name, data)
        nets.append(net)
        losses.append([line["loss"] for line in lines])
    assert losses[0] == losses[1] == losses[2]
    assert losses[0][1] < losses[0][0]
    assert same(nets[0], nets[1])
    assert same(nets[0], nets[2])


def test_the_model_given_ends_with_the_weights_of_the_best_epoch(tmp_path):
    net, lines = fitted(tmp_path / "run", Own(), settings={"epochs": 4, "lr": 0.2})
    merits = [[sum(entry[key] for entry in line["val"].values()) for key in ("score", "loss")] for line in lines]
    best = max(range(4), key=lambda epoch: (merits[epoch][0], -merits[epoch][1]))
    scores = {score.name: score.score for score in evaluate(net, Own())}
    assert scores == pytest.approx({name: entry["score"] for name, entry in lines[best]["val"].items()})
    assert not net.training


def stopped(monkeypatch, folder: Path, step: int, data: Any, **more: Any) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="resume=True"):
        patch.setattr(supple.training.loop, "GracefulInterrupt", lambda: Stopper(step))
        fitted(folder, data, resume=True, **more)


def shuffled(own_generator: bool = False) -> DataLoader[Any]:
    rng = torch.Generator().manual_seed(7) if own_generator else None
    return DataLoader(TensorDataset(X, Y), SIZE, shuffle=True, drop_last=True, generator=rng)


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_loader_resumes_at_the_last_whole_epoch_and_ends_alike(monkeypatch, tmp_path, own_generator):
    settings = {"epochs": 3, "save_every_s": 1e-6}
    whole, lines = fitted(tmp_path / "whole", shuffled(own_generator), settings=settings)
    stopped(monkeypatch, tmp_path / "run", 8, shuffled(own_generator), settings=settings)  # third step of the second
    states = sorted(path.name for path in (tmp_path / "run" / "state").glob("epoch-*.json"))
    assert states == ["epoch-00001-step-0000000.json"]
    again, same_lines = fitted(tmp_path / "run", shuffled(own_generator), resume=True, settings=settings)
    assert same(again, whole)
    assert [line["loss"] for line in same_lines] == [line["loss"] for line in lines]
    assert lines[0]["loss"] != lines[1]["loss"]


@pytest.mark.parametrize("data", [Own(), Noisy()], ids=["own", "torch"])
def test_a_data_set_resumes_inside_an_epoch_and_ends_alike(monkeypatch, tmp_path, data):
    whole, _ = fitted(tmp_path / "whole", data)
    stopped(monkeypatch, tmp_path / "run", 3, data)
    stopped(monkeypatch, tmp_path / "run", 4, data)
    again, _ = fitted(tmp_path / "run", data, resume=True)
    assert same(again, whole)


def test_a_finished_training_gives_its_weights_again_without_a_step(tmp_path):
    net, lines = fitted(tmp_path / "run", Own())
    again, same_lines = fitted(tmp_path / "run", Own(), resume=True)
    assert same(again, net)
    assert same_lines == lines


def test_a_folder_is_not_taken_over_and_settings_are_not_changed(tmp_path):
    fitted(tmp_path / "run", Own())
    with pytest.raises(CheckpointError, match="already holds a finished run"):
        fitted(tmp_path / "run", Own())
    with pytest.raises(RecipeError, match=r"started with train.lr=0.01, not 0.5"):
        fitted(tmp_path / "run", Own(), resume=True, settings={"lr": 0.5})
    with pytest.raises(RecipeError, match=r"started with loss.lam=0.8, not 0.1"):
        fitted(tmp_path / "run", Own(), resume=True, loss={"name": "distill", "lam": 0.1})


def test_settings_of_a_recipe_that_make_a_model_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"train.init is set, but the model is given"):
        fitted(tmp_path / "run", Own(), settings={"init": "runs/other"})
    with pytest.raises(RecipeError, match='unknown key "train.epoch"'):
        fitted(tmp_path / "run", Own(), settings={"epoch": 3})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "data", [TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), 7), Own()], ids=["set", "loader", "own"]
)
def test_scores_do_not_depend_on_the_kind_of_data(data):
    net, told = model().eval(), []
    scores = evaluate(net, data, batch_size=16, on_progress=told.append)
    assert sum(told) == N
    for score, point in zip(scores, net.points, strict=True):
        assert score.n == N
        assert score.score == pytest.approx((net(X, point).argmax(1) == Y).double().mean().item())


@pytest.mark.parametrize("data", [Own(), TensorDataset(X, Y)])
def test_some_samples_are_drawn_always_the_same_and_none_twice(data):
    some, again = (torch.cat([x for x, _, _ in as_batches(at_most(data, 7)).in_order(3)]) for _ in range(2))
    assert torch.equal(some, again)
    places = [next(place for place in range(N) if torch.equal(X[place], x)) for x in some]
    assert len(set(places)) == 7
    assert places != list(range(7)), "the first ones may be all of one class"
    assert at_most(data, N) is data
    loader = DataLoader(data, 4) if isinstance(data, Dataset) else None
    assert loader is None or at_most(loader, 7) is loader


def test_a_torch_data_set_draws_the_same_for_the_same_batch():
    data = as_batches(Noisy())
    (one, labels), (again, _) = (next(data.training(0, 1, 2, SIZE)) for _ in range(2))
    other, _ = next(data.training(0, 1, 3, SIZE))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    order = torch.randperm(N, generator=generator(0, 1))
    assert torch.equal(labels, Y[order[2 * SIZE : 3 * SIZE]])


class Short(Reordered):
    def __len__(self) -> int:
        return 9


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (iter([(X, Y)]), "cannot be iterated once for every epoch"),
        (Numbers(), "a Numbers has no length"),
        (DataLoader(Numbers()), "a DataLoader has no length"),
        ([], "a list is empty"),
        (5, "a int cannot be iterated"),
        (TensorDataset(X), "a batch is a list, not a pair"),
        (DataLoader([{"x": 1}]), "a batch is a dict, not a pair"),
        (Short(), "a Short of length 9 gave 5 batches"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_batch_by_batch_is_refused(data: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(as_batches(data).in_order(4))


def test_a_list_is_a_list_of_samples():
    ((x, y, n),) = as_batches([(X[0], 3), (X[1], 1)]).in_order(4)
    assert torch.equal(x, X[:2])
    assert y.tolist() == [3, 1]
    assert n == 2
