"""Models whose samples skip layers, as graphs: a layer runs for those alone that its gate sends through.

The stages of such a folder are `stem`, then for each layer a `gate` (where it has one) and a `block`, then `head`. A
gate takes the state and the scores so far and gives the scores with its own one behind.
"""

import numpy as np

from supple.inference.engines import Array, Engine, Layer, State

WORST = -np.inf  # a threshold below every score


def follow(engine: Engine, layers: tuple[Layer, ...], x: State, threshold: float | None) -> Array:
    """The logits of a batch. Without a threshold all layers run and no gate is asked; with that of WORST, all of them
    run, too, and every gate is asked: that is what it takes at most."""
    state, scores = engine.run(layers[0].graph, x)
    rows: Array | None = None  # of the samples that run the next layer; None: all
    for layer in layers[1:-1]:
        if layer.role == "gate" and threshold is not None:
            (scores,) = engine.run(layer.graph, (state, scores))
            rows = np.flatnonzero(scores[:, -1] >= threshold)
        elif layer.role == "block":
            state = through(engine, layer.graph, state, rows)
            rows = None
    (logits,) = engine.run(layers[-1].graph, (state,))
    return engine.array(logits)


def through(engine: Engine, block: str, state: Array, rows: Array | None) -> Array:
    """Those who run leave the others behind and are put back in their places."""
    after: Array
    if rows is None or len(rows) == len(state):
        (after,) = engine.run(block, (state,))
        return after
    if len(rows):
        (after,) = engine.run(block, (state[rows],))
        state = state.copy()
        state[rows] = after
    return state
