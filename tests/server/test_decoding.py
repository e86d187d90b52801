"""Files of strangers become inputs, or one sentence why not; what they break is theirs alone."""

import asyncio
import errno
import io
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import wave
import zlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.preprocess import Preprocess
from supple.errors import SuppleError
from supple.server.decoding import Decoders
from supple.server.formats import must_be
from supple.server.requests import Refusal
from supple.server.slots import Slots

PICTURES = Preprocess(16, 3, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SOUNDS = Preprocess(16, 1, (0.5,), (0.25,), spectrogram=SpectrogramConfig(8000, 0.1, "mel", mels=16))
SHAPE = (3, 16, 16)
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of processes, and limits their memory, so")


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(height: int = 24, width: int = 32) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def black_png(side: int, compressed: bytes | None = None) -> bytes:
    """A PNG of so many grey pixels, which is a thousand times smaller than what it decodes to."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(side * (side + 1))) if compressed is None else compressed
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def wav(frames: bytes, channels: int = 1, rate: int = 8000, width: int = 2) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(frames)
    return buffer.getvalue()


def float_wav(values: list[float]) -> bytes:
    data = np.array(values, "<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, 8000, 32000, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


class Bench:
    """Decoders with an event loop of their own, for the tests of a file."""

    def __init__(self, preparations: dict[str, Preprocess], **how: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.slots = Slots(4, {"model": SHAPE})
        known = {name: ("classes", one.to_json()) for name, one in preparations.items()}
        self.decoders = Decoders(known, slots=self.slots, **how)
        self.run(self.decoders.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def decode(self, file: bytes, model: str = "model", slot: int = 0) -> None:
        self.run(self.decoders.decode(model, file, slot))

    def refused(self, file: bytes, status: int, code: str, model: str = "model") -> str:
        """Checks that a file is refused so, with one sentence, by a decoder that is still there or has a successor."""
        with pytest.raises(Refusal) as caught:
            self.decode(file, model)
        told = caught.value
        assert (told.status, told.code) == (status, code), told.message
        assert told.message.endswith(".")
        assert "\n" not in told.message
        assert "Traceback" not in told.message
        return told.message

    def input(self, slot: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
        (part,) = self.slots.read(slot, shape)
        assert part is not None
        return part.copy()

    @property
    def pids(self) -> list[int]:
        return [decoder.process.pid for decoder in self.decoders._decoders]

    def close(self) -> None:
        self.run(self.decoders.stop())
        self.slots.close()
        self.loop.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench({"model": PICTURES}, megabytes=64)
    yield made
    made.close()


@pytest.fixture(scope="module")
def listening() -> Iterator[Bench]:
    made = Bench({"model": SOUNDS})
    yield made
    made.close()


def ended(pid: int, within_s: float = 20.0) -> bool:
    """Whether a process ends in this time; one that nobody has asked about counts as ended."""
    for _ in range(int(within_s / 0.05)):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


# --- pictures -------------------------------------------------------------------------------------------------------


def test_what_a_file_waits_for_a_decoder_is_not_part_of_its_time(bench: Bench) -> None:
    file = saved(Image.new("RGB", (200, 200), "red"))

    async def burst() -> list[float]:
        return await asyncio.gather(*(bench.decoders.decode("model", file, k % 4) for k in range(20)))

    began = bench.loop.time()
    took = bench.run(burst())
    assert min(took) > 0
    assert sum(took) <= 1000 * (bench.loop.time() - began)  # one after the other


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP"])
def test_the_slot_holds_what_the_models_own_preparation_gives(bench: Bench, kind: str) -> None:
    file = saved(noise(), kind)
    bench.decode(file, slot=2)
    np.testing.assert_array_equal(bench.input(2), PICTURES.arrays(file)[0][0])


def test_a_file_larger_than_a_sockets_buffer_arrives_whole(bench: Bench) -> None:
    file = saved(noise(1500, 1500), "BMP")
    assert len(file) > 6_000_000
    bench.decode(file)
    np.testing.assert_array_equal(bench.input(), PICTURES.arrays(file)[0][0])


def test_odd_pictures_are_decoded_as_everywhere(bench: Bench) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for file in (
        saved(noise(), "JPEG", exif=exif),
        saved(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)),
        saved(noise().convert("CMYK"), "JPEG"),
        saved(noise(1, 20_000)),
        saved(noise(20_000, 1)),
    ):
        bench.decode(file)
        np.testing.assert_array_equal(bench.input(), PICTURES.arrays(file)[0][0])


def test_the_pixel_limit_of_the_header_is_413(bench: Bench) -> None:
    message = bench.refused(black_png(40_000, b""), 413, "too_large")
    assert "1,600,000,000 pixels; the limit is 50,000,000" in message


@pytest.mark.parametrize(
    ("file", "status", "code"),
    [
        (b"", 422, "unusable_input"),
        (b"hello", 415, "unsupported_media_type"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "unsupported_media_type"),
        (b"%PDF-1.7", 415, "unsupported_media_type"),
        (saved(Image.new("RGB", (16, 16)), "ICO"), 415, "unsupported_media_type"),
        (saved(Image.new("RGB", (16, 16)), "TGA"), 415, "unsupported_media_type"),
        (wav(bytes(1600)), 415, "unsupported_media_type"),
        (saved(noise())[:200], 422, "unusable_input"),
        (saved(noise(), "JPEG")[:200], 422, "unusable_input"),
        (b"\xff\xd8\xff", 422, "unusable_input"),
        (saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), 422, "unusable_input"),
    ],
)
def test_what_is_no_picture_is_refused(bench: Bench, file: bytes, status: int, code: str) -> None:
    bench.refused(file, status, code)
    assert bench.decoders.replaced == 0


@linux
def test_a_picture_that_takes_too_much_memory_is_refused_and_the_decoder_goes_on(bench: Bench) -> None:
    (pid,) = bench.pids
    bomb = black_png(6000)  # 36 MB as grey, 144 MB as RGB of Pillow's
    assert len(bomb) < 50_000
    before = peak(pid)
    assert "memory" in bench.refused(bomb, 422, "unusable_input")
    assert peak(pid) - before < 64 * 2**20
    bench.decode(saved(noise()))
    assert bench.pids == [pid]


def peak(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@linux
def test_pictures_are_decoded_without_torch_and_without_threads(bench: Bench) -> None:
    bench.decode(saved(noise()))
    assert "libtorch" not in Path(f"/proc/{bench.pids[0]}/maps").read_text()
    assert len(os.listdir(f"/proc/{bench.pids[0]}/task")) == 1


def test_every_format_that_decode_reads_is_let_through_and_no_other_of_pillows() -> None:
    Image.init()
    ours = {"JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"}
    tried = set()
    for kind in sorted(Image.SAVE):
        try:
            file = saved(Image.new("RGB", (16, 16)), kind)
            with Image.open(io.BytesIO(file)) as image:
                read_as = image.format
        except Exception:
            continue  # this one cannot write RGB, or not read it
        tried.add(read_as)
        if read_as in ours:
            must_be("image", file)
        elif read_as not in ("MPO", "DIB"):  # MPO of a single picture is a JPEG
            with pytest.raises(Refusal, match="no image of a known format"):
                must_be("image", file)
    assert ours < tried


# --- limits ---------------------------------------------------------------------------------------------------------


@linux
def test_a_decoder_that_hangs_is_killed_and_only_its_file_is_refused() -> None:
    bench = Bench({"model": PICTURES}, seconds=0.5)
    (pid,) = bench.pids
    os.kill(pid, signal.SIGSTOP)

    async def scene() -> list[Any]:
        files = [bench.decoders.decode("model", saved(noise()), slot) for slot in (0, 1)]
        return await asyncio.gather(*files, return_exceptions=True)

    # On a busy machine the second may need longer than half a second too; the decoder that is new then has learnt.
    first, *_ = bench.run(scene())
    assert isinstance(first, Refusal)
    assert (first.status, first.message) == (422, "The file takes longer than 0.5 s to decode.")
    assert ended(pid)
    assert bench.decoders.replaced >= 1
    bench.close()


@linux
def test_a_decoder_that_dies_takes_only_its_file_with_it(bench: Bench) -> None:
    (pid,) = bench.pids
    before = bench.decoders.replaced

    async def scene() -> list[Any]:
        os.kill(pid, signal.SIGSTOP)
        first = asyncio.create_task(bench.decoders.decode("model", saved(noise()), 0))
        second = asyncio.create_task(bench.decoders.decode("model", saved(noise(), "BMP"), 1))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = bench.run(scene())
    assert isinstance(first, Refusal)
    assert (first.status, first.message) == (422, "The file cannot be decoded.")
    assert second > 0  # ms, of its successor
    np.testing.assert_array_equal(bench.input(1), PICTURES.arrays(saved(noise()))[0][0])
    assert bench.decoders.replaced == before + 1


@linux
def test_who_gives_up_waits_until_his_slot_is_not_written_any_more(bench: Bench) -> None:
    (pid,) = bench.pids

    async def scene() -> None:
        os.kill(pid, signal.SIGSTOP)
        running = asyncio.create_task(bench.decoders.decode("model", saved(noise()), 0))
        waiting = asyncio.create_task(bench.decoders.decode("model", saved(noise()), 1))
        await asyncio.sleep(0.01)
        for task in (running, waiting):
            task.cancel()
        await asyncio.sleep(0.05)
        assert waiting.done()
        assert not running.done()
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await running

    bench.slots.write(1, [np.full(SHAPE, 7.0, np.float32)])
    bench.run(scene())
    assert (bench.input(1) == 7).all()  # the one that only waited was never begun
    bench.decode(saved(noise()))


@linux
def test_of_the_files_that_wait_the_most_urgent_is_next(bench: Bench) -> None:
    (pid,) = bench.pids
    ended: list[float] = []

    async def one(slot: int, deadline: float) -> None:
        await bench.decoders.decode("model", saved(noise()), slot, deadline)
        ended.append(deadline)

    async def scene() -> None:
        os.kill(pid, signal.SIGSTOP)
        files = [asyncio.create_task(one(k, deadline)) for k, deadline in enumerate((9.0, 8.0, 3.0, 5.0))]
        await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*files)

    bench.run(scene())
    assert ended == [9.0, 3.0, 5.0, 8.0]  # the first was begun before the others came


@linux
def test_a_decoder_whose_front_is_gone_ends_itself_in_the_middle_of_a_file() -> None:
    front, theirs = socket.socketpair()
    slots = Slots(1, {"model": SHAPE})
    settings = {"slots": (slots.name, slots.count, slots.bytes_each), "megabytes": 1000, "seconds": 0.01}
    words = [sys.executable, "-m", "supple.server.decoder", str(theirs.fileno()), json.dumps(settings)]
    process = subprocess.Popen(words, pass_fds=(theirs.fileno(),))
    theirs.close()
    front.sendall(json.dumps({"key": "a", "task": "classes", "saved": PICTURES.to_json()}).encode() + b"\n")
    assert b"image" in front.recv(1000)
    bomb = black_png(7000)
    front.sendall(json.dumps({"key": "a", "slot": 0, "file": len(bomb)}).encode() + b"\n" + bomb)
    assert process.wait(20) == -signal.SIGALRM
    front.close()
    slots.close()


@linux
def test_decoders_end_with_a_front_that_is_killed() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from supple.server.decoding import Decoders\n"
        "from supple.server.slots import Slots\n"
        f"saved = {PICTURES.to_json()!r}\n"
        "async def main():\n"
        "    decoders = Decoders({'m': ('classes', saved)}, 2, slots=Slots(1, {'m': (3, 16, 16)}))\n"
        "    await decoders.start()\n"
        "    print(*(one.process.pid for one in decoders._decoders), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert all(ended(pid) for pid in pids)


@linux
def test_ctrl_c_and_term_are_left_to_the_front(bench: Bench) -> None:
    before = bench.pids
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(before[0], number)
    bench.decode(saved(noise()))
    assert bench.pids == before


def test_stopping_refuses_what_waits_and_leaves_no_process() -> None:
    bench = Bench({"model": PICTURES})
    pids = bench.pids

    async def scene() -> list[Any]:
        files = [asyncio.create_task(bench.decoders.decode("model", saved(noise()), slot)) for slot in range(3)]
        await asyncio.sleep(0)
        await bench.decoders.stop()
        return await asyncio.gather(*files, return_exceptions=True)

    outcomes = bench.run(scene())
    assert [outcome.code for outcome in outcomes] == ["draining"] * 3
    assert all(ended(pid) for pid in pids)
    with pytest.raises(Refusal, match="about to end"):
        bench.decode(saved(noise()))
    bench.close()


def test_what_cannot_be_prepared_here_is_said_at_the_start() -> None:
    slots, loop = Slots(1, {"model": SHAPE}), asyncio.new_event_loop()
    decoders = Decoders({"model": ("classes", {"size": -1})}, slots=slots)
    with pytest.raises(SuppleError, match="this preprocessing cannot be used"):
        loop.run_until_complete(decoders.start())
    assert decoders._decoders == []
    slots.close()
    loop.close()


# --- several models ---------------------------------------------------------------------------------------------------


def test_a_model_without_preparation_takes_no_files(bench: Bench) -> None:
    bench.refused(saved(noise()), 415, "unsupported_media_type", model="other")


def test_a_replaced_model_prepares_later_files_anew_and_earlier_ones_as_before() -> None:
    bench = Bench({"model": PICTURES})
    other = Preprocess(16, 3, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    file = saved(noise())

    async def scene() -> None:
        before = [asyncio.create_task(bench.decoders.decode("model", file, slot)) for slot in (0, 1)]
        await asyncio.sleep(0)
        await bench.decoders.replace({"model": ("classes", other.to_json())})
        await bench.decoders.decode("model", file, 2)
        await asyncio.gather(*before)

    bench.run(scene())
    for slot, preparation in ((0, PICTURES), (1, PICTURES), (2, other)):
        np.testing.assert_array_equal(bench.input(slot), preparation.arrays(file)[0][0])
    assert len(bench.decoders._known) == 1  # what nobody needs is forgotten
    with pytest.raises(SuppleError, match="this preprocessing cannot be used"):
        bench.run(bench.decoders.replace({"model": ("classes", {})}))
    bench.decode(file, slot=3)
    np.testing.assert_array_equal(bench.input(3), other.arrays(file)[0][0])
    assert len(bench.decoders._known) == 1
    bench.close()


def test_models_are_replaced_together_or_not_at_all() -> None:
    bench = Bench({"a": PICTURES, "b": PICTURES})
    other = Preprocess(16, 3, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    file = saved(noise())
    with pytest.raises(SuppleError):
        bench.run(bench.decoders.replace({"a": ("classes", other.to_json()), "b": ("classes", {})}))
    bench.decode(file, "a")
    np.testing.assert_array_equal(bench.input(), PICTURES.arrays(file)[0][0])
    assert len(bench.decoders._known) == 2
    bench.close()


def test_a_successor_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    bench = Bench({"model": PICTURES})
    real, refused = subprocess.Popen, []

    def popen(*words: Any, **how: Any) -> Any:
        if len(refused) < 3:
            refused.append(1)
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(*words, **how)

    monkeypatch.setattr(subprocess, "Popen", popen)
    os.kill(bench.pids[0], signal.SIGKILL)

    async def scene() -> None:
        while len(refused) < 3 or not bench.pids:
            await asyncio.sleep(0.01)

    bench.run(asyncio.wait_for(scene(), 60))
    assert "Resource temporarily unavailable" in capsys.readouterr().err
    bench.decode(saved(noise()))
    bench.close()


@linux
def test_a_successor_knows_the_models_that_were_replaced_too() -> None:
    bench = Bench({"model": PICTURES})
    other = Preprocess(16, 3, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    bench.run(bench.decoders.replace({"model": ("classes", other.to_json())}))
    os.kill(bench.pids[0], signal.SIGKILL)

    async def scene() -> None:
        while bench.decoders.replaced == 0:
            await asyncio.sleep(0.01)

    bench.run(scene())
    bench.decode(saved(noise()))
    np.testing.assert_array_equal(bench.input(), other.arrays(saved(noise()))[0][0])
    bench.close()


# --- sounds -----------------------------------------------------------------------------------------------------------


def test_sounds_are_prepared_as_everywhere(listening: Bench) -> None:
    tone = (10_000 * np.sin(np.arange(4000) / 5)).astype("<i2").tobytes()
    listening.decode(wav(tone))
    np.testing.assert_array_equal(listening.input(0, (1, 16, 16)), SOUNDS.arrays(wav(tone))[0][0])


@pytest.mark.parametrize(
    ("file", "status", "code", "word"),
    [
        (b"", 422, "unusable_input", "empty"),
        (wav(b""), 422, "unusable_input", "no samples"),
        (wav(bytes(8 * 3600 * 1000), rate=1000, width=1), 413, "too_large", "lasts 28,800 s; the limit is 600 s"),
        (wav(bytes(64 * 2 * 100), channels=64), 422, "unusable_input", "64 channels; the limit is 8"),
        (float_wav([0.0, math.nan, 0.5]), 422, "not_finite", "NaN"),
        (float_wav([0.0, math.inf]), 422, "not_finite", "infinite"),
        (wav(bytes(1000))[:30], 422, "unusable_input", "not a readable sound"),
        (b"hello" * 10, 415, "unsupported_media_type", "WAV"),
        (saved(Image.new("RGB", (8, 8))), 415, "unsupported_media_type", "WAV"),
    ],
)
def test_sounds_beyond_the_limits_are_refused(listening: Bench, file: bytes, status: int, code: str, word: str) -> None:
    assert word in listening.refused(file, status, code)
    assert listening.decoders.replaced == 0


def test_every_format_of_sounds_is_let_through() -> None:
    import soundfile

    for kind in ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF", "AU"):
        buffer = io.BytesIO()
        soundfile.write(buffer, np.zeros(4000, np.float32), 8000, format=kind)
        must_be("sound", buffer.getvalue())
