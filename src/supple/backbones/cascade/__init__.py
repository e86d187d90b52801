"""Cascade Mask R-CNN on a Swin of timm: boxes, classes and masks of objects in pictures of any size (SiDT)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.cascade.proposals import Proposals, by_picture
from supple.backbones.cascade.stages import Cascade
from supple.backbones.dims import Shape, resize
from supple.backbones.networks import Arguments, made
from supple.data.detection.batch import DetectionBatch, as_batch
from supple.errors import RecipeError
from supple.text import did_you_mean


class CascadeRCNN(nn.Module):
    """The detector of the Swin paper: Swin with a norm for each of its maps, pyramid, proposals, three stages.

    `forward` takes images, or a `DetectionBatch`. In training mode, and if the batch says what lies in it, it gives
    losses: {"logits": nothing, "losses": {...}}. Otherwise {"logits": (batch, detections, 6), "aux": {"masks": (batch,
    detections, 28, 28)}}: x1 y1 x2 y2 in pixels of the originals, score, label; rows left over have the score 0.

    Departure: boxes are read with two samples for each pixel of a pooled one and half-pixel alignment, not adaptively.
    Boxes mostly inside a crowd are not taken for background.
    """

    task = "boxes"
    objective = "own"

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart, background not counted
        in_channels: int = 3,  # channels of the images
        input_shape: tuple[int, ...] = (),  # of the usual picture; others may have any size
        model: str = "swin_tiny_patch4_window7_224",  # timm's name of a Swin
        args: Arguments = {},  # noqa: B006  # further arguments of the Swin, such as {depths: [2, 2, 2, 2]}
        drop_path: float = 0.0,  # stochastic depth while training
        kept: Shape = (),  # of a pruned Swin: for each block its kept dimensions of a head, and of the MLP
        channels: int = 256,  # of the pyramid and of all heads
        width: int = 1024,  # of the dense layer of a box head
        convs: int = 4,  # in each head
        anchors: tuple[int, ...] = (32, 64, 128, 256, 512),  # pixels; one for each map and one coarser
        proposals: int = 1000,  # boxes that the first stage looks at; twice as many while training
        samples: int = 512,  # boxes of a picture that a stage learns from
        anchor_samples: int = 256,  # anchors of a picture that the proposals learn from
        threshold: float = 0.05,  # objects with a lower score are not told
        detections: int = 100,  # objects told of a picture, at most
    ) -> None:
        super().__init__()
        sizes = (channels, width, convs, proposals, samples, anchor_samples, detections, *anchors)
        if min(sizes) < 1 or not 0 <= threshold < 1:
            raise RecipeError(
                "a setting of the backbone cascade_rcnn is out of range.",
                "channels, width, convs, proposals, samples, detections and anchors are 1 or more, threshold 0..1.",
            )
        swin = swin_of(model, input_shape, {"in_chans": in_channels, **args}, drop_path)
        if kept:
            resize(swin, kept)
        self.swin = swin
        widths = [int(info["num_chs"]) for info in swin.feature_info]
        if len(anchors) != len(widths) + 1:
            raise RecipeError(
                f"backbone.anchors has {len(anchors)} sizes for {len(widths)} maps.",
                f"Give {len(widths) + 1}: one for each map and one coarser.",
            )
        patch = int(swin.patch_embed.patch_size[0])
        self.strides = tuple(patch * 2**place for place in range(len(anchors)))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.pyramid = Pyramid(widths, channels)
        self.proposals = Proposals(channels, self.strides, anchors, proposals, anchor_samples)
        self.cascade = Cascade(channels, width, convs, num_classes, self.strides[:-1], samples, threshold)
        self.detections = detections

    def forward(self, x: Tensor | DetectionBatch) -> dict[str, Any]:
        batch = as_batch(x)
        images = batch.images
        maps = self.features(images)
        coarse = F.max_pool2d(maps[-1], 1, 2)
        known = by_picture(batch.objects) if self.training and batch.objects is not None else None
        boxes, losses = self.proposals([*maps, coarse], batch.sizes, known)
        if known is not None:
            losses |= self.cascade.learn(maps, boxes, known, batch.sizes)
            return {"logits": images.new_zeros(len(images), 0, 6), "losses": losses}
        found, masks = self.cascade.detect(maps, boxes, batch.sizes, self.detections)
        scale = (batch.originals / batch.sizes).flip(1).repeat(1, 2)[:, None].to(found)
        return {"logits": torch.cat([found[..., :4] * scale, found[..., 4:]], 2), "aux": {"masks": masks}}

    def features(self, images: Tensor) -> Sequence[Tensor]:
        """The maps of the pyramid, finest first; pictures are padded until all maps fit into one another."""
        step = self.strides[-2]
        height, width = images.shape[-2:]
        x = self.swin.patch_embed(F.pad(images, (0, -width % step, 0, -height % step)))
        maps = []
        for layer, norm in zip(self.swin.layers, self.norms):
            x = layer(x)
            maps.append(norm(x).permute(0, 3, 1, 2).contiguous())
        found: list[Tensor] = self.pyramid(maps)
        return found


class Pyramid(nn.Module):
    """Feature maps of one width at all resolutions, and a still coarser one for anchors (FPN, Lin et al. 2017)."""

    def __init__(self, widths: Sequence[int], channels: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in widths)
        for conv in (*self.lateral, *self.smooth):
            nn.init.xavier_uniform_(conv.weight)
            nn.init.zeros_(conv.bias)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        flat = [conv(one) for conv, one in zip(self.lateral, maps)]
        for place in range(len(flat) - 1, 0, -1):
            wide = F.interpolate(flat[place], size=flat[place - 1].shape[-2:], mode="nearest")
            flat[place - 1] = flat[place - 1] + wide
        return [conv(one) for conv, one in zip(self.smooth, flat)]


def swin_of(model: str, input_shape: tuple[int, ...], args: Arguments, drop_path: float) -> Any:
    """A Swin of timm for pictures of any size, without its last norm and classifier."""
    import timm

    name, known = model.partition(".")[0], timm.list_models(module="swin_transformer")
    if name not in known:
        raise RecipeError(f'timm has no Swin "{model}".', did_you_mean(name, known))
    size = {"img_size": tuple(input_shape[-2:])} if input_shape else {}
    settings: dict[str, Any] = {**size, "num_classes": 0, "drop_path_rate": drop_path, **args}
    free: dict[str, Any] = {"strict_img_size": False, "always_partition": True}  # windows fit pictures of any size
    make = lambda: timm.create_model(model, pretrained=False, **settings, **free)
    swin: Any = made(make, f"timm's {model}", settings)
    swin.norm, swin.head = nn.Identity(), nn.Identity()
    return swin
