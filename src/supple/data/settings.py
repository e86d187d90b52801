"""Types of the settings that several data sets share: recipes are checked against them."""

from typing import Annotated, Literal

from pydantic import Field

from supple.data.audio.sound import MAX_RATE, MAX_SECONDS, MIN_RATE
from supple.data.audio.spectrogram import MAX_MELS
from supple.data.preprocess import MAX_SIZE

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Side = Annotated[int, Field(ge=1, le=MAX_SIZE)]  # pixels
Channels = Literal[1, 3]  # grey, RGB
Holdout = Annotated[int | float, Field(gt=0)]  # a number of samples, or a share below 1
Share = Annotated[float, Field(gt=0, lt=1)]
Above = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Workers = Annotated[int, Field(ge=0, le=64)]  # processes
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]  # keys of INTERPOLATIONS
Padding = Annotated[int, Field(ge=0, le=64)]  # pixels
Rate = Annotated[int, Field(ge=MIN_RATE, le=MAX_RATE)]  # samples of a sound per second
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Features = Literal["stft", "mel", "three"]  # keys of supple.data.audio.spectrogram.FEATURES
Mels = Annotated[int, Field(ge=1, le=MAX_MELS)]
