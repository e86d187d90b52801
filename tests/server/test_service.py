"""The service with real exported runs: what it answers is what the predictor answers; and what happens when workers
die, clients leave, models are replaced or the end comes."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import supple
from supple import load
from supple.data.preprocess import saved_preprocess
from supple.errors import SuppleError
from supple.server.dispatch import Dispatcher
from supple.server.jobs import Done, Job, Send
from supple.server.requests import Answer, Options, Refusal
from supple.server.schedule import Track
from supple.server.served import Way
from supple.server.service import Service
from supple.server.slots import Slots
from supple.server.tickets import Ticket
from supple.training.build import data_of

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def exported(exits_run, tmp_path_factory) -> Path:
    pytest.importorskip("onnxscript", reason="needs the extra export")
    data = data_of(exits_run).train
    return supple.export(load(exits_run), tmp_path_factory.mktemp("served") / "exits", calibration=data).folder


@pytest.fixture(scope="module")
def widths(slim_run, tmp_path_factory) -> Path:
    pytest.importorskip("onnxscript", reason="needs the extra export")
    data = data_of(slim_run).train
    return supple.export(load(slim_run), tmp_path_factory.mktemp("served") / "slim", calibration=data).folder


def inputs(service: Service, count: int, model: str = "m") -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=service.models[model].input_shape).astype(np.float32),) for _ in range(count)]


def served(sources: dict[str, Path], what: Callable[[Service], Awaitable[None]], **settings: object) -> Service:
    """Starts a service, does something with it, and ends it."""
    service = Service(sources, **{"engine": "onnxruntime", "timeout_ms": 60_000, **settings})

    async def whole() -> None:
        await service.start()
        try:
            await what(service)
        finally:
            await service.stop(20)

    asyncio.run(whole())
    return service


async def ask(service: Service, given, model: str = "m", **options: object) -> Answer:
    (answer,) = await service.predict(model, [given], Options(**options), arrived=time.monotonic())
    return answer


async def refusal(service: Service, given, model: str = "m", **options: object) -> Refusal:
    with pytest.raises(Refusal) as found:
        await ask(service, given, model, **options)
    return found.value


def pids(service: Service) -> list[int]:
    return [process.process.pid for process in service._crew._processes.values()]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


async def until(what: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


def test_answers_are_those_of_the_predictor_alone_and_in_a_crowd(exported, widths):
    with (
        supple.predictor(exported, "onnxruntime", threads=1) as exits,
        supple.predictor(widths, "onnxruntime", threads=1) as slim,
    ):

        async def check(service: Service) -> None:
            for model, own in (("m", exits), ("w", slim)):
                for given in inputs(service, 3, model):
                    for point in map(str, own.points):
                        answer = await ask(service, given, model, point=point, top_k=2)
                        expected = own.predict(given, point=point)
                        np.testing.assert_allclose(answer.prediction.logits, expected.logits, atol=1e-4, rtol=1e-4)
                        assert (answer.prediction.point, answer.prediction.reason) == (point, "asked")
                        assert answer.prediction.label == expected.label
                        assert len(answer.prediction.scores) == 2
                many = inputs(service, 40, model)
                answers = await asyncio.gather(*(ask(service, given, model) for given in many))
                for given, answer in zip(many, answers):
                    expected = own.predict(given, point=answer.prediction.point)
                    np.testing.assert_allclose(answer.prediction.logits, expected.logits, atol=1e-4, rtol=1e-4)
            assert service.load()["free"] == 256

        service = served({"m": exported, "w": widths}, check)
    assert not service.ready


def test_every_limit_goes_its_way(exported):
    async def check(service: Service) -> None:
        assert service.ready
        (given,) = inputs(service, 1)
        about = service.models["m"]
        assert (about.task, about.engine, about.kind, about.points) == (
            "classes",
            "onnxruntime",
            "image",
            ("exit=1", "exit=2", "full"),
        )
        assert all(row.p50_ms > 0 for row in about.ladder)
        plain = (await ask(service, given)).prediction
        assert (plain.point, plain.reason, plain.in_time) == ("full", "full", None)
        ample = (await ask(service, given, deadline_ms=30_000)).prediction
        assert (ample.point, ample.reason, ample.in_time) == ("full", "full", True)
        sure = (await ask(service, given, min_confidence=0.0)).prediction
        assert (sure.point, sure.reason) == ("exit=1", "confident")
        macs = {row.point: row.macs for row in about.ladder}
        cheap = (await ask(service, given, budget_macs=macs["exit=1"])).prediction
        assert (cheap.point, cheap.reason, cheap.within_budget) == ("exit=1", "budget", True)
        assert (await ask(service, given, point="exit=3")).prediction.point == "full"  # the last exit is the model
        for options, status, code in (
            ({"point": "exit=9"}, 422, "unknown_point"),
            ({"point": "sideways"}, 422, "unknown_point"),
            ({"policy": True}, 422, "invalid_options"),
            ({"budget_macs": "half"}, 422, "invalid_options"),
            ({"deadline_ms": 0}, 503, "overloaded"),
        ):
            found = await refusal(service, given, **options)
            assert (found.status, found.code) == (status, code), options
        assert (await refusal(service, given, "other")).code == "model_not_found"
        assert (await refusal(service, (given[0][:1],))).code == "unusable_input"
        broken = (np.full_like(given[0], np.nan),)
        assert (await refusal(service, broken)).code == "not_finite"
        assert service.load()["free"] == service.load()["slots"]  # nothing of that kept a slot

    served({"m": exported}, check)


def test_a_stream_gives_every_exit_of_every_input_and_refuses_one_by_one(exported):
    async def check(service: Service) -> None:
        first, second = inputs(service, 2)
        broken = (np.full_like(first[0], np.inf),)
        told: dict[int, list[object]] = {}
        async for one in service.stream("m", [first, broken, second], Options(), arrived=time.monotonic()):
            index, what = (one.index, one) if isinstance(one, Answer) else one
            told.setdefault(index, []).append(what)
        assert [one.code for one in told[1]] == ["not_finite"]
        for index in (0, 2):
            assert [one.prediction.point for one in told[index]] == ["exit=1", "exit=2", "full"]
            assert [one.final for one in told[index]] == [False, False, True]

    served({"m": exported}, check)


def test_a_stream_that_has_shown_an_exit_in_time_ends_with_it_when_the_next_one_is_late(tmp_path):
    now, told = [0.0], []
    service = Service({"m": tmp_path}, clock=lambda: now[0])
    track = Track("m", ("exit=1", "full"), ((10.0, 10.0),), chain=True)
    model = SimpleNamespace(task="classes", classes=("a", "b"))
    for stream in (True, False):
        job = Job(1, track, 0.02, (0, 1))
        service._tickets[1] = Ticket(0, job, Way(track, (0, 1), "full"), None, model, 20.0, told.append)
        if stream:
            now[0] = 0.01
            service._carry_out(None, [Done(job, 0, np.array([3.0, 0.0]), "deadline", False)])
        now[0] = 0.021
        service._carry_out(None, [Done(job, 1, np.array([0.0, 3.0]), "full", True)])
    first, last, alone = told
    assert (first.final, last.final, last.prediction.point, last.prediction.in_time) == (False, True, "exit=1", True)
    assert (alone.status, alone.code) == (504, "late")


def test_what_a_burst_of_files_waits_for_the_decoder_is_not_taken_for_its_work(exported):
    async def burst(service: Service) -> None:
        preparation = saved_preprocess("classes", service.models["m"].preprocess)
        files = [preparation.blank_file()] * 60
        began = time.monotonic()
        await service.predict("m", files, Options(), arrived=began)
        now = time.monotonic()
        assert service._decode_ms.at(now) < 100 * (now - began)  # a tenth of the whole; each took a sixtieth

    served({"m": exported}, burst)


class Alone:
    """A service with one place to run and no process: a clock and a decoder by hand."""

    def __init__(self, folder: Path, decode: Callable[..., Awaitable[float]], slots: int = 8) -> None:
        self.now = 0.0
        self.service = Service({"m": folder}, clock=lambda: self.now)
        self.track = Track("m", ("full",), ((1.0,),), choice=True)
        way = Way(self.track, (0,), "full")
        model = SimpleNamespace(way=lambda options: way, preprocess={}, input_shape=(1,))
        queue = Dispatcher()
        queue.hire(0, None)
        self.crew = SimpleNamespace(queue=queue, tickets=0, served={"m": model}, step=self.step)
        self.service._crew, self.service._slots = self.crew, Slots(slots, {"m": (1,)})
        self.service._decoders = SimpleNamespace(decode=decode)

    def step(self) -> None:
        self.crew.queue.step(self.now)
        effects, self.crew.queue.effects = self.crew.queue.effects, []
        self.service._carry_out(self.crew, [one for one in effects if not isinstance(one, Send)])

    def enter(self, deadline_ms: float = 1000.0) -> tuple[Ticket, list[Answer | Refusal]]:
        told: list[Answer | Refusal] = []
        options = Options(deadline_ms=deadline_ms)
        return self.service._enter("m", 0, b"file", options, self.now, told.append, False), told


def test_one_slow_file_does_not_shut_out_tight_deadlines_for_good(tmp_path):
    async def decode(*given: object) -> float:
        return 3.0

    async def scene() -> None:
        alone = Alone(tmp_path, decode)
        alone.service._decode_ms.observe(1000.0, alone.now)
        with pytest.raises(Refusal) as found:
            alone.enter(50.0)
        assert found.value.retry_after_s > 0
        alone.now = 4.0
        alone.enter(50.0)

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["gone", "late"])
def test_a_file_that_nobody_waits_for_any_more_is_not_decoded_and_gives_its_slot_back(tmp_path, how):
    cancelled: list[int] = []

    async def decode(model: str, file: bytes, slot: int, deadline: float) -> float:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(slot)
            raise
        return 0.0

    async def scene() -> None:
        alone = Alone(tmp_path, decode, slots=2)
        waits, _ = alone.enter()
        goes, told = alone.enter(500.0)
        if how == "late":
            await asyncio.sleep(0)
            alone.now = 0.6
            alone.step()
            assert told[0].code == "late"
        else:
            alone.service._drop([goes])  # before its task has run at all
        await asyncio.sleep(0.01)
        assert cancelled == ([goes.job.slot] if how == "late" else [])
        assert (alone.service.load()["free"], list(alone.service._tickets)) == (1, [waits.job.id])
        assert alone.service._decoding == 1
        alone.service._drop([waits])
        await asyncio.sleep(0.01)
        assert alone.service.load()["free"] == 2

    asyncio.run(scene())


def test_the_decoder_is_told_how_long_there_is(tmp_path):
    deadlines: list[float] = []

    async def decode(model: str, file: bytes, slot: int, deadline: float) -> float:
        deadlines.append(deadline)
        return 1.0

    async def scene() -> None:
        alone = Alone(tmp_path, decode)
        alone.now = 5.0
        alone.enter(250.0)
        await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert deadlines == [5.25]


def test_one_request_with_more_inputs_than_slots_is_answered_whole(exported):
    async def check(service: Service) -> None:
        answers = await service.predict("m", inputs(service, 25), Options(), arrived=time.monotonic())
        assert [answer.index for answer in answers] == list(range(25))
        assert service.load()["free"] == 6

    served({"m": exported}, check, slots=6)


def test_a_full_queue_refuses_and_recovers(exported):
    async def check(service: Service) -> None:
        given = inputs(service, 12)
        found = await asyncio.gather(*(ask(service, one) for one in given), return_exceptions=True)
        refused = [one for one in found if isinstance(one, Refusal)]
        assert len(refused) == 8
        assert {(one.code, one.retry_after_s is not None) for one in refused} == {("overloaded", True)}
        assert isinstance(await ask(service, given[0]), Answer)

    served({"m": exported}, check, slots=4)


def test_a_worker_that_is_killed_is_replaced_and_nobody_is_lost(exported):
    async def check(service: Service) -> None:
        given = inputs(service, 30)
        waiting = [asyncio.create_task(ask(service, one)) for one in given]
        await asyncio.sleep(0)
        before = pids(service)
        os.kill(before[0], signal.SIGKILL)
        answers = await asyncio.gather(*waiting)
        assert len(answers) == 30
        await until(lambda: service.ready and before[0] not in pids(service))
        assert isinstance(await ask(service, given[0]), Answer)
        assert service.load()["free"] == 256

    served({"m": exported}, check)


def test_clients_that_leave_take_their_samples_along(exported):
    async def check(service: Service) -> None:
        waiting = [asyncio.create_task(ask(service, one)) for one in inputs(service, 40)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(one, Answer) for one in found) == 20
        await until(lambda: service.load()["free"] == 256)

    served({"m": exported}, check)


def test_the_end_answers_what_is_in_flight_and_leaves_no_process(exported):
    async def check(service: Service) -> None:
        waiting = [asyncio.create_task(ask(service, one)) for one in inputs(service, 50)]
        await asyncio.sleep(0)
        children = pids(service)
        ending = asyncio.create_task(service.stop(30))
        await asyncio.sleep(0)
        assert (await refusal(service, (np.zeros((3, 8, 8), np.float32),))).code == "draining"
        assert all(isinstance(one, Answer) for one in await asyncio.gather(*waiting))
        await ending
        assert all(gone(pid) for pid in children)

    served({"m": exported}, check)


def test_a_reload_replaces_a_model_while_it_answers_and_a_bad_one_changes_nothing(exported, tmp_path):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))

    async def check(service: Service) -> None:
        given, failures = inputs(service, 1)[0], []

        async def client() -> None:
            while not done.is_set():
                try:
                    await ask(service, given)
                except Refusal as why:
                    failures.append(why)
                await asyncio.sleep(0.005)

        done = asyncio.Event()
        asking = asyncio.create_task(client())
        before = pids(service)
        await service.reload("m")
        await until(lambda: all(gone(pid) for pid in before))
        assert not set(before) & set(pids(service))
        now = pids(service)
        (folder / "manifest.json").write_text("{}")
        with pytest.raises(Refusal) as found:
            await service.reload("m")
        assert (found.value.status, pids(service)) == (422, now)
        assert str(tmp_path) not in found.value.message
        await ask(service, given)
        done.set()
        await asking
        assert not failures

    served({"m": folder}, check)


@pytest.mark.system
def test_a_reload_opens_the_other_folders_as_they_are_now_too(exported, tmp_path):
    folders = {name: Path(shutil.copytree(exported, tmp_path / name)) for name in ("a", "b")}
    manifest = folders["b"] / "manifest.json"

    async def check(service: Service) -> None:
        known = json.loads(manifest.read_text())
        before = known["preprocess"]["mean"]
        known["preprocess"]["mean"] = [value / 2 for value in before]
        manifest.write_text(json.dumps(known))
        await service.reload("a")
        assert list(service.models["b"].preprocess["mean"]) == known["preprocess"]["mean"]
        used = {name: service._decoders._known[key][1]["mean"] for name, key in service._decoders._keys.items()}
        assert {name: list(mean) for name, mean in used.items()} == {"a": before, "b": known["preprocess"]["mean"]}
        manifest.write_text("{}")
        with pytest.raises(Refusal, match="the folder of b") as found:
            await service.reload("a")
        assert str(tmp_path) not in found.value.message

    served(folders, check)


def test_what_cannot_be_opened_is_said_and_leaves_no_process(tmp_path):
    service = Service({"m": tmp_path}, engine="onnxruntime")
    with pytest.raises(SuppleError):
        asyncio.run(service.start())
    assert not service.ready


def test_a_run_answers_on_torch(slim_run):
    async def check(service: Service) -> None:
        (given,) = inputs(service, 1)
        with supple.predictor(slim_run, "torch", threads=1, warm=False) as own:
            answer = await ask(service, given)
            expected = own.predict(given)
        np.testing.assert_allclose(answer.prediction.logits, expected.logits, atol=1e-4, rtol=1e-4)

    served({"m": slim_run}, check, engine="torch", max_batch=2)


FRONT = """
import asyncio, sys
from pathlib import Path
from supple.server.service import Service

async def main():
    service = Service({"m": Path(sys.argv[1])}, engine="onnxruntime")
    await service.start()
    assert "torch" not in sys.modules
    print(*(one.process.pid for one in service._crew._processes.values()), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_workers_end_with_a_front_that_is_killed_and_that_never_loaded_torch(exported):
    front = subprocess.Popen([sys.executable, "-c", FRONT, str(exported)], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(word) for word in front.stdout.readline().split()]
        assert workers
    finally:
        front.kill()
        front.wait()
        front.stdout.close()
    end = time.monotonic() + 20
    while not all(gone(pid) for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.05)
