"""The policy of a run in its report: which exits it looks at, what it costs and scores, where each class stops."""

from html import escape
from typing import Any

from supple.reporting.html import line, note, table
from supple.reporting.plots import point_colours
from supple.text import cost, some

_CLASSES = 12  # listed from either end where there are more than twice as many


def policy_parts(document: dict[str, Any]) -> list[str]:
    """The paragraphs and tables of the section, as HTML."""
    parts = [f"<p>{_summary(document)}</p>"]
    if document["remark"]:
        parts.append(note(document["remark"]))
    parts += [_exits(document), _outcomes(document)]
    if len(document["points"]) > 1:
        parts.append(_classes(document))
    return parts


def _summary(document: dict[str, Any]) -> str:
    done, full = document["achieved"], document["full_cost"]
    what = "time" if document["unit"] == "ms" else "MACs"
    target = f"--{str(document['target']['kind']).replace('_', '-')} {document['target']['given']}"
    lost = 100 * (done["full_accuracy"] - done["accuracy"])
    near = f"{abs(lost):.1f} points {'below' if lost > 0 else 'above'}" if abs(lost) >= 0.05 else "the same as"
    return (
        f"An image stops at the first point that is sure enough of it ({escape(document['measure'].replace('_', ' '))};"
        f" target: <code>{escape(target)}</code>). On images that had no part in the choice, this"
        f" took <strong>{100 * done['cost'] / full:.0f} %</strong> of the full model's {what} at an accuracy of"
        f" <strong>{100 * done['accuracy']:.1f} %</strong>, {near} the full model."
    )


def _exits(document: dict[str, Any]) -> str:
    what, unit = ("time", "ms") if document["unit"] == "ms" else ("MACs", "M")
    header = [("point",), ("threshold",), ("temperature",), (f"{what} to here", unit)]
    header += [("accuracy", "%"), ("answers", "% expected"), ("", "achieved")]
    body = []
    for exit_ in document["exits"]:
        remark = f"no better than {exit_['dominated_by']}" if exit_["dominated_by"] else ""
        used = exit_["looked_at"]
        remark += "" if used else ", left out" if remark else "left out: it does not pay"
        figures = [
            "-" if not used else "the rest" if exit_["threshold"] is None else f"{exit_['threshold']:.3f}",
            f"{exit_['temperature']:.2f}",
            cost(exit_["cost"], document["unit"]),
            f"{100 * exit_['accuracy']:.1f}",
            *(f"{100 * exit_[half]:.1f}" if used else "-" for half in ("expected", "achieved")),
        ]
        body.append(line(exit_["point"], figures, remark, "" if used else "dominated"))
    return table("policy", header, body)


def _outcomes(document: dict[str, Any]) -> str:
    what, unit = ("time", "ms") if document["unit"] == "ms" else ("MACs", "M")
    header = [("",), (f"mean {what}", unit), ("of the full model", "%")]
    header += [("accuracy", "%"), ("below the full model", "points"), ("images",)]
    body = []
    for name, remark in (("expected", "the half that it was found on"), ("achieved", "the other half")):
        facts = document[name]
        figures = [
            f"{cost(facts['cost'], document['unit'])} ± {cost(facts['cost_error'], document['unit'])}",
            f"{100 * facts['cost'] / document['full_cost']:.0f}",
            f"{100 * facts['accuracy']:.1f}",
            f"{100 * (facts['full_accuracy'] - facts['accuracy']):.1f} ± {100 * facts['drop_error']:.1f}",
            f"{facts['n']:,}",
        ]
        body.append(line(name, figures, remark))
    below = "± is one standard error."
    if document["unit"] == "ms":
        below += f" Times: one image at a time, {some(document['threads'], 'thread')}, on {document['machine']}."
    return f"{table('outcomes', header, body)}\n{note(below)}"


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
    for name, counts in seen if hidden <= 0 else seen[:_CLASSES] + seen[-_CLASSES:]:
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
    if hidden > 0:
        body.insert(_CLASSES, f'<tr class="dominated"><td>{hidden:,} more between</td><td></td><td></td></tr>\n')
    caption = f'<p class="note">Where the images of each class stop, the early ones first: {key}</p>'
    header = [("class",), ("where its images stop",), ("images",)]
    return f"{caption}\n{table('classes', header, body, left=(0, 1))}"
