"""Models whose samples skip layers, as graphs: a layer runs for those alone that its gate sends through.

The stages of such a folder are `stem`, then for each layer a `gate` (where it has one) and a `block`, then `head`. A
gate takes the state and the scores so far and gives the scores with its own one behind.
"""

from collections.abc import Sequence

import numpy as np

from supple.runtime.engine import Array, Engine, State


def follow(engine: Engine, roles: Sequence[str], x: State, threshold: float | None) -> Array:
    """The logits of a batch. Without a threshold all layers run and no gate is asked."""
    (state, scores), _ = engine.run_stage(0, x)
    rows: Array | None = None  # of the samples that run the next layer; None: all
    for k, role in enumerate(roles[1:-1], 1):
        if role == "gate" and threshold is not None:
            (scores,), _ = engine.run_stage(k, (state, scores))
            rows = np.flatnonzero(scores[:, -1] >= threshold)
        elif role == "block":
            state = through(engine, k, state, rows)
            rows = None
    _, logits = engine.run_stage(len(roles) - 1, (state,))
    assert logits is not None
    return logits


def through(engine: Engine, k: int, state: Array, rows: Array | None) -> Array:
    """Those who run leave the others behind and are put back in their places."""
    after: Array
    if rows is None or len(rows) == len(state):
        (after,), _ = engine.run_stage(k, (state,))
        return after
    if len(rows):
        (after,), _ = engine.run_stage(k, (state[rows],))
        state = state.copy()
        state[rows] = after
    return state
