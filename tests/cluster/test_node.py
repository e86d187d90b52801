"""Nodes in this process: blocks on arrays, the check at the start, faults."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cluster_runs import shuffled_run
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import supple
from supple import files
from supple.cluster.node import Broken, Fault, Node, Spec
from supple.cluster.parts import Parts, must_bear_it, trained_for
from supple.cluster.route import Block
from supple.errors import ClusterError, RecipeError

IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shuffled_run(tmp_path_factory.mktemp("runs") / "position", variant="position")


def node(run: Path, *layers: int, **how) -> Node:
    return Node(Spec("one", (str(run),), frozenset(map(Block, layers)), **how))


def test_stem_blocks_on_two_nodes_and_head_give_the_logits_of_that_order(run):
    model = supple.load(run)
    ends = Parts([model], ["run"])
    state = ends.stem(IMAGES)
    state, took = node(run, 2, 4).run((Block(4), Block(2)), 0, state)
    state, _ = node(run, 1).run((Block(1),), 2, state)  # it stands third, as it is told
    assert took > 0
    assert_close(torch.tensor(ends.head(state)), model(IMAGES, "layers=4-2-1"), rtol=0, atol=1e-5)
    assert not np.allclose(ends.head(state), model(IMAGES, "layers=2-4-1").detach())


def test_a_sibling_s_block_is_that_of_the_other_run(run, tmp_path):
    other = shuffled_run(tmp_path / "other", seed=1, variant="position")
    one = Node(Spec("one", (str(run), str(other)), frozenset({Block(1), Block(2, 1)})))
    state = Parts([supple.load(run)], ["run"]).stem(IMAGES)
    found, _ = one.run((Block(1), Block(2, 1)), 0, state)
    merged = supple.merge([run, other], plan=[1, 2, 1, 1])
    expected = merged.layer(merged.layer(torch.tensor(state), 0, 0), 1, 1)
    assert_close(torch.tensor(found), expected.detach(), rtol=0, atol=1e-5)


def test_a_node_tells_what_it_holds_and_forgets_all_other_weights(run):
    one = node(run, 2, 3)
    facts = one.facts()
    assert (facts.holds, facts.shape, facts.hops) == ({Block(2), Block(3)}, (17, 24), 0)
    assert facts.block_ms > 0
    blocks = one._parts._models[0].trunk.blocks
    assert [sum(p.numel() for p in block.parameters()) > 0 for block in blocks] == [False, True, True, False]
    with pytest.raises(ClusterError, match="does not hold"):
        one.run((Block(1),), 0, np.zeros((1, 17, 24), np.float32))


def test_a_node_with_broken_weights_does_not_start(run, tmp_path):
    broken = Path(shutil.copytree(run, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if "blocks.1." in name)
    save_file({**weights, name: torch.full_like(weights[name], float("nan"))}, broken / "model.safetensors")
    manifest = (broken / "manifest.json").read_text()
    old, new = (files.sha256(one / "model.safetensors") for one in (run, broken))
    (broken / "manifest.json").write_text(manifest.replace(old, new))
    with pytest.raises(ClusterError, match="layer 2 .* no finite values"):
        node(broken, 1, 2)
    node(broken, 1, 3)  # what is broken is not here


def test_a_block_that_spoils_the_state_ends_the_node_but_a_spoilt_state_does_not(run):
    state = np.zeros((1, 17, 24), np.float32)
    with pytest.raises(Broken):
        node(run, 1, fault=Fault(nan=1.0)).run((Block(1),), 0, state)
    after, _ = node(run, 1).run((Block(1),), 0, np.full_like(state, np.nan))
    assert np.isnan(after).all()


def test_faults_are_written_and_injected(run):
    assert Fault.parse("delay_ms=20,loss=1") == Fault(delay_ms=20, loss=1)
    for wrong in ("delay=1", "loss", "loss=x"):
        with pytest.raises(RecipeError, match="--fault"):
            Fault.parse(wrong)
    one = node(run, 1, fault=Fault(delay_ms=20, loss=1))
    assert one.run((Block(1),), 0, np.zeros((1, 17, 24), np.float32)) is None
    assert one.facts().busy > 0


# --- what it was trained for ------------------------------------------------------------------------------------------


def test_a_run_that_was_not_trained_for_it_has_to_be_forced(run, tmp_path):
    assert trained_for(supple.load(run)) == "arbitrary"
    assert must_bear_it(supple.load(run), "run", force=False) is None
    plain = supple.load(shuffled_run(tmp_path / "plain", sample="full"))
    with pytest.raises(RecipeError, match="not trained for layers") as caught:
        must_bear_it(plain, "plain", force=False)
    assert "--force" in caught.value.cure
    plain.ladder.update("full", metric="accuracy", score=0.75, higher_is_better=True)
    plain.ladder.update("any 2", metric="accuracy", score=0.0135, higher_is_better=True)
    said = must_bear_it(plain, "plain", force=True)
    assert said is not None
    assert "0.75 in full; 0.0135 any 2" in said


def test_layers_that_do_not_run_one_by_one_are_refused(exits_run):
    with pytest.raises(RecipeError, match="its layers do not run one by one"):
        Parts([supple.load(exits_run)], ["the run"])
