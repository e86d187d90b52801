"""A chain of stages walked until the time is up, somebody cancels, or the answers are sure. A pure function of what the
stages give: who runs them, and how long they are expected to take, is the caller's.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from supple.errors import DataError, LateError
from supple.runtime.answers import Reached, Rule
from supple.runtime.engine import Array, State


def walk(
    stages: Sequence[str | None],  # the point that each one answers
    run_stage: Callable[[int, State], tuple[State, Array | None]],
    x: State,
    *,
    left_ms: float | None = None,
    expected_ms: Callable[[int], float] = lambda k: 0.0,  # from stage k to the next answer
    cancel: threading.Event | None = None,
    rule: Rule | None = None,
    strict: bool = False,
) -> list[Reached]:
    """Who answered each sample, with what, and why it ended there. Samples that are sure leave the batch."""
    began, state, rows = time.perf_counter(), x, np.arange(len(x[0]))  # rows: the samples that go on
    found: list[Reached | None] = [None] * len(x[0])
    for k, name in enumerate(stages):
        stop = None
        if left_ms is not None and 1000 * (time.perf_counter() - began) + expected_ms(k) > left_ms:
            stop = "deadline"
            if k == 0 and strict:
                left = f"{max(0.0, left_ms):.2g} ms are left after decoding"
                raise LateError(f"{left}, and the first exit takes {expected_ms(0):.2g} ms.", "Allow more time.")
        if cancel is not None and cancel.is_set():
            stop = "cancelled"
        if stop is not None and all(found[row] is not None for row in rows):
            for row in rows:
                found[row] = (*found[row][:2], stop)  # type: ignore[index]
            break
        state, logits = run_stage(k, state)
        if logits is None or name is None:
            continue
        going = note(found, rows, name, logits, rule)
        if not going.any():
            break
        if not going.all():
            state, rows = tuple(part[going] for part in state), rows[going]
    if None in found:
        raise DataError("no exit gave finite numbers.", "The weights or the input hold no numbers.")
    return found  # type: ignore[return-value]


def note(found: list[Reached | None], rows: Array, name: str, logits: Array, rule: Rule | None) -> Array:
    """Writes down the answers of an exit; which samples go on. The last finite answer of a sample stays."""
    finite: Array = np.asarray(np.isfinite(logits).all(tuple(range(1, logits.ndim))))
    sure = np.zeros(len(rows), bool) if rule is None else rule.sure(name, logits)
    last = rule is not None and rule.last(name)
    ending = "full" if name == "full" else "budget" if rule is not None and last and rule.budgeted else "largest"
    going = np.ones(len(rows), bool)
    for place, row in enumerate(rows):
        if finite[place]:
            reason = "confident" if sure[place] and not last else ending
            found[row] = (name, logits[place], reason)
            going[place] = not sure[place]
        elif found[row] is not None:
            found[row] = (*found[row][:2], "not finite")
            going[place] = False
    return going
