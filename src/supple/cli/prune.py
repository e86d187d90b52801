from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from supple.cli.common import Changes, Json, Run, check_out, must_be_run, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.surgery.prune import Change


def prune(
    run: Run,
    out: Annotated[Path, typer.Option(help="A new run folder.")],
    changes: Changes = None,
    ratio: Annotated[float | None, typer.Option(help="Share of the dimensions to cut: 0.4 (0 folds only).")] = None,
    widths: Annotated[str | None, typer.Option(help="Instead: one checkpoint for these shares kept: 0.4,0.8.")] = None,
    ranking: Annotated[str, typer.Option(help="Compare dimensions: global, per_type or per_layer.")] = "global",
    by: Annotated[str, typer.Option(help="score (of the search), magnitude (of the weights) or random.")] = "score",
    multiple: Annotated[int, typer.Option(help="Round kept dimensions to a multiple: 8.", min=1, max=1024)] = 1,
    seed: Annotated[int, typer.Option(help="Of --by random.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Folds the scores in and cuts the lowest (SiDT). Train on: supple train OUT/recipe.yaml --out RUN."""
    from supple.backbones.dims import kept_dims, shape_of
    from supple.cli.common import model_of, recipe_of, splits_for
    from supple.methods.ranking import BASELINE_CRITERIA, Ranking
    from supple.surgery.prune import Plan, must_be_its_network, nest, nested_recipe, pruned_recipe, save, timed
    from supple.surgery.prune import changes as changed
    from supple.surgery.prune import prune as cut

    if (ratio is None) == (widths is None):
        cause = "one of --ratio and --widths is needed." if ratio is None else "--ratio and --widths are both given."
        raise RecipeError(cause, "Give --ratio 0.4, or --widths 0.2,0.4,0.6,0.8.")
    for option, value, known in (
        ("--ranking", ranking, get_args(Ranking)),
        ("--by", by, ("score", *BASELINE_CRITERIA)),
    ):
        if value not in known:
            raise RecipeError(f'{option} is "{value}".', f"Possible: {', '.join(known)}.")
    check_out(out)
    model, recipe = model_of(must_be_run(run), changes), recipe_of(run, changes)
    plan = Plan(ranking, by, multiple, seed)  # type: ignore[arg-type]
    before = model.extract().eval()
    splits = splits_for(run, model, changes)
    x = splits.test.batch(_first())[0]
    found: list[Change] = []
    if widths is not None:
        shares = _shares(widths)
        network, all_kept = nest(model, shares, plan)
        left = must_be_its_network(model, x)
        pruned = save(out, model, nested_recipe(recipe, shares, all_kept, out), network, splits)
        document: dict[str, Any] = {"run": str(out), "shapes": {f"{w:g}": k.shape for w, k in zip(shares, all_kept)}}
    else:
        assert ratio is not None
        shares = (1 - ratio,)
        network, kept = cut(model, ratio, plan)
        all_kept, left = [kept], must_be_its_network(model, x)
        pruned = save(out, model, pruned_recipe(recipe, kept, out), network, splits)
        assert model.input_shape is not None
        found = changed(before, network, model.input_shape)
        found = timed(found, before, network.eval(), x)
        document = {"run": str(out), "ratio": ratio, "kept": kept.shape, "blocks": [vars(change) for change in found]}
    whole = kept_dims(shape_of(before))
    cut_off = [1 - kept_dims(kept.shape) / whole for kept in all_kept]
    document |= {"cut": cut_off, "clamped": sum(kept.clamped for kept in all_kept), **pruned.ladder.to_json()}
    if json:
        print_json(document)
        return
    if found:
        print(_told(found))
    if left:
        print(f"left behind: {left}. What was cut is the network itself.")
    for share, kept, really in zip(shares, all_kept, cut_off):
        print(_otherwise(share, kept.clamped, really), end="")
    print(f"\n{pruned.ladder}\n\nTrain it on: supple train {out / 'recipe.yaml'} --out RUN")


def _otherwise(share: float, clamped: int, cut_off: float) -> str:
    """What came out otherwise than asked for, when this share was to be kept; nothing, mostly."""
    said = ""
    if abs(1 - share - cut_off) > 0.01:
        said += f"{cut_off:.1%} of the dimensions were cut, not {1 - share:.1%}: rounding, or what had to stay.\n"
    if clamped:
        said += f"at {share:g} kept, {clamped} groups would have lost all of their dimensions; one each stayed.\n"
    return said


def _first() -> Any:
    import torch

    return torch.tensor([0])


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or list(shares) != sorted(set(shares)) or not 0 < shares[0] <= shares[-1] < 1:
        raise RecipeError(f'--widths is "{text}".', "Give rising shares between 0 and 1: 0.2,0.4,0.6,0.8.")
    return shares


def _told(found: "list[Change]") -> str:
    """What became of every block, before and after."""
    from supple.text import millions, quantity, table

    rows = [
        (
            change.path,
            _pair(*map(str, change.dims)),
            _pair(*map(str, change.hidden)),
            _pair(*map(quantity, change.params)),
            _pair(*map(millions, change.macs)),
            "-" if change.ms is None else _pair(*(f"{ms:.2f}" for ms in change.ms)),
        )
        for change in found
    ]
    sums = [[sum(pair) for pair in zip(*pairs)] for pairs in ((c.params for c in found), (c.macs for c in found))]
    ms = [sum(pair) for pair in zip(*(change.ms for change in found if change.ms is not None))]
    total = (_pair(*map(quantity, sums[0])), _pair(*map(millions, sums[1])))
    rows.append(("all blocks", "", "", *total, _pair(*(f"{value:.2f}" for value in ms)) if ms else "-"))
    return table(("block", "head dims", "MLP hidden", "params", "MMACs", "ms"), rows, left=(0,))


def _pair(before: str, after: str) -> str:
    return f"{before} > {after}"
