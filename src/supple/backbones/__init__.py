"""Networks that timm and torchvision lack, and adapters to theirs, by the name a recipe uses.

A backbone is a plain nn.Module whose `forward(images)` gives the logits of the whole network. It must offer:

- a constructor whose arguments are all keyword-only, each with its type, its default and a one-line comment beside it.
  The recipe schema is read from this signature, so annotations are real runtime types (int, float, bool,
  tuple[int, ...], Literal[...]). `num_classes: int` and `in_channels: int = 3` are always among them;
- settings checked at the door: a RecipeError says what was given and what to do.

What else it may offer, so that more methods can hold it, is one small Protocol each in `protocols.py`: own exits, a
trunk (stem, blocks, head), stages to cut at where it cannot be traced, further names for cuts, the path of its
classifier. A backbone that is built for one image size also takes `input_shape`. Sequential ones are one flat
nn.Sequential of leaf layers: convolution, norm, activation, pool, flatten, linear.

A convolution and the batch norm that follows it are neighbours in an nn.Sequential, so they can be folded.
"""

from collections.abc import Callable

from torch import nn

from supple.backbones.audiocsrnet import AudioCsrNet
from supple.backbones.cascade import CascadeRCNN
from supple.backbones.densenet import DenseNet
from supple.backbones.fastnet import FastNet
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
    "fastnet": FastNet,
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
