"""Crowds: AudioCSRNet against the paper arithmetic, density maps and losses by hand, the data, and the commands."""

import json
import math
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch import Tensor, nn, tensor
from torch.testing import assert_close

from supple import checkpoint
from supple.backbones import AudioCsrNet
from supple.backbones._cut.cut_points import cuts
from supple.backbones._cut.tap import Tap
from supple.backbones.audiocsrnet import spread
from supple.backbones.fusion import Fusion
from supple.cost import count_macs, count_params, profile
from supple.data.crowd.dataset import density_map, resized_map
from supple.data.crowd.preprocess import CrowdPrepare, sound_beside
from supple.data.crowd.reader import crowd
from supple.data.registry import load
from supple.errors import DataError, RecipeError
from supple.ladder import Row
from supple.losses import count_objective, density_objective, make_objective
from supple.methods.branches import SlVit
from supple.methods.exits import Exits
from supple.methods.static import Static
from supple.model import Output, example
from supple.paper_count import PaperCost, paper_costs
from supple.point import FULL, Point
from supple.recipe import load_recipe
from supple.tasks import TASKS
from supple.tasks.count import Crowd, readable
from supple.training.build import skeleton
from supple.training.init import start_from
from tiny_crowd import HEIGHT, WIDTH, make_crowd, write_wave

SHAPE = ((3, 32, 40), (1, 96, 64))
SMALL = {"front": (4, 4, 8, 8), "audio_channels": (4, 4, 8, 8), "back": (8, 8, 4)}
AT = ("vision", "audio", "fusion1")


def network(shape=SHAPE, **settings) -> AudioCsrNet:
    torch.manual_seed(0)
    return AudioCsrNet(num_classes=1, input_shape=shape, **{**SMALL, **settings}).eval()


def look(batch: int = 2) -> tuple[Tensor, Tensor]:
    return example(SHAPE, batch, torch.randn, generator=torch.Generator().manual_seed(1))


# --- the arithmetic of the paper --------------------------------------------------------------------------------------


@cache
def counted(kind: str) -> list[tuple[Row, PaperCost]]:
    model = skeleton(load_recipe(f"sl_vit/disco_audiocsrnet_{kind}"))
    return list(zip(profile(model), paper_costs(model, model.points)))


# By kind and exit: MACs, branch parameters, the paper's FLOPS (B).
TABLE_8 = {
    "cnn": (
        (164_775_657_728, 2_499_345, 329.7734),
        (165_571_936_512, 2_499_345 + 2 * (512 * 16 + 16), 331.3677),
        (None, 2_499_345, 374.8646),
    ),
    "sl_vit": (
        (164_269_588_736, 2_353_825, 328.7162),
        (165_067_183_104, 2_353_825 + 8_224, 330.3125),
        (None, 2_353_825, 373.8074),
    ),
}
PRINTED = {"cnn": "2.50 2.52 2.50 329.77 331.37 374.86", "sl_vit": "2.35 2.36 2.35 328.72 330.31 373.81"}


@pytest.mark.parametrize("kind", TABLE_8)
def test_table_8_from_the_recipes_without_data(kind):
    rows = counted(kind)
    for (row, cost), (macs, params, flops) in zip(rows, TABLE_8[kind]):
        assert macs in (None, row.macs)
        assert row.branch_params == params
        assert cost.flops / 1e9 == pytest.approx(flops, abs=5e-5)
    exits = rows[:-1]
    printed = [f"{row.branch_params / 1e6:.2f}" for row, _ in exits] + [f"{cost.flops / 1e9:.2f}" for _, cost in exits]
    assert " ".join(printed) == PRINTED[kind]
    if kind == "sl_vit":
        for (_, cost), acceleration in zip(exits, (1.49, 1.48, 1.31)):
            assert cost.acceleration == pytest.approx(acceleration, rel=0.005)
    assert rows[-1][0].macs == 244_391_486_464
    whole = rows[0][1].flops * rows[0][1].acceleration
    assert f"{whole / 1e9:.2f}" == "489.04"


