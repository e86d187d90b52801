"""Sounds: how they are decoded, what they look like, how they are split, and what is refused."""

import io
import json
import math
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from supple.data.audio.sound import Piece, decode_sound, sound_seconds
from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.audio.spectrum import as_picture, decibels, mel_filters, power
from supple.data.audio.speech_commands import CLASSES, NOISE, TEST, TRAIN, VAL, WORDS, part_of_speaker
from supple.data.preprocess import Preprocess
from supple.data.registry import DATASETS, load
from supple.data.splits import Splits, set_aside_whole
from supple.errors import DataError
from supple.recipe import make_recipe
from supple.training.build import skeleton
from tiny import tiny_document

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'supple[audio]'")
pytest.importorskip("soxr", reason="soxr is not installed: pip install 'supple[audio]'")


def sine(hertz: float, seconds: float = 1.0, rate: int = 8000, amplitude: float = 0.5) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def wav(samples: np.ndarray, rate: int = 8000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def put(path: Path, samples: np.ndarray, rate: int = 8000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav(samples, rate))
    return path


def silent(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def names(part: Any) -> list[str]:
    """What a part is made of (it must have been left as files: memory_limit=0)."""
    return [str(source) for source in part._images]


# Decoding


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [
        ("WAV", "PCM_16", 1 / 32768),
        ("WAV", "PCM_24", 2e-7),
        ("WAV", "FLOAT", 1e-7),
        ("FLAC", "PCM_16", 1 / 32768),
        ("AIFF", "PCM_16", 1 / 32768),
        ("AU", "PCM_16", 1 / 32768),
        ("OGG", "VORBIS", 0.05),
        ("MP3", "MPEG_LAYER_III", 0.1),
    ],
)
def test_formats_give_the_samples_that_were_written(kind: str, subtype: str, error: float) -> None:
    wanted = sine(440)
    heard = decode_sound(wav(wanted, kind=kind, subtype=subtype), 8000)
    assert (heard.dtype, heard.ndim) == (np.float32, 1)
    assert abs(len(heard) - 8000) <= (0 if kind not in ("MP3", "OGG") else 1200)
    middle = slice(3000, 5000)
    assert np.abs(heard[middle] - wanted[middle]).max() < error


def test_channels_are_averaged() -> None:
    heard = decode_sound(wav(np.array([[0.5, 0.25], [-0.5, 0.5], [0.0, 0.25]])), 8000)
    assert_close(torch.from_numpy(heard), torch.tensor([0.375, 0.0, 0.125]))


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100])
def test_resampling_keeps_length_and_frequency(rate: int) -> None:
    heard = decode_sound(wav(sine(1000, rate=rate), rate), 16000)
    assert len(heard) == 16000
    assert int(np.abs(np.fft.rfft(heard)).argmax()) == 1000  # one bin per Hz
    assert abs(float(np.abs(heard[4000:12000]).max()) - 0.5) < 0.01


def test_the_content_counts_and_not_the_name(tmp_path: Path) -> None:
    for name in ("x.png", "x.raw", "x", "x.mp3"):
        path = tmp_path / name
        path.write_bytes(wav(sine(440)))
        assert len(decode_sound(path, 8000)) == 8000
    (tmp_path / "text.wav").write_text("hello" * 100)
    with pytest.raises(DataError, match=r"text\.wav is not a readable sound"):
        decode_sound(tmp_path / "text.wav", 8000)


def test_the_middle_or_a_piece_is_decoded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.repeat(np.arange(10) / 16, 1000)  # ten seconds, each with a value of its own
    file = wav(steps, 1000)
    read = []
    blocks = soundfile.SoundFile.blocks
    monkeypatch.setattr(
        soundfile.SoundFile, "blocks", lambda self, **how: read.append(how["frames"]) or blocks(self, **how)
    )
    assert np.unique(decode_sound(file, 1000, seconds=2)).tolist() == [4 / 16, 5 / 16]
    assert np.unique(decode_sound(Piece(file, 7, 1), 1000)).tolist() == [7 / 16]
    assert len(decode_sound(Piece(file, 9.5, 1), 1000)) == 500
    assert read == [2000, 1000, 500]


