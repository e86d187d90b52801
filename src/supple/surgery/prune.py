"""From a searched run to a smaller one: rank, fold, slice (SiDT). The pruned network is a backbone like any other."""

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from supple import checkpoint, files
from supple.backbones.dims import Block, blocks_of, cut_block
from supple.cost import count_macs, count_params, on_meta
from supple.errors import RecipeError
from supple.inference.timing import interleave
from supple.methods.nested import Nested, sort_dims
from supple.methods.prune import folded
from supple.methods.ranking import BASELINE_CRITERIA, Kept, Ranking, Scores, best_first, keep
from supple.methods.static import Static
from supple.model import FlexibleModel, example
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


@dataclass(frozen=True)
class Cut:
    """A model made smaller, what it kept at each width, and the points that were left behind."""

    model: FlexibleModel
    kept: list[Kept]
    left: str


def cut(model: FlexibleModel, ratio: float | None, widths: Sequence[float] | None, plan: Plan) -> Cut:
    """`prune` as a model of method static, whose backbone is the pruned network; or `nest`, of method nested."""
    if (ratio is None) == (widths is None):
        cause = "one of --ratio and --widths is needed." if ratio is None else "--ratio and --widths are both given."
        raise RecipeError(cause, "Give --ratio 0.4, or --widths 0.2,0.4,0.6,0.8.")
    for option, value, known in (
        ("--ranking", plan.ranking, get_args(Ranking)),
        ("--by", plan.by, ("score", *BASELINE_CRITERIA)),
    ):
        if value not in known:
            raise RecipeError(f'{option} is "{value}".', f"Possible: {', '.join(known)}.")
    made: FlexibleModel
    backbone, method = model.backbone_spec, {"name": "static"}
    if ratio is not None:
        network, one = prune(model, ratio, plan)
        kept, made = [one], Static(network)
        backbone = None if backbone is None else {**backbone, "kept": one.shape}
    else:
        shares = tuple(map(float, widths or ()))
        if not shares or list(shares) != sorted(set(shares)) or not 0 < shares[0] <= shares[-1] < 1:
            raise RecipeError(
                f"--widths is {','.join(map(str, shares))}.", "Give rising shares between 0 and 1: 0.2,0.4,0.6,0.8."
            )
        network, kept = nest(model, shares, plan)
        settings: dict[str, Any] = {"widths": shares, "shapes": tuple(one.shape for one in kept)}
        made, method = Nested(network, **settings), {"name": "nested", **settings}
    assert model.input_shape is not None
    left = must_be_its_network(model, example(model.input_shape, 1, torch.randn))
    return Cut(_with_sections(model, made, backbone, method), kept, left)


def _with_sections(
    source: FlexibleModel, made: FlexibleModel, backbone: dict[str, Any] | None, method: dict[str, Any]
) -> FlexibleModel:
    """A model for the samples of another one. Its recipe is that of the other, but for the network: it fine-tunes with
    the search's settings. It holds no settings of method static, so that `method.name=exits` is all it takes to try
    another.
    """
    made.classes, made.preprocess, made.task = source.classes, source.preprocess, source.task
    made.input_shape, made.backbone_spec, made.method_spec = source.input_shape, backbone, method
    if source.recipe is not None:
        made.recipe = source.recipe.model_copy(update={"backbone": backbone or {}, "method": method})
    return made.eval()


def save(out: Path, model: FlexibleModel, test: Any, on_progress: Callable[[int], None] | None = None) -> None:
    """Writes a model as a run, scored on the test samples; it can be trained on from recipe.yaml."""
    recipe = checkpoint.recipe_of_model(model)
    changed: dict[str, Any] = {"init": str(out), "settle": ()}
    if recipe.train.sample not in SAMPLERS:  # a group of the method that was
        changed["sample"] = "every"
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=changed)})
    try:
        score_and_save(recipe, out, model, test, {}, on_progress)
        files.write(out / checkpoint.RECIPE, recipe.to_yaml())
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # it was empty: the command can be given again
        raise


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