def test_the_parts_have_the_sizes_of_the_arithmetic():
    with torch.device("meta"):
        net = AudioCsrNet(num_classes=1, input_shape=((3, 576, 1024), (1, 96, 64)))
        maps = AudioCsrNet(num_classes=1, input_shape=((3, 576, 1024), (1, 96, 64)), readout="density")
    params = {name: count_params(stage.parameters()) for name, stage in net.stages.items()}
    assert (params["vision"], params["audio"]) == (7_635_264, 4_499_712)
    assert count_params(maps.parameters()) == 22_798_785
    assert count_params(net.parameters()) == 22_798_785 + 9_216
    assert set(net.state_dict()) == set(maps.state_dict())
    x = example(((3, 576, 1024), (1, 96, 64)), make=torch.empty, device="meta")
    spent = []
    for stage in list(net.eval().stages.values())[:3]:
        before, x = x, stage(x)
        spent.append(count_macs(lambda stage=stage, before=before: stage(before)))
    assert spent == [164_093_755_392, 796_262_400, 21_743_796_224]
    assert tuple(x[0].shape) == (1, 512, 72, 128)


# --- the network ------------------------------------------------------------------------------------------------------


def test_spreading_a_map_over_the_pixels_keeps_its_sum():
    density = torch.rand(2, 1, 4, 5)
    pixels = spread(density)
    assert pixels.shape == (2, 1, 32, 40)
    assert_close(pixels.sum((1, 2, 3)), density.sum((1, 2, 3)))
    assert_close(pixels[0, 0, :8, :8].sum(), density[0, 0, 0, 0])


def test_the_count_starts_as_the_sum_of_the_map_and_from_its_run():
    maps, counts = Static(network(readout="density")), Static(network(readout="count"))
    with torch.no_grad():
        for parameter in maps.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    assert start_from(counts, maps.state_dict(), "a run") == []
    x = look()
    with torch.inference_mode():
        assert_close(counts.eval()(x), maps.eval()(x).sum((2, 3)))
    assert any(name.endswith("count.weight") for name, _ in counts.named_parameters())
    assert not any(name.endswith("count.weight") for name, _ in maps.named_parameters())


def test_a_fusion_block_by_hand():
    # The convolution passes channel 0 on, the norm is at rest: relu(gamma x + beta), gamma = 2 h, beta = -3.
    block = Fusion(1, 1, sound=1, kernel=1, padding=0, dilation=1).eval()
    with torch.no_grad():
        block.conv[0].weight.fill_(math.sqrt(1 + 1e-5))
        block.heard.weight.copy_(tensor([[2.0], [0.0]]))
        block.heard.bias.copy_(tensor([0.0, -3.0]))
        said = block(tensor([1.0, 5.0]).view(1, 1, 1, 2), tensor([[0.5]]))
    assert_close(said.flatten(), tensor([0.0, 2.0]))


def test_a_fresh_fusion_block_hears_next_to_nothing():
    block = Fusion(3, 4, sound=8).eval()
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        block.heard.weight.zero_()
        assert_close(block(x, torch.randn(1, 8)), block.conv(x).relu())


def test_sound_is_one_patch_more_through_the_same_embedding():
    branch = SlVit(Tap("nchw", 8, 4, 4, sound=8), 1, patch=2, d=6, heads=2, hidden=8).eval()
    silent = SlVit(Tap("nchw", 8, 4, 4), 1, patch=2, d=6, heads=2, hidden=8)
    assert branch.position.shape == (5, 6)
    assert count_params(branch.parameters()) == count_params(silent.parameters()) + 6 + 6 * 8
    heard, tokens = torch.randn(2, 8), []
    branch.layers[0].register_forward_pre_hook(lambda module, args: tokens.append(args[0]))
    with torch.inference_mode():
        branch((torch.randn(2, 8, 4, 4), heard))
        expected = heard @ branch.embed.weight.sum((2, 3)).T + branch.embed.bias + branch.position[4]
    assert_close(tokens[0][:, 4], expected)


@pytest.mark.parametrize(
    "branch", ["linear", {"name": "cnn", "padding": 1}, {"name": "sl_vit", "patch": 1, "heads": 2}]
)
def test_only_what_an_exit_needs_runs(branch):
    model = Exits(network(), at=AT, branch=branch, input_shape=SHAPE).eval()
    ran = []
    for name, stage in model.backbone.stages.items():
        stage.register_forward_hook(lambda module, given, output, name=name: ran.append(name))
    with torch.inference_mode():
        for exit, names in enumerate(([*AT][:1], [*AT][:2], [*AT], [*AT, "rest"]), 1):
            ran.clear()
            assert model(look(), Point(exit=exit)).shape == (2, 1)
            assert ran == names
    assert model.taps[1].sound == 8
    assert (model.taps[0].sound, model.taps[2].sound) == (0, 0)