def test_many_blocks_are_one_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    file = wav(sine(440))
    whole = decode_sound(file, 8000)
    monkeypatch.setattr("supple.data.audio.sound.BLOCK", 777)
    assert np.array_equal(decode_sound(file, 8000), whole)


BAD = {
    "empty": (b"", "it is empty"),
    "text": (b"hello" * 100, "not a readable sound"),
    "half a header": (wav(sine(440))[:20], "not a readable sound"),
    "no samples": (wav(np.zeros(0)), "holds no samples"),
    "NaN": (wav(np.array([0.0, math.nan]), subtype="FLOAT"), "not numbers"),
    "infinite": (wav(np.array([0.0, -math.inf]), subtype="DOUBLE"), "infinite"),
    "too loud": (wav(np.array([0.0, 1e30]), subtype="FLOAT"), "full scale is 1"),
    "nine channels": (wav(np.zeros((10, 9))), "9 channels; the limit is 8"),
    "slow": (wav(np.zeros(10), 999), "a rate of 999 Hz"),
    "fast": (wav(np.zeros(10), 384_001), "a rate of 384,001 Hz"),
    "long": (wav(np.zeros(600_001), 1000, subtype="PCM_U8"), "lasts 600 s; the limit is 600 s"),
    "other format": (wav(np.zeros(10), kind="VOC"), "format VOC"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused_names_cause_and_cure(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, message = BAD[what]
    if what in ("long", "nine channels", "slow", "fast"):
        monkeypatch.setattr(soundfile.SoundFile, "blocks", None)  # refused by the header: nothing is decoded
    (tmp_path / "bad.wav").write_bytes(data)
    for source, name in ((data, "sound"), (tmp_path / "bad.wav", "bad.wav")):
        with pytest.raises(DataError, match=message) as caught:
            decode_sound(source, 8000)
        assert name in caught.value.cause
        assert caught.value.cure


def test_limits_themselves_are_allowed() -> None:
    assert len(decode_sound(wav(np.zeros(600_000), 1000, subtype="PCM_U8"), 1000)) == 600_000
    assert len(decode_sound(wav(np.zeros((384, 8)), 384_000), 384_000)) == 384
    with pytest.raises(DataError, match="limit is 2 s"):
        decode_sound(wav(np.zeros(2001), 1000), 1000, max_seconds=2)


def test_missing_files_folders_and_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, message in ((tmp_path / "gone.wav", "no such file"), (tmp_path, "it is a folder")):
        with pytest.raises(DataError, match=message):
            decode_sound(path, 8000)
    good = wav(sine(440))
    for package, work in (("soxr", lambda: decode_sound(good, 9000)), ("soundfile", lambda: sound_seconds(good))):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=package) as caught:
            work()
        assert caught.value.cure == "pip install 'supple[audio]'"


def test_open_files_are_closed_again(tmp_path: Path) -> None:
    good, bad = put(tmp_path / "good.wav", sine(440)), tmp_path / "bad.wav"
    bad.write_bytes(b"no sound")
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else pytest.skip("no /proc")
    for _ in range(20):
        decode_sound(good, 8000)
        with pytest.raises(DataError):
            decode_sound(bad, 8000)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Spectra


def test_a_sine_on_a_bin_has_its_amplitude_squared_there() -> None:
    wave = torch.from_numpy(sine(10 * 8000 / 256, amplitude=0.5)).float()  # bin 10 of 256
    powers = power(wave[None], 256, 128)[0]
    assert powers.shape == (129, (8000 - 256) // 128 + 1)
    assert powers.argmax(0).unique().tolist() == [10]
    assert_close(powers[10], torch.full_like(powers[10], 0.25), rtol=1e-4, atol=0)
    # A Hann window gives each neighbour half the amplitude, and nothing to the bins beyond.
    assert_close(powers[[9, 11]], torch.full_like(powers[[9, 11]], 0.0625), rtol=1e-3, atol=0)
    assert float(powers[[5, 8, 12, 100]].max()) < 1e-9


def test_a_frame_by_hand() -> None:
    wave = torch.tensor([[9.0, 1.0, 2.0, 3.0, 4.0, 9.0]])
    # Window of 3: Hann 0, 3/4, 3/4, scaled by 2 / 1.5: 0, 1, 1, and a zero for the fourth. Frames start at 0, 1, 2, 3.
    assert power(wave, 3, 1).shape == (1, 3, 4)
    # Frame at 1: (1, 2, 3) -> 0, 2, 3, 0. Its transform: 5; -3 - 2i; 1.
    assert_close(power(wave, 3, 1)[0, :, 1], torch.tensor([25.0, 13.0, 1.0]))


def test_energy_is_kept() -> None:
    wave = torch.randn(1, 512, generator=torch.Generator().manual_seed(0))
    one = power(wave, 512, 512)[0, :, 0].double()
    window = torch.hann_window(512, dtype=torch.float64)
    both_sides = one[0] + 2 * one[1:-1].sum() + one[-1]
    assert_close(both_sides, 512 * (window * wave[0] * 2 / window.sum()).square().sum(), rtol=1e-5, atol=0)


def usual_spectrogram(name: str) -> SpectrogramConfig:
    settings = DATASETS[name].settings()
    return SpectrogramConfig(*(settings[key][1] for key in ("rate", "seconds", "features", "mels")))


def test_speech_commands_has_124_frames_of_129_bins() -> None:
    (view,) = usual_spectrogram("speech_commands").views
    assert power(torch.zeros(2, 16000), view.window, view.hop).shape == (2, 129, 124)


def test_gtzan_has_the_three_spectra_of_the_paper() -> None:
    spectrogram = usual_spectrogram("gtzan")
    assert spectrogram.samples == 66150
    shapes = [tuple(power(torch.zeros(1, 66150), view.window, view.hop).shape[1:]) for view in spectrogram.views]
    # (66150 - 512) // 256 + 1; 100 ms: 2205 samples every 1102; 50 ms: 1102 samples every 551.
    assert shapes == [(257, 257), (2049, 59), (1025, 119)]
    assert [view.mel for view in spectrogram.views] == [False, True, True]
    assert spectrogram.mels == 128


def test_neighbouring_mel_triangles_sum_to_one() -> None:
    filters = mel_filters(20, 2001, 16000)  # a bin every 4 Hz
    between = slice(int(filters[0].argmax()) + 1, int(filters[-1].argmax()))
    assert_close(filters.sum(0)[between], torch.ones_like(filters.sum(0)[between]))
    assert ((filters >= 0) & (filters <= 1)).all()


def test_mel_centres_by_hand() -> None:
    # HTK: 8 kHz is 2595 log10(1 + 8000/700) = 2840.02 mel; the middle of 3 bands is at half of it.
    htk = mel_filters(3, 8001, 16000)
    assert abs(int(htk[1].argmax()) - 700 * (10 ** (1420.01 / 2595) - 1)) < 1


def test_mel_filters_are_those_of_librosa() -> None:
    wanted = librosa_or_skip().filters.mel(sr=22050, n_fft=2048, n_mels=128, htk=True, norm=None)
    assert_close(mel_filters(128, 1025, 22050), torch.from_numpy(wanted), rtol=1e-4, atol=1e-6)


def librosa_or_skip() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("librosa", reason="librosa is not installed: pip install librosa")


def test_decibels_between_floor_and_full_scale() -> None:
    assert decibels(torch.tensor([0.0, 1e-12, 1e-10, 1e-4, 1.0, 50.0])).tolist() == pytest.approx(
        [-100, -100, -100, -40, 0, 0], abs=1e-4
    )


def test_pictures_keep_levels_and_forget_nothing_above_half_a_step() -> None:
    levels = torch.linspace(-100, 0, 64).view(1, 8, 8)
    back = as_picture(levels, 8).float() / 255 * 100 - 100
    assert float((back - levels).abs().max()) <= 100 / 255 / 2 + 1e-4
    assert as_picture(levels, 4).shape == (1, 4, 4)
    assert as_picture(torch.full((2, 5, 7), -40.0), 16).unique().tolist() == [153]  # 60 % of 255


# SpectrogramConfig


def prepare(spectrogram: SpectrogramConfig, size: int = 16, channels: int | None = None) -> Preprocess:
    channels = channels or spectrogram.channels
    return Preprocess(size, channels, (0.0,) * channels, (1.0,) * channels, spectrogram=spectrogram)


def test_short_sounds_are_followed_by_silence_and_long_ones_cut_to_their_middle() -> None:
    spectrogram = SpectrogramConfig(1000, 1.0, "stft")
    assert spectrogram.wave(wav(np.full(300, 0.5), 1000)).tolist() == [0.5] * 300 + [0.0] * 700
    assert spectrogram.wave(wav(np.repeat([0.25, 0.5, 0.75], 1000), 1000)).tolist() == [0.5] * 1000


def test_low_tones_are_in_the_first_rows_and_time_runs_along_the_columns() -> None:
    spectrogram = SpectrogramConfig(8000, 1.0, "mel", mels=32)
    low, high = (prepare(spectrogram, 32).open(wav(sine(hertz)))[0].float() for hertz in (300, 3000))
    assert int(low.mean(1).argmax()) < 8
    assert int(high.mean(1).argmax()) > 20
    late = np.concatenate([np.zeros(4000), sine(300, 0.5)])
    columns = prepare(spectrogram, 32).open(wav(late))[0].float().mean(0)
    assert int(columns[:14].max()) == 0
    assert int(columns[18:].min()) > 20


def test_loudness_is_kept_in_decibels() -> None:
    speech = prepare(SpectrogramConfig(8000, 1.0, "stft"), 129)
    one, half = (speech.open(wav(sine(1000, amplitude=a), subtype="FLOAT")).int().max() for a in (0.8, 0.4))
    assert abs(int(one - half) - 6.02 * 2.55) <= 1


def test_one_sound_looks_as_in_a_batch_and_as_it_did_in_training() -> None:
    for features in ("mel", "three", "stft"):
        spectrogram = SpectrogramConfig(8000, 0.5, features)
        prepared = prepare(spectrogram)
        files = [wav(sine(200 * k, 0.5)) for k in range(1, 6)]
        batch = prepared.hear(torch.stack([torch.from_numpy(spectrogram.wave(file)) for file in files]))
        single = torch.stack([prepared.open(file) for file in files])
        assert single.shape == (5, spectrogram.channels, 16, 16)
        assert int((single.int() - batch.int()).abs().max()) <= 1
        again = Preprocess.from_json(json.loads(json.dumps(prepared.to_json())))
        assert again == prepared
        assert torch.equal(again.open(files[0]), single[0])


def test_one_spectrum_fills_three_channels_but_three_do_not_fit_one() -> None:
    picture = prepare(SpectrogramConfig(8000, 1.0, "mel"), channels=3).open(wav(sine(440)))
    assert picture.shape == (3, 16, 16)
    assert torch.equal(picture[0], picture[2])
    music = prepare(SpectrogramConfig(8000, 1.0, "three")).open(wav(sine(440)))
    assert not torch.equal(music[0], music[1])
    with pytest.raises(DataError, match="3 channels, not 1"):
        prepare(SpectrogramConfig(8000, 1.0, "three"), channels=1)


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 999},
        {"rate": 16000.0},
        {"rate": True},
        {"seconds": 0},
        {"seconds": 601},
        {"seconds": math.nan},
        {"seconds": 0.01},  # shorter than a window
        {"features": "mfcc"},
        {"mels": 0},
        {"mels": 400},  # narrower than the spectrum resolves
        {"surprise": 1},
    ],
)
def test_bad_hearing_is_refused(change: dict[str, Any]) -> None:
    good = prepare(SpectrogramConfig(16000, 1.0, "mel")).to_json()
    assert Preprocess.from_json(good).spectrogram == SpectrogramConfig(16000, 1.0, "mel")
    with pytest.raises(DataError):
        Preprocess.from_json({**good, "spectrogram": {**good["spectrogram"], **change}})


