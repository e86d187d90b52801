"""The policy of a run in its report: which exits it looks at, what it costs and scores, where each class stops."""

from collections.abc import Sequence
from html import escape
from typing import Any

from supple.reporting.plots import point_colours
from supple.text import millions

_CLASSES = 12  # listed from either end where there are more than twice as many


def policy_parts(document: dict[str, Any]) -> list[str]:
    """The paragraphs and tables of the section, as HTML."""
    parts = [f"<p>{_summary(document)}</p>"]
    if document["remark"]:
        parts.append(f'<p class="note">{escape(document["remark"])}</p>')
    parts += [_exits(document), _outcomes(document)]
    if len(document["points"]) > 1:
        parts.append(_classes(document))
    return parts


def _summary(document: dict[str, Any]) -> str:
    done, full = document["achieved"], document["full_cost"]
    what = "time" if document["unit"] == "ms" else "MACs"
    lost = 100 * (done["full_accuracy"] - done["accuracy"])
    near = f"{abs(lost):.1f} points {'below' if lost > 0 else 'above'}" if abs(lost) >= 0.05 else "the same as"
    return (
        f"An image stops at the first exit that is sure enough of it ({escape(document['measure'].replace('_', ' '))};"
        f" target: <code>{escape(_target(document['target']))}</code>). On images that had no part in the choice, this"
        f" took <strong>{100 * done['cost'] / full:.0f} %</strong> of the full model's {what} at an accuracy of"
        f" <strong>{100 * done['accuracy']:.1f} %</strong>, {near} the full model."
    )


def _target(target: dict[str, Any]) -> str:
    return f"--{str(target['kind']).replace('_', '-')} {target['given']}"


def _exits(document: dict[str, Any]) -> str:
    unit = "ms" if document["unit"] == "ms" else "M"
    what = "time" if unit == "ms" else "MACs"
    header = [("point", ""), ("threshold", ""), ("temperature", ""), (f"{what} to here", unit)]
    header += [("accuracy", "%"), ("answers", "% expected"), ("", "achieved")]
    body = []
    for row in document["exits"]:
        remark = f"no better than {row['dominated_by']}" if row["dominated_by"] else ""
        used = row["looked_at"]
        remark += "" if used else ", left out" if remark else "left out: it does not pay"
        level = "-" if not used else "the rest" if row["threshold"] is None else f"{row['threshold']:.3f}"
        cells = [
            level,
            f"{row['temperature']:.2f}",
            _cost(row["cost"], document),
            f"{100 * row['accuracy']:.1f}",
            *(f"{100 * row[half]:.1f}" if used else "-" for half in ("expected", "achieved")),
        ]
        small = f"<small>{escape(remark)}</small>" if remark else ""
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        kind = "" if used else ' class="dominated"'
        body.append(f"<tr{kind}><td>{escape(row['point'])}{small}</td>{numbers}</tr>\n")
    return _table("policy", header, body)


def _outcomes(document: dict[str, Any]) -> str:
    unit = "ms" if document["unit"] == "ms" else "M"
    header = [("", ""), ("mean time" if unit == "ms" else "mean MACs", unit), ("of the full model", "%")]
    header += [("accuracy", "%"), ("below the full model", "points"), ("images", "")]
    body = []
    for name, what in (("expected", "the half that it was found on"), ("achieved", "the other half")):
        facts = document[name]
        cells = [
            f"{_cost(facts['cost'], document)} ± {_cost(facts['cost_error'], document)}",
            f"{100 * facts['cost'] / document['full_cost']:.0f}",
            f"{100 * facts['accuracy']:.1f}",
            f"{100 * (facts['full_accuracy'] - facts['accuracy']):.1f} ± {100 * facts['drop_error']:.1f}",
            f"{facts['n']:,}",
        ]
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        body.append(f"<tr><td>{name}<small>{what}</small></td>{numbers}</tr>\n")
    note = "± is one standard error."
    if document["unit"] == "ms":
        threads = f"{document['threads']} thread{'' if document['threads'] == 1 else 's'}"
        note += f" Times: one image at a time, {threads}, on {document['machine']}."
    return f'{_table("outcomes", header, body)}\n<p class="note">{escape(note)}</p>'


def _classes(document: dict[str, Any]) -> str:
    """One bar per class, those that stop early first: which exits answered its images in the second half."""
    points, names, stopped = document["points"], document["classes"]["names"], document["classes"]["stopped"]
    seen = [(str(name), counts) for name, counts in zip(names, stopped) if sum(counts)]
    seen.sort(key=lambda pair: sum(place * count for place, count in enumerate(pair[1])) / sum(pair[1]))
    hidden = len(seen) - 2 * _CLASSES
    colours = point_colours(len(points))
    key = " ".join(
        f'<span class="key"><i style="background: {colour}"></i>{escape(point)}</span>'
        for point, colour in zip(points, colours)
    )
    body = []
    for number, (name, counts) in enumerate(seen):
        if hidden > 0 and _CLASSES <= number < len(seen) - _CLASSES:
            if number == _CLASSES:
                body.append(f'<tr class="dominated"><td>{hidden:,} more between</td><td></td><td></td></tr>\n')
            continue
        shares = [100 * count / sum(counts) for count in counts]
        words = ", ".join(f"{point} {share:.0f} %" for point, share in zip(points, shares) if share)
        pieces = "".join(
            f'<i style="width: {share:.2f}%; background: {colour}"></i>'
            for share, colour in zip(shares, colours)
            if share
        )
        bar = f'<div class="bar" role="img" aria-label="{escape(words)}" title="{escape(words)}">{pieces}</div>'
        body.append(
            f'<tr><td>{escape(name)}</td><td class="wide-cell">{bar}</td><td class="number">{sum(counts):,}</td></tr>\n'
        )
    header = [("class", ""), ("where its images stop", ""), ("images", "")]
    caption = f'<p class="note">Where the images of each class stop, the early ones first: {key}</p>'
    return f"{caption}\n{_table('classes', header, body, left=(0, 1))}"


def _table(name: str, header: Sequence[tuple[str, str]], body: list[str], left: Sequence[int] = (0,)) -> str:
    """`header`: the columns and their units; all are numbers but those in `left`."""
    cells = "".join(
        f'<th scope="col" class="{"" if place in left else "number"}">{escape(title)}'
        f"{f' <small>{escape(unit)}</small>' if unit else ''}</th>"
        for place, (title, unit) in enumerate(header)
    )
    return (
        f'<div class="wide"><table class="{name}"><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>\n{''.join(body)}</tbody></table></div>"
    )


def _cost(value: float | None, document: dict[str, Any]) -> str:
    if document["unit"] != "ms" or value is None:
        return millions(value)
    return f"{value:.{0 if value >= 100 else 2}f}"