def test_a_picture_without_sound_is_answered_by_the_exit_that_only_sees():
    model = Exits(network(), at=AT, input_shape=SHAPE).eval()
    picture, sound = look()
    with torch.inference_mode():
        assert_close(model((picture, None), Point(exit=1)), model((picture, sound), Point(exit=1)))
        assert_close(model(picture, Point(exit=1)), model((picture, sound), Point(exit=1)))
        for point in model.points[1:]:
            with pytest.raises(DataError, match="no sound") as caught:
                model((picture, None), point)
            assert "exit=1" in caught.value.cure


def test_stages_that_no_cut_parts_are_joined():
    net = network()
    model = Exits(net, at=("audio",), input_shape=SHAPE).eval()
    assert [len(stage.body) for stage in model.stages()] == [2, 2]
    with torch.inference_mode():
        assert_close(model(look()), net(look()))
    assert [(place.name, str(place.tap)) for place in cuts(net, SHAPE)] == [
        ("vision", "4x5x8"),
        ("audio", "4x5x8 and 8 of sound"),
        ("fusion1", "4x5x8"),
    ]


def test_layer_by_layer_training_wakes_one_stage_at_a_time():
    model = Exits(network(), at=AT, way="layer_wise", input_shape=SHAPE)
    assert model.num_phases() == 4
    model.train()
    assert model.begin_phase(1) == (Point(exit=2),)
    learning = {name.split(".")[1] for name, p in model.backbone.named_parameters() if p.requires_grad}
    assert learning == {"audio"}
    assert not model.backbone.stages["vision"].training


@pytest.mark.parametrize(
    ("at", "named"),
    [
        (("visoin",), 'Did you mean "vision"'),
        (("rest",), "the end of the network"),
        (("audio", "vision"), "vision, audio"),
        (("vision", "vision"), "twice"),
        (("stages.vision",), "vision"),
    ],
)
def test_cuts_that_are_no_stages_are_refused(at, named):
    with pytest.raises(RecipeError) as caught:
        Exits(network(), at=at, input_shape=SHAPE)
    assert named.lower() in str(caught.value).lower()


def test_without_audio_it_is_a_network_for_pictures():
    net = network(shape=(3, 32, 40), use_audio=False)
    assert list(net.stages) == ["vision", "fusion1", "rest"]
    picture, sound = look()
    with torch.inference_mode():
        assert_close(net(picture), net((picture, sound)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"shape": (3, 32, 40)}, "use_audio"),
        ({"shape": ((3, 30, 40), (1, 96, 64))}, "multiples of 8"),
        ({"shape": ()}, "data.size"),
        ({"front": (4, 4)}, "backbone.front"),
        ({"back": ()}, "backbone.back"),
        ({"audio_channels": (4, 4, 4, 0)}, "backbone.audio_channels"),
    ],
)
def test_a_network_that_cannot_be_is_refused(settings, named):
    with pytest.raises(RecipeError) as caught:
        network(**settings)
    assert named in str(caught.value)


def test_it_counts_one_kind_of_thing():
    with pytest.raises(RecipeError, match="10 classes"):
        AudioCsrNet(num_classes=10, input_shape=SHAPE)


# --- density maps, scores and losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [[], [[0, 0]], [[40, 32]], [[20.4, 3.9], [20.4, 3.9]], "many"])
def test_a_density_map_sums_to_the_number_of_heads_also_at_the_border(points):
    found = torch.rand(300, 2) * tensor([40.0, 32.0]) if points == "many" else tensor(points).view(-1, 2)
    density = density_map(found, 32, 40)
    assert density.shape == (32, 40)
    assert density.min() >= 0
    assert float(density.double().sum()) == pytest.approx(len(found), abs=1e-4)


def test_a_head_is_a_gaussian_of_15_by_15_cells_around_its_own():
    density = density_map(tensor([[20.9, 16.2]]), 32, 40)
    row, column = divmod(int(density.argmax()), 40)
    assert (row, column) == (16, 20)
    assert int((density > 0).sum()) == 15 * 15
    assert density[16, 24] / density[16, 20] == pytest.approx(math.exp(-16 / (2 * 4.0**2)), rel=1e-5)