def test_images_are_saved_as_before_and_take_no_settings_of_sounds() -> None:
    assert "spectrogram" not in Preprocess(8, 1, (0.0,), (1.0,)).to_json()
    with pytest.raises(DataError, match=r"data\.rate is not for digits"):
        load("digits", rate=8000)


def test_networks_for_sounds_are_built_without_the_sounds() -> None:
    for data, shape in (
        ({"name": "speech_commands"}, (1, 224, 224)),
        ({"name": "gtzan", "size": 64}, (3, 64, 64)),
        ({"name": "sounds", "classes": 3, "features": "three"}, (3, 64, 64)),
        ({"name": "sounds", "classes": 3, "channels": 3}, (3, 64, 64)),
    ):
        assert skeleton(make_recipe({**tiny_document("slim"), "data": data})).input_shape == shape


# Data sets


def tones(root: Path, count: int = 12, parts: tuple[str, ...] = ("",)) -> Path:
    """Two classes that are easy to tell apart."""
    rng = np.random.default_rng(0)
    for part in parts:
        for name, hertz in (("high", 2500), ("low", 300)):
            for number in range(count):
                put(root / part / name / f"{number:02}.wav", tone(hertz * rng.uniform(0.9, 1.1), 0.25, 8000, rng))
    return root


def tone(hertz: float, seconds: float, rate: int, rng: np.random.Generator) -> np.ndarray:
    return sine(hertz, seconds, rate) + 0.01 * rng.standard_normal(round(seconds * rate))


