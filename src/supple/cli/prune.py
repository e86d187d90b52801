from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Changes, Json, Run, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.surgery.prune import Change


def prune(
    run: Run,
    out: Annotated[Path, typer.Option(help="A new run folder.")],
    changes: Changes = None,
    ratio: Annotated[float | None, typer.Option(help="Share of the dimensions to prune: 0.4 (0 only folds).")] = None,
    widths: Annotated[str | None, typer.Option(help="Instead: one checkpoint with these widths: 0.4,0.8.")] = None,
    ranking: Annotated[str, typer.Option(help="Compare dimensions: global, per_type or per_layer.")] = "global",
    by: Annotated[str, typer.Option(help="score (of the search), magnitude (of the weights) or random.")] = "score",
    multiple: Annotated[int, typer.Option(help="Round kept dimensions to a multiple: 8.", min=1, max=1024)] = 1,
    seed: Annotated[int, typer.Option(help="Of --by random.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Folds the scores in and cuts the lowest (SiDT). Then fine-tune: supple train OUT/recipe.yaml --out RUN."""
    from supple.backbones.dims import kept_dims, shape_of
    from supple.checkpoint import check_out
    from supple.opening import open_source
    from supple.progress import counting
    from supple.surgery.prune import Plan, cut, save, timed
    from supple.surgery.prune import changes as changed

    shares = None if widths is None else _shares(widths)
    check_out(out)
    opened = open_source(run, changes or ())
    before = opened.model.extract().eval()
    done = cut(opened.model, ratio, shares, Plan(ranking, by, multiple, seed))  # type: ignore[arg-type]
    test = opened.splits().test
    with counting(len(test), "scoring", quiet=json) as on_progress:
        save(out, done.model, test, on_progress)
    found: list[Change] = []
    document: dict[str, Any] = {"run": str(out)}
    if ratio is not None:
        shares, after = (1 - ratio,), done.model.extract().eval()
        assert opened.model.input_shape is not None
        found = changed(before, after, opened.model.input_shape)
        found = timed(found, before, after, test.batch(_first())[0])
        document |= {"ratio": ratio, "kept": done.kept[0].shape, "blocks": [vars(change) for change in found]}
    else:
        document |= {"shapes": {f"{width:g}": kept.shape for width, kept in zip(shares or (), done.kept)}}
    whole = kept_dims(shape_of(before))
    cut_off = [1 - kept_dims(kept.shape) / whole for kept in done.kept]
    document |= {"cut": cut_off, "clamped": sum(kept.clamped for kept in done.kept), **done.model.ladder.to_json()}
    if json:
        print_json(document)
        return
    if found:
        print(_changes(found))
    if done.left:
        print(f"dropped: {done.left}. Only the network itself was pruned.")
    for share, kept, really in zip(shares or (), done.kept, cut_off):
        print(_otherwise(share, kept.clamped, really), end="")
    print(f"\n{done.model.ladder}\n\nFine-tune it: supple train {out / 'recipe.yaml'} --out RUN")


def _otherwise(share: float, clamped: int, cut_off: float) -> str:
    """What came out otherwise than asked for, when this share was to be kept; nothing, mostly."""
    text = ""
    if abs(1 - share - cut_off) > 0.01:
        text += (
            f"{cut_off:.1%} of the dimensions were pruned instead of {1 - share:.1%} (rounding, or minimum sizes).\n"
        )
    if clamped:
        text += f"at width {share:g}, {clamped} groups would have lost all dimensions; each keeps one.\n"
    return text


def _first() -> Any:
    import torch

    return torch.tensor([0])


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares:
        raise RecipeError(f'--widths is "{text}".', "Give rising shares between 0 and 1: 0.2,0.4,0.6,0.8.")
    return shares


def _changes(found: "list[Change]") -> str:
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
