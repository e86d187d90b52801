"""From a searched run to a smaller one: rank, fold, slice (SiDT). The pruned network is a backbone like any other."""

import copy
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from supple import checkpoint, files
from supple.backbones.dims import Block, blocks_of, cut_block
from supple.cost import count_macs, count_params, on_meta
from supple.data.splits import Splits
from supple.errors import RecipeError
from supple.inference.timing import interleave
from supple.methods import build
from supple.methods.nested import sort_dims
from supple.methods.prune import folded
from supple.methods.ranking import BASELINE_CRITERIA, Kept, Ranking, Scores, best_first, keep
from supple.model import FlexibleModel
from supple.recipe import Recipe
from supple.sampling import SAMPLERS
from supple.training.finalize import score_and_save


@dataclass(frozen=True)
class Plan:
    """How to rank the dimensions of a run."""

    ranking: Ranking = "global"
    by: str = "score"  # of the search, or a key of BASELINE_CRITERIA
    multiple: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Change:
    """What pruning made of one block."""

    path: str
    dims: tuple[int, int]  # of a head: before, after
    hidden: tuple[int, int]
    params: tuple[int, int]
    macs: tuple[int, int]
    ms: tuple[float, float] | None = None  # batch 1


def scores_of(model: FlexibleModel, by: str, seed: int = 0) -> Scores:
    """The scores of a run's dimensions."""
    blocks_of(network_in(model))  # refuses a network that cannot be pruned
    if by in BASELINE_CRITERIA:
        return BASELINE_CRITERIA[by](blocks_of(folded(network_in(model))), seed)
    found = model.pruning_scores()
    if found is None:
        raise RecipeError(
            "this run was never searched: its dimensions have no scores.",
            "Train method prune first, or rank by the weights: --by magnitude.",
        )
    return found


def network_in(model: FlexibleModel) -> nn.Module:
    """The network that a method holds; one that holds none has no dimensions to prune itself."""
    return model.backbone if model.backbone is not None else model


@torch.no_grad()
def must_be_its_network(model: FlexibleModel, x: Any) -> str:
    """Refuses a model that is more than the network it holds; names the points that pruning leaves behind, if any."""
    model, network = model.eval(), folded(network_in(model)).eval()
    answer = network(x)  # that of a detector is not a tensor: no method adds to one, and near ties may fall otherwise
    if isinstance(answer, Tensor) and not torch.allclose(model(x), answer, rtol=1e-3, atol=1e-3):
        raise RecipeError(
            f"method {type(model).__name__.lower()} adds to the network what pruning it alone would lose.",
            "Prune a run of method prune or static, then train this method on what is left.",
        )
    return ", ".join(str(point) for point in (*model.points[:-1], *model.settled))


def prune(model: FlexibleModel, ratio: float, plan: Plan) -> tuple[nn.Module, Kept]:
    """The network without the share `ratio` of its dimensions, scores folded in; and what was kept."""
    kept = keep(scores_of(model, plan.by, plan.seed), ratio, plan.ranking, plan.multiple)
    network = folded(network_in(model))
    for block, (dims, hidden) in zip(blocks_of(network), kept.dims):
        cut_block(block, dims.sort().values, hidden.sort().values)
    return network, kept


def nest(model: FlexibleModel, widths: tuple[float, ...], plan: Plan) -> tuple[nn.Module, list[Kept]]:
    """The whole network with its dimensions sorted, best first, and what each width keeps of them."""
    scores = scores_of(model, plan.by, plan.seed)
    kept = [keep(scores, 1 - width, plan.ranking, plan.multiple) for width in widths]
    network = folded(network_in(model))
    sort_dims(network, [(best_first(heads), best_first(hidden)) for heads, hidden in scores])
    return network, kept


def pruned_recipe(recipe: Recipe, kept: Kept, out: Path) -> Recipe:
    """The recipe that fine-tunes a pruned network with the search's settings, from its own weights.

    It holds no settings of its method, so that `method.name=exits` is all it takes to try another.
    """
    backbone = {**recipe.backbone, "kept": kept.shape}
    return _starting(recipe, backbone, {"name": "static"}, out)


def nested_recipe(recipe: Recipe, widths: tuple[float, ...], kept: list[Kept], out: Path) -> Recipe:
    method = {"name": "nested", "widths": widths, "shapes": tuple(one.shape for one in kept)}
    return _starting(recipe, recipe.backbone, method, out)


def _starting(recipe: Recipe, backbone: dict[str, Any], method: dict[str, Any], out: Path) -> Recipe:
    changed: dict[str, Any] = {"init": str(out), "settle": ()}
    if recipe.train.sample not in SAMPLERS:  # a group of the method that was
        changed["sample"] = "every"
    train = recipe.train.model_copy(update=changed)
    return recipe.model_copy(update={"backbone": backbone, "method": method, "train": train})


def save(out: Path, source: FlexibleModel, recipe: Recipe, network: nn.Module, splits: Splits) -> FlexibleModel:
    """Writes a network as a run with this recipe, scored on the test images; it can be trained on from recipe.yaml."""
    assert source.input_shape is not None
    model = build(recipe.backbone, recipe.method, len(source.classes), source.input_shape)
    model.get_submodule("backbone").load_state_dict(network.state_dict())
    model.classes, model.preprocess, model.task = source.classes, source.preprocess, source.task
    model.eval()
    try:
        score_and_save(recipe, out, model, splits, {})
        files.write(out / checkpoint.RECIPE, recipe.to_yaml())
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # it was empty: the command can be given again
        raise
    model.ladder = checkpoint.load_ladder(out)
    return model


# --- what it did to each block ----------------------------------------------------------------------------------------


def changes(before: nn.Module, after: nn.Module, input_shape: tuple[int, ...]) -> list[Change]:
    """Block by block: dimensions, parameters and MACs."""
    inputs = block_inputs(on_meta(before), torch.empty((1, *input_shape), device="meta"))
    found = []
    for old, new in zip(blocks_of(before), blocks_of(after)):
        x = inputs[old.path]
        macs = [_macs(block, x) for block in (old, new)]
        found.append(
            Change(
                old.path,
                (old.head_dims, new.head_dims),
                (old.hidden, new.hidden),
                (count_params(old.module.parameters()), count_params(new.module.parameters())),
                (macs[0], macs[1]),
            )
        )
    return found


def _macs(block: Block, x: Tensor) -> int:
    bare = on_meta(block.module)
    return count_macs(lambda: bare(x))


@torch.inference_mode()
def timed(found: list[Change], before: nn.Module, after: nn.Module, x: Tensor, rounds: int = 15) -> list[Change]:
    """The same with measured milliseconds, old and new in turn."""
    inputs = block_inputs(before, x)
    times = []
    for old, new in zip(blocks_of(before), blocks_of(after)):
        calls = {name: lambda b=b: b.module(inputs[old.path]) for name, b in (("old", old), ("new", new))}  # noqa: B023
        spent = interleave(calls, rounds, seconds=0.5)
        times.append((spent["old"].p50_ms, spent["new"].p50_ms))
    return [replace(change, ms=pair) for change, pair in zip(found, times)]


def block_inputs(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What each block is given when a network runs."""
    seen: dict[str, Tensor] = {}

    def note(block: Block) -> Any:
        return block.module.register_forward_pre_hook(lambda module, given: seen.setdefault(block.path, given[0]))

    hooks = [note(block) for block in blocks_of(network)]
    try:
        with torch.no_grad():
            copy.copy(network).eval()(x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