SMALL: dict[str, Any] = {"rate": 8000, "seconds": 0.25, "mels": 32, "size": 16}


def test_a_folder_of_sounds_and_its_zip_are_the_same(tmp_path: Path) -> None:
    root = tones(tmp_path / "tones")
    with zipfile.ZipFile(tmp_path / "tones.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.wav")):
            archive.write(path, f"tones/{path.relative_to(root)}")
    one, other = (load("sounds", root=str(place), warn=silent, **SMALL) for place in (root, tmp_path / "tones.zip"))
    assert (len(one.train), len(one.val), len(one.test)) == (17, 2, 5)
    assert one.train.classes == ("high", "low")
    assert one.train.shape == (1, 16, 16)
    for part in ("train", "val", "test"):
        indices = torch.arange(len(getattr(one, part)))
        (x, y), (other_x, other_y) = (getattr(data, part).batch(indices) for data in (one, other))
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
    x, _ = one.train.batch(torch.arange(17))
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-2
    assert str(one) == "17 sounds to train on, 2 for validation, 5 to test"
    with pytest.raises(DataError, match="data.flip is not for sounds"):
        load("sounds", root=str(root), flip=True, warn=silent, **SMALL)


def test_parts_of_a_folder_of_sounds_are_kept(tmp_path: Path) -> None:
    data = load("sounds", root=str(tones(tmp_path, 4, ("train", "val", "test"))), memory_limit=0, warn=silent, **SMALL)
    for part, name in ((data.train, "train"), (data.val, "val"), (data.test, "test")):
        assert len(part) == 8
        assert all(f"/{name}/" in source for source in names(part))


