"""Which layers a sample runs: the scores of the Dynamic Transformer, eqs. (5) to (12), and three ways to obey them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from supple.backbones.protocols import Trunk
from supple.methods._trunk import read_token
from supple.methods.dense import Read, mixers

Oracle = Literal["own", "shared"]
Inputs = Literal["chain", "dense"]
Pass = Callable[[nn.Module, Tensor, Tensor, float], Tensor]  # block, state, score, threshold -> state


@dataclass(frozen=True)
class Way:
    """How a batch went through the layers."""

    state: Tensor  # after the last one
    logits: Tensor  # of the scores (batch, gated layers)
    ran: Tensor  # which sample ran which layer (batch, layers)

    @property
    def scores(self) -> Tensor:
        return self.logits.sigmoid()

    def margin(self, threshold: float) -> Tensor:
        """How far each sample's nearest score is from the threshold (batch)."""
        return (self.scores.detach() - threshold).abs().amin(1)


class Gates(nn.Module):
    """The oracles. Layers count from 0; the first always runs, and so does the last where the setting says so."""

    def __init__(
        self, trunk: Trunk, oracle: Oracle, inputs: Inputs, dropout: float, read: Read, last_always_on: bool
    ) -> None:
        super().__init__()
        count = len(trunk.blocks)
        self.gated = range(1, count - 1 if last_always_on else count)
        self.read, self.shared = read, oracle == "shared"
        lengths = [2] if self.shared else list(self.gated)  # of the history: one score for each layer so far
        self.oracles = nn.ModuleList(nn.Linear(trunk.width + length, 1) for length in lengths)
        self.mixers = mixers(trunk, dropout, read) if inputs == "dense" else None

    def exact_parameters(self) -> Iterable[nn.Parameter]:
        """Those that stay in fp32: a score near its threshold must not shift."""
        return self.oracles.parameters()

    def follow(self, trunk: Trunk, x: Tensor, threshold: float | None, obey: Pass) -> Way:
        """Takes a batch through the layers; without a threshold, all of them run and no oracle is asked."""
        state = trunk.stem(x)
        activations = [state]
        batch = state.shape[0]  # (len would be taken for a constant when a network is exported)
        scores, logits, ran = [state.new_ones(batch).float()], [], []  # all samples run the first layer
        for layer, block in enumerate(trunk.blocks):
            before = state
            if self.mixers is not None and layer:
                state, _ = self.mixers[layer - 1](activations)
            if threshold is None or layer not in self.gated:
                state, runs = block(state), scores[0] > 0
            else:
                logits.append(self.ask(layer, before, scores))
                scores.append(logits[-1].sigmoid())
                runs = scores[-1] >= threshold
                state = obey(block, state, scores[-1], threshold)
            ran.append(runs)
            if self.mixers is not None:
                activations.append(state)
        return Way(state, torch.stack(logits, 1) if logits else state.new_empty(batch, 0), torch.stack(ran, 1))

    def ask(self, layer: int, state: Tensor, scores: list[Tensor]) -> Tensor:
        """The logit of a layer's score, eq. (6); a shared oracle knows the mean score and the depth so far."""
        token = read_token(state, self.read)
        if self.shared:
            depth = torch.full_like(scores[0], layer / self.gated.stop)
            history, oracle = [torch.stack(scores).mean(0), depth], self.oracles[0]
        else:
            history, oracle = scores, self.oracles[layer - 1]
        seen = torch.cat([token, torch.stack(history, 1)], 1)  # in fp32, also of a state in bf16
        logit: Tensor = oracle(seen).squeeze(1)
        return logit


# --- obeying a score --------------------------------------------------------------------------------------------------


def regroup(block: nn.Module, state: Tensor, score: Tensor, threshold: float) -> Tensor:
    """Those who run leave the others behind and are put back in their places, eqs. (8) to (12)."""
    if state.is_meta:  # nothing is known: all may run
        return blend(block, state, score, threshold)
    index = (score >= threshold).nonzero().squeeze(1)
    if len(index) == len(state):
        result: Tensor = block(state)
        return result
    return state.index_copy(0, index, block(state.index_select(0, index))) if len(index) else state


def blend(block: nn.Module, state: Tensor, score: Tensor, threshold: float) -> Tensor:
    """Everybody runs, and who should not have keeps what was: no branches, for runtimes that have none."""
    return torch.where((score >= threshold)[:, None, None], block(state), state)


def straight_through(block: nn.Module, state: Tensor, score: Tensor, threshold: float) -> Tensor:
    """As `blend`, but the backward pass takes the decision for the score itself, so that the task loss reaches it."""
    decision = (score >= threshold).to(score) + score - score.detach()
    blended: Tensor = state + decision[:, None, None] * (block(state) - state)
    return blended