def test_a_map_brought_to_another_size_keeps_its_sum():
    density = torch.rand(54, 96)
    for size in ((27, 48), (32, 40), (108, 100)):
        found = resized_map(density, *size)
        assert tuple(found.shape) == size
        assert_close(found.sum(), density.sum())
    assert_close(resized_map(density, 27, 48)[0, 0], density[:2, :2].sum())
    assert_close(resized_map(tensor([[1.0, 2.0, 4.0]]), 1, 2), tensor([[2.0, 5.0]]))  # the middle cell is halved


def test_mae_and_mse_by_hand():
    # 3 and 5 people; a number says 4, a map says 1 + 1: apart by 1 and 3.
    meter = TASKS["count"].meter(Static(nn.Identity()))
    meter.add(Output(FULL, tensor([[4.0]])), Crowd(tensor([3.0]), torch.zeros(1, 1, 2, 2)))
    meter.add(Output(FULL, tensor([[[[1.0, 0.0], [0.0, 1.0]]]])), Crowd(tensor([5.0]), torch.zeros(1, 1, 2, 2)))
    result = meter.result()
    assert (result.score, result.loss, result.extra_metrics) == (2.0, 2.0, {"mse": 5.0})


def test_the_losses_by_hand():
    true = Crowd(tensor([3.0, 5.0]), torch.zeros(2, 1, 2, 2))
    low, full = Point(exit=1), FULL
    outputs = [Output(low, tensor([[4.0], [5.0]])), Output(full, tensor([[1.0], [1.0]]))]  # off by (1, 0) and (2, 4)
    assert_close(count_objective((low, full))(outputs, true), tensor(0.5 + 3.0))
    assert_close(count_objective((low, full), weights=(2.0, 1.0))(outputs, true), tensor(1.0 + 3.0))
    maps = tensor([[[[1.0, 1.0], [0.0, 0.0]]], [[[0.0, 0.0], [0.0, 2.0]]]])  # squared distances 2 and 4
    assert_close(density_objective((full,))([Output(full, maps)], true), tensor(1.5))
    with pytest.raises(RecipeError, match="no map"):
        density_objective((low,))(outputs[:1], true)
    with pytest.raises(RecipeError, match=r"weights is \(1.0,\)"):
        count_objective((low, full), weights=(1.0,))


@pytest.mark.parametrize(("name", "task"), [("distill", "count"), ("count", "classes"), ("density", "classes")])
def test_a_loss_for_another_task_is_refused(name, task):
    with pytest.raises(RecipeError, match=name):
        make_objective({"name": name}, (FULL,), task)


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd_folder(tmp_path_factory) -> Path:
    """Only to be read."""
    return make_crowd(tmp_path_factory.mktemp("crowd") / "dots")


@pytest.fixture
def own(crowd_folder, tmp_path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(crowd_folder, tmp_path / "own"))


def entries(folder: Path) -> dict:
    return json.loads((folder / "points.json").read_text())["images"]


def rewrite(folder: Path, **changes) -> None:
    found = entries(folder)
    found["03.png"] |= changes
    (folder / "points.json").write_text(json.dumps({"images": found}))


def read(root: Path, **settings):
    return load("crowd", root=str(root), **{"size": (32, 40), **settings})


def test_pictures_sounds_heads_and_maps_come_together(crowd_folder):
    splits = read(crowd_folder)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [12, 6, 6]
    (pictures, sounds), crowd = splits.test.batch(torch.arange(6))
    assert (splits.test.task, splits.test.classes, splits.test.shape) == ("count", ("people",), SHAPE)
    assert (pictures.shape, sounds.shape, crowd.density.shape) == ((6, 3, 32, 40), (6, 1, 96, 64), (6, 1, 32, 40))
    true = [len(entry["points"]) for entry in entries(crowd_folder).values() if entry["split"] == "test"]
    assert crowd.heads.tolist() == true
    assert_close(crowd.density.sum((1, 2, 3)), crowd.heads, atol=1e-4, rtol=0)
    loud = sounds.mean((1, 2, 3))
    assert loud[crowd.heads.argmax()] > loud[crowd.heads.argmin()]
    assert sounds.min() >= -2
    assert sounds.max() <= 2


def test_points_are_scaled_with_their_picture(own):
    rewrite(own, points=[[WIDTH * 0.75, HEIGHT * 0.25]])
    test = read(own, sigma=0.5).test
    density = test.batch(torch.arange(1))[1].density[0, 0]
    assert divmod(int(density.argmax()), 40) == (8, 30)