def test_sounds_beyond_the_memory_limit_are_read_on_demand(tmp_path: Path) -> None:
    root = tones(tmp_path)
    memory = load("sounds", root=str(root), warn=silent, **SMALL)
    demand = load("sounds", root=str(root), memory_limit=24 * 256 - 1, warn=silent, **SMALL)
    assert not memory.train.workers
    assert demand.train.workers
    given = memory.train.preprocess
    assert demand.train.preprocess.spectrogram == given.spectrogram
    indices = torch.tensor([3, 0, 9])
    assert int((memory.train.read(indices).int() - demand.train.read(indices).int()).abs().max()) <= 1


def test_one_unreadable_sound_is_left_out_and_named_but_not_two(tmp_path: Path) -> None:
    root = tones(tmp_path)
    (root / "low" / "03.wav").write_bytes(b"no sound")
    for memory_limit in (2**31, 0):
        told: list[str] = []
        data = load("sounds", root=str(root), warn=told.append, memory_limit=memory_limit, **SMALL)
        assert len(data.train) + len(data.val) + len(data.test) == 23
        assert len(told) == 1
        assert "03.wav" in told[0]
    (root / "low" / "04.wav").write_bytes(b"no sound")
    with pytest.raises(DataError, match="2 of 24 sounds cannot be read"):
        load("sounds", root=str(root), warn=silent, **SMALL)


