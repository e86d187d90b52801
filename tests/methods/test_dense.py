"""Weighted dense connections (WDC, WSDC): what a layer reads, by hand."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from supple.backbones.vit_cifar import VitCifar
from supple.cost import count_params
from supple.errors import RecipeError
from supple.methods.dense import Dense, Mixer
from supple.point import FULL
from toy import Toy, numbers

X = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def small(layers: int = 4) -> VitCifar:
    torch.manual_seed(0)
    net = VitCifar(num_classes=5, width=24, mlp=16, heads=3, layers=layers, grid=4, input_shape=(3, 16, 16))
    return net.eval()


def asking_for(model: Dense, *biases: list[float]) -> Dense:
    """Oracles that ask for the same whatever they read: these logits, layer after layer."""
    for mixer, bias in zip(model.mixers, biases, strict=True):
        nn.init.zeros_(mixer.oracle.weight)
        mixer.oracle.bias.data = torch.tensor(bias)
    return model.eval()


def test_layers_that_ask_for_the_activation_before_them_are_the_untouched_network_exactly():
    net = small()
    only_last = [[0.0] * layer + [1e4] for layer in range(1, 4)]
    model = asking_for(Dense(net), *only_last)
    assert torch.equal(model(X), net(X))
    assert torch.equal(model.extract(FULL)(X), net(X))


def test_a_mean_by_hand():
    model = asking_for(Dense(Toy((2, 0), (1, 3), (5, 0))), [0.0, 0.0], [0.0, 0.0, 0.0])
    # a0 = 1, a1 = 2; the mean 1.5 gives a2 = 4.5; the mean of 1, 2 and 4.5 is 2.5
    assert model(numbers(1)).item() == pytest.approx(12.5)


def test_a_weighted_mean_by_hand():
    model = asking_for(Dense(Toy((2, 0), (1, 3))), [math.log(3), 0.0])
    assert model(numbers(1)).item() == pytest.approx(0.75 * 1 + 0.25 * 2 + 3)  # three parts a0, one part a1
    [output] = model(numbers(1), [FULL])
    assert_close(output.aux["weights"], torch.tensor([[[1.0, 0.0], [0.75, 0.25]]]))


def test_an_oracle_reads_the_activation_before_its_layer():
    model = Dense(Toy((2, 0), (1, 3))).eval()
    oracle = model.mixers[0].oracle
    oracle.weight.data, oracle.bias.data = torch.tensor([[1.0], [0.0]]), torch.zeros(2)
    x = numbers(0.5, -0.5)  # a1 = 1, -1: the weight of a0 is its sigmoid
    [output] = model(x, [FULL])
    assert_close(output.aux["weights"][:, 1, 0], torch.tensor([1.0, -1.0]).sigmoid())


@pytest.mark.parametrize(("read", "value"), [("class", 3.0), ("mean", 2.0)])
def test_an_oracle_reads_the_class_token_or_the_mean(read, value):
    mixer = Mixer(width=1, earlier=2, dropout=0.0, read=read)
    mixer.oracle.weight.data, mixer.oracle.bias.data = torch.tensor([[1.0], [0.0]]), torch.zeros(2)
    activation = torch.tensor([[[3.0], [1.0]]])  # two tokens
    _, weights = mixer([torch.zeros_like(activation), activation])
    assert weights[0, 0].item() == pytest.approx(1 / (1 + math.exp(-value)))


def test_weights_sum_to_1_and_are_0_for_what_does_not_exist_yet():
    for mode in (True, False):
        model = Dense(small()).train(mode)
        [output] = model(X, [FULL])
        weights = output.aux["weights"]  # (batch, layers, activations)
        assert weights.shape == (5, 4, 4)
        assert_close(weights.sum(2), torch.ones(5, 4))
        assert not weights.triu(1).any()
        assert (weights.tril() > 0).sum() == 5 * (1 + 2 + 3 + 4)


@pytest.mark.parametrize(("layers", "dropout"), [(10, 0.25), (16, 0.25), (5, 0.5)])
def test_dropout_rises_quadratically(layers, dropout):
    with torch.device("meta"):
        model = Dense(VitCifar(num_classes=5, layers=layers), dropout=dropout)
    expected = [dropout * ((j - 1) / (layers - 1)) ** 2 for j in range(2, layers + 1)]
    assert [mixer.dropout for mixer in model.mixers] == pytest.approx(expected)
    assert model.mixers[-1].dropout == dropout


def test_dropped_weights_are_gone_and_the_others_grow():
    torch.manual_seed(0)
    mixer = asking_for_nothing(Mixer(width=1, earlier=2, dropout=0.5, read="class")).train()
    ones = [torch.ones(4000, 1, 1), torch.ones(4000, 1, 1)]  # each weight of 0.5 becomes 0 or 1
    mixed, weights = mixer(ones)
    assert set(mixed.flatten().tolist()) == {0.0, 1.0, 2.0}
    assert mixed.mean().item() == pytest.approx(1, abs=0.05)
    assert set(weights.flatten().tolist()) == {0.5}  # those that are told are whole


def asking_for_nothing(mixer: Mixer) -> Mixer:
    nn.init.zeros_(mixer.oracle.weight)
    nn.init.zeros_(mixer.oracle.bias)
    return mixer


def test_evaluation_has_no_dropout_and_without_dropout_training_is_evaluation():
    wsdc, wdc = Dense(small(), dropout=0.5), Dense(small(), dropout=0.0)
    assert not torch.equal(wsdc.train()(X), wsdc(X))
    assert torch.equal(wsdc.eval()(X), wsdc(X))
    assert torch.equal(wdc.train()(X), wdc.eval()(X))


def test_parameters_of_the_oracles():
    for layers, extra in ((10, 385 * sum(range(2, 11))), (16, 385 * sum(range(2, 17)))):
        with torch.device("meta"):
            assert count_params(Dense(VitCifar(num_classes=5, layers=layers)).mixers.parameters()) == extra


def test_one_layer_has_nothing_to_choose():
    model = Dense(Toy((2, 1))).eval()
    [output] = model(numbers(3), [FULL])
    assert (output.logits.item(), output.aux["weights"].tolist()) == (7, [[[1.0]]])


def test_refusals():
    for dropout in (1.0, -0.1):
        with pytest.raises(RecipeError, match=f"method.dropout is {dropout}"):
            Dense(small(), dropout=dropout)
    bare = small()
    bare.class_token = False
    with pytest.raises(RecipeError, match="has none") as caught:
        Dense(bare)
    assert "method.read=mean" in caught.value.cure
    assert Dense(bare, read="mean").eval()(X).shape == (5, 5)
    with pytest.raises(RecipeError, match="dense cannot hold this Linear"):
        Dense(nn.Linear(3, 3))