def test_a_mirrored_picture_mirrors_its_heads(crowd_folder):
    train = read(crowd_folder, flip=True).train
    (plain, _), still = train.batch(torch.arange(12))
    (turned, _), crowd = train.batch(torch.arange(12), torch.Generator().manual_seed(0))
    mirrored = [not torch.equal(a, b) for a, b in zip(plain, turned)]
    assert 0 < sum(mirrored) < 12
    for k, changed in enumerate(mirrored):
        assert_close(turned[k], plain[k].flip(-1) if changed else plain[k])
        assert_close(crowd.density[k], still.density[k].flip(-1) if changed else still.density[k])
    assert torch.equal(crowd.heads, still.heads)


def test_a_zip_and_a_folder_of_sounds_give_the_same(crowd_folder, tmp_path):
    folder = make_crowd(tmp_path / "apart", sounds="sounds")
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", crowd_folder.parent)  # dots/ inside
    first, *others = [read(root).test.batch(torch.arange(6)) for root in (crowd_folder, folder, Path(archive))]
    for other in others:
        assert_close(other, first)


def test_what_does_not_fit_in_memory_is_read_when_wanted(crowd_folder):
    kept, fetched = read(crowd_folder), read(crowd_folder, memory_limit=0)
    assert fetched.test.slow
    for _ in range(2):
        assert_close(kept.test.batch(torch.arange(6)), fetched.test.batch(torch.arange(6)))
    assert not kept.test.slow


def test_pictures_alone_are_tensors_and_are_split_by_seed(tmp_path):
    folder = make_crowd(tmp_path / "silent", sounds=None, splits=False)
    splits = read(folder)
    assert splits.train.shape == (3, 32, 40)
    assert len(splits.test) == 5
    assert splits.test.batch(torch.arange(2))[0].shape == (2, 3, 32, 40)


BROKEN = {
    "point outside": (lambda f: rewrite(f, points=[[3, 3], [WIDTH + 1, 3]]), ("03.png", "outside", "45")),
    "a number of 400 digits": (lambda f: rewrite(f, points=[[10**400, 3]]), ("03.png", "A point is")),
    "no number": (lambda f: rewrite(f, points=[[3, "x"]]), ("03.png", "'x'")),
    "no points": (lambda f: rewrite(f, points=None), ("03.png", "points")),
    "other size": (lambda f: rewrite(f, width=99), ("03.png", "99")),
    "odd split": (lambda f: rewrite(f, split="exam"), ("03.png", "exam", "train")),
    "half split": (lambda f: rewrite(f, split=None), ("03.png", "split")),
    "some silent": (lambda f: (f / "images/03.wav").unlink(), ("03.png", "23 of 24", "03.wav")),
    "no picture": (lambda f: (f / "images/03.png").unlink(), ("03.png", "points.json")),
    "broken picture": (lambda f: (f / "images/03.png").write_bytes(b"no"), ("03.png",)),
    "broken json": (lambda f: (f / "points.json").write_text("{"), ("points.json", "images/NAME.jpg")),
    "empty json": (lambda f: (f / "points.json").write_text('{"images": {}}'), ("points.json",)),
    "no json": (lambda f: (f / "points.json").unlink(), ("points.json",)),
    "other json": (lambda f: (f / "points.json").write_text("[1]"), ("points.json", 'it has no "images"')),
}


def test_pictures_in_folders_have_their_own_sounds(tmp_path):
    """images/a/0.png and images/b/0.png; in training as in predictions, a sound beside the picture comes first."""
    base, entry = tmp_path / "set", {"points": [[3, 3]], "split": "train"}
    for name in ("a", "b", "c"):
        (base / "images" / name).mkdir(parents=True)
        Image.new("RGB", (WIDTH, HEIGHT)).save(base / "images" / name / "0.png")
    (base / "sounds" / "b").mkdir(parents=True)
    (base / "sounds" / "c").mkdir()
    for path, loud in (("images/a/0", 0.1), ("sounds/b/0", 0.3), ("images/c/0", 0.6), ("sounds/c/0", 0.9)):
        write_wave(base / f"{path}.{'WAV' if loud == 0.6 else 'wav'}", loud)
    listed = {f"{name}/0.png": entry for name in ("a", "b")} | {"c/0.png": entry | {"split": "test"}}
    (base / "points.json").write_text(json.dumps({"images": listed}))
    found = crowd(root=str(base))
    expected = ["images/a/0.wav", "sounds/b/0.wav", "images/c/0.WAV"]
    scenes = [*found.train.images, *found.test.images]
    assert [str(Path(str(scene.sound)).relative_to(base)) for scene in scenes] == expected
    beside = [sound_beside(base / "images" / name / "0.png") for name in ("a", "b", "c")]
    assert [str(path.relative_to(base)) for path in beside] == expected