def test_folders_without_sounds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"has no sounds \(\.wav"):
        load("sounds", root=str(tmp_path))
    for name in ("sounds", "gtzan", "esc", "speech_commands"):
        with pytest.raises(DataError, match=f'"{name}" needs data.root'):
            load(name)


def test_groups_are_never_torn_apart() -> None:
    labels = torch.tensor([0] * 40 + [1] * 40)
    groups = torch.arange(80) // 4 + 100
    taken, rest = set_aside_whole(labels, groups, 16, seed=3)
    assert sorted(taken.tolist() + rest.tolist()) == list(range(80))
    assert set(groups[taken].tolist()).isdisjoint(groups[rest].tolist())
    assert torch.bincount(labels[taken]).tolist() == [8, 8]
    assert not torch.equal(set_aside_whole(labels, groups, 16, seed=4)[0], taken)


def test_speakers_are_split_by_the_official_rule() -> None:
    # Lines of the official testing_list.txt and validation_list.txt, and a speaker of neither.
    tested = ["0c40e715", "0ea0e2f4", "42beb5eb", "44260689", "44715c1c", "022cd682", "096456f9"]
    assert [part_of_speaker(f"{speaker}_nohash_{n}.wav") for n, speaker in enumerate(tested)] == [TEST] * len(tested)
    assert part_of_speaker("026290a7_nohash_0.wav") == VAL
    assert part_of_speaker("00176480_nohash_3.wav") == TRAIN
    several = [[part_of_speaker(f"{n:08x}_nohash_0.wav", seed) for n in range(2000)] for seed in (0, 1)]
    assert several[0] != several[1]
    for parts in several:
        assert 140 < parts.count(VAL) < 260  # 200 expected; 4.5 deviations
        assert 140 < parts.count(TEST) < 260


def commands(root: Path, speakers: int = 30) -> Path:
    said = wav(sine(500, 0.05, 4000), 4000)
    for word in (*WORDS, "bed", "cat"):
        (root / word).mkdir(parents=True)
        for speaker in range(speakers):
            for take in range(2):
                (root / word / f"{speaker:08x}_nohash_{take}.wav").write_bytes(said)
    for name in ("tap", "dishes"):
        put(root / NOISE / f"{name}.wav", sine(100, 20, 4000), 4000)
    return root


HEARD_SMALL: dict[str, Any] = {"rate": 4000, "size": 8, "features": "stft", "memory_limit": 0}


def spoken(data: Splits) -> list[set[str]]:
    return [
        {Path(name).name.split("_nohash_")[0] for name in names(part) if "_nohash_" in name}
        for part in (data.train, data.val, data.test)
    ]


def test_speech_commands_by_speaker_without_overlap(tmp_path: Path) -> None:
    data = load("speech_commands", root=str(commands(tmp_path / "wrapped")), warn=silent, **HEARD_SMALL)
    assert data.train.classes == CLASSES
    assert len(CLASSES) == 12
    train, val, test = spoken(data)
    assert val
    assert test
    assert len(train) + len(val) + len(test) == len(train | val | test) == 30
    unknown = [name for name, label in zip(names(data.train), data.train.targets.tolist()) if label == 11]
    assert {Path(name).parent.name for name in unknown} == {"bed", "cat"}
    stretches: dict[str, list[tuple[float, float]]] = {}
    for part in (data.train, data.val, data.test):
        silence = [source for source, label in zip(part._images, part.targets.tolist()) if label == 10]
        assert {Path(str(source.file)).name for source in silence} == {"tap.wav", "dishes.wav"}
        for name in ("tap.wav", "dishes.wav"):
            starts = [source.start for source in silence if str(source.file).endswith(name)]
            stretches.setdefault(name, []).append((min(starts), max(starts) + 1.0))
    for train_part, val_part, test_part in stretches.values():
        assert train_part == (0, 16)
        assert val_part == pytest.approx((16, 18))
        assert test_part == pytest.approx((18, 20))


