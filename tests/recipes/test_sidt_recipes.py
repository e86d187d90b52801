"""SiDT: the recipes against the paper, and its counts without weights or data."""

import json
from pathlib import Path

import pytest

from supple.backbones.dims import kept_dims, shape_of
from supple.cost import profile
from supple.paper_count import published_costs
from supple.recipe import Recipe, load_recipe
from supple.training.build import skeleton

ROOT = Path(__file__).parents[2] / "recipes"
NETS = {"swin_t": "swin_tiny_patch4_window7_224", "vit_b16": "vit_base_patch16_224", "deit_s": "deit_small_patch16_224"}
DEPTHS, DIMS, SIDES = (2, 2, 6, 2), (96, 192, 384, 768), (56, 28, 14, 7)  # of the stages of Swin-T
NORMS = 3_725_568  # elements of all its layer norms
HEADS = (32,) * 4
HIDDEN = (384, 768, 1536, 3072)


def recipe(name: str, *changes: str) -> Recipe:
    return load_recipe(ROOT / f"{name}.yaml", changes)


def spread(dims, hidden) -> list[list[int]]:
    """The same in every block of a stage."""
    return [[d, h] for depth, d, h in zip(DEPTHS, dims, hidden) for _ in range(depth)]


def counts(*changes: str) -> tuple[int, int, int]:
    """Of Swin-T: parameters, plain MACs, MACs as the paper counts."""
    one = recipe("sidt/cifar100_swin_t", *changes)
    model = skeleton(one)
    [row], [cost] = profile(model), published_costs(model, model.points, one)
    assert cost.acceleration is None
    return row.params, row.macs, cost.flops