@pytest.mark.parametrize("sizes", [{}, {"width": HEIGHT, "height": WIDTH}])
def test_points_are_in_the_picture_as_it_is_shown(own, sizes):
    """A camera held upright stores the picture on its side, and says so."""
    picture = Image.open(own / "images" / "03.png")
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(own / "images" / "03.png", exif=exif)
    found = entries(own)
    found["03.png"] = {"points": [[HEIGHT * 0.25, WIDTH * 0.75]], "split": "test", **sizes}
    (own / "points.json").write_text(json.dumps({"images": found}))
    density = read(own, sigma=0.5).test.batch(torch.arange(1))[1].density[0, 0]
    assert divmod(int(density.argmax()), 40) == (24, 10)
    rewrite(own, width=WIDTH, height=HEIGHT)  # as it is stored
    with pytest.raises(DataError, match=f"03.png is {WIDTH} x {HEIGHT}, but the picture has {HEIGHT} x {WIDTH}"):
        read(own)


@pytest.mark.parametrize("what", BROKEN)
def test_broken_data_are_refused_by_name(own, what):
    change, named = BROKEN[what]
    change(own)
    with pytest.raises(DataError) as caught:
        read(own)
    for word in named:
        assert word in str(caught.value)
    assert caught.value.cure


def test_pictures_that_are_not_listed_are_told_of(own, capsys):
    read(own)
    assert "not listed" not in capsys.readouterr().err
    shutil.copy(own / "images/03.png", own / "images/more.png")
    read(own)
    assert "1 of 25 pictures are not listed, and not used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": None}, "data.size"),
        ({"size": (0, 8)}, "data.size"),
        ({"crop": 4}, "data.crop"),
        ({"augment": "autoaugment"}, "data.augment"),
        ({"channels": 1}, "data.channels"),
        ({"rate": 8000}, "data.rate"),
    ],
)
def test_settings_that_do_not_apply_are_refused(crowd_folder, settings, named):
    with pytest.raises(DataError) as caught:
        read(crowd_folder, **settings)
    assert named in str(caught.value)


def test_two_sides_are_for_crowds_alone():
    with pytest.raises(DataError, match="square"):
        load("digits", size=(8, 16))
    with pytest.raises(RecipeError, match=r"data\.size is \[8, 16\]"):
        load_recipe("pocket/digits", ["data.size=[8, 16]"])


def disco_folder(root: Path) -> Path:
    for number, part in enumerate(("train", "train", "train", "val", "test")):
        name = f"{number:04}"
        for place in ("imgs", "auds", f"density/{part}"):
            (root / place).mkdir(parents=True, exist_ok=True)
        Path(root / "imgs" / f"{name}.jpg").write_bytes(jpeg())
        write_wave(root / "auds" / f"{name}.wav", 0.5, 48_000)
        heads = density_map(tensor([[20.0, 16.0]] * (number + 1)), 54, 96)
        savemat(root / "density" / part / f"{name}.mat", {"map": heads.double().numpy()}, do_compression=True)
    return root


