"""From a file to what the network sees: decoded, sized, with mean and deviation taken out.

`read`, `pixels` and `array` work on numpy arrays: of images, exported models see exactly the same without torch.
"""

import io
import wave
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from inspect import formatannotation
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_args, get_origin

import numpy as np
from PIL import Image

from supple.data._io.decode import MAX_PIXELS, decode
from supple.data._io.decode import SUFFIXES as IMAGES
from supple.data._io.paths import Source
from supple.data.audio.sound import SUFFIXES as SOUNDS
from supple.data.audio.spectrogram import SpectrogramConfig
from supple.errors import DataError
from supple.text import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


USUAL = "supple.data.preprocess.Preprocess"  # images, and sounds as images
PREPARE = {  # by task, where inputs are others
    "count": "supple.data.crowd.preprocess.CrowdPrepare",
    "boxes": "supple.data.detection.preprocess.DetectionPrepare",
}


def saved_preprocess(task: str, saved: dict[str, Any]) -> Any:
    """What turns a file into an input (a `Preparation`), from what its `to_json` gave."""
    module, _, name = PREPARE.get(task, USUAL).rpartition(".")
    return getattr(import_module(module), name).from_json(saved)


MAX_SIZE = 8192
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Preparation:
    """From a file to what the network sees; a dataclass, saved with a model, so that serving does what training did.

    Each has `input(source)`, a batch of one; `arrays(source)`, the same for engines, with None for a part that is not
    there; and `facts()`, the settings of `data` that were measured, to be written down.
    """

    mean: tuple[float, ...]  # per channel, of values in 0..1
    std: tuple[float, ...]
    max_pixels: int

    @property
    def kind(self) -> str:
        """Of the files, in a word."""
        return "image"

    @property
    def endings(self) -> tuple[str, ...]:
        """How the names of files end that can be opened; files named one by one are judged by content."""
        return IMAGES

    def _check(self, channels: int) -> None:
        for word, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                raise DataError(
                    f"{word} has {len(values)} values for {channels} channels.",
                    f"Give data.{word} one per channel.",
                )
            if not all(np.isfinite(values)):
                raise DataError(f"{word} {values} is not finite.", f"Give data.{word} ordinary numbers.")
        if min(self.std) <= 0:
            raise DataError(f"std {self.std} must be above 0.", "Give data.std positive numbers.")
        if self.max_pixels < 1:
            raise DataError(f"max_pixels is {self.max_pixels}; it must be at least 1.", "Set data.max_pixels.")

    def normalise(self, batch: "Tensor") -> "Tensor":
        """(x / 255 - mean) / std, in float32 and contiguous, from uint8 (..., channels, height, width)."""
        from torch import contiguous_format, float32, from_numpy

        scale, shift = (from_numpy(part).to(batch.device) for part in self._scale_and_shift())
        return batch.to(float32, memory_format=contiguous_format).mul_(scale).sub_(shift)

    def _scale_and_shift(self) -> tuple[Array, Array]:
        mean, std = np.array(self.mean), np.array(self.std)
        return (1 / (255 * std)).astype(np.float32).reshape(-1, 1, 1), (mean / std).astype(np.float32).reshape(-1, 1, 1)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)  # type: ignore[call-overload]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}

    @classmethod
    def from_json(cls, saved: Any) -> Self:
        """The inverse of `to_json`; whatever else is found is refused."""
        return restored(cls, saved)

    def blank_file(self) -> bytes:
        """A small black picture: for warming up."""
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, "PNG")
        return file.getvalue()


