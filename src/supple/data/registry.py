"""Data sets by name. A new one is a function that reads it, and a line in DATASETS: see docs/add-a-data-set.md."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from supple.data.audio.folders import esc, gtzan, sounds
from supple.data.audio.speech_commands import speech_commands
from supple.data.classification.builtin import digits, generated
from supple.data.classification.cifar import cifar10, cifar100
from supple.data.classification.folder import folder
from supple.data.classification.pictures import MEMORY_LIMIT, load_pictures, load_sounds, picture_shape, sound_shape
from supple.data.crowd.dataset import crowd_shape, load_crowds
from supple.data.crowd.reader import crowd, disco
from supple.data.detection.coco import coco
from supple.data.detection.dataset import detection_shape, load_detection
from supple.data.parts import Reader
from supple.data.splits import Splits
from supple.errors import DataError, SuppleError
from supple.model import Shape
from supple.recipe import keywords
from supple.tasks import TASKS
from supple.text import did_you_mean, one_line, say


@dataclass(frozen=True)
class Family:
    """Data sets of one kind of sample."""

    load: Callable[..., Splits]  # from a Reader to splits; its keyword-only arguments are settings of every set
    shape: Callable[[Mapping[str, Any], Shape | None, bool], Shape | None]
    """Of a sample without its files, from the settings, `DataSet.shape`, and whether sounds come with the pictures."""


PICTURES = Family(load_pictures, picture_shape)
SOUNDS = Family(load_sounds, sound_shape)
CROWDS = Family(load_crowds, crowd_shape)
DETECTION = Family(load_detection, detection_shape)


@dataclass(frozen=True)
class DataSet:
    """All that is to be known of a data set."""

    read: Callable[..., Any]  # gives its parts; its keyword-only arguments are settings of this set
    family: Family = PICTURES
    task: str = "classes"  # what is asked of a sample: a key of supple.tasks.TASKS
    usual: Mapping[str, Any] = field(default_factory=dict)  # defaults of settings that differ from the family's
    classes: int | None = None  # how many, where that is known without the files
    shape: Shape | None = None  # of a sample as it is stored, where that is known without the files

    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Type and default of every setting. One that reader and family share goes to both; the reader's counts."""
        found = keywords(self.family.load) | keywords(self.read)
        return {name: (kind, self.usual.get(name, default)) for name, (kind, default) in found.items()}


DATASETS: dict[str, DataSet] = {
    "digits": DataSet(digits, classes=10, shape=(1, 8, 8)),
    "cifar10": DataSet(cifar10, classes=10, shape=(3, 32, 32)),
    "cifar100": DataSet(cifar100, classes=100, shape=(3, 32, 32)),
    "folder": DataSet(folder),
    "generated": DataSet(generated, classes=4, shape=(3, 16, 16)),
    "sounds": DataSet(sounds, SOUNDS),
    "speech_commands": DataSet(speech_commands, SOUNDS, usual={"features": "stft", "size": 224}, classes=12),
    "gtzan": DataSet(gtzan, SOUNDS, usual={"rate": 22_050, "features": "three", "mels": 128, "size": 224}, classes=10),
    "esc": DataSet(esc, SOUNDS, usual={"seconds": 5.0}),
    "crowd": DataSet(crowd, CROWDS, "count", classes=1),
    "disco": DataSet(disco, CROWDS, "count", usual={"size": (576, 1024)}, classes=1),
    "coco": DataSet(coco, DETECTION, "boxes", classes=80),  # COCO itself; other sets of its kind say data.classes
}


@torch.inference_mode(False)  # images are decoded by threads, which know no such mode
def load(
    name: str,
    *,
    fingerprint: str | None = None,  # that the list of samples must have; None: any
    memory_limit: int = MEMORY_LIMIT,  # bytes; larger sets are read from their files, batch by batch
    warn: Callable[[str], None] = say,
    **given: Any,
) -> Splits:
    """Load a data set of DATASETS and split it: everything drawn is drawn with `seed`."""
    if name not in DATASETS:
        raise DataError(f'unknown data set "{name}".', did_you_mean(name, DATASETS))
    entry = DATASETS[name]
    if entry.task not in TASKS:
        raise DataError(f'data set "{name}" is for the unknown task "{entry.task}".', did_you_mean(entry.task, TASKS))
    known = entry.settings()
    for key in given:
        if key not in known:
            raise DataError(f"data.{key} is not for {name}.", f"Leave it out. It takes {', '.join(known)}.")
    settings = {key: default for key, (_, default) in known.items() if default is not ...} | given
    own, shared = (
        {key: settings[key] for key in keywords(part) if key in settings} for part in (entry.read, entry.family.load)
    )
    where = str(settings.get("root") or name)
    read = partial(_read, name, entry.read, own)
    reader = Reader(name, where, entry.task, read, memory_limit, warn, fingerprint)
    return entry.family.load(reader, **shared)


def _read(name: str, read: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Calls a reader. What goes wrong inside one of the user's is not supple's error."""
    try:
        return read(**settings)
    except SuppleError:
        raise
    except Exception as error:
        module = read.__module__
        if module.startswith("supple."):
            raise
        cause = f'the data set "{name}" cannot be read: {one_line(error, named=True)}.'
        raise DataError(cause, f"Mend {read.__name__} in {module}; --debug shows where.") from error