def jpeg() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((54, 96, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def test_disco_is_read_as_it_is_published(tmp_path):
    root = disco_folder(tmp_path / "disco")
    splits = load("disco", root=str(root), size=(32, 40))
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [3, 1, 1]
    (_, sounds), crowd = splits.test.batch(torch.arange(1))
    assert sounds.shape == (1, 1, 96, 64)
    assert crowd.heads.tolist() == pytest.approx([5], abs=1e-4)
    (root / "density/train/0001.mat").write_bytes(b"not a matrix")
    with pytest.raises(DataError, match=r"0001\.mat"):
        load("disco", root=str(root), size=(32, 40)).train.batch(torch.arange(3))
    (root / "imgs/0002.jpg").unlink()
    with pytest.raises(DataError, match="0002"):
        load("disco", root=str(root))
    shutil.rmtree(root / "density")
    with pytest.raises(DataError, match="density maps"):
        load("disco", root=str(root))


def test_preparation_is_saved_and_finds_the_sound(own):
    prepare = read(own).train.preprocess
    assert CrowdPrepare.from_json(json.loads(json.dumps(prepare.to_json()))) == prepare
    picture, sound = prepare.input(own / "images/00.png")
    assert (picture.shape, sound.shape) == ((1, 3, 32, 40), (1, 1, 96, 64))
    assert sound_beside(own / "images/00.png") == own / "images/00.wav"
    (own / "images/00.wav").unlink()
    assert prepare.input(own / "images/00.png")[1] is None
    for broken in ({}, {**prepare.to_json(), "size": [32]}, {**prepare.to_json(), "use_audio": 1}):
        with pytest.raises(DataError, match="preprocessing"):
            CrowdPrepare.from_json(broken)


def test_the_real_crowds_have_the_heads_that_are_listed(real_data):
    splits = load("crowd", root=real_data("crowd-mini.zip"), size=(80, 128))
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [191, 44, 97]
    crowd = splits.val.batch(torch.arange(44))[1]
    assert sum(len(s.points) for part in (splits.train, splits.val, splits.test) for s in part.samples) == 12_880
    assert_close(crowd.density.sum((1, 2, 3)), crowd.heads, atol=1e-3, rtol=0)


# --- from the command line --------------------------------------------------------------------------------------------


def document(root: Path, method: dict, loss: str, **train) -> dict:
    return {
        "data": {"name": "crowd", "root": str(root), "size": [32, 40], "batch_size": 4},
        "backbone": {"name": "audiocsrnet", "readout": "density" if loss == "density" else "count", **SMALL},
        "method": method,
        "loss": {"name": loss},
        "train": {"epochs": 1, "optimizer": "adamw", "lr": 1e-3, "threads": 1, **train},
    }


@pytest.fixture(scope="module")
def runs(crowd_folder, tmp_path_factory) -> Path:
    """Runs of both stages and of the branches, trained one from the other."""
    from supple.cli import main

    folder = tmp_path_factory.mktemp("crowd-runs")
    exits = {
        "name": "exits",
        "at": list(AT),
        "way": "classifier_wise",
        "branch": {"name": "sl_vit", "patch": 1, "d": 8, "heads": 2, "hidden": 16},
    }
    for name, method, loss, train in (
        ("density", {"name": "static"}, "density", {}),
        ("backbone", {"name": "static"}, "count", {"init": str(folder / "density")}),
        ("exits", exits, "count", {"init": str(folder / "backbone")}),
    ):
        (folder / f"{name}.yaml").write_text(json.dumps(document(crowd_folder, method, loss, **train)))
        assert main(["train", str(folder / f"{name}.yaml"), "--out", str(folder / name)]) == 0
    return folder


def test_a_run_is_evaluated_timed_and_reported(runs, command):
    rows = command("evaluate", runs / "exits", "--json").json["points"]
    assert sorted(row["point"] for row in rows) == ["exit=1", "exit=2", "exit=3", "full"]
    assert all((row["metric"], row["accuracy"], row["n"]) == ("mae", None, 6) for row in rows)
    assert all(row["extra_metrics"]["mse"] >= row["score"] ** 2 - 1e-6 for row in rows)
    said = command("evaluate", runs / "exits").out
    assert "random exit: MAE" in said
    assert all(row["p50_ms"] > 0 for row in command("bench", runs / "exits", "--rounds", 5, "--json").json["points"])
    command("report", runs / "exits")
    assert "MAE" in (runs / "exits" / "report.html").read_text()


def test_a_run_is_opened_again_as_it_was(runs, crowd_folder):
    model = checkpoint.load(runs / "exits")
    assert (model.task, model.classes, model.input_shape) == ("count", ("people",), SHAPE)
    x = model.preprocess.input(crowd_folder / "images" / "00.png")
    whole = checkpoint.load(runs / "backbone")
    with torch.inference_mode():
        assert_close(model(x), whole(x))  # the branches learnt, the network did not
        assert_close(model.extract(Point(exit=2))(x), model(x, Point(exit=2)))


def test_pictures_are_answered_and_drawn(runs, crowd_folder, tmp_path, command):
    from PIL import Image

    pictures = crowd_folder / "images"
    said = command("predict", runs / "density", pictures / "03.png", "--draw", tmp_path / "maps", "--json").json
    (answer,) = said["predictions"]
    assert answer["label"] == f"{answer['count']:.1f} people"
    drawn = np.asarray(Image.open(tmp_path / "maps" / "03.png.png"))
    assert min(drawn.shape[:2]) >= 160  # small ones are drawn larger, so that the number can be read
    said = command("predict", runs / "exits", pictures, "--point", "exit=2", "--draw", tmp_path / "n", "--json").json
    assert {answer["point"] for answer in said["predictions"]} == {"exit=2"}
    assert len(said["predictions"]) == len(list((tmp_path / "n").iterdir())) == 24


def test_a_silent_picture_is_named_and_the_others_are_answered(runs, crowd_folder, tmp_path, command):
    silent = shutil.copy(crowd_folder / "images" / "00.png", tmp_path / "silent.png")
    said = command("predict", runs / "exits", silent, crowd_folder / "images" / "01.png")
    assert said.status == 2
    assert "silent.png" in said.err
    assert "exit=1" in said.err
    assert "01.png" in said.out
    told = json.loads(command("predict", runs / "exits", silent, "--json").out)
    assert [error["file"] for error in told["errors"]] == [str(silent)]
    assert command("predict", runs / "exits", silent, "--point", "exit=1", "--json").json["errors"] == []


def test_drawings_never_overwrite_one_another_and_one_that_fails_is_named(runs, crowd_folder, tmp_path, command):
    files = [tmp_path / name / "same.png" for name in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        shutil.copy(crowd_folder / "images" / "00.png", file)
        shutil.copy(crowd_folder / "images" / "00.wav", file.with_suffix(".wav"))
    assert command("predict", runs / "density", *files, "--draw", tmp_path / "drawn").status == 0
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["b_same.png.png", "same.png.png"]
    command("predict", runs / "density", *files, "--draw", files[0]).refused(1, "cannot be made a folder", "--draw")
    assert readable(Image.new("L", (1, 3000))).size == (1, 3000)  # else it would be 480,000 pixels high
    assert readable(Image.new("L", (40, 80))).size == (160, 320)


def test_an_engine_names_a_picture_without_sound_and_answers_the_others(runs, crowd_folder, tmp_path, command):
    silent = shutil.copy(crowd_folder / "images" / "00.png", tmp_path / "silent.png")
    said = command("predict", runs / "exits", silent, crowd_folder / "images" / "01.png", "--engine", "torch")
    assert said.status == 2
    assert "silent.png: there is no sound" in said.err
    assert "01.png" in said.out


def test_what_makes_no_sense_for_counts_is_refused(runs, crowd_folder, command, tmp_path):
    picture = crowd_folder / "images" / "00.png"
    command("evaluate", runs / "backbone", "--ensemble", runs / "density").refused(2, "mean logits")
    command("bench", runs / "exits", "--engine", "torch", "--against", "resnet18").refused(2, "also takes sound")
    command("predict", runs / "exits", picture, "--min-confidence", 0.5).refused(2, "--min-confidence")
    command("calibrate", runs / "exits", "--budget-macs", "0.5x").refused(2, "the task count", "no confidence")
    for change, word in (
        ("loss.name=distill", "count"),
        ("data.size=[30, 40]", "multiples of 8"),
        ("method.at=[vision, voices]", "voices"),
    ):
        said = command("train", runs / "exits.yaml", change, "--out", tmp_path / "no")
        assert said.status == 2, said
        assert word in said.err
    other = document(crowd_folder, {"name": "static"}, "count") | {"backbone": {"name": "resnet_v1"}}
    (tmp_path / "other.yaml").write_text(json.dumps(other))
    command("train", tmp_path / "other.yaml", "--out", tmp_path / "no").refused(2, "resnet_v1", "audiocsrnet")


def test_where_it_can_be_cut_is_listed(runs, command):
    rows = command("list", "--cuts", runs / "exits.yaml", "--json").json["cuts"]
    assert [row["name"] for row in rows] == list(AT)


def test_one_point_is_extracted_with_both_its_inputs(runs, tmp_path, command):
    facts = command("extract", runs / "exits", "--point", "exit=2", "--out", tmp_path / "small", "--json").json
    assert facts["difference"] < 1e-5
    program = torch.export.load(tmp_path / "small" / "model.pt2").module()
    assert program(look(3)).shape == (3, 1)