def restored(kind: type[T], saved: Any) -> T:
    """A dataclass from the values of its fields as JSON has them."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    try:
        for key, field in known.items():
            if key not in saved and field.default is MISSING:
                raise ValueError(f"it has no {key}")
        for key, value in saved.items():
            if key not in known:
                raise ValueError(f"unknown key {key!r}")
            if not _is(value, known[key].type):
                raise ValueError(f"{key} is {value!r}, not {formatannotation(known[key].type)}")
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()})
    except (ValueError, TypeError, AttributeError) as problem:
        expected = ", ".join(f'"{key}": {formatannotation(field.type)}' for key, field in known.items())
        raise DataError(f"this preprocessing cannot be used: {problem}.", f"Expected {{{expected}}}.") from None


def _is(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is what a field is annotated with: lists count as tuples, whole numbers as floats."""
    if get_origin(kind) is tuple:
        inner, *rest = get_args(kind)
        fits = isinstance(value, list | tuple) and (rest == [...] or len(value) == 1 + len(rest))
        return fits and all(_is(one, inner) for one in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


@dataclass(frozen=True)
class Preprocess(Preparation):
    """How images, or sounds made images, are prepared; saved with a model, so that serving does what training did."""

    size: int  # pixels on each side
    channels: int  # 3: RGB; 1: grey
    mean: tuple[float, ...]  # per channel, of values in 0..1
    std: tuple[float, ...]
    max_pixels: int = MAX_PIXELS
    spectrogram: SpectrogramConfig | None = None  # None: the files are images
    crop_share: float = 1.0  # of a picture's shorter side that is seen, from its centre
    interpolation: str = "bilinear"  # how pictures are resized: a key of INTERPOLATIONS

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise DataError(f"image size {self.size} is outside 1..{MAX_SIZE}.", "Choose data.size in this range.")
        if self.channels not in (1, 3):
            raise DataError(f"{self.channels} image channels: expected 3 (RGB) or 1 (grey).", "Set data.channels.")
        self._check(self.channels)
        if not 0 < self.crop_share <= 1:
            raise DataError(f"crop_share is {self.crop_share}.", "Set data.crop_share above 0 and up to 1.")
        if self.interpolation not in INTERPOLATIONS:
            cure = did_you_mean(str(self.interpolation), INTERPOLATIONS)
            raise DataError(f'interpolation is "{self.interpolation}".', cure)
        if self.spectrogram is not None and self.spectrogram.channels not in (1, self.channels):
            raise DataError(
                f'features "{self.spectrogram.features}" give {self.spectrogram.channels} channels, '
                f"not {self.channels}.",
                f"Set data.channels={self.spectrogram.channels}, or leave it out.",
            )

    @property
    def kind(self) -> str:
        return "image" if self.spectrogram is None else "sound"

    @property
    def endings(self) -> tuple[str, ...]:
        return IMAGES if self.spectrogram is None else SOUNDS

    def read(self, source: Source) -> Array:
        """Read one image or sound file to uint8 (channels, size, size)."""
        if self.spectrogram is None:
            return self.pixels(decode(source, self.max_pixels))
        from torch import from_numpy

        return self.hear(from_numpy(self.spectrogram.wave(source))[None])[0].numpy()

    def open(self, source: Source) -> "Tensor":
        """The same as a tensor."""
        from torch import from_numpy

        return from_numpy(self.read(source))

    def input(self, source: Source) -> "Tensor":
        """What the network sees of one file: a batch of one."""
        return self.normalise(self.open(source).unsqueeze(0))

    def blank_file(self) -> bytes:
        """A small black picture, or a moment of silence: for warming up."""
        if self.spectrogram is None:
            return super().blank_file()
        file = io.BytesIO()
        with wave.open(file, "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(8000)
            sound.writeframes(bytes(1600))
        return file.getvalue()

    def arrays(self, source: Source | Array | Image.Image) -> tuple[Array, ...]:
        """`input` as numpy arrays, of a file or a picture: Pillow's, or uint8 (height, width, 3). Of images without
        torch.
        """
        source = decode(source, self.max_pixels) if isinstance(source, Image.Image) else source
        seen = self.pixels(source) if isinstance(source, np.ndarray) else self.read(source)
        return (self.array(seen)[None],)

    def facts(self) -> dict[str, Any]:
        """What the data or the weights decided, as settings of a recipe."""
        known = {"size": self.size, "channels": self.channels, "mean": self.mean, "std": self.std}
        resizing = {"crop_share": self.crop_share, "interpolation": self.interpolation}
        return known if self.spectrogram is not None else known | resizing

    def hear(self, waves: "Tensor") -> "Tensor":
        """Bring decoded clips, float32 (clips, samples), to uint8 (clips, channels, size, size)."""
        assert self.spectrogram is not None
        return self.spectrogram.pictures(waves, self.size, self.channels)

    def pixels(self, array: Array) -> Array:
        """Bring uint8 RGB (height, width, 3) to uint8 (channels, size, size).

        The shorter side is resized to `size` / `crop_share` (antialiased when shrinking), then the centre is cut out. A
        picture that is not larger than `size` is enlarged whole, and one of that size passes through unchanged. One
        channel is ITU-R 601 luma, rounded.
        """
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
            raise DataError(
                f"an image array of shape {array.shape} and type {array.dtype}; expected uint8 (height, width, 3).",
                "Read the image with supple.data._io.decode.decode.",
            )
        height, width = array.shape[:2]
        if (height, width) != (self.size, self.size):
            array = _resize_and_crop(array, self.size, self.crop_share, self.interpolation)
        if self.channels == 1:
            array = np.asarray(Image.fromarray(array).convert("L"))[:, :, None]
        return np.array(array.transpose(2, 0, 1), order="C")

    def image(self, array: Array) -> "Tensor":
        """`pixels` as a tensor."""
        from torch import from_numpy

        return from_numpy(self.pixels(array))

    def array(self, pixels: Array) -> Array:
        """`normalise` for arrays."""
        scale, shift = self._scale_and_shift()
        return pixels.astype(np.float32, order="C") * scale - shift

    @classmethod
    def from_json(cls, saved: Any) -> Self:
        if isinstance(saved, dict) and "spectrogram" in saved:
            saved = {**saved, "spectrogram": restored(SpectrogramConfig, saved["spectrogram"])}
        return super().from_json(saved)


def stretched(array: Array, height: int, width: int) -> Array:
    """uint8 RGB (rows, columns, 3) brought to exactly this size: uint8 (3, height, width)."""
    if array.shape[:2] != (height, width):
        array = np.asarray(Image.fromarray(array).resize((width, height), Image.Resampling.BILINEAR))
    return np.array(array.transpose(2, 0, 1), order="C")


def _resize_and_crop(array: Array, size: int, crop_share: float, interpolation: str) -> Array:
    """Resize and crop in one step, rounding as torchvision does: only the centre is computed, so a 1 x 50,000,000 image
    costs no memory.
    """
    height, width = array.shape[:2]
    shorter = min(width, height)
    target = size if shorter <= size else int(size / crop_share)
    box = []
    for side in (width, height):
        resized = target * side // shorter
        start = round((resized - size) / 2)
        box.append((start * side / resized, (start + size) * side / resized))
    (left, right), (top, bottom) = box
    how = INTERPOLATIONS[interpolation]
    return np.asarray(Image.fromarray(array).resize((size, size), how, box=(left, top, right, bottom)))