def test_speech_commands_follow_the_official_lists(tmp_path: Path) -> None:
    root = commands(tmp_path / "speech_commands_v0.02")
    lines = {
        part: [f"{word}/{speaker:08x}_nohash_0.wav" for word in WORDS] for part, speaker in (("val", 3), ("test", 7))
    }
    (root / "validation_list.txt").write_text("\n".join(lines["val"]))
    (root / "testing_list.txt").write_text("\n".join(lines["test"]) + "\n")
    for place in (root, tmp_path):
        data = load("speech_commands", root=str(place), warn=silent, **HEARD_SMALL)
        for part, name in ((data.val, "val"), (data.test, "test")):
            assert {"/".join(Path(n).parts[-2:]) for n in names(part) if "_nohash_" in n} == set(lines[name])
    assert len(spoken(data)[0]) == 30  # the lists say files, and the second takes are in none


def test_speech_commands_without_noise_or_words_are_refused(tmp_path: Path) -> None:
    root = commands(tmp_path, speakers=12)
    for path in (root / NOISE).iterdir():
        path.unlink()
    for path in (root / "yes").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="train these classes with: yes, silence"):
        load("speech_commands", root=str(root), **HEARD_SMALL)


def test_gtzan_pieces_of_a_clip_stay_together(tmp_path: Path) -> None:
    for genre in ("blues", "rock"):
        for clip in range(10):
            put(tmp_path / "genres" / genre / f"{genre}.{clip:05}.wav", sine(100 + clip, 29.93, 1000), 1000)
    settings: dict[str, Any] = {"rate": 4000, "size": 8, "mels": 16, "memory_limit": 0, "test_share": 0.1}
    data = load("gtzan", root=str(tmp_path), warn=silent, holdout=0.2, **settings)
    parts = (data.train, data.val, data.test)
    clips = [{str(source.file) for source in part._images} for part in parts]
    assert [len(part) for part in parts] == [140, 40, 20]  # ten pieces of each clip
    assert [len(files) for files in clips] == [14, 4, 2]
    assert len(set.union(*clips)) == 20
    assert data.train.shape == (3, 8, 8)
    starts = sorted(source.start for source in data.test._images if "rock" in str(source.file))
    assert starts == [3.0 * number for number in range(10)]
    assert [torch.bincount(part.targets).tolist() for part in parts] == [[70, 70], [20, 20], [10, 10]]


def test_esc_by_name_and_by_table_give_the_same_folds(tmp_path: Path) -> None:
    table = ["filename,fold,target,category,esc10,src_file,take"]
    for fold in range(1, 6):
        for target, category in enumerate(("dog", "rain")):
            for recording, take in ((100, "A"), (100, "B"), (200, "A"), (300, "A")):
                name = f"{fold}-{10_000 * fold + recording + target}-{take}-{target}.wav"
                put(tmp_path / "official" / "audio" / name, sine(200, 0.2))
                put(tmp_path / "named" / category / f"fold{fold}_{name}", sine(200, 0.2))
                table.append(f"{name},{fold},{target},{category},True,{recording},{take}")
    (tmp_path / "official" / "meta").mkdir()
    (tmp_path / "official" / "meta" / "esc50.csv").write_text("\n".join(table))
    settings: dict[str, Any] = {**SMALL, "fold": 2, "memory_limit": 0, "holdout": 0.25, "warn": silent}
    found = []
    for root in ("official", "named"):
        data = load("esc", root=str(tmp_path / root), **settings)
        parts = [{Path(name).name.removeprefix("fold").split("_")[-1] for name in names(p)} for p in
                 (data.train, data.val, data.test)]  # fmt: skip
        assert data.train.classes == ("dog", "rain")
        assert {name[0] for name in parts[2]} == {"2"}
        assert {name[0] for name in parts[0] | parts[1]} == set("1345")
        recordings = [{name.split("-")[1] for name in part} for part in parts]
        assert not recordings[0] & recordings[1]
        assert sum(map(len, parts)) == 40
        found.append(parts[2])
    assert found[0] == found[1]
    (tmp_path / "official" / "audio" / "1-10100-A-0.wav").unlink()
    with pytest.raises(DataError, match="1 files of esc50.csv are missing, such as 1-10100-A-0.wav"):
        load("esc", root=str(tmp_path / "official"))
    put(tmp_path / "named" / "dog" / "stray.wav", sine(200, 0.2))
    with pytest.raises(DataError, match="dog/stray.wav is not"):
        load("esc", root=str(tmp_path / "named"))