def formulas(dims, hidden) -> tuple[int, int]:
    """Parameters and plain MACs by arithmetic 2.1, 100 classes."""
    params, macs = 4_704 + 192 + 1_536 + 76_900, 56**2 * 96 * 48 + 76_800
    for stage, (depth, d, side) in enumerate(zip(DEPTHS, DIMS, SIDES)):
        heads, n, m = 3 * 2**stage, side**2, hidden[stage]
        a = heads * dims[stage]
        params += depth * (4 * d + 3 * a * d + 3 * a + a * d + d + 169 * heads + 2 * d * m + m + d)
        macs += depth * (n * 3 * a * d + 2 * n * 49 * a + n * a * d + 2 * n * d * m)
        if stage < 3:
            params += 8 * d + 8 * d * d
            macs += (n // 4) * 4 * d * 2 * d
    return params, macs


# --- counts -----------------------------------------------------------------------------------------------------------


def test_the_unpruned_swin_t_has_the_counts_of_the_paper():
    assert counts() == (27_596_254, 4_489_875_456, 4_489_875_456 + NORMS)
    assert formulas(HEADS, HIDDEN) == (27_596_254, 4_489_875_456)
    assert kept_dims(shape_of(skeleton(recipe("sidt/cifar100_swin_t")).backbone)) == 18_048


# Arithmetic 2.3: head dims and MLP hidden of the four stages; parameters, MACs with norms, plain MACs.
SHAPES = {
    0.2: ((24, 24, 25, 28), (282, 582, 1132, 2808), 23_279_422, 3_525_188_544, 3_521_462_976),
    0.6: ((11, 11, 9, 12), (122, 294, 558, 1459), 11_915_650, 1_725_569_856, 1_721_844_288),
}


@pytest.mark.parametrize("ratio", SHAPES)
def test_the_explicit_shapes_hit_the_print(ratio, tmp_path):
    dims, hidden, params, with_norms, plain = SHAPES[ratio]
    shape = spread(dims, hidden)
    assert abs(kept_dims(shape) - (1 - ratio) * 18_048) <= 1
    (tmp_path / "kept.json").write_text(json.dumps(shape))
    assert counts(f"method.kept={tmp_path / 'kept.json'}") == (params, plain, with_norms)
    assert formulas(dims, hidden) == (params, plain)


# Arithmetic 2.2: millions of parameters and GMACs with norms, for the floor of each share.
@pytest.mark.parametrize(("ratio", "printed"), [(0.2, ("22.246", "3.603")), (0.6, ("11.830", "1.873"))])
def test_a_uniform_ratio_prints_the_counts_of_the_arithmetic(ratio, printed):
    params, plain, with_norms = counts(f"method.ratio={ratio}", "method.ranking=per_layer")
    assert (f"{params / 1e6:.3f}", f"{with_norms / 1e9:.3f}") == printed
    floors = [tuple(int((1 - ratio) * size + 1e-9) for size in sizes) for sizes in (HEADS, HIDDEN)]
    assert (params, plain) == formulas(*floors)


def test_other_networks_have_counts_too():
    plain = {name: profile(skeleton(recipe(f"sidt/cifar100_{name}")))[0].params for name in NETS}
    assert plain["vit_b16"] == 85_875_556
    assert plain["deit_s"] == 21_704_164
    for name in ("vit_b16", "deit_s"):
        cut = recipe(f"sidt/cifar100_{name}", "method.ratio=0.5", "method.ranking=per_layer")
        d = 384 if name == "deit_s" else 768
        spared = 12 * (2 * d * d + 3 * d // 2 + 4 * d * d + 2 * d)  # half of q, k, v, projection and MLP
        assert plain[name] - profile(skeleton(cut))[0].params == spared


# --- the command ------------------------------------------------------------------------------------------------------


def test_profile_prints_both_counts(command):
    words = ("profile", "recipes/sidt/cifar100_swin_t.yaml", "method.ratio=0.2", "method.ranking=per_layer")
    [row] = command(*words, "--count", "paper", "--json").json["points"]
    assert row["paper_flops"] - row["macs"] == NORMS
    [plain] = command(*words, "--json").json["points"]
    assert plain == {key: value for key, value in row.items() if key not in ("paper_flops", "acceleration")}
    table = command(*words, "--count", "paper").out.splitlines()
    assert table[1].split()[-1] == "3.6033"


def another(folder: Path, method: str) -> Path:
    """The recipe of Swin-T with another method."""
    document = recipe("sidt/cifar100_swin_t").resolved() | {"method": {"name": method}}
    (folder / "another.yaml").write_text(json.dumps(document))
    return folder / "another.yaml"


def test_every_width_is_counted_as_in_the_paper(command, tmp_path):
    words = ("profile", another(tmp_path, "nested"), "method.widths=[0.5]", "--json")
    half, full = command(*words, "--count", "paper").json["points"]
    assert (half["point"], full["paper_flops"]) == ("width=0.5", 4_489_875_456 + NORMS)
    assert half["paper_flops"] - half["macs"] == NORMS


def test_a_pruned_backbone_is_counted_as_in_the_paper(command, tmp_path):
    kept = json.dumps(spread(*SHAPES[0.6][:2]))
    words = ("profile", another(tmp_path, "static"), f"backbone.kept={kept}", "--json")
    [row] = command(*words, "--count", "paper").json["points"]
    assert (row["params"], row["paper_flops"]) == (11_915_650, 1_725_569_856)


# --- the files --------------------------------------------------------------------------------------------------------


def test_there_is_a_recipe_for_every_network():
    expected = [*(f"cifar100_{net}" for net in NETS), "coco_swin_t_cascade"]
    assert sorted(path.stem for path in (ROOT / "sidt").iterdir()) == sorted(expected)


@pytest.mark.parametrize("net", NETS)
def test_a_file_gives_the_commands_of_all_stages(net):
    text, run = (ROOT / f"sidt/cifar100_{net}.yaml").read_text(), f"runs/cifar100_{net}"
    assert f"# supple prune {run} --ratio 0.4 --out {run}_cut\n" in text
    assert f"# supple train {run}_cut/recipe.yaml --out {run}_pruned\n" in text


def test_the_pocket_twins_share_network_and_data_and_the_number_of_epochs_in_all():
    search, unpruned = recipe("pocket/sidt_search"), recipe("pocket/sidt_unpruned")
    assert (search.data, search.backbone, search.loss) == (unpruned.data, unpruned.backbone, unpruned.loss)
    assert unpruned.train == search.train.model_copy(update={"epochs": 2 * search.train.epochs})
    assert unpruned.method["name"] == "static"
    rows = [profile(skeleton(one))[0] for one in (search, unpruned)]
    assert rows[0] == rows[1]
    assert 0.9e6 < rows[0].params < 1.1e6
