"""A Swin of timm as four maps of features, the pyramid on top of them, and what lies under a box in that pyramid."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from supple.backbones.networks import Arguments, made
from supple.errors import RecipeError
from supple.text import did_you_mean

FINEST = 56  # boxes up to twice this size (root of the area, pixels) are read from the finest map


def swin_of(model: str, input_shape: tuple[int, ...], args: Arguments, drop_path: float) -> Any:
    """A Swin of timm for pictures of any size, without its last norm and classifier."""
    import timm

    name, known = model.partition(".")[0], timm.list_models(module="swin_transformer")
    if name not in known:
        raise RecipeError(f'timm has no Swin "{model}".', did_you_mean(name, known))
    size = {"img_size": tuple(input_shape[-2:])} if input_shape else {}
    settings: dict[str, Any] = {**size, "num_classes": 0, "drop_path_rate": drop_path, **args}
    free: dict[str, Any] = {
        "strict_img_size": False,
        "always_partition": True,
    }  # windows stay as they are, whatever the picture's size
    swin: Any = made(
        lambda: timm.create_model(model, pretrained=False, **settings, **free), f"timm's {model}", settings
    )
    swin.norm, swin.head = nn.Identity(), nn.Identity()
    return swin


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


def under(maps: Sequence[Tensor], strides: Sequence[int], boxes: Sequence[Tensor], size: int) -> Tensor:
    """What the maps show under the boxes of each picture: (boxes of all, channels, size, size).

    A box is read from the map whose resolution suits its size. Without weights only the shape is known.
    """
    count = sum(map(len, boxes))
    if maps[0].is_meta:
        return maps[0].new_empty(count, maps[0].shape[1], size, size)
    flat = torch.cat(list(boxes)).detach()
    picture = torch.repeat_interleave(
        torch.arange(len(boxes), device=flat.device), torch.tensor([len(part) for part in boxes], device=flat.device)
    )
    places = torch.cat([picture[:, None].to(flat), flat], 1)
    side = (flat[:, 2:] - flat[:, :2]).clamp_min(0).prod(1).sqrt()
    level = (side / FINEST + 1e-6).log2().floor().clamp(0, len(maps) - 1)
    found = maps[0].new_zeros(count, maps[0].shape[1], size, size)
    for place, (one, stride) in enumerate(zip(maps, strides)):
        chosen = (level == place).nonzero().flatten()
        if len(chosen):
            seen = roi_align(one, places[chosen].to(one), size, 1 / stride, sampling_ratio=2, aligned=True)
            found = found.index_copy(0, chosen, seen)
    return found
