"""Words and tables: the one table style, numbers with units, and guesses at what was meant."""

import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

MOST_LISTED = 30  # names in a message
NARROWEST = 12  # characters that a column of words keeps


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,), most: int | None = None
) -> str:
    """Plain aligned columns, numbers to the right; the columns in `left` to the left.

    most: characters of a line; None: as many as the terminal has. Where a line has more, words are shortened, the
    widest column of them first; numbers never.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    widths = _fitted(widths, left, width() if most is None else most)
    lines = [[cut(cell, widths[i]) for i, cell in enumerate(line)] for line in lines]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def _fitted(widths: list[int], left: Sequence[int], most: int | None) -> list[int]:
    """The widths of columns with which a line has at most so many characters, if shorter words can do it."""
    too_many = 0 if most is None else sum(widths) + 2 * (len(widths) - 1) - most
    while too_many > 0 and left:
        widest = max(left, key=lambda column: widths[column])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
        too_many -= 1
    return widths


def cut(text: str, most: int | None) -> str:
    """At most so many characters, with an ellipsis for the rest; None: all. Of a path, the end stays."""
    if most is None or len(text) <= most:
        return text
    path = "/" in text and " " not in text
    return f"…{text[len(text) - most + 1 :]}" if path else f"{text[: most - 1].rstrip()}…"


def wrapped(text: str, indent: int = 0) -> str:
    """Lines that fit the terminal, all indented."""
    margin = " " * indent
    return textwrap.fill(text, width() or sys.maxsize, initial_indent=margin, subsequent_indent=margin)


def width() -> int | None:
    """Characters of a line of the terminal; None: the output goes elsewhere, where nothing is to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def some(count: int, noun: str) -> str:
    """`1 image`, `12,000 images`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def millions(count: float | None) -> str:
    """Three digits or so: 14 955 776 -> `15.0`, 1 234 567 -> `1.23`, 125 000 -> `0.125`."""
    if count is None:
        return "-"
    value = count / 1e6
    return f"{value:.{1 if value >= 10 else 2 if value >= 1 else 3}f}"


def cost(value: float | None, unit: str) -> str:
    """Of a policy: milliseconds, or millions of MACs."""
    return millions(value) if unit != "ms" or value is None else f"{value:.{0 if value >= 100 else 2}f}"


def macs(count: float | None) -> str:
    """`329 kMACs`, `12 MACs`."""
    return _with_unit(count, "MACs")


def size(count: int) -> str:
    """Bytes for people: `2.34 MB`, `12 B`."""
    return _with_unit(count, "B")


def _with_unit(count: float | None, unit: str) -> str:
    text = quantity(count)
    return f"{text}{unit}" if text[-1].isalpha() else f"{text} {unit}"


def quantity(count: float | None) -> str:
    """A count for people: 433 876 -> `434 k`, 4 900 000 -> `4.9 M`."""
    if count is None:
        return "-"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * limit:  # 999 999 is `1 M`, not `1e+03 k`
            return f"{count / limit:.3g} {unit}"
    return f"{count:g}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`Did you mean "epochs"?`, or the list of what there is, if it can be read."""
    options = sorted(options)
    close = nearest(word, options)
    if close is not None:
        return f'Did you mean "{close}"?'
    return f"Possible: {first(options, MOST_LISTED)}{f' ({len(options):,})' if len(options) > MOST_LISTED else '.'}"


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option that a misspelt word comes close to, if any."""
    folded = {option.lower(): option for option in sorted(options)}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def one_line(error: BaseException, most: int = 200, named: bool = False) -> str:
    """What an error says, without line breaks and colours; its kind before that, or where it says nothing."""
    text, kind = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:most], type(error).__name__
    return f"{kind}: {text}" if named and text else text or kind


def say(message: str) -> None:
    """A remark for the person, not for the pipe."""
    print(message, file=sys.stderr, flush=True)
