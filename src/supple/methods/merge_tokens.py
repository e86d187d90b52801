"""Token merging: a vision transformer whose layers merge tokens that are alike, also without any training.

After Bolya et al. 2023, "Token Merging: Your ViT But Faster": see `backbones/merging.py`.
"""

from torch import nn

from supple.errors import RecipeError
from supple.methods.depth import Depth
from supple.model import Shape


class MergeTokens(Depth):
    """Points `tokens=12` ... `full`: so many tokens fewer after every layer."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        tokens: tuple[int, ...] = (2, 4, 8),  # numbers of tokens that points merge in every layer
        input_shape: Shape = (),
    ) -> None:
        if not tokens:
            raise RecipeError("method.tokens is empty.", "Give rising numbers from 1, such as 4, 8.")
        super().__init__(backbone, tokens=tokens, input_shape=input_shape, method="merge_tokens")
