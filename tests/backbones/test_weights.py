"""Weights to start from: of a file, of a package, of the Hub; what they expect of pictures."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from supple.backbones import BACKBONES, weights
from supple.backbones.networks import timm_network, torchvision_network
from supple.backbones.weights import expected_input, read_weights, start
from supple.errors import CheckpointError, RecipeError

SHAPE = (3, 32, 32)
RESNET = {"name": "timm", "model": "resnet18", "args": {}}
VIT = {"name": "vit", "model": "vit_tiny_patch16_224", "args": {}}


def resnet(classes: int) -> Any:
    return timm_network(num_classes=classes, model="resnet18", input_shape=SHAPE)


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_a_file_fills_all_but_a_classifier_for_other_classes(tmp_path: Path, ending: str) -> None:
    trained, file = resnet(7).state_dict(), tmp_path / f"w{ending}"
    save_file(trained, file) if ending == ".safetensors" else torch.save({"model": trained, "epoch": 3}, file)
    network = resnet(5)
    assert start(RESNET, network, SHAPE, file) == ["fc.weight", "fc.bias"]
    assert torch.equal(network.layer4[1].conv2.weight, trained["layer4.1.conv2.weight"])
    assert 0.005 < float(network.fc.weight.detach().std()) < 0.02  # a new classifier starts small, whatever timm does
    assert not network.fc.bias.any()
    same = resnet(7)
    assert start(RESNET, same, SHAPE, file) == []
    assert torch.equal(same.fc.weight, trained["fc.weight"])


def test_a_new_classifier_without_bias_starts_small_and_one_of_two_layers_starts_as_it_was_built() -> None:
    class Plain(torch.nn.Module):
        def __init__(self, classes: int, bias: bool) -> None:
            super().__init__()
            self.body, self.end = torch.nn.Linear(4, 8), torch.nn.Linear(8, classes, bias=bias)

    trained, new = Plain(3, False), Plain(5, False)
    assert weights.fill(new, trained.state_dict(), "file") == ["end.weight"]
    assert float(new.end.weight.detach().std()) < 0.02
    hidden = timm_network(num_classes=5, model="resnet18", input_shape=SHAPE, classifier=16)
    before = [value.clone() for value in hidden.fc.parameters()]
    weights.fill(hidden, resnet(7).state_dict(), "file")
    assert all(torch.equal(one, other) for one, other in zip(before, hidden.fc.parameters()))


def test_position_embeddings_are_resampled_and_weights_reach_a_network_inside_a_backbone(tmp_path: Path) -> None:
    large = timm_network(num_classes=3, model="vit_tiny_patch16_224", input_shape=(3, 64, 64))
    save_file(large.state_dict(), tmp_path / "w.safetensors")
    small = BACKBONES["vit"](num_classes=3, model="vit_tiny_patch16_224", input_shape=SHAPE)
    assert start(VIT, small, SHAPE, tmp_path / "w.safetensors") == []
    assert small.network.pos_embed.shape == (1, 1 + 4, 192)
    assert torch.equal(small.network.pos_embed[:, 0], large.pos_embed[:, 0])  # of the class token
    assert torch.equal(small.blocks[3].mlp.fc1.weight, large.blocks[3].mlp.fc1.weight)
    other = BACKBONES["vit"](num_classes=4, model="vit_tiny_patch16_224", input_shape=SHAPE)
    assert start(VIT, other, SHAPE, tmp_path / "w.safetensors") == ["network.head.weight", "network.head.bias"]


def test_grey_pictures_get_the_colours_summed(tmp_path: Path) -> None:
    trained = resnet(7)
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    grey = timm_network(num_classes=7, in_channels=1, model="resnet18", input_shape=(1, 32, 32))
    assert start(RESNET, grey, (1, 32, 32), tmp_path / "w.safetensors") == []
    torch.testing.assert_close(grey.conv1.weight, trained.conv1.weight.sum(1, keepdim=True))


def test_torchvision_and_own_networks_take_files_too(tmp_path: Path) -> None:
    trained = torchvision_network(num_classes=7, model="resnet18")
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    network = torchvision_network(num_classes=5, model="resnet18")
    left = start({"name": "torchvision", "model": "resnet18", "args": {}}, network, SHAPE, tmp_path / "w.pth")
    assert left == ["fc.weight", "fc.bias"]
    own = BACKBONES["mobilenet_v1"](num_classes=4)
    save_file(own.state_dict(), tmp_path / "own.safetensors")
    assert (
        start({"name": "mobilenet_v1"}, BACKBONES["mobilenet_v1"](num_classes=4), SHAPE, tmp_path / "own.safetensors")
        == []
    )


class Hostile:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda f: None, "there is no file"),
        (lambda f: f.write_bytes(b"not weights"), "cannot be read"),
        (lambda f: torch.save({"a": Hostile()}, f), "cannot be read"),
        (lambda f: torch.save([1, 2], f), "no mapping"),
        (lambda f: torch.save({}, f), "no mapping"),
        (lambda f: torch.save({"fc.weight": torch.ones(2, 2)}, f), "conv1.weight is missing, expected"),
        (lambda f: torch.save(resnet50(), f), "layer1.0.conv1.weight has the shape"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_the_names_of_their_tensors(
    tmp_path: Path, capsys: Any, write: Any, named: str
) -> None:
    file = tmp_path / "w.pth"
    write(file)
    with pytest.raises(CheckpointError, match=named) as caught:
        start(RESNET, resnet(5), SHAPE, file)
    assert caught.value.cure
    assert "executed" not in capsys.readouterr().out


def resnet50() -> Any:
    return timm_network(num_classes=5, model="resnet50", input_shape=SHAPE).state_dict()


@pytest.mark.parametrize("prefix", ["model.", "model._orig_mod."])
def test_names_inside_another_module_are_those_of_the_network(tmp_path: Path, prefix: str) -> None:
    trained, fresh = resnet(5), resnet(5)
    named = {f"{prefix}{name}": value for name, value in trained.state_dict().items()}
    torch.save({"state_dict": named, "epoch": 3}, tmp_path / "last.ckpt")
    assert start(RESNET, fresh, SHAPE, tmp_path / "last.ckpt") == []
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in trained.state_dict().items())


def test_a_wrapped_file_of_a_parallel_training_is_read(tmp_path: Path) -> None:
    torch.save({"state_dict": {"module.a": torch.ones(2)}}, tmp_path / "w.pth")
    assert list(read_weights(tmp_path / "w.pth")) == ["a"]


def test_offline_the_error_comes_at_once_and_says_how_to_pass_a_file(monkeypatch: Any, tmp_path: Path) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(
        weights.socket, "create_connection", lambda *_, **__: (_ for _ in ()).throw(OSError("no route"))
    )
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    begun = time.monotonic()
    with pytest.raises(RecipeError, match="no connection to") as caught:
        start(RESNET, resnet(5), SHAPE)
    assert "weights=FILE" in str(caught.value.cure)
    assert time.monotonic() - begun < 5
    assert not weights.available("resnet18")
    with pytest.raises(RecipeError, match="no published weights"):
        start({"name": "mobilenet_v1"}, resnet(5), SHAPE)


def test_the_cache_of_the_hub_is_used_without_a_connection(monkeypatch: Any, tmp_path: Path) -> None:
    import huggingface_hub

    trained = resnet(1000)
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    held = {("timm/resnet18.a1_in1k", "model.safetensors"): str(tmp_path / "model.safetensors")}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, name: held.get((repo, name)))
    network = resnet(5)
    assert start(RESNET, network, SHAPE) == ["fc.weight", "fc.bias"]
    assert torch.equal(network.conv1.weight, trained.conv1.weight)
    assert weights.available("resnet18")


def test_an_installed_package_of_weights_is_paired_by_the_order_of_its_tensors(
    monkeypatch: Any, tmp_path: Path
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    trained = timm_network(num_classes=1000, model="tf_efficientnet_lite0", input_shape=SHAPE)
    renamed = {f"x{i}.{name.rsplit('.', 1)[-1]}": value for i, (name, value) in enumerate(trained.state_dict().items())}
    (tmp_path / "models").mkdir()
    torch.save(renamed, tmp_path / "models" / "lite0.pth")
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(weights, "find_spec", lambda name: found if "lite0" in name else None)
    lite = {"name": "timm", "model": "tf_efficientnet_lite0", "args": {}}
    network = timm_network(num_classes=4, model="tf_efficientnet_lite0", input_shape=SHAPE)
    assert start(lite, network, SHAPE) == ["classifier.weight", "classifier.bias"]
    assert torch.equal(network.conv_head.weight, trained.conv_head.weight)
    assert weights.available("tf_efficientnet_lite0")


def test_the_pictures_that_weights_expect() -> None:
    deit = expected_input({"name": "vit", "model": "deit_tiny_patch16_224"})
    imagenet = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert deit == {"size": 224, **imagenet, "crop_share": 0.9, "interpolation": "bicubic"}
    lite = expected_input({"name": "timm", "model": "tf_efficientnet_lite0"})
    assert (lite["mean"], lite["crop_share"]) == ((0.5, 0.5, 0.5), 0.875)
    vision = expected_input({"name": "torchvision", "model": "resnet18"})
    assert vision == {"size": 224, **imagenet, "crop_share": 224 / 256, "interpolation": "bilinear"}
    assert expected_input({"name": "msdnet"}) == {}
    assert "timm" in sys.modules


def test_a_tag_names_the_weights_and_what_they_expect() -> None:
    plain = expected_input({"name": "timm", "model": "vit_base_patch16_224.orig_in21k_ft_in1k"})
    clip = expected_input({"name": "timm", "model": "vit_base_patch16_clip_224.openai"})
    assert plain["mean"] == (0.5, 0.5, 0.5)
    assert clip["mean"] == pytest.approx((0.4815, 0.4578, 0.4082), abs=1e-3)
    usual = expected_input({"name": "timm", "model": "vit_base_patch16_224"})
    mae = expected_input({"name": "timm", "model": "vit_base_patch16_224.mae"})
    assert mae["mean"] == (0.485, 0.456, 0.406) != usual["mean"]
    with pytest.raises(RecipeError, match="no weights of vit_base_patch16_224 with the tag orig_in21k_ft_in1") as told:
        expected_input({"name": "timm", "model": "vit_base_patch16_224.orig_in21k_ft_in1"})
    assert "orig_in21k_ft_in1k" in told.value.cure
