"""Cutting networks at layer names: every family, what is carried over a cut, what is refused."""

import copy

import pytest
import timm
import torch
from torch import nn
from torch.testing import assert_close

import supple
from supple.backbones._cut.cut import cut
from supple.backbones._cut.cut_points import places
from supple.backbones._cut.tap import Tap, find_tap
from supple.backbones._cut.trace import ancestors
from supple.cost import count_macs, profile
from supple.errors import RecipeError
from supple.point import FULL, Point

FAMILIES = {
    "resnet18": ["layer1", "layer2.0.act1", "layer3"],
    "densenet121": ["features.denseblock1", "features.transition2.conv"],
    "inception_v3": ["Mixed_5b", "Mixed_6a"],
    "mobilenetv2_100": ["blocks.1", "blocks.3.0"],
    "mobilenetv3_small_050": ["blocks.1", "blocks.3.0"],
    "efficientnet_b0": ["blocks.1", "blocks.3"],
    "tf_efficientnet_lite0": ["blocks.1", "blocks.3.0.bn1"],
    "convnext_atto": ["stages.0", "stages.2.blocks.1"],
    "vit_tiny_patch16_224": ["blocks.2", "blocks.5.norm1"],
    "deit_tiny_distilled_patch16_224": ["blocks.2", "blocks.5"],
    "swin_tiny_patch4_window7_224": ["layers.0", "layers.2.blocks.1"],
    "regnety_002": ["s1", "s3.b2"],
}


def size_of(name: str) -> int:
    return 75 if name.startswith("inception") else 32


@pytest.mark.parametrize("name", FAMILIES)
def test_exits_on_a_network_of_each_family_leave_its_own_answer_as_it_was_and_learn(name):
    torch.manual_seed(0)
    shape = (3, size_of(name), size_of(name))
    model = supple.exits(name, FAMILIES[name], num_classes=5, input_shape=shape, pretrained=False)
    model(torch.randn(4, *shape), model.points)  # norm statistics that are not the initial ones
    untouched = copy.deepcopy(model.backbone)
    x = torch.randn(4, *shape)
    for part in (*model.modules(), *untouched.modules()):  # by class: some networks keep their own dropout layers
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    for training in (True, False):
        torch.manual_seed(1)
        logits = model.train(training)(x)
        torch.manual_seed(1)
        assert torch.equal(logits, untouched.train(training)(x))
    costs = [row.macs for row in profile(model)]
    assert costs == sorted(costs)

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    target = torch.tensor([0, 1, 2, 3])
    losses = []
    for _ in range(3):
        loss = sum(nn.functional.cross_entropy(output.logits, target) for output in model(x, model.points))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


class Twice(nn.Module):
    """Calls one layer twice, and keeps the input of the first call for the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.other = nn.Conv2d(3, 3, 1)
        self.fc = nn.Linear(3, 4)

    def forward(self, x):
        first = self.conv(x)
        late = self.other(x)  # needed only after the second call
        second = self.conv(first)
        return self.fc((second + late + first.mean()).mean((2, 3)))


def test_the_second_call_of_a_shared_layer_is_a_place_of_its_own():
    network, x = Twice().eval(), torch.randn(2, 3, 8, 8)
    model = supple.exits(network, ["conv", "conv#2"], input_shape=(3, 8, 8)).eval()
    seen = model.features(x).outputs
    assert_close(seen[0], network.conv(x))
    assert_close(seen[1], network.conv(network.conv(x)))
    assert_close(seen[2], network(x))


def test_a_stopped_run_does_not_compute_what_only_later_stages_need():
    model = supple.exits(Twice(), ["conv"], input_shape=(3, 8, 8))
    x = torch.empty(1, 3, 8, 8, device="meta")
    branch = 3 * 4
    assert count_macs(lambda: model.to("meta")(x, Point(exit=1))) == 8 * 8 * 27 * 3 + branch


def test_several_tensors_live_over_a_cut_and_follow_the_samples_that_stay():
    torch.manual_seed(0)
    model = supple.exits("resnet18", ["layer2.0.act1"], num_classes=4, input_shape=(3, 32, 32), pretrained=False).eval()
    state, _ = model.stages()[0](torch.randn(5, 3, 32, 32))
    assert [tuple(part.shape[:2]) for part in state] == [(5, 128), (5, 64)]  # the block's shortcut needs its input
    x = torch.randn(5, 3, 32, 32)
    with torch.inference_mode():
        run = model.run(x, model.points)
        next(run)
        rest = run.send(torch.tensor([3, 0]))
        assert_close(rest.logits, model.backbone(x)[[3, 0]])


class Sizes(nn.Module):
    """Uses the batch size of the input behind the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 36, 3)

    def forward(self, x):
        batch = x.shape[0]
        return self.fc(self.conv(x).reshape(batch, -1))


