"""Progress for people: a bar with rate and ETA on a terminal, one line per epoch elsewhere. All on stderr."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from supple.tasks import get_metric
from supple.text import duration, say

if TYPE_CHECKING:
    from supple.scoring import Score

DRAWN_EVERY_S = 0.5  # a bar beside what is timed: drawing it empties the caches


def _bar(*columns: ProgressColumn, quiet: bool, transient: bool = False, by_itself: bool = True) -> Bar:
    """One that shows nothing where there is no terminal. by_itself: a thread draws it, several times a second."""
    disable = quiet or not sys.stderr.isatty()
    how = {"disable": disable, "transient": transient, "auto_refresh": by_itself}
    return Bar(*columns, console=Console(stderr=True), **how)  # type: ignore[arg-type]


@contextmanager
def counting(total: int, text: str, quiet: bool = False, timing: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar, advanced by calls with how many more are done; nothing where there is no terminal. timing: it is drawn
    only by these calls, so that nothing runs beside what is timed.
    """
    with _bar(quiet=quiet, transient=True, by_itself=not timing) as bar:
        task, drawn = bar.add_task(text, total=total), -DRAWN_EVERY_S

        def advance(done: int) -> None:
            nonlocal drawn
            due = timing and time.monotonic() - drawn >= DRAWN_EVERY_S
            bar.update(task, advance=done, refresh=due)
            drawn = time.monotonic() if due else drawn

        yield advance


class Progress:
    """Shows a training of `epochs` x `steps` steps; `quiet` shows nothing."""

    def __init__(self, epochs: int, steps: int, done: int = 0, quiet: bool = False, kind: str = "image") -> None:
        self.epochs, self.steps, self.kind = epochs, steps, kind  # of the samples, in a word
        self.done, self.quiet = done, quiet
        self.started, self.first, self.samples = time.monotonic(), done, 0
        text, rate = TextColumn("{task.description}"), TextColumn("{task.fields[rate]}, ETA")
        self.bar = _bar(text, BarColumn(), rate, TimeRemainingColumn(), quiet=quiet)
        self.task = self.bar.add_task("", total=epochs * steps, completed=done, rate="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    @property
    def rate(self) -> float:
        """Samples per second since the start."""
        return self.samples / max(1e-9, time.monotonic() - self.started)

    @property
    def pace(self) -> str:
        return f"{self.rate:.{0 if self.rate >= 10 else 1}f} {self.kind}s/s"

    def step(self, epoch: int, loss: float, samples: int) -> None:
        self.done, self.samples = self.done + 1, self.samples + samples
        text = f"epoch {epoch + 1}/{self.epochs}  loss {loss:.3f}"
        self.bar.update(self.task, completed=self.done, description=text, rate=self.pace)

    def epoch(self, epoch: int, loss: float, scores: "Sequence[Score]", best: bool) -> None:
        if self.quiet:
            return
        metric = get_metric(scores[0].metric)
        values = "  ".join(f"{score.name} {metric.scale * score.score:.1f}" for score in scores)
        line = f"epoch {epoch + 1}/{self.epochs}  loss {loss:.3f}  validation {metric.title}: {values}"
        per_step = (time.monotonic() - self.started) / max(1, self.done - self.first)
        left = (self.epochs * self.steps - self.done) * per_step
        line += f"  {self.pace}  ETA {duration(left)}{'  (best so far)' if best else ''}"
        if self.bar.disable:
            say(line)
        else:
            self.bar.console.print(line, highlight=False)
