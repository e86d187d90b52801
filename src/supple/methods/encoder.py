"""One layer of a transformer encoder as SL-ViT has it: heads as wide as the embedding."""

import torch.nn.functional as F
from torch import Tensor, nn


class EncoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and with a residual; the one around the MLP can be left out."""

    def __init__(self, d: int, heads: int, mlp_ratio: int, residual: bool) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(d), SelfAttention(d, heads))
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, mlp_ratio * d), nn.GELU(), nn.Linear(mlp_ratio * d, d))
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y: Tensor = self.mlp(x)
        return x + y if self.residual else y


class SelfAttention(nn.Module):
    """Multi-head attention whose heads are as wide as its input, eq. (2): the usual d / heads is another model."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * heads * d)
        self.out = nn.Linear(heads * d, d)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1))  # (batch, tokens, 3, heads, d)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)  # scale 1 / sqrt(d)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result
