"""Files become inputs in processes of their own, which have little time and memory and may die. Without torch.

A decoder holds one file at a time: when it is too slow, or gone, that file alone is refused and another decoder begins.
The event loop watches its socket; no thread waits.
"""

import asyncio
import json
import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import count
from operator import attrgetter
from typing import Any

from supple.errors import SuppleError
from supple.server.children import Child, ended
from supple.server.formats import must_be
from supple.server.requests import Refusal
from supple.server.slots import Slots
from supple.text import say

BEGIN_S = 120.0  # that a decoder may take to import what it needs
AGAIN_S = 0.1  # until one that did not begin is replaced; doubled each time
MOST_AGAIN_S = 10.0
FEW = 65_536  # bytes of a file that are sent together with its order
TRIES = 3  # to tell decoders of a new model, should they die meanwhile

Said = dict[str, Any]
Preparation = tuple[str, dict[str, Any]]  # task, and what `Preparation.to_json` gave


class _Order:
    """One line for a decoder, and the file behind it; its future gets what the decoder says, or what went wrong."""

    def __init__(self, seconds: float, content: bytes = b"", deadline: float = math.inf, **words: Any) -> None:
        self.seconds, self.content, self.deadline = seconds, content, deadline
        self.line = json.dumps(words).encode() + b"\n"
        self._loop = asyncio.get_running_loop()
        self.said: asyncio.Future[Said] = self._loop.create_future()
        self.took_ms, self._begun = 0.0, 0.0  # of a decoder's time; waiting for one does not count

    def begin(self) -> None:
        self._begun = self._loop.time()

    def say(self, said: Said) -> None:
        if not self.said.done():
            self.took_ms = 1000 * (self._loop.time() - self._begun) if self._begun else 0.0
            self.said.set_result(said)


class _Decoder(Child):
    """One process, seen from the front."""

    def __init__(self, settings: str, orders: list[_Order], on_free: Callable[[], None], on_gone: Any) -> None:
        super().__init__("supple.server.decoder", settings)
        self._on_free, self._on_gone = on_free, on_gone
        self.own = deque(orders)  # before any file
        self.begun = False  # whether it has carried out all of those once
        self._order: _Order | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._heard = b""
        self._next()

    @property
    def free(self) -> bool:
        return self.begun and self._order is None and not self.left

    def take(self, order: _Order) -> None:
        self._order = order
        order.begin()
        self._timer = self._loop.call_later(order.seconds, self._too_slow)
        if len(order.content) < FEW:
            self.send(order.line + order.content)
        else:
            self.send(order.line)
            self.send(order.content)

    def tell(self, order: _Order) -> None:
        """Something for this decoder alone, before its next file."""
        self.own.append(order)
        if self.free:
            self._next()

    def answer_all(self, said: Said) -> None:
        """What it was to do is not done any more."""
        if self._timer is not None:
            self._timer.cancel()
        for order in [*([self._order] if self._order is not None else []), *self.own]:
            order.say(said)

    def heard(self, data: bytes) -> None:
        self._heard += data
        if self._heard.endswith(b"\n"):
            said, self._heard = json.loads(self._heard), b""
            self._done(said)

    def _done(self, said: Said) -> None:
        order, self._order = self._order, None
        if self._timer is not None:
            self._timer.cancel()
        if order is not None:
            order.say(said)
        self._next()

    def _next(self) -> None:
        if self.own:
            self.take(self.own.popleft())
        else:
            self.begun = True
            self._on_free()

    def _too_slow(self) -> None:
        self._late = True
        self.kill()  # the socket ends with it, and nothing is written into the slot any more

    def gone(self) -> None:
        why = "cannot be decoded"
        if self._late and self._order is not None:
            why = f"takes longer than {self._order.seconds:g} s to decode"
        self.answer_all({"status": 422, "code": "unusable_input", "message": f"The file {why}."})
        self._on_gone(self)