def test_sizes_are_taken_anew_behind_a_cut_since_the_batch_may_have_shrunk():
    model = supple.exits(Sizes(), ["conv"], input_shape=(3, 8, 8)).eval()
    x = torch.randn(5, 3, 8, 8)
    run = model.run(x, model.points)
    next(run)
    assert_close(run.send(torch.tensor([1, 4])).logits, model.backbone(x)[[1, 4]])


def test_a_branch_may_learn_where_the_next_layer_writes_in_place():
    model = supple.exits("resnet18", ["layer1.0.bn1"], "cnn", num_classes=3, input_shape=(3, 64, 64), pretrained=False)
    assert model._bodies.cuts.altered == (True,)
    outputs = model(torch.randn(2, 3, 64, 64), model.points)
    sum(output.logits.sum() for output in outputs).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Functional(nn.Module):
    """Dropout as a function: tracing bakes the mode in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(nn.functional.dropout(x, 0.5, self.training).mean((2, 3)))


def test_train_and_eval_are_traced_apart():
    model = supple.exits(Functional(), ["conv"], input_shape=(3, 8, 8), way="end_to_end")
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(model.eval()(x), model(x))
    assert torch.equal(model(x), model.backbone(x))
    assert not torch.equal(model.train()(x), model(x))


def test_a_model_that_moved_still_shares_its_weights_with_its_stages():
    model = supple.exits(
        "vit_tiny_patch16_224", ["blocks.1"], num_classes=3, input_shape=(3, 32, 32), pretrained=False
    ).eval()
    x = torch.randn(2, 3, 32, 32)
    model(x)
    model = model.double()
    assert torch.equal(model(x.double()), model.backbone(x.double()))
    model.backbone.cls_token.data.add_(1.0)
    assert torch.equal(model(x.double()), model.backbone(x.double()))


@pytest.mark.parametrize(
    ("name", "at", "tap"),
    [
        ("resnet18", "layer2", Tap("nchw", 128, 4, 4)),
        ("swin_tiny_patch4_window7_224", "layers.0", Tap("nhwc", 96, 8, 8)),
        ("vit_tiny_patch16_224", "blocks.1", Tap("tokens", 192, 2, 2, 1)),
        ("vit_tiny_patch16_224", "patch_embed", Tap("tokens", 192, 2, 2, 0)),
        ("deit_tiny_distilled_patch16_224", "blocks.1", Tap("tokens", 192, 2, 2, 2)),
        ("resnet18", "global_pool", Tap("flat", 512)),
    ],
)
def test_the_layout_at_a_cut_is_found(name, at, tap):
    arguments = {} if name == "resnet18" else {"img_size": 32}
    with torch.device("meta"):
        network = timm.create_model(name, **arguments)
    assert cut(network, [at], (3, 32, 32)).taps == (tap,)


def test_a_cube_is_told_apart_by_the_layers_next_to_it():
    last, first = nn.Sequential(nn.Linear(6, 8)), nn.Sequential(nn.Conv2d(3, 8, 1))
    for network, shape, layout in ((first, (3, 8, 8), "nchw"), (last, (8, 8, 6), "nhwc")):
        network.append(nn.Flatten()).append(nn.Linear(512, 2))
        assert cut(network, ["0"], shape).taps[0].layout == layout


def test_cut_stages_cost_what_the_network_costs():
    with torch.device("meta"):
        model = supple.exits("resnet18", ["layer1", "layer3"], input_shape=(3, 64, 64), num_classes=7, pretrained=False)
    x = torch.empty(1, 3, 64, 64, device="meta")
    assert count_macs(lambda: model(x, FULL)) == count_macs(lambda: model.backbone(x))


def test_places_lists_what_can_be_cut_with_its_share_of_the_macs():
    with torch.device("meta"):
        network = timm.create_model("resnet18")
    found = {place.name: place for place in places(network, (3, 224, 224), depth=2)}
    assert list(found)[:3] == ["conv1", "bn1", "act1"]
    assert found["layer2"].tap == Tap("nchw", 128, 28, 28)
    assert found["conv1"].share == pytest.approx(118_013_952 / 1_814_073_344)
    assert found["fc"].reason == "it is the end of the network."
    assert "layer1.0.conv1" not in found


def test_ancestors_of_a_path():
    assert ancestors("a.b.c") == ["", "a", "a.b"]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x, y):
        return (self.conv(x) + y).mean((2, 3))


class Windows(nn.Module):
    """Folds space into the batch, as window attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fc = nn.Conv2d(3, 3, 1), nn.Linear(3, 2)

    def forward(self, x):
        windows = self.inner(torch.cat(x.chunk(2, dim=2)))
        return self.fc(torch.cat(windows.chunk(2), dim=2).mean((2, 3)))


