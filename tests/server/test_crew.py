"""Workers that die, hang, cannot be started, or come back as another model: with processes that are none."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_facts import facts
from supple.errors import SuppleError
from supple.server import crew as module
from supple.server.crew import Crew
from supple.server.messages import Facts, Failed, Opening, Setup, Up, UseSlots
from supple.server.pacing import Drift
from supple.server.slots import Slots

FACTS = replace(facts(("exit=1", "full")), digests=(("model.safetensors", "a1"),))


class Fake:
    """A worker that answers at once, as it is told."""

    def __init__(self, setup: Setup, on_messages: Callable[[list[Any]], None], on_gone: Callable[[], None]) -> None:
        self.number = len(made)
        if (what := plan.get(self.number)) is SuppleError:
            made.append(self)
            raise SuppleError("no process can be started: no memory.", "")
        made.append(self)
        self.on_messages, self.on_gone, self.dead = on_messages, on_gone, False
        self.facts: list[Facts] = []
        self.refused, self.limit = False, None
        self.process = self
        self.returncode = -9
        self.says = FACTS if what is None else what
        if self.says != "nothing":
            self.later(self.says)

    def later(self, message: Any) -> None:
        asyncio.get_running_loop().call_soon(lambda: None if self.dead else self.on_messages([message]))

    def tell(self, message: Any) -> None:
        if isinstance(message, UseSlots) and self.says != "nothing":
            self.later(Up())

    def kill(self) -> None:
        if not self.dead:
            self.dead = True
            asyncio.get_running_loop().call_soon(self.on_gone)

    def leave(self) -> None:
        pass

    def poll(self) -> int:
        return self.returncode


made: list[Fake] = []
plan: dict[int, Any] = {}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    made.clear()
    plan.clear()
    monkeypatch.setattr(module, "Process", Fake)
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    monkeypatch.setattr(module, "MOST_AGAIN_S", 0.01)


def opened(what: Callable[[Crew], Awaitable[None]], workers: int = 1) -> None:
    async def whole() -> None:
        slots = Slots(2, {"m": (1, 2, 2)})
        loop = asyncio.get_running_loop()
        crew = Crew([Opening("m", Path("m"))], workers, 4, loop.time, Drift(), lambda crew, effects: None)
        try:
            await crew.open(lambda served: slots)
            await what(crew)
        finally:
            await crew.close()
            slots.close()

    asyncio.run(asyncio.wait_for(whole(), 20))


def up(crew: Crew) -> int:
    return sum(hand.up_at is None for hand in crew.queue.hands.values())


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.001)


def test_a_worker_that_cannot_be_replaced_yet_is_replaced_later(capsys):
    plan.update({1: SuppleError, 2: SuppleError, 3: SuppleError})

    async def scene(crew: Crew) -> None:
        made[0].kill()
        await until(lambda: len(made) == 5 and up(crew) == 1)

    opened(scene)
    assert capsys.readouterr().err.count("cannot be replaced yet: no process can be started: no memory.") == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"digests": (("model.safetensors", "b2"),)},
        {"classes": ("b", "a")},
        {"points": ("exit=1",)},
    ],
)
def test_a_new_worker_whose_folder_is_another_model_by_now_is_refused(capsys, changes):
    plan.update(dict.fromkeys((1, 2), replace(FACTS, **changes)))

    async def scene(crew: Crew) -> None:
        made[0].kill()
        await until(lambda: len(made) == 3)
        assert up(crew) == 0
        await until(lambda: len(made) == 4 and up(crew) == 1)  # it was put back

    opened(scene)
    assert capsys.readouterr().err.count("the folder of m has changed since it was opened") == 2


def test_what_may_be_rewritten_beside_a_model_does_not_make_it_another():
    plan[1] = replace(FACTS, ladder={"rows": []}, policy=None, whole={}, bodies={}, heads={})

    async def scene(crew: Crew) -> None:
        made[0].kill()
        await until(lambda: len(made) == 2 and up(crew) == 1)

    opened(scene)


def test_workers_that_open_different_models_are_not_started_with():
    plan[1] = replace(FACTS, digests=(("model.safetensors", "b2"),))
    with pytest.raises(SuppleError, match="has changed since it was opened"):
        opened(lambda crew: asyncio.sleep(0), workers=2)


def test_a_worker_that_does_not_open_its_models_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "OPEN_S", 0.02)
    plan[0] = "nothing"
    with pytest.raises(SuppleError, match="has not opened its models within 0.02 s"):
        opened(lambda crew: asyncio.sleep(0))


def test_a_new_worker_that_does_not_open_its_models_is_replaced(monkeypatch):
    plan[1] = "nothing"

    async def scene(crew: Crew) -> None:
        monkeypatch.setattr(module, "OPEN_S", 0.02)
        made[0].kill()
        await until(lambda: len(made) == 3 and up(crew) == 1)
        assert made[1].dead
        await asyncio.sleep(0.05)
        assert up(crew) == 1  # whoever is up has no limit any more

    opened(scene)


def test_what_cannot_be_opened_is_told_in_its_own_words():
    plan[0] = Failed("m", "m has no manifest.", "Train it.")
    with pytest.raises(SuppleError, match=r"m has no manifest\."):
        opened(lambda crew: asyncio.sleep(0))