class Decoders:
    """The decoders of a server, and the files that wait for one of them."""

    def __init__(
        self,
        preprocess_of: Mapping[str, Preparation],
        processes: int = 1,
        seconds: float = 5.0,
        megabytes: int = 256,
        *,
        slots: Slots,
    ) -> None:
        """seconds, megabytes: for one file. A picture needs 7 to 12 bytes for every pixel, more with transparency."""
        self._processes, self._seconds = processes, seconds
        memory = (slots.name, slots.count, slots.bytes_each)
        self._settings = json.dumps({"slots": memory, "megabytes": megabytes, "seconds": seconds})
        self._numbers = count()
        self._keys = {model: self._new_key(model) for model in preprocess_of}
        self._known = {self._keys[model]: preparation for model, preparation in preprocess_of.items()}
        self._kinds: dict[str, str] = {}
        self._uses: Counter[str] = Counter()  # files that wait or are decoded
        self._decoders: list[_Decoder] = []
        self._waiting: list[_Order] = []  # by deadline
        self._replacements: set[asyncio.TimerHandle] = set()
        self._burials: set[asyncio.Task[None]] = set()
        self._again_s = AGAIN_S
        self._ended = False
        self.replaced = 0  # decoders that died, or were killed

    async def start(self) -> None:
        """Raises SuppleError where a model's files cannot be prepared here."""
        orders = {key: self._learn(key) for key in self._known}
        try:
            self._begin(list(orders.values()))
            for _ in range(self._processes - 1):
                self._begin([self._learn(key) for key in self._known])
            for key, order in orders.items():
                self._kinds[key] = _must_have_learnt(await order.said)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        self._ended = True
        for timer in self._replacements:
            timer.cancel()
        decoders, self._decoders = self._decoders, []
        for decoder in decoders:
            decoder.answer_all(_said(_draining()))
        self._refuse_waiting(_draining())
        await ended(decoders)
        await asyncio.gather(*self._burials)

    async def decode(self, model: str, file: bytes, slot: int, deadline: float = math.inf) -> float:
        """Write a file's input into the slot; the ms that a decoder was at it. When it returns, raises Refusal or is
        cancelled, nothing is written there any more. deadline: of all that wait, the earliest is next.
        """
        key = self._keys.get(model)
        if key is None:
            raise Refusal(415, "unsupported_media_type", "This model takes arrays, not files.")
        must_be(self._kinds[key], file)
        if self._ended:
            raise _draining()
        order = _Order(self._seconds, file, deadline, key=key, slot=slot, file=len(file))
        self._uses[key] += 1
        insort(self._waiting, order, key=attrgetter("deadline"))
        self._assign()
        try:
            said = await self._outcome(order)
        finally:
            self._uses[key] -= 1
            self._forget_unused(key)
        if "status" in said:
            raise Refusal(said["status"], said["code"], said["message"], said.get("retry_after_s"))
        return order.took_ms

    async def replace(self, preparations: Mapping[str, Preparation]) -> None:
        """From when this returns, files of these models are prepared in another way; those that came before are not.

        Raises SuppleError, and changes nothing, where the decoders cannot do that.
        """
        keys = {model: self._new_key(model) for model in preparations}
        self._known |= {keys[model]: preparation for model, preparation in preparations.items()}
        try:
            kinds = {key: await self._learnt_by_all(key) for key in keys.values()}
        except BaseException:
            for key in keys.values():
                self._forget(key)
            raise
        old = [self._keys[model] for model in keys if model in self._keys]
        self._kinds |= kinds
        self._keys |= keys
        for key in old:
            self._forget_unused(key)

    async def _learnt_by_all(self, key: str) -> str:
        """The kind of files, in a word."""
        for tried in range(1, TRIES + 1):
            orders = [self._learn(key) for _ in self._decoders]
            for decoder, order in zip(self._decoders, orders):
                decoder.tell(order)
            said = [await order.said for order in orders]
            if tried == TRIES or (said and not any("status" in one for one in said)):
                break
        kinds = [_must_have_learnt(one) for one in said or [{}]]
        return kinds[0]

    # --- files and decoders -------------------------------------------------------------------------------------------

    async def _outcome(self, order: _Order) -> Said:
        """What the decoder says. Who is cancelled waits all the same, if the decoder has begun: it writes into a slot
        that others would get.
        """
        cancelled = False
        while not order.said.done():
            try:
                await asyncio.wait([order.said])
            except asyncio.CancelledError:
                cancelled = True
                if order in self._waiting:
                    self._waiting.remove(order)
                    break
        if cancelled:
            raise asyncio.CancelledError
        return order.said.result()

    def _assign(self) -> None:
        for decoder in self._decoders:
            if self._waiting and decoder.free:
                decoder.take(self._waiting.pop(0))

    def _began(self) -> None:
        self._again_s = AGAIN_S
        self._assign()

    def _begin(self, orders: list[_Order]) -> None:
        self._decoders.append(_Decoder(self._settings, orders, self._began, self._lost))

    def _lost(self, decoder: _Decoder) -> None:
        if self._ended:
            return
        self.replaced += 1
        self._decoders.remove(decoder)
        burial = asyncio.get_running_loop().create_task(ended([decoder]))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)
        if decoder.begun:
            self._replace_one()
        else:
            self._replace_later()

    def _replace_later(self) -> None:
        loop = asyncio.get_running_loop()
        pause, self._again_s = self._again_s, min(2 * self._again_s, MOST_AGAIN_S)
        if not self._decoders:
            self._refuse_waiting(Refusal(503, "overloaded", "No file can be decoded at the moment.", pause))
        self._replacements.add(loop.call_later(pause, self._replace_one))

    def _replace_one(self) -> None:
        self._replacements = {timer for timer in self._replacements if timer.when() > asyncio.get_running_loop().time()}
        try:
            self._begin([self._learn(key) for key in self._known])
        except SuppleError as problem:
            say(f"a process that decodes files cannot be replaced yet: {problem.cause}")
            self._replace_later()

    def _refuse_waiting(self, why: Refusal) -> None:
        while self._waiting:
            self._waiting.pop(0).say(_said(why))

    # --- models -------------------------------------------------------------------------------------------------------

    def _new_key(self, model: str) -> str:
        """Files that came before a model was replaced are still prepared as it was."""
        return f"{model}#{next(self._numbers)}"

    def _learn(self, key: str) -> _Order:
        task, saved = self._known[key]
        return _Order(BEGIN_S, key=key, task=task, saved=saved)

    def _forget_unused(self, key: str) -> None:
        if key not in self._keys.values() and not self._uses[key]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        if self._known.pop(key, None) is not None:
            del self._uses[key]
            for decoder in self._decoders:
                decoder.tell(_Order(BEGIN_S, key=key))


def _draining() -> Refusal:
    return Refusal(503, "draining", "The server is about to end.")


def _said(why: Refusal) -> Said:
    return {"status": why.status, "code": why.code, "message": why.message, "retry_after_s": why.retry_after_s}


def _must_have_learnt(said: Said) -> str:
    """The kind of files, in a word."""
    if "kind" not in said:
        cause = said.get("cause", "a process that decodes files ended before it could decode any.")
        raise SuppleError(cause, said.get("cure", "See its message above."))
    return str(said["kind"])