class Branching(nn.Module):
    """Looks at its data to decide."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.fc = nn.Conv2d(3, 3, 1), nn.Linear(3, 2)

    def forward(self, x):
        x = self.one(x)
        return self.fc((x if x.sum() > 0 else -x).mean((2, 3)))


@pytest.mark.parametrize(
    ("network", "at", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(192, 2)), ["conv"], ['no layer "conv"']),
        ("resnet18", ["layr1"], ['no layer "layr1"', 'Did you mean "layer1"']),
        ("resnet18", ["layer1.0.act1#7"], ["does not run", "only 1 times", "Nearest"]),
        ("resnet18", ["layer1#x"], ["not the number of a call"]),
        ("resnet18", ["layer2", "layer1"], ["not in execution order", "layer1, layer2"]),
        ("resnet18", ["fc"], ["end of the network", "Nearest", "layer4"]),
        (TwoInputs(), ["conv"], ["takes 2 inputs (x, y)", "Wrap it"]),
        (Windows(), ["inner"], ["batch is not first", "list --cuts"]),
        (Branching(), ["one"], ["cannot be cut at one"]),
        ("resnet999", ["layer1"], ["timm has no network"]),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(network, at, words):
    with pytest.raises(RecipeError) as caught:
        named = {"input_shape": (3, 64, 64), "pretrained": False}
        supple.exits(network, at, num_classes=2, **(named if isinstance(network, str) else {"input_shape": (3, 8, 8)}))
    for word in words:
        assert word in str(caught.value)


def test_odd_shapes_have_no_tap():
    with pytest.raises(RecipeError, match="neither a map"):
        find_tap(nn.Identity(), "x", (2, 3, 4, 5), None)
    with pytest.raises(RecipeError, match="do not form a square grid"):
        find_tap(nn.Identity(), "x", (7, 8), None)


def test_a_module_needs_its_input_shape():
    with pytest.raises(RecipeError, match="input_shape"):
        supple.exits(Twice(), ["conv"])


def test_list_cuts_shows_every_place(command):
    said = command("list", "--cuts", "resnet18", "--size", 64, "--json").json
    assert said["input_shape"] == [3, 64, 64]
    names = [row["name"] for row in said["cuts"]]
    assert {"layer1", "layer4.1", "global_pool"} <= set(names)
    assert "fc" not in names
    text = command("list", "--cuts", "resnet18").out
    assert "MACs before, %" in text
    assert "28x28x128" in text
    command("list", "--cuts", "resnet19").refused(2, "timm has no network", "resnet1")
