"""Plain vision transformers of timm as stem, blocks and head: what methods that change the depth work on."""

from typing import Literal

from torch import Tensor, nn

from supple.backbones.dims import Shape
from supple.backbones.networks import Arguments, timm_network
from supple.errors import RecipeError

Readout = Literal["timm", "class"]


class Vit(nn.Module):
    """Any ViT or DeiT of timm that is a stack of ordinary blocks. `forward` is timm's own, to the last bit.

    A distilled DeiT has two heads. `readout: timm` answers with their mean, as timm does; `class` with the class
    token's alone, and the distillation token stays in the sequence (LayerShuffle).
    """

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        input_shape: tuple[int, ...] = (),  # of one image
        model: str,  # timm's name: vit_base_patch16_224, deit_base_distilled_patch16_224, ...
        readout: Readout = "timm",  # of a distilled DeiT: both heads, or the class token's
        dropout: float = 0.0,  # inside the blocks
        drop_path: float = 0.0,  # stochastic depth while training
        args: Arguments = {},  # noqa: B006  # further arguments of the network, such as {depth: 6}
        kept: Shape = (),  # of a pruned one: for each block its kept dimensions of a head, and of the MLP
    ) -> None:
        super().__init__()
        facts = {"num_classes": num_classes, "in_channels": in_channels, "input_shape": input_shape}
        inner = {"proj_drop_rate": dropout, **args} if dropout else args
        self.network = timm_network(**facts, model=model, drop_path=drop_path, args=inner, kept=kept)  # type: ignore[arg-type]
        self.distilled = must_be_plain(self.network, model)
        self.width: int = self.network.embed_dim  # type: ignore[assignment]
        self.class_token = bool(self.network.has_class_token)
        self.readout = readout
        if readout == "class":
            if not self.class_token:
                raise RecipeError(f"timm's {model} has no class token to read.", "Leave out backbone.readout.")
            if self.distilled:
                del self.network.head_dist

    @property
    def blocks(self) -> nn.Sequential:
        blocks: nn.Sequential = self.network.blocks  # type: ignore[assignment]
        return blocks

    def stem(self, x: Tensor) -> Tensor:
        net = self.network
        tokens: Tensor = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x))))  # type: ignore[operator]
        return tokens

    def head(self, state: Tensor) -> Tensor:
        state = self.network.norm(state)  # type: ignore[operator]
        if self.readout == "class":
            read = self.network.head_drop(self.network.fc_norm(state[:, 0]))  # type: ignore[operator]
            logits: Tensor = self.network.head(read)  # type: ignore[operator]
        else:
            logits = self.network.forward_head(state)  # type: ignore[operator]
        return logits

    def head_of_merged(self, state: Tensor, sizes: Tensor) -> Tensor:
        """The same where tokens stand for several patches: a mean over tokens counts each as often as these."""
        net = self.network
        if self.readout == "class" or net.global_pool != "avg" or self.distilled:
            return self.head(state)
        prefix: int = net.num_prefix_tokens  # type: ignore[assignment]
        patches, often = net.norm(state)[:, prefix:], sizes[:, prefix:]  # type: ignore[operator]
        mean = (patches * often).sum(1) / often.sum(1)
        logits: Tensor = net.head(net.head_drop(net.fc_norm(mean)))  # type: ignore[operator]
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def must_be_plain(network: nn.Module, name: str) -> bool:
    """Refuses what is not a stack of ordinary blocks; says whether the network is a distilled DeiT."""
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Block, VisionTransformer

    if type(network) not in (VisionTransformer, VisionTransformerDistilled):
        kind = type(network).__name__
        cause = (
            f"timm's {name} is a {kind}: its layers cannot change places, as those of a plain VisionTransformer can."
        )
        raise RecipeError(cause, "Use a ViT or DeiT, such as deit_tiny_patch16_224, or the backbone vit_cifar.")
    other = [type(block).__name__ for block in network.blocks if type(block) is not Block]  # type: ignore[union-attr]
    if other:
        cause = f"timm's {name} has blocks of the kind {other[0]}, not ordinary ones."
        raise RecipeError(cause, "Use a ViT or DeiT with ordinary blocks, such as deit_tiny_patch16_224.")
    return isinstance(network, VisionTransformerDistilled)
