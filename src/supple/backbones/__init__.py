"""Networks that timm and torchvision lack, and adapters to theirs, by the name a recipe uses.

A backbone is a plain nn.Module whose `forward(images)` gives the logits of the whole network. It must offer:

- a constructor whose arguments are all keyword-only, each with its type, its default and a one-line comment beside it.
  The recipe schema is read from this signature, so annotations are real runtime types (int, float, bool,
  tuple[int, ...], Literal[...]). `num_classes: int` and `in_channels: int = 3` are always among them;
- settings checked at the door: a RecipeError says what was given and what to do.

Backbones with exits also offer, both of the same length:

- `blocks: nn.ModuleList`: each maps a state to the next one; the first takes the image tensor (batch, channels, height,
  width). A state is a tuple of tensors: all that later blocks and heads need;
- `heads: nn.ModuleList`: head k maps the state after block k to logits (batch, num_classes).

Transformers offer a trunk: `stem(images)`, `blocks` (an nn.Sequential of blocks that keep the shape of their state),
`head(state)`, `width` and `class_token`; `forward` is head(blocks(stem)).

A network of several inputs, or whose state is more than a tensor, offers its stages itself: `stages`, an nn.ModuleDict
of modules state -> state by the names to cut at, the first of which takes the input, and `reads`, the `Tap` that a
branch reads after each (the first part of the state; the first two where the tap has sound). See `audiocsrnet.py`.
It says `takes_sound` if one input may be a sound, and has a setting `use_audio`.

A backbone with answers of its own instead of logits (a mapping of `Output`'s fields, see `cascade`) says which `task`
it answers: it answers no other, and that task takes no backbone that does not say so. With losses of its own it also
names the `objective` that a recipe must have.

Others may offer `taps: dict[str, str]`, further names for places to cut at. A backbone that is built for one image size
also takes `input_shape`. Sequential ones are one flat nn.Sequential of leaf layers: convolution, norm, activation,
pool, flatten, linear.

In both, a convolution and the batch norm that follows it are neighbours in an nn.Sequential, so they can be folded.
"""

from collections.abc import Callable

from torch import nn

from supple.backbones.audiocsrnet import AudioCsrNet
from supple.backbones.cascade import CascadeRCNN
from supple.backbones.densenet import DenseNet
from supple.backbones.inception import InceptionV3
from supple.backbones.mobilenet import MobileNetV1
from supple.backbones.msdnet import MSDNet
from supple.backbones.networks import timm_network, torchvision_network
from supple.backbones.resnet import ResNetV1
from supple.backbones.vit import Vit
from supple.backbones.vit_cifar import VitCifar

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "msdnet": MSDNet,
    "mobilenet_v1": MobileNetV1,
    "resnet_v1": ResNetV1,
    "densenet": DenseNet,
    "inception_v3": InceptionV3,
    "audiocsrnet": AudioCsrNet,
    "vit": Vit,
    "vit_cifar": VitCifar,
    "cascade_rcnn": CascadeRCNN,
    "timm": timm_network,
    "torchvision": torchvision_network,
}