def test_real_sounds(real_data: Callable[[str], str]) -> None:
    digits = load("sounds", root=real_data("spoken-digits.zip"), limit=50, test_limit=50, holdout=20, warn=silent)
    assert (len(digits.train), len(digits.test), digits.train.shape) == (50, 50, (1, 64, 64))
    esc = load("esc", root=real_data("esc10-16k.zip"), fold=1, memory_limit=0, warn=silent)
    assert (len(esc.test), len(esc.train.classes)) == (60, 10)
    assert all("fold1_" in name for name in names(esc.test))
    assert not any("fold1_" in name for name in [*names(esc.train), *names(esc.val)])


# The command line


@pytest.fixture(scope="module")
def heard_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run that tells low tones from high ones; its sounds lie beside it."""
    from supple.training.loop import train

    place = tmp_path_factory.mktemp("heard")
    data = {"name": "sounds", "root": str(tones(place / "tones", 40)), "batch_size": 8, "holdout": 16, **SMALL}
    document = {**tiny_document("exits", train={"epochs": 4}), "data": data}
    return train(make_recipe(document), place / "run", quiet=True)


def test_a_network_for_sounds_is_trained_evaluated_and_asked(heard_run: Path, command: Any, tmp_path: Path) -> None:
    rows = command("evaluate", heard_run, "--json").json["points"]
    assert [row["point"] for row in rows] == ["exit=1", "exit=2", "full"]
    assert rows[-1]["accuracy"] >= 0.9
    manifest = json.loads((heard_run / "manifest.json").read_text())
    settings = {"rate": 8000, "seconds": 0.25, "features": "mel", "mels": 32}
    assert manifest["preprocess"]["spectrogram"] == settings
    assert {key: manifest["recipe"]["data"][key] for key in settings} == settings

    rng = np.random.default_rng(1)
    low = put(tmp_path / "a.wav", tone(300, 0.25, 8000, rng))
    high = put(tmp_path / "b.wav", tone(2500, 0.5, 44100, rng), 44100)
    answers = command("predict", heard_run, tmp_path, "--json").json["predictions"]
    assert [(answer["file"], answer["label"]) for answer in answers] == [(str(low), "low"), (str(high), "high")]
    (tmp_path / "c.wav").write_text("no sound")
    said = command("predict", heard_run, low, tmp_path / "c.wav", tmp_path / "gone.wav", "--json", "--point", "exit=1")
    assert said.status == 2
    document = json.loads(said.out)
    assert [answer["point"] for answer in document["predictions"]] == ["exit=1"]
    unreadable, gone = (error["cause"] for error in document["errors"])
    assert "c.wav is not a readable sound" in unreadable
    assert "gone.wav" in gone
    (tmp_path / "void").mkdir()
    command("predict", heard_run, tmp_path / "void").refused(2, "void holds no sound", ".flac")


def test_exits_on_sounds_are_calibrated_and_reported(heard_run: Path, command: Any) -> None:
    assert command("calibrate", heard_run, "--budget-macs", "1x", "--json").status == 0
    file = next((heard_run.parent / "tones" / "low").iterdir())
    (answer,) = command("predict", heard_run, file, "--confident", "--json").json["predictions"]
    assert answer["label"] == "low"
    assert command("report", heard_run).status == 0
