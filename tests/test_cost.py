"""The counter against the papers' integers and against counts by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from supple.cost import costly_points, count_macs, count_params, profile
from supple.ladder import Row
from supple.methods import build
from supple.recipe import load_recipe, make_recipe
from supple.training.build import skeleton
from test_contract import make

MSDNET = {  # exit: (macs, macs_through, params) for 10 and for 100 classes
    1: ((14_955_776, 14_955_776, 422_266), (14_967_296, 14_967_296, 433_876)),
    3: ((28_780_800, 36_745_984, 517_670), (28_792_320, 36_780_544, 529_280)),
    4: ((34_789_632, 45_926_400, 616_118), (34_801_152, 45_972_480, 627_728)),
    6: ((46_326_016, 66_460_160, 713_638), (46_337_536, 66_529_280, 725_248)),
}
MOBILENET = {  # width: (macs, params) for 10 and for 100 classes
    0.25: ((3_331_072, 215_642), (3_354_112, 238_772)),
    0.75: ((26_508_288, 1_824_250), (26_577_408, 1_893_460)),
    1.0: ((46_354_432, 3_217_226), (46_446_592, 3_309_476)),
}


@pytest.mark.parametrize(("column", "data"), [(0, "cifar10"), (1, "cifar100")])
def test_msdnet_costs_what_the_arithmetic_says(column, data):
    rows = profile(skeleton(load_recipe(f"ipkd_ta/msdnet_{data}_tam.yaml")))
    assert [row.point for row in rows] == [*(f"exit={k}" for k in range(1, 7)), "full"]
    for k, columns in MSDNET.items():
        row = rows[k - 1]
        assert (row.macs, row.macs_through, row.params) == columns[column]
    # Parameters per exit are not monotone, because of the transitions.
    assert rows[2].params < rows[1].params
    assert all(0 < row.branch_params < row.params for row in rows)


@pytest.mark.parametrize(("column", "data"), [(0, "cifar10"), (1, "cifar100")])
def test_slimmable_mobilenet_costs_what_the_arithmetic_says(column, data):
    rows = profile(skeleton(load_recipe(f"ipkd_ta/mobilenet_{data}_tam.yaml")))
    assert [row.point for row in rows] == ["width=0.25", "width=0.5", "width=0.75", "full"]
    for row, width in zip(rows, (0.25, 0.5, 0.75, 1.0)):
        if width in MOBILENET:
            assert (row.macs, row.params) == MOBILENET[width][column]
    assert rows[-1].macs_through == sum(row.macs for row in rows)


def test_convolution_linear_and_attention_by_hand():
    conv, linear = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Linear(10, 7)
    assert count_macs(lambda: conv(torch.empty(2, 3, 5, 5))) == 2 * 8 * 5 * 5 * 3 * 9
    assert count_macs(lambda: linear(torch.empty(4, 10))) == 4 * 10 * 7
    q = torch.empty(1, 2, 6, 4)  # 2 heads, 6 tokens, 4 dimensions: two products of 6 x 6 x 4 per head
    assert count_macs(lambda: F.scaled_dot_product_attention(q, q, q)) == 2 * 2 * 6 * 6 * 4


def test_whatever_costs_more_than_the_full_model_is_warned_of():
    rows = [Row("exit=1", macs=12, branch_params=3), Row("width=0.5", macs=11), Row("layers=2-1", macs=10)]
    rows += [Row("skip=0.5", macs=12, macs_worst=12), Row("full", macs=10)]
    branch, width = costly_points(rows)
    assert "exit=1 costs 12 MACs, the full model 10 MACs: its branch" in branch
    assert "width=0.5 costs 11 MACs, the full model 10 MACs: nothing is saved" in width
    assert costly_points(rows[:-1]) == []


def test_putting_points_in_order_is_no_part_of_what_running_them_costs():
    """Mixed points are ordered by their MACs, which are counted when a run first asks for them."""
    rows = profile(make("elastic", "vit"))
    for place, row in enumerate(rows):
        passed = [other.macs for other in rows if other.macs <= row.macs]
        assert row.macs <= row.macs_through <= sum(passed), place


def test_a_shared_parameter_counts_once():
    linear = nn.Linear(3, 3)
    assert count_params([*linear.parameters(), *linear.parameters()]) == 12


def test_a_network_that_hands_its_parameters_to_its_layers_is_counted():
    """The attention pool of SigLIP's ViT gives a layer a parameter, not something computed."""
    backbone = {"name": "timm", "model": "vit_base_patch16_siglip_224"}
    backbone["args"] = {"patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 3}
    recipe = make_recipe({"data": {"name": "generated"}, "backbone": backbone, "method": {"name": "static"}})
    (row,) = profile(build(recipe.backbone, recipe.method, 4, (3, 16, 16)))
    assert row.macs > 0
