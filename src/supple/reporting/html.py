"""How a report looks, on paper-white and on dark screens, and the pieces of HTML that it is made of."""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark;
  --ink: #22272e; --muted: #667080; --grid: #e3e6ea; --paper: #ffffff; --shade: #f5f6f8; --accent: #2f6fb5; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e2e6ea; --muted: #97a1ad; --grid: #30363d; --paper: #15181c; --shade: #1e2227; --accent: #6ea8e5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 64rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.75rem 0 .75rem; }
p { margin: .5rem 0; max-width: 44rem; }
.summary { font-size: 1.1rem; }
.note, figcaption, small, th small { color: var(--muted); font-size: .875rem; }
.missing { border-left: 3px solid var(--accent); background: var(--shade); padding: .6rem .9rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; max-width: 36rem; }
figcaption { margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit !important; }
.wide { overflow-x: auto; margin-top: 1.25rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem 1.1rem .4rem 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 600; vertical-align: bottom; white-space: nowrap; }
thead th { border-bottom-color: var(--muted); }
th small { font-weight: 400; }
.number { text-align: right; white-space: nowrap; }
td:first-child { overflow-wrap: anywhere; min-width: 7rem; }
td small { display: block; line-height: 1.3; }
.dominated td { color: var(--muted); }
.inner td { border-bottom-color: transparent; padding-bottom: .1rem; }
.inner + tr td { padding-top: .1rem; }
.facts th { vertical-align: baseline; font-weight: 400; color: var(--muted); }
.facts td { overflow-wrap: anywhere; }
.bar { display: flex; height: .8rem; min-width: 12rem; border-radius: 3px; overflow: hidden; }
.bar i + i { border-left: 1px solid var(--paper); }
.classes { width: 100%; max-width: 44rem; }
.classes td { border-bottom-color: transparent; padding-top: .15rem; padding-bottom: .15rem; }
.wide-cell { width: 100%; }
.key { white-space: nowrap; margin-right: .8rem; color: var(--ink); }
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .3rem; }
code, pre { font: .875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p code { white-space: nowrap; }
pre { background: var(--shade); padding: 1rem; border-radius: 6px; overflow-x: auto; }
summary { cursor: pointer; }
@media (max-width: 40rem) { body { padding: 1.5rem 1rem 3rem; } table { font-size: .875rem; }
  th, td { padding-right: .7rem; } td:first-child { min-width: 8rem; } }
"""


def section(title: str, parts: Iterable[str]) -> str:
    return f"<section>\n<h2>{title}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>\n"


def missing(what: str, command: str) -> str:
    return f'<p class="missing">{escape(what)} This adds it: <code>{escape(command)}</code></p>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def table(name: str, header: Iterable[Sequence[str]], body: Iterable[str], left: Sequence[int] = (0,)) -> str:
    """`header`: the title of each column and what stands small beside it; all are numbers but those in `left`."""
    cells = ""
    for place, (title, *remarks) in enumerate(header):
        kind = "" if place in left else ' class="number"'
        small = "".join(f" <small>{escape(remark)}</small>" for remark in remarks if remark)
        cells += f'<th scope="col"{kind}>{escape(title)}{small}</th>'
    return (
        f'<div class="wide"><table class="{name}"><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>\n{''.join(body)}</tbody></table></div>"
    )


def line(name: str, figures: Iterable[str], remark: str = "", kind: str = "") -> str:
    """A line of a table: a name with a remark below it, then numbers."""
    small = f"<small>{escape(remark)}</small>" if remark else ""
    cells = "".join(f'<td class="number">{escape(figure)}</td>' for figure in figures)
    style = f' class="{kind}"' if kind else ""
    return f"<tr{style}><td>{escape(name)}{small}</td>{cells}</tr>\n"
