"""Data sets by name. A new one is a file here, a function that reads it, and a line in DATASETS.

What its samples are asked, if not their class, is a line in TASK_OF; LOAD says how the sets of a task are split and
read, if not as pictures, and `preprocessing.PREPARE` how their files become inputs. A set of sounds has a line in
`pictures.HEARD`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from supple.data.choice import Splits
from supple.data.cifar import cifar10, cifar100
from supple.data.coco import read_coco
from supple.data.coco_parts import load_scenes
from supple.data.crowd import crowd
from supple.data.crowd_set import load_crowds
from supple.data.digits import digits
from supple.data.disco import disco
from supple.data.esc import esc
from supple.data.folder import folder
from supple.data.generated import generated
from supple.data.gtzan import gtzan
from supple.data.pictures import load_pictures
from supple.data.sounds import sounds
from supple.data.speech_commands import speech_commands
from supple.errors import DataError
from supple.text import did_you_mean

DATASETS: dict[str, Callable[..., Any]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "folder": folder,
    "generated": generated,
    "sounds": sounds,
    "speech_commands": speech_commands,
    "gtzan": gtzan,
    "esc": esc,
    "crowd": crowd,
    "disco": disco,
    "coco": read_coco,
}
TASK_OF = {"crowd": "count", "disco": "count", "coco": "boxes"}  # what is asked of samples; else classes
LOAD: dict[str, Callable[..., Splits]] = {"count": load_crowds, "boxes": load_scenes}  # else load_pictures


def task_of(name: str) -> str:
    return TASK_OF.get(name, "classes")


@torch.inference_mode(False)  # images are decoded by threads, which know no such mode
def load(name: str, **settings: Any) -> Splits:
    """Load a data set of DATASETS and split it: everything drawn is drawn with `seed`.

    The settings are those of the function of LOAD; None means as usual. One that the set has no use for is refused.
    """
    if name not in DATASETS:
        raise DataError(f'unknown data set "{name}".', did_you_mean(name, DATASETS))
    for word in ("limit", "test_limit"):
        count = settings.get(word)
        if count is not None and count < 1:
            raise DataError(f"{word} is {count}.", f"Set data.{word} to 1 or more, or leave it out.")
    load_parts = LOAD.get(task_of(name), load_pictures)
    known = list(inspect.signature(load_parts).parameters)[2:]
    for key, value in settings.items():
        if key not in known and value:
            raise DataError(f"data.{key} is not for {name}.", f"Leave it out. It takes {', '.join(known)}.")
    given = {key: value for key, value in settings.items() if key in known and value is not None}
    return load_parts(name, DATASETS[name], **given)
