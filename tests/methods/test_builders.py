"""One call makes a flexible model of a network by name, or of a module; each runs all its points."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from test_exits import Two
from torch import nn
from torch.testing import assert_close

import supple
from supple.backbones.networks import timm_network
from supple.backbones.vit import Vit
from supple.errors import RecipeError
from supple.methods import METHODS, build, builders
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.recipe import named_settings

SHAPE = (3, 32, 32)
VIT = "vit_tiny_patch16_224"
CHAIN = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
)
SMALL = {"num_classes": 5, "input_shape": SHAPE, "args": {"depth": 4, "embed_dim": 24, "patch_size": 8}}

BUILT: dict[str, tuple[Any, dict[str, Any], list[str]]] = {  # by builder: a network, settings, the points
    "exits": ("resnet18", {"at": ["layer1", "layer2"], "branch": "cnn"}, ["exit=1", "exit=2", "full"]),
    "slim": ("mobilenet_v1", {"widths": [0.5, 1]}, ["width=0.5", "full"]),
    "shuffle": (
        VIT,
        {"variant": "position"},
        ["layers=1-2-3", "layers=1-2-3-4-5-6", "layers=1-2-3-4-5-6-7-8-9", "full"],
    ),
    "skip": (VIT, {"oracle": "shared"}, ["skip=0.5", "full"]),
    "dense": (VIT, {"dropout": 0.0}, ["full"]),
    "prunable": (VIT, {"gamma": 1e-3}, ["full"]),
    "nested": (VIT, {"widths": [0.5]}, ["width=0.5", "full"]),
    "merge_tokens": (VIT, {"tokens": [1, 2]}, ["tokens=2", "tokens=1", "full"]),
    "elastic": (
        "resnet18",
        {"widths": [0.5, 1], "at": ["layer2"]},
        ["exit=1,width=0.5", "width=0.5", "exit=1", "full"],
    ),
    "static": ("resnet18", {"learn": "norms", "freeze_random": True}, ["full"]),
}


@pytest.mark.parametrize("name", BUILT)
@torch.inference_mode()
def test_a_named_network_runs_all_its_points_and_knows_its_recipe(name: str) -> None:
    network, settings, points = BUILT[name]
    torch.manual_seed(0)
    model: FlexibleModel = getattr(supple, name)(
        network, num_classes=5, input_shape=SHAPE, pretrained=False, **settings
    )
    x = torch.randn(2, *SHAPE)
    outputs = model.eval()(x, points)
    assert [str(output.point) for output in outputs] == points == [str(point) for point in model.points]
    assert all(output.logits.shape == (2, 5) for output in outputs)
    assert (model.input_shape, model.task) == (SHAPE, "classes")
    assert model.backbone_spec is not None
    method = next(key for key, kind in METHODS.items() if isinstance(model, kind))
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in BUILT[name][1].items()}
    again = build(model.backbone_spec, {"name": method, **lists}, 5, SHAPE).eval()
    again.load_state_dict(model.state_dict())
    assert_close(again(x), model(x))
    assert model.method_spec["name"] == method
    assert lists.items() <= model.method_spec.items()
    assert named_settings("method", model.method_spec, METHODS, "model") == model.method_spec


def test_a_named_network_of_several_inputs_is_built_for_the_channels_of_its_pictures() -> None:
    shape = ((3, 32, 32), (1, 96, 64))
    model = supple.exits("audiocsrnet", ["vision", "audio"], num_classes=1, input_shape=shape)
    assert (model.input_shape, len(model.points)) == (shape, 3)


MODULES = {
    "exits": (Two(), {"at": "a", "input_shape": (3, 16, 16)}),
    "slim": (CHAIN, {"widths": (0.5, 1.0), "input_shape": SHAPE}),
    **{
        name: (Vit(model=VIT, **SMALL), {"input_shape": SHAPE}) for name in ("shuffle", "skip", "dense", "merge_tokens")
    },
    "elastic": (Vit(model=VIT, **SMALL), {"input_shape": SHAPE, "at": "blocks.1", "layers": True, "tokens": [1]}),
    **{name: (timm_network(model=VIT, **SMALL), {"input_shape": SHAPE}) for name in ("prunable", "nested", "static")},
}


@pytest.mark.parametrize("name", MODULES)
@torch.inference_mode()
def test_a_module_runs_all_its_points_and_has_no_recipe(name: str) -> None:
    network, words = MODULES[name]
    model: FlexibleModel = getattr(supple, name)(network, num_classes=10 if name == "exits" else 5, **words)
    outputs = model.eval()(torch.randn(2, *words["input_shape"]), model.points)
    assert [output.point for output in outputs] == list(model.points)
    assert all(output.logits.isfinite().all() for output in outputs)
    assert model.backbone_spec is None
    assert model.input_shape == words["input_shape"]


def test_every_method_that_comes_with_supple_has_a_builder_with_its_settings_and_defaults() -> None:
    made = {inspect.signature(getattr(builders, name)).return_annotation: getattr(builders, name) for name in BUILT}
    for method in METHODS.values():
        if not method.__module__.startswith("supple.methods."):
            continue
        words = inspect.signature(made[method]).parameters
        for name, setting in inspect.signature(method).parameters.items():
            if setting.kind is setting.KEYWORD_ONLY and name not in ("num_classes", "input_shape"):
                assert words[name].default == setting.default, (method, name)
        assert {"network", "num_classes", "input_shape", "pretrained", "weights"} <= set(words)


def test_a_network_with_exits_of_its_own_needs_no_cuts_and_learns_with_them() -> None:
    model = supple.exits("msdnet", num_classes=5, input_shape=SHAPE)
    assert model.way == "end_to_end"
    assert model.points[0] == Point(exit=1)
    assert model.backbone_spec is not None
    assert model.backbone_spec["name"] == "msdnet"


def test_networks_of_timm_start_from_its_weights_unless_told_otherwise(monkeypatch: Any) -> None:
    fetched = []

    def start(spec: dict[str, Any], network: nn.Module, shape: Any, file: Any = None) -> list[str]:
        fetched.append((spec["name"], spec["model"], shape, file))
        return []

    monkeypatch.setattr(builders, "start", start)
    with torch.device("meta"):
        model = supple.static("resnet18")
        supple.shuffle("deit_tiny_patch16_224", weights="deit.safetensors")
        supple.static("resnet18", pretrained=False)
        supple.slim("mobilenet_v1", num_classes=5, input_shape=SHAPE)  # nobody publishes weights for it
    assert model(torch.empty(1, 3, 224, 224, device="meta"), FULL).shape == (1, 1000)
    assert model.expected_input["interpolation"] == "bicubic"
    of_file = ("vit", "deit_tiny_patch16_224", (3, 224, 224), Path("deit.safetensors"))
    assert fetched == [("timm", "resnet18", (3, 224, 224), None), of_file]


def test_a_new_classifier_of_a_frozen_network_learns(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(timm_network(model="resnet18", num_classes=7, input_shape=SHAPE).state_dict(), tmp_path / "w.safetensors")
    built = {"at": "layer1", "way": "classifier_wise", "input_shape": SHAPE, "weights": tmp_path / "w.safetensors"}
    model = supple.exits("resnet18", num_classes=5, **built)
    learning = {name.rsplit(".", 1)[0] for name, value in model.named_parameters() if value.requires_grad}
    assert learning == {"backbone.fc", "heads.0.0.linear"}
    assert model.begin_phase(0) == model.points  # the full model learns, too
    assert model.cached_features() is None
    assert model.method_spec is not None
    assert model.method_spec["unfrozen"] == ("fc",)
    model.train()
    assert model.backbone.fc.training  # type: ignore[union-attr]
    assert not model.backbone.bn1.training  # type: ignore[union-attr]
    same = supple.exits("resnet18", num_classes=7, **built)
    assert not any(name.startswith("backbone") for name, value in same.named_parameters() if value.requires_grad)
    assert same.begin_phase(0) == same.points[:-1]


@pytest.mark.parametrize(
    ("builder", "network", "words", "named"),
    [
        ("static", Two(), {}, "shape of an input is not known"),
        ("static", Two(), {"input_shape": (3, 16, 16), "num_classes": 3}, "gives 10 numbers"),
        ("static", Two(), {"input_shape": (3, 16, 16), "pretrained": True}, "pretrained is set"),
        ("static", "resnet19", {}, 'timm has no network "resnet19"'),
        ("slim", "mobilenet_v1", {}, "has no input_shape and num_classes of its own"),
        ("slim", "densenet121", {"pretrained": False, "input_shape": SHAPE}, "a concatenation"),
        ("slim", "mobilenet_v1", {"input_shape": SHAPE, "num_classes": 5, "widths": [0.5]}, "must rise"),
        ("shuffle", "resnet18", {"pretrained": False}, "cannot change places"),
        ("skip", Two(), {"input_shape": (3, 16, 16)}, "no stem, blocks and head"),
        ("nested", "resnet18", {"pretrained": False}, "ResNet"),
        ("exits", "resnet18", {"at": "layer1", "way": "classifier_wise", "pretrained": False}, "frozen at random"),
        ("static", "resnet18", {"learn": "classifier", "pretrained": False}, "frozen at random"),
        ("exits", "resnet18", {"pretrained": False}, "where to cut"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(
    builder: str, network: Any, words: dict[str, Any], named: str
) -> None:
    with pytest.raises(RecipeError, match=named) as caught:
        getattr(supple, builder)(network, **words)
    assert caught.value.cure
