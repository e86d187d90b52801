"""Detection: the counts of SiDT's table II, boxes and masks by hand, mAP, COCO files good and bad, and whole runs."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from supple import FULL, Point, checkpoint, load
from supple.backbones.cascade import CascadeRCNN
from supple.backbones.cascade.proposals import BELOW, BETWEEN, Known, by_picture, drawn, matched
from supple.backbones.cascade.stages import CODERS, IOUS, mask_targets
from supple.backbones.dims import shape_of
from supple.cost import count_macs, count_params, profile
from supple.data.detection.batch import GRID, DetectionBatch, Objects, Truth, paste
from supple.data.detection.masks import check, mask_of
from supple.data.registry import load as load_set
from supple.errors import CheckpointError, DataError, RecipeError
from supple.losses import own_objective
from supple.methods.nested import Nested
from supple.model import Output, select
from supple.recipe import load_recipe
from supple.surgery.prune import Plan, nest, prune
from supple.tasks import TASKS
from supple.tasks.boxes import colour
from supple.training.build import fresh_model, load_data, pin, skeleton
from tiny_coco import DETECTOR, coco_recipe, scenes, write_coco

PAPER = "sidt/coco_swin_t_cascade.yaml"
SCORED = "boxes are scored with the extra: pip install 'supple[detect]'"


def scorer() -> None:
    pytest.importorskip("torchmetrics", reason=SCORED)
    pytest.importorskip("faster_coco_eval", reason=SCORED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco"))


def tiny(**settings: Any) -> CascadeRCNN:
    torch.manual_seed(0)
    return CascadeRCNN(num_classes=4, **{key: value for key, value in DETECTOR.items() if key != "name"}, **settings)


# --- table II ---------------------------------------------------------------------------------------------------------


def paper_detector(**settings: Any) -> CascadeRCNN:
    with torch.device("meta"):
        return CascadeRCNN(num_classes=80, **settings)


def params(*parts: torch.nn.Module) -> int:
    return sum(count_params(part.parameters()) for part in parts)


def test_the_detector_has_the_counts_of_the_arithmetic():
    net = paper_detector()
    assert params(net.swin, net.norms) == 27_520_698
    assert params(net.pyramid) == 2_729_984
    assert params(net.proposals) == 593_935
    assert [params(head) for head in net.cascade.boxes] == [15_618_449] * 3
    assert [params(head) for head in net.cascade.masks] == [2_643_280] * 3
    assert params(net.pyramid, net.proposals, net.cascade) == 58_109_106
    assert params(net) == 27_520_698 + 58_109_106


def test_the_detector_has_the_flops_that_swin_publishes_for_1280_x_800():
    net, x = paper_detector().eval(), torch.empty(1, 3, 800, 1280, device="meta")
    assert round(count_macs(lambda: net(x)) / 1e9) == 745


def unrounded(ratio: float) -> float:
    """Parameters of the backbone if every group could keep exactly its share, by arithmetic 2.1."""
    total = 4_704 + 192 + 2 * (96 + 192 + 384 + 768)
    for stage, depth in enumerate((2, 2, 6, 2)):
        d, heads = 96 * 2**stage, 3 * 2**stage
        a, m = heads * 32 * (1 - ratio), 4 * d * (1 - ratio)
        total += depth * (4 * d + 3 * a * d + 3 * a + a * d + d + 169 * heads + 2 * d * m + m + d)
        total += 8 * d + 8 * d * d if stage < 3 else 0
    return total


@pytest.mark.parametrize(("ratio", "printed"), [(0.2, ("22.34", "80.45")), (0.4, ("17.16", "75.27"))])
def test_a_uniform_ratio_prints_the_counts_of_the_arithmetic(ratio, printed):
    whole = unrounded(ratio)
    assert (f"{whole / 1e6:.2f}", f"{(whole + 58_109_106) / 1e6:.2f}") == printed


def test_whole_dimensions_of_a_uniform_20_percent_print_table_2():
    heads, hidden = (26, 26, 25, 26), (307, 614, 1229, 2458)  # the nearest to 25.6 and 80 % in sum
    kept = tuple((d, h) for depth, d, h in zip((2, 2, 6, 2), heads, hidden) for _ in range(depth))
    net = paper_detector(kept=kept)
    assert shape_of(net) == kept
    assert (f"{params(net.swin, net.norms) / 1e6:.2f}", f"{params(net) / 1e6:.2f}") == ("22.34", "80.45")
    floors = skeleton(load_recipe(PAPER, ["method.ratio=0.2", "method.ranking=per_layer"]))
    assert round(profile(floors)[0].params / 1e6) == 80


def test_the_recipe_has_the_training_of_the_paper():
    one = load_recipe(PAPER)
    assert (one.data.batch_size, one.train.lr, one.train.weight_decay, one.train.epochs) == (16, 1e-4, 0.05, 36)
    assert (one.method["name"], one.method["gamma"], one.train.optimizer["name"]) == ("prune", 1e-4, "adamw")
    assert (min(one.data.sizes), max(one.data.sizes), one.data.longest) == (480, 800, 1333)
    assert load_recipe(PAPER, ["method.name=static"]).method["name"] == "static"
    text = (Path(__file__).parents[2] / "recipes" / PAPER).read_text()
    for figure in ["50.5", "43.7", "86", "28", "50.4", "80", "22", "49.2", "42.9", "74", "16"]:
        assert figure in text


# --- boxes and masks by hand ------------------------------------------------------------------------------------------


def known(boxes, crowds=()) -> Known:
    boxes = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    shapes = torch.full((len(boxes), GRID, GRID), 255, dtype=torch.uint8)
    return Known(boxes, torch.arange(len(boxes)), shapes, torch.tensor(crowds, dtype=torch.float32).view(-1, 4))


def test_a_box_belongs_to_an_object_from_the_iou_of_the_stage_on():
    # A box of 10 x h over an object of 10 x 20 has the IoU h / 20.
    shares = (0.49, 0.5, 0.55, 0.6, 0.65, 0.7, 1.0)
    boxes = torch.tensor([[0, 0, 10, 20 * share] for share in shares])
    matchers = tiny().cascade.matchers
    for iou, matcher in zip(IOUS, matchers):
        found = matched(boxes, known([0, 0, 10, 20]), matcher).tolist()
        assert found == [0 if share >= iou - 1e-6 else BELOW for share in shares]


def test_a_box_in_a_crowd_is_neither_object_nor_background():
    boxes = torch.tensor([[0.0, 0, 10, 10], [4, 0, 14, 10], [20, 20, 30, 30]])
    found = matched(boxes, known([], [0, 0, 8, 10]), tiny().cascade.matchers[0])
    assert found.tolist() == [BETWEEN, BELOW, BELOW]  # 80 %, 40 % and nothing of them lie in the crowd


def test_coder_moves_by_the_finer_steps_of_each_stage():
    box, object = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[1.0, 0, 11, 20]])
    for stage, (x, _, _, height) in enumerate(CODERS):
        coder = tiny().cascade.coders[stage]
        code = coder.encode_single(object, box)
        assert_close(code[0], torch.tensor([x * 0.1, x * 0.5, 0.0, height * math.log(2)]))
        assert_close(coder.decode_single(code, box), object)


def test_no_more_boxes_with_objects_are_drawn_than_their_share():
    matches = torch.tensor([0] * 10 + [BELOW] * 10 + [BETWEEN] * 10)
    some, none = drawn(matches, 8, 0.25)
    assert (len(some), len(none)) == (2, 6)
    assert (matches[some] >= 0).all()
    assert (matches[none] == BELOW).all()


def test_mask_targets_are_the_shape_seen_through_a_box():
    shape = torch.zeros(1, GRID, GRID, dtype=torch.uint8)
    shape[:, :, : GRID // 2] = 255  # the left half of an object of 8 x 8 pixels
    own = torch.tensor([[0.0, 0, 8, 8]])
    left = mask_targets(shape, own, own, 4)[0]
    assert left.tolist() == [[1, 1, 0, 0]] * 4
    shifted = mask_targets(shape, own, own + torch.tensor([-4.0, 0, -4, 0]), 4)[0]
    assert shifted.tolist() == [[0, 0, 1, 1]] * 4  # nothing outside the object's box
    assert mask_targets(shape, own, torch.tensor([[0.0, 4, 4, 12]]), 4)[0].tolist() == [[1] * 4] * 2 + [[0] * 4] * 2


def test_a_mask_is_pasted_where_its_box_lies():
    mask = torch.zeros(28, 28)
    mask[:14] = 1.0  # the upper half
    found = paste(mask, torch.tensor([1.0, 2, 5, 6]), 8, 7)
    wanted = torch.zeros(8, 7, dtype=torch.bool)
    wanted[2:4, 1:5] = True
    assert torch.equal(found, wanted)
    assert paste(mask, torch.tensor([-4.0, -4, 4, 4]), 8, 7).sum() == 0  # its upper half lies above the picture
    assert not paste(mask, torch.tensor([3.0, 3, 3, 3]), 8, 7).any()


def test_polygons_and_run_lengths_become_pixels():
    square = mask_of(check([[1, 1, 4, 1, 4, 3, 1, 3]], 5, 6), 5, 6)
    wanted = np.zeros((5, 6), dtype=bool)
    wanted[1:3, 1:4] = True
    assert (square == wanted).all()
    # Column by column, 5 pixels each: 6 not, 2 of the object, 3 not, 2, 3 not, 2, the rest not.
    plain = [6, 2, 3, 2, 3, 2, 12]
    assert (mask_of(check({"size": [5, 6], "counts": plain}, 5, 6), 5, 6) == wanted).all()
    holes = mask_of(check([[0, 0, 2, 0, 2, 2, 0, 2], [3, 3, 5, 3, 5, 5, 3, 5]], 5, 6), 5, 6)
    assert holes.sum() == 8


def test_outlines_agree_with_those_of_coco():
    masks = pytest.importorskip("faster_coco_eval", reason=SCORED).mask
    turns = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    polygon = np.stack([50 + 37 * np.cos(turns), 40 + 29 * np.sin(turns)], 1).flatten().tolist()
    runs = masks.frPyObjects([polygon], 80, 100)[0]
    theirs = masks.decode(runs).astype(bool)
    ours = mask_of(check([polygon], 80, 100), 80, 100)
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.97
    text = runs["counts"].decode() if isinstance(runs["counts"], bytes) else runs["counts"]
    assert (mask_of(check({"size": [80, 100], "counts": text}, 80, 100), 80, 100) == theirs).all()


# --- the network ------------------------------------------------------------------------------------------------------


def test_losses_are_finite_and_fall():
    net, x = tiny().train(), scenes(2)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    totals = []
    for _ in range(25):
        output = Output(FULL, **net(x))
        assert len(output.losses) == 11
        loss = own_objective((FULL,))([output], None)
        assert_close(loss, TASKS["boxes"].losses(output, None))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        totals.append(loss.item())
    assert all(map(math.isfinite, totals))
    assert output.logits.shape == (2, 0, 6)
    assert np.mean(totals[-5:]) < 0.7 * totals[0]


def test_pictures_without_objects_can_be_learnt_from():
    x = scenes(2)
    nothing = Objects(x.objects.boxes, torch.full_like(x.objects.labels, -1), x.objects.crowd, x.objects.shapes)
    assert [len(one.boxes) for one in by_picture(nothing)] == [0, 0]
    losses = tiny().train()(x._replace(objects=nothing))["losses"]
    assert all(loss.isfinite() for loss in losses.values())
    assert losses["box_1"] == losses["mask_1"] == losses["anchor_boxes"] == 0
    sum(losses.values()).backward()


@torch.inference_mode()
def test_answers_are_in_pixels_of_the_originals_and_objects_are_not_looked_at():
    net, x = tiny(threshold=0.0).eval(), scenes(2)
    plain = net(x.images)
    assert plain["logits"].shape == (2, 100, 6)
    assert plain["aux"]["masks"].shape == (2, 100, 28, 28)
    found = net(x._replace(originals=2 * x.sizes))
    assert_close(found["logits"][..., :4], 2 * plain["logits"][..., :4])
    assert torch.equal(found["logits"][..., 4:], plain["logits"][..., 4:])
    few = select(x, torch.tensor([1]))
    assert isinstance(few, DetectionBatch)
    assert_close(net(few)["logits"], plain["logits"][1:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [(33, 70), (64, 96)])
@torch.inference_mode()
def test_pictures_may_have_any_size_and_boxes_stay_inside(size):
    rows = tiny(threshold=0.0).eval()(torch.randn(1, 3, *size))["logits"][0]
    assert rows[:, :4].min() >= 0
    assert (rows[:, [0, 2]] <= size[1]).all()
    assert (rows[:, [1, 3]] <= size[0]).all()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"model": "swin_tinny"}, "swin_tinny"),
        ({"model": "resnet18"}, 'no Swin "resnet18"'),
        ({"anchors": (8, 16)}, "backbone.anchors has 2"),
        ({"channels": 0}, "out of range"),
    ],
)
def test_a_detector_that_cannot_be_is_refused(settings, word):
    with pytest.raises(RecipeError, match=word) as caught:
        paper_detector(**settings)
    assert caught.value.cure


# --- mean average precision -------------------------------------------------------------------------------------------


def answer(rows, masks) -> Output:
    return Output(FULL, torch.torch.tensor([rows]), {"masks": masks[None]})


def test_map_of_one_hit_one_miss_and_one_error_by_hand():
    scorer()
    boxes = torch.tensor([[[10.0, 10, 30, 30], [40, 40, 60, 60]]])
    masks = torch.zeros(1, 2, 80, 80, dtype=torch.bool)
    masks[0, 0, 10:30, 10:30] = masks[0, 1, 40:60, 40:60] = True
    no = torch.zeros(1, 2, dtype=torch.bool)
    truth = Truth(torch.tensor([[80, 80]]), boxes, torch.zeros(1, 2, dtype=torch.long), no, masks)
    meter = TASKS["boxes"].meter(None)
    rows = [[10.0, 10, 30, 30, 0.9, 0], [0, 60, 20, 80, 0.8, 0], [0, 0, 0, 0, 0, 0]]
    meter.add(answer(rows, torch.ones(3, 28, 28)), truth)
    score, loss, further, _ = meter.result()
    # Precision is 1 up to a recall of one half, then nothing: 51 of 101 places, at every IoU.
    assert score == pytest.approx(51 / 101)
    assert loss == pytest.approx(50 / 101)
    assert further == pytest.approx(dict.fromkeys(("mask_map", "box_ap50", "mask_ap50"), 51 / 101))


def test_a_hit_in_a_crowd_is_no_error():
    scorer()
    boxes = torch.tensor([[[10.0, 10, 30, 30], [40, 40, 80, 80]]])
    masks = torch.zeros(1, 2, 80, 80, dtype=torch.bool)
    masks[0, 0, 10:30, 10:30] = masks[0, 1, 40:, 40:] = True
    crowd = torch.tensor([[False, True]])
    truth = Truth(torch.tensor([[80, 80]]), boxes, torch.zeros(1, 2, dtype=torch.long), crowd, masks)
    meter = TASKS["boxes"].meter(None)
    meter.add(answer([[50.0, 50, 60, 60, 0.95, 0], [10, 10, 30, 30, 0.9, 0]], torch.ones(2, 28, 28)), truth)
    assert meter.result().score == pytest.approx(1)


def test_map_equals_that_of_faster_coco_eval(folder):
    scorer()
    from faster_coco_eval import COCO, COCOeval_faster

    splits = load_data(coco_recipe(folder))
    rng = torch.Generator().manual_seed(0)
    meter, results = TASKS["boxes"].meter(None), []
    _, truth = splits.test.batch(torch.arange(len(splits.test)))
    rows = torch.zeros(len(splits.test), 3, 6)
    for place, (boxes, labels) in enumerate(zip(truth.boxes, truth.labels)):
        for row, (box, label) in enumerate(zip(boxes[labels >= 0], labels[labels >= 0])):
            moved = (box + 1.5 * torch.randn(4, generator=rng)).clamp_min(0)
            rows[place, row] = torch.cat([moved, torch.rand(1, generator=rng), label[None].float()])
            x1, y1, x2, y2, score, _ = rows[place, row].tolist()
            number = {"image_id": 501 + place, "category_id": (3, 7)[int(label)], "score": score}
            results.append({**number, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    meter.add(Output(FULL, rows, {"masks": torch.ones(*rows.shape[:2], 28, 28)}), truth)
    true = COCO(json.loads((folder / "annotations" / "val.json").read_text()))
    theirs = COCOeval_faster(true, true.loadRes(results), "bbox", print_function=lambda *_: None)
    theirs.evaluate()
    theirs.accumulate()
    theirs.summarize()
    found = meter.result()
    assert 0.05 < found.score < 0.95
    assert found.score == pytest.approx(theirs.stats[0], abs=1e-6)
    assert found.extra_metrics["box_ap50"] == pytest.approx(theirs.stats[1], abs=1e-6)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faster_coco_eval", None)
    with pytest.raises(DataError, match="torchmetrics and faster-coco-eval") as caught:
        TASKS["boxes"].meter(None)
    assert "supple[detect]" in caught.value.cure


def test_an_answer_lists_the_objects_that_are_sure_enough():
    task, classes = TASKS["boxes"], ("person", "dog")
    rows = [[1.0, 1, 9, 9, 0.9, 0], [2, 2, 8, 8, 0.8, 1], [0, 0, 5, 5, 0.7, 0], [0, 0, 5, 5, 0.1, 1]]
    [said] = task.answer(torch.tensor([rows]).numpy(), classes)
    assert said.label == "3 objects: 2 person, 1 dog"
    assert said.details["objects"][0] == {"label": "person", "score": 0.9, "box": [1.0, 1.0, 9.0, 9.0]}
    assert len(said.details["objects"]) == 3
    logits = torch.tensor([[[0.0] * 6] * 2, [[0.0, 0, 5, 5, 0.21, 1], [0.0] * 6]]).numpy()
    empty, unsure = task.answer(logits, classes)
    assert (empty.label, empty.details) == ("no objects", {"objects": []})
    assert unsure.label == "no objects this sure: at best a dog, 21 %"
    assert task.answer(logits, classes, min_score=0.2)[1].label == "1 object: 1 dog"


def test_a_drawing_shades_the_masks_of_the_objects_that_are_sure_enough():
    picture = np.zeros((64, 64, 3), np.uint8)
    rows = np.array([[16, 16, 48, 48, 0.9, 0], [0, 50, 10, 60, 0.2, 1]], np.float32)
    masks = np.ones((2, 28, 28), np.float32)
    draw = TASKS["boxes"].draw
    drawn_one = np.asarray(draw(picture, rows, {"masks": masks}, ("person", "dog")))
    assert (drawn_one[40, 30] == np.round(0.45 * np.array(colour(0)))).all()
    assert not drawn_one[52:60, 2:9].any()
    both = np.asarray(draw(picture, rows, {"masks": masks}, ("person", "dog"), min_score=0.1))
    assert both[55, 5].any()


# --- data -------------------------------------------------------------------------------------------------------------


def test_parts_labels_and_names(folder):
    splits = load_data(coco_recipe(folder))
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [6, 2, 4]
    names = [{one.name for one in part.pictures} for part in (splits.train, splits.val, splits.test)]
    assert not names[0] & names[1]
    assert {one.name[:3] for one in splits.test.pictures} == {"val"}
    assert splits.train.classes == ("block", "disc")  # 3 and 7
    assert splits.train.task == "boxes"
    assert splits.train.shape == (3, 64, 85)
    again = load_data(coco_recipe(folder, data={"fingerprint": splits.fingerprint}))
    assert [one.name for one in again.val.pictures] == [one.name for one in splits.val.pictures]


def test_a_blank_file_to_warm_up_with_is_a_picture(folder):
    prepare = load_data(coco_recipe(folder)).test.preprocess
    (blank,) = prepare.arrays(prepare.blank_file())
    assert blank.originals.tolist() == [[8, 8]]
    assert blank.images.shape == (1, 3, 64, 64)  # the shorter side as in evaluation
    assert_close(blank.images[0, :, 0, 0], -torch.tensor(prepare.mean) / torch.tensor(prepare.std))  # black


def test_a_batch_holds_boxes_masks_and_crowds_in_the_pixels_of_each(folder):
    test = load_data(coco_recipe(folder, data={"sizes": [32], "longest": 48})).test
    x, truth = test.batch(torch.tensor([0, 1]))
    assert x.images.shape == (2, 3, 40, 48)
    assert x.sizes.tolist() == [[40, 32], [32, 48]]
    assert x.originals.tolist() == truth.originals.tolist() == [[80, 64], [64, 96]]
    assert (truth.labels[0] == -1).all()  # nothing in the first picture
    assert truth.crowd.tolist() == [[False] * 3, [False, False, True]]
    assert_close(x.objects.boxes[1], truth.boxes[1] / 2)
    assert truth.masks.shape == (2, 3, 80, 96)
    assert truth.masks[1, 2].sum() == 640  # the crowd: ten columns of 64
    assert (x.objects.shapes[1, 2] >= 127.5).all()
    box = truth.boxes[1, 0].int().tolist()
    outside = truth.masks[1, 0].clone()
    outside[box[1] : box[3], box[0] : box[2]] = False
    assert not outside.any()


def test_training_pictures_are_flipped_with_their_objects_and_drawn_in_many_sizes(folder):
    train = load_data(coco_recipe(folder, data={"sizes": [32, 64], "flip": True, "repeat": 3})).train
    assert len(train) == 18
    place = next(i for i, one in enumerate(train.pictures) if len(one.labels))
    plain, _ = train.batch(torch.tensor([place]))
    seen = set()
    for seed in range(12):
        x, truth = train.batch(torch.tensor([place + 6]), torch.Generator().manual_seed(seed))
        height, width = x.sizes[0].tolist()
        assert truth.masks.numel() == 0
        boxes = plain.objects.boxes[0] * width / plain.sizes[0, 1]
        mirrored = torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)
        flipped = not torch.allclose(x.objects.boxes[0], boxes, atol=0.6)
        assert_close(x.objects.boxes[0], mirrored if flipped else boxes, atol=0.6, rtol=0)
        wanted = plain.objects.shapes[0].flip(-1) if flipped else plain.objects.shapes[0]
        assert torch.equal(x.objects.shapes[0], wanted)
        seen.add((flipped, min(height, width)))
    assert len(seen) == 4


def test_named_pictures_alone_and_tested_on_what_is_trained_on(folder):
    only = {"only": ["train3.png", "val1.png"]}
    splits = load_data(coco_recipe(folder, data={**only, "same": True}))
    for part in (splits.train, splits.val, splits.test):
        assert [one.name for one in part.pictures] == only["only"]
    with pytest.raises(DataError, match="leaves none"):
        load_data(coco_recipe(folder, data=only))
    with pytest.raises(DataError, match="overfitting|no picture of val") as caught:
        load_data(coco_recipe(folder, data={"only": ["train3.png"]}))
    assert "data.same=true" in caught.value.cure
    with pytest.raises(DataError, match='"train33.png", which no json lists'):
        load_data(coco_recipe(folder, data={"only": ["train33.png"]}))


def test_a_zip_and_cocos_own_names_are_read_alike(folder, tmp_path):
    for part in ("train", "val"):
        (tmp_path / f"{part}2017").mkdir()
        for file in (folder / "images").glob(f"{part}*"):
            shutil.copy(file, tmp_path / f"{part}2017" / file.name)
        (tmp_path / "annotations").mkdir(exist_ok=True)
        name = f"instances_{part}2017.json"
        shutil.copy(folder / "annotations" / f"{part}.json", tmp_path / "annotations" / name)
    zipped = shutil.make_archive(str(tmp_path / "packed"), "zip", folder.parent, folder.name)
    first = load_data(coco_recipe(folder))
    for root in (tmp_path, zipped):
        other = load_data(coco_recipe(root))
        assert other.fingerprint == first.fingerprint
        assert torch.equal(other.test.batch(torch.tensor([1]))[0].images, first.test.batch(torch.tensor([1]))[0].images)


def spoil(document: dict[str, Any], how: str) -> None:
    object = next(entry for entry in document["annotations"] if not entry["iscrowd"])
    if how == "outside":
        object["bbox"][2] = 400
    elif how == "flat":
        object["bbox"][3] = 0
    elif how == "thin":  # nothing is left of it in float32
        object["bbox"] = [40, 30, 1e-6, 5]
    elif how == "huge":
        object["bbox"][0] = 10**400
    elif how == "runs":
        width, height = document["images"][1]["width"], document["images"][1]["height"]
        crowd = next(entry for entry in document["annotations"] if entry["iscrowd"])
        crowd["segmentation"] = {"size": [height, width], "counts": [0.5, height * width - 0.5]}
    elif how == "list":
        object["image_id"] = [1]
    elif how == "mapping":
        object["category_id"] = {}
    elif how == "category":
        object["category_id"] = 5
    elif how == "picture":
        object["image_id"] = 5000
    elif how == "outline":
        object["segmentation"] = []
    elif how == "missing":
        document["images"][0]["file_name"] = "gone.png"
    elif how == "twice":
        document["images"][1]["id"] = document["images"][0]["id"]
    elif how == "listed":
        document["images"][1]["file_name"] = document["images"][0]["file_name"]
    elif how == "names":
        document["categories"][0]["name"] = "wheel"
    elif how == "size":
        document["images"][2]["width"] += 100
    elif how == "keys":
        del document["annotations"]


BAD = {
    "outside": "lies outside the picture",
    "flat": "has no area",
    "thin": "has no area",
    "huge": "is broken",
    "runs": "do not cover the picture",
    "list": "is in picture \\[1\\]",
    "mapping": "unknown category {}",
    "category": "unknown category 5",
    "picture": "is in picture 5000, which is not listed",
    "outline": "it has no segmentation",
    "missing": "lists gone.png, which is not there",
    "twice": 'stands twice in "images"',
    "listed": "is listed twice",
    "names": "categories of train and val differ",
    "size": "its json says",
    "keys": 'has no list "annotations"',
}


@pytest.mark.parametrize("how", BAD)
def test_bad_files_are_refused_by_name(folder, tmp_path, how):
    root = Path(shutil.copytree(folder, tmp_path / "bad"))
    path = root / "annotations" / "train.json"
    document = json.loads(path.read_text())
    spoil(document, how)
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=BAD[how]) as caught:
        train = load_data(coco_recipe(root, data={"same": True})).train
        train.batch(torch.arange(len(train)))
    assert caught.value.cure
    if how in ("outside", "flat", "outline", "thin", "huge", "runs"):
        assert "data.skip_broken=true" in caught.value.cure
        rest = load_data(coco_recipe(root, data={"skip_broken": True, "same": True})).train
        whole = load_data(coco_recipe(folder, data={"same": True})).train
        counts = [sum(len(one.labels) for one in part.pictures) for part in (rest, whole)]
        assert counts[0] + 1 == counts[1]


@pytest.mark.parametrize("skip", [True, False])
def test_a_set_without_any_object_to_learn_is_refused(folder, tmp_path, skip):
    root = Path(shutil.copytree(folder, tmp_path / "bad"))
    path = root / "annotations" / "train.json"
    document = json.loads(path.read_text())
    document["annotations"] = [{**one, "segmentation": None} for one in document["annotations"]] if skip else []
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="no picture to train on has an object"):
        load_data(coco_recipe(root, data={"skip_broken": skip}))


def test_a_test_picture_of_another_size_is_noticed_before_training(folder, tmp_path):
    root = Path(shutil.copytree(folder, tmp_path / "bad"))
    path = root / "annotations" / "val.json"
    document = json.loads(path.read_text())
    document["images"][0]["width"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="its json says"):
        load_data(coco_recipe(root))


def test_twice_as_many_boxes_are_proposed_while_training():
    proposals = tiny().proposals
    assert (proposals.train().most, proposals.eval().most) == (48, 24)


def test_a_folder_without_json_and_settings_for_others_are_refused(folder, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="there must be one; found: none"):
        load_data(coco_recipe(tmp_path))
    (tmp_path / "train.json").write_text("[")
    (tmp_path / "val.json").write_text("{}")
    with pytest.raises(DataError, match="not valid JSON"):
        load_data(coco_recipe(tmp_path))
    with pytest.raises(DataError, match="shorter side"):
        load_data(coco_recipe(folder, data={"sizes": [200]}))
    for changed in ({"size": 64}, {"crop": 4}):
        with pytest.raises(RecipeError, match=f'unknown key "data.{next(iter(changed))}"') as caught:
            coco_recipe(folder, data=changed)
        assert "the data set coco has none" in caught.value.cure
    with pytest.raises(RecipeError, match='unknown key "data.same"'):
        load_recipe("pocket/digits.yaml", ["data.same=true"])
    with pytest.raises(DataError, match="data.same is not for digits"):
        load_set("digits", same=True)


def test_classifiers_and_detectors_keep_to_their_data(folder):
    for sections, word in (
        ({"loss": {"name": "distill"}}, "losses of its own"),
        ({"backbone": {"name": "mobilenet_v1"}}, "does not answer boxes, the task of coco"),
        ({"data": {"name": "digits"}}, "answers boxes, but the task of digits is classes"),
    ):
        recipe = coco_recipe(folder)
        changed = {part: {**getattr(recipe, part), **more} for part, more in sections.items() if part != "data"}
        if "data" in sections:
            changed["data"] = load_recipe("pocket/digits.yaml").data
        with pytest.raises(RecipeError, match=word):
            skeleton(recipe.model_copy(update=changed))


# --- pruning ----------------------------------------------------------------------------------------------------------


def searched(folder: Path):
    recipe = coco_recipe(folder, backbone={"threshold": 0.0, "detections": 5})
    model = fresh_model(recipe, load_data(recipe))
    with torch.no_grad():
        for score in model.scores:
            score.copy_(torch.rand(len(score)) + 0.1)
    return recipe, model.eval()


@torch.inference_mode()
def test_a_pruned_detector_reloads_and_a_nested_one_has_it_inside(folder, tmp_path):
    recipe, model = searched(folder)
    x = scenes(2).images
    network, kept = prune(model, 0.4, Plan())
    backbone = {**recipe.backbone, "kept": kept.shape}
    splits = load_data(recipe)
    cut = fresh_model(recipe.model_copy(update={"backbone": backbone, "method": {"name": "static"}}), splits).eval()
    cut.backbone.load_state_dict(network.state_dict())
    assert torch.equal(cut(x), network(x)["logits"])
    checkpoint.save(
        tmp_path / "cut",
        cut,
        pin(recipe.model_copy(update={"backbone": backbone, "method": {"name": "static", "learn": "all"}}), splits),
    )
    again = load(tmp_path / "cut")
    assert (again.task, again.preprocess) == ("boxes", splits.test.preprocess)
    assert torch.equal(again(x), cut(x))

    sorted_network, all_kept = nest(model, (0.6,), Plan())
    nested = Nested(sorted_network, widths=(0.6,), shapes=tuple(one.shape for one in all_kept)).eval()
    assert_close(nested(x), model(x), atol=1e-4, rtol=1e-4)
    assert_close(nested(x, Point(width=0.6)), cut(x), atol=1e-4, rtol=1e-4)
    assert [output.aux["masks"].shape for output in nested(x, nested.points)] == [(2, 5, 28, 28)] * 2


def test_a_detector_is_not_exported_and_says_why(folder, tmp_path, command):
    recipe, model = searched(folder)
    model.classes = ("block", "disc")
    checkpoint.save(tmp_path / "run", model, recipe)
    command("extract", tmp_path / "run", "--out", tmp_path / "out").refused(2, "torch.export", "supple.load")
    assert not (tmp_path / "out").exists()
    damaged = json.loads((tmp_path / "run" / "manifest.json").read_text())
    damaged["preprocess"] = {"shorter": "x", "longest": 9, "mean": [], "std": [], "max_pixels": 1}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(damaged))
    with pytest.raises((DataError, CheckpointError), match="cannot be used"):
        load(tmp_path / "run")


# --- from the command line --------------------------------------------------------------------------------------------


@pytest.mark.system
def test_train_evaluate_bench_prune_report_and_predict(folder, tmp_path, command):
    scorer()
    recipe, run = tmp_path / "detector.yaml", tmp_path / "run"
    document = coco_recipe(folder, backbone={"threshold": 0.05}).resolved()
    recipe.write_text(json.dumps(document))
    assert command("train", recipe, "--out", run).status == 0
    [row] = command("evaluate", run, "--json").json["points"]
    assert (row["metric"], row["n"], row["accuracy"]) == ("box_map", 4, None)
    assert set(row["extra_metrics"]) == {"mask_map", "box_ap50", "mask_ap50"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [set(line["train"]["full"]) for line in lines] == [{"loss"}]
    [row] = command("bench", run, "--rounds", 5, "--json").json["points"]
    assert row["p50_ms"] > 0
    assert command("report", run).status == 0
    picture = folder / "images" / "val1.png"
    [said] = command("predict", run, picture, "--draw", tmp_path / "drawn", "--json").json["predictions"]
    assert "object" in said["label"]
    assert isinstance(said["objects"], list)
    with Image.open(tmp_path / "drawn" / "val1.png.png") as drawn_picture:
        assert drawn_picture.size == (96, 64)

    cut = tmp_path / "cut"
    done = command("prune", run, "--ratio", 0.3, "--out", cut, "--json").json
    assert [tuple(pair) for pair in done["kept"]] == list(shape_of(load(cut).backbone))
    assert done["points"][0]["metric"] == "box_map"
    widths = command("prune", run, "--widths", "0.5", "--out", tmp_path / "widths", "--json").json["points"]
    assert [row["point"] for row in widths] == ["width=0.5", "full"]
    assert command("train", tmp_path / "widths" / "recipe.yaml", "--out", tmp_path / "tuned").status == 0
    assert [row.point for row in load(tmp_path / "tuned").ladder] == ["width=0.5", "full"]
