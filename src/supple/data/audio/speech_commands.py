"""Speech Commands (Warden 2018): one-second words, as the 12-class task of the data set's paper.

Classes: ten words, `silence` (stretches of the recordings of noise) and `unknown` (every other word).
"""

import hashlib
import re

import torch

from supple.data._io.paths import Source, files_below, read_bytes, unwrapped, wanted
from supple.data.audio.sound import SUFFIXES, Piece, sound_seconds
from supple.data.classification.folder import ROOT
from supple.data.parts import Collection, Part, labelled
from supple.data.settings import Seconds, Seed
from supple.errors import DataError

WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
CLASSES = (*WORDS, "silence", "unknown")
NOISE = "_background_noise_"
FOLDERS = {"_silence_": "silence", "_unknown_": "unknown"}  # of the separate test archive
VAL_LIST, TEST_LIST = "validation_list.txt", "testing_list.txt"
TRAIN, VAL, TEST = range(3)
SHARE = 10  # percent of the speakers to validate with, and to test with
MOST_PER_CLASS = 2**27 - 1  # of the official rule
Example = tuple[Source, str, int]  # file, class, part


def speech_commands(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    seconds: Seconds = 1.0,  # of a stretch of silence
    seed: Seed = 0,  # of the splits, where there are no official lists; 0: the official rule
) -> Collection:
    """Speech Commands: spoken words of one second, in 12 classes.

    The official lists where they are present, otherwise the official rule: a speaker is in one part only.
    Silence is cut from the recordings of noise every half `seconds`: from the first 80 % of each recording to
    train with, the next 10 % to validate, the last 10 % to test; no two parts share a sample.
    Departure: the paper (section 4.1.2) tests on a separate archive of 4,890 clips; here the test part is the list's.
    """
    place = wanted(root, "speech_commands", ROOT)
    found, folders = files_below(place, (*SUFFIXES, VAL_LIST, TEST_LIST))
    lists = {path[-1]: source for path, source in found.items() if path[-1] in (VAL_LIST, TEST_LIST)}
    files, _ = unwrapped({path: source for path, source in found.items() if path[-1] not in lists}, folders)
    official = {
        line.strip(): part
        for name, part in ((VAL_LIST, VAL), (TEST_LIST, TEST))
        if name in lists
        for line in read_bytes(lists[name]).decode(errors="replace").splitlines()
    }
    examples: list[Example] = []
    for path in sorted(path for path in files if len(path) == 2):
        word, name = path
        if word == NOISE:
            examples += _silence(files[path], seconds)
        else:
            label = word if word in WORDS else FOLDERS.get(word, "unknown")
            part = official.get(f"{word}/{name}", TRAIN) if lists else part_of_speaker(name, seed)
            examples.append((files[path], label, part))
    train, val, test = (_part([example for example in examples if example[2] == part]) for part in (TRAIN, VAL, TEST))
    missing = sorted(set(range(len(CLASSES))) - set(train.targets.tolist()))
    if missing:
        names = ", ".join(CLASSES[label] for label in missing)
        raise DataError(
            f"{place} has nothing to train these classes with: {names}.",
            f"Expected <word>/<speaker>_nohash_<number>.wav and {NOISE}/<name>.wav.",
        )
    if len(val) == 0 or len(test) == 0:
        raise DataError(
            f"{place}: nobody speaks in the validation or the test part.", f"Add {VAL_LIST} and {TEST_LIST}."
        )
    return Collection(train=train, test=test, classes=CLASSES, val=val)


def part_of_speaker(name: str, seed: int = 0) -> int:
    """The part that a file belongs to by its speaker; seed 0 is the official rule, which grows without reshuffling."""
    speaker = re.sub(r"_nohash_.*$", "", name) + (f" {seed}" if seed else "")
    digest = int(hashlib.sha1(speaker.encode()).hexdigest(), 16)
    percent = (digest % (MOST_PER_CLASS + 1)) * (100 / MOST_PER_CLASS)
    return VAL if percent < SHARE else TEST if percent < 2 * SHARE else TRAIN


def _silence(noise: Source, seconds: float) -> list[Example]:
    whole = sound_seconds(noise)
    examples: list[Example] = []
    for part, start, end in ((TRAIN, 0.0, 0.8 * whole), (VAL, 0.8 * whole, 0.9 * whole), (TEST, 0.9 * whole, whole)):
        count = int((end - start - seconds) / (seconds / 2)) + 1 if end - start >= seconds else 0
        examples += [(Piece(noise, start + i * seconds / 2, seconds), "silence", part) for i in range(count)]
    return examples


def _part(examples: list[Example]) -> Part:
    labels = torch.tensor([CLASSES.index(label) for _, label, _ in examples], dtype=torch.int64)
    return labelled([source for source, _, _ in examples], labels)
