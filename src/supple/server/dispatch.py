"""The queue of one generation of workers, without clocks, processes or sockets: what happened goes in with its time,
what is to be done comes out as `effects`. So a day of load can be played through in a second.
"""

from bisect import insort
from collections.abc import Iterable, Sequence

from supple.server.hands import Busy, Hand, as_if_cut, cut_short, free_at, hung_at, later
from supple.server.jobs import (
    Done,
    Effect,
    Forget,
    Job,
    Kill,
    Refused,
    Release,
    Run,
    Send,
    Shorten,
    Step,
    note,
    sure_of,
)
from supple.server.pacing import Drift, Recent
from supple.server.requests import Refusal
from supple.server.schedule import (
    Chunk,
    Pace,
    Plan,
    admits,
    deepest,
    ends_in_time,
    holds_until,
    next_chunk,
    own_ms,
    own_target,
    retry_after_s,
    work_at,
)

AROUND_MS = 2.0  # of a deadline is kept for what happens behind the model: an answer in hand is given then
TIGHT = 0.5  # of a run's expected time: with less to spare, every exit on the way is read, to have an answer in hand
TRIES_S = 1.0  # without a step, until an idle machine tries what it is not expected to manage: that is how it learns
DEATHS = 2  # workers that may die with a sample aboard until it is given up


class Dispatcher:
    """See the module's text. All times are of the same clock, in seconds."""

    def __init__(self, drift: Drift | None = None) -> None:
        self.drift = Drift() if drift is None else drift
        self.queue: list[Job] = []  # by deadline; those that run stay in it
        self.hands: dict[int, Hand] = {}
        self.effects: list[Effect] = []
        self._runs = 0
        self._came = False  # whether somebody was let in since the last step
        self._overheads = Recent(0.0, 32)  # ms
        self._learnt: float | None = None  # when a step was last seen, or somebody let in to try

    # --- what happens -------------------------------------------------------------------------------------------------

    def admit(self, job: Job, now: float, lead_ms: float = 0.0) -> None:
        """Takes a job in, or raises Refusal. lead_ms: until its input is there."""
        pace = self.pace(now)
        free = free_at(self.hands, pace, now)
        job.alone = own_target(job, now + lead_ms / 1000, pace)
        guarded = later(free, lead_ms + AROUND_MS)
        if not admits(job, self.queue, guarded, pace) and not self._admits_by_cutting(job, now, lead_ms, pace):
            alone = own_ms(job, job.cheapest(), pace) + lead_ms + AROUND_MS
            left = 1000 * (job.deadline - now)
            if alone <= left:
                wait = max(0.05, retry_after_s(self.queue, free, pace, now))
                raise Refusal(503, "overloaded", "Too much is waiting to answer within this deadline.", wait)
            if lead_ms + AROUND_MS >= left or not self._may_try(now):
                cause = f"the cheapest takes {alone:.3g} ms, {left:.3g} are left."
                raise Refusal(503, "overloaded", f"No point can answer within this deadline: {cause}", TRIES_S)
            job.tries, self._learnt = True, now
        insort(self.queue, job, key=lambda one: (one.deadline, one.id))
        self._came = True

    def _may_try(self, now: float) -> bool:
        """Whether nobody is there, and nothing was seen of the machine for a while: what is expected may be wrong, and
        only a step can show it."""
        if self._learnt is None:
            self._learnt = now
        idle = any(hand.busy is None and hand.up_at is None for hand in self.hands.values())
        return idle and not self.queue and now - self._learnt >= TRIES_S

    def _admits_by_cutting(self, job: Job, now: float, lead_ms: float, pace: Pace) -> bool:
        """Whether it can be taken in if what runs now ends as soon as it can."""
        cut = cut_short(self.hands, pace, now)
        if cut is None:
            return False
        free, places = cut
        with as_if_cut(places):
            return admits(job, self.queue, later(free, lead_ms + AROUND_MS), pace)

    def begin(self, job: Job) -> None:
        """Its input is there."""
        job.ready = self._came = True

    def hire(self, worker: int, up_at: float | None) -> None:
        self.hands[worker] = Hand(up_at)

    def up(self, worker: int) -> None:
        self.hands[worker].up_at = None

    def ran(self, worker: int, run: int, steps: Sequence[Step], final: bool, now: float) -> None:
        """A worker tells what it did."""
        hand = self.hands[worker]
        busy = hand.busy
        if busy is None or busy.run.id != run:
            return
        track, size = busy.run.track, len(busy.run.jobs)
        for step in steps:
            place = busy.run.place if track.choice else step.place
            usual = track.usual_ms(place, step.place, size)
            took = max(step.ms, usual) if track.skips else step.ms  # who skips layers does not make the machine faster
            self.drift.observe(took / max(1e-6, usual), now)
            self._learnt = now
            busy.ms += step.ms
            for job in busy.run.jobs:
                job.compute_ms += step.ms
            if step.logits is not None:
                note(busy.run.jobs, step.place, step.logits)
                if not (final and step is steps[-1]):
                    self._tell(busy.run.jobs, step.place)
        if final:
            self._overheads.observe(max(0.0, 1000 * (now - busy.began) - busy.ms), now)
            self._ended(hand, steps[-1].place if steps else busy.run.place - 1)

    def failed(self, worker: int, run: int) -> None:
        """The model did not run: its samples are refused."""
        hand = self.hands[worker]
        if hand.busy is None or hand.busy.run.id != run:
            return
        jobs, hand.busy = hand.busy.run.jobs, None
        for job in jobs:
            job.running = False
            if job.gone:
                self.effects.append(Release(job))
            else:
                self._refuse(job, Refusal(503, "model_unhealthy", "The model failed on this input."))

    def died(self, worker: int) -> None:
        """A worker is no more: what it held begins again from its input."""
        hand = self.hands.pop(worker)
        busy = [] if hand.busy is None else hand.busy.run.jobs
        for job in busy:
            job.running = False
            if job.gone:
                self.effects.append(Release(job))
        for job in [job for job in self.queue if job.worker == worker or job in busy]:
            job.place, job.answered, job.worker, job.ready = 0, job.given, None, True
            if job in busy:  # one of them may be the cause: from now on each runs alone
                job.deaths, job.apart = job.deaths + 1, True
            if job.deaths >= DEATHS:
                why = "The process that ran this input was lost, twice."
                self._give_up(job, Refusal(503, "worker_lost", why))

    def drop(self, jobs: Iterable[Job]) -> None:
        """Nobody wants their answers any more."""
        for job in jobs:
            if not job.gone:
                self._leave(job)

    def refuse_all(self, why: Refusal) -> None:
        for job in list(self.queue):
            self._give_up(job, why)

    # --- what is to be done -------------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Looks at everything, and puts what is to be done into `effects`."""
        self._expire(now)
        for worker, hand in self.hands.items():
            if hand.busy is not None and not hand.killed and now >= hung_at(hand.busy, self.pace(now)):
                hand.killed = True
                self.effects.append(Kill(worker))
        idle = [worker for worker, hand in self.hands.items() if hand.busy is None and hand.up_at is None]
        while idle and any(job.ready for job in self.queue):
            if not self._start_one(idle, now):
                break
        if self._came and len(idle) < len(self.hands):
            self._cut_short(now)
        self._came = False
        for worker, hand in self.hands.items():
            if hand.forgotten and hand.busy is None and hand.up_at is None:
                self._flush(worker, hand)

    def wake_at(self, now: float) -> float | None:
        """When `step` is to be called at the latest, if nothing happens."""
        busy = [hand.busy for hand in self.hands.values() if hand.busy is not None and not hand.killed]
        times = [max(now, hung_at(one, self.pace(now))) for one in busy]
        if self.queue:
            first = self.queue[0]
            early = first.deadline - AROUND_MS / 1000
            times.append(early if early > now and first.given >= 0 else max(now, first.deadline))
        return min(times, default=None)

    # --- time ---------------------------------------------------------------------------------------------------------

    def pace(self, now: float) -> Pace:
        mean, most = self.drift.expected(now)
        overheads = self._overheads.at(now)
        return Pace(mean, max(0.0, most - mean), overheads[len(overheads) * 3 // 4])

    # --- parts of a step ----------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        """Whoever's time is up gets the answer in hand, or none."""
        while self.queue and self.queue[0].deadline <= now:
            job = self.queue[0]
            self._give_up(job, Refusal(504, "late", "The answer was not ready within its deadline."))
        near = now + AROUND_MS / 1000 + 1e-9
        due = []
        for job in self.queue:
            if job.deadline > near:
                break
            if job.given >= 0:
                due.append(job)
        for job in due:
            self._finish(job, job.cut_reason())

    def _start_one(self, idle: list[int], now: float) -> bool:
        """Gives an idle worker something to do. False: there is nothing for any of them."""
        pace = self.pace(now)
        plan, goes = deepest(self._unfinished(), later(free_at(self.hands, pace, now), AROUND_MS), pace)
        over = [job for job in self.queue if not job.running and job.given >= 0 and goes.get(job.id, 0) <= job.given]
        for job in over:
            self._finish(job, job.cut_reason())
        for worker in idle:
            chunk = next_chunk(plan, worker)
            if chunk is None:
                continue
            jobs = self._in_time(chunk, now, pace)
            if not jobs:
                return True  # they were refused: look again
            self._send(worker, chunk, jobs, now, pace)
            idle.remove(worker)
            return True
        return bool(over)

    def _in_time(self, chunk: Chunk, now: float, pace: Pace) -> list[Job]:
        """Those of a chunk that can still be in time. Whoever cannot, not even alone, is refused; and fewer run at once
        where all together would be late."""
        jobs: list[Job] = []
        for job in chunk.samples:
            assert isinstance(job, Job)
            if job.tries or ends_in_time(job, max(job.place, job.cheapest()), now, pace):
                jobs.append(job)
            elif job.given >= 0:
                self._finish(job, job.cut_reason())
            else:
                why = "The machine became too slow to answer within this deadline."
                self._refuse(job, Refusal(503, "overloaded", why, max(0.05, pace.mean * chunk.usual_ms() / 1000)))
        if jobs:
            target = min(chunk.target, max(chunk.place, jobs[0].cheapest()))
            left = 1000 * (min(job.deadline for job in jobs) - now)
            while len(jobs) > 1 and pace.one(chunk.track.usual_ms(chunk.place, target, len(jobs))) > left:
                jobs = jobs[: len(jobs) // 2]
        return jobs

    def _send(self, worker: int, chunk: Chunk, jobs: list[Job], now: float, pace: Pace) -> None:
        track, target, size = chunk.track, chunk.target, len(jobs)
        stops = [k for job in jobs if job.policy is not None for k in job.choices if k >= chunk.place]
        until = min([target, *stops])
        expected = pace.one(track.usual_ms(chunk.place, until, size))
        spare = 1000 * (min(job.deadline for job in jobs) - now) - AROUND_MS - expected
        between: set[int] = set()
        if track.chain and until > chunk.place:
            tight = spare < TIGHT * expected
            wanting = [job for job in jobs if job.every or (tight and job.explicit and len(job.choices) > 1)]
            between = {k for job in wanting for k in job.choices if chunk.place <= k < until}
        self._runs += 1
        run = Run(self._runs, track, jobs, chunk.place, until, frozenset({until} | between), frozenset(between))
        hand = self.hands[worker]
        if hand.forgotten:
            self._flush(worker, hand)
        hand.busy = Busy(run, now, until)
        for job in jobs:
            job.running, job.ready, job.worker = True, False, worker
            job.foresee(until)
        self.effects.append(Send(worker, run))

    def _unfinished(self) -> list[Job]:
        """Those who may have something to run when what runs now is over."""
        return [job for job in self.queue if job.place <= job.choices[-1]]

    def _cut_short(self, now: float) -> None:
        """Ends what runs sooner, where somebody who came would be late, or have to end much sooner than what runs."""
        if not any(hand.busy is not None and hand.busy.target > hand.busy.run.place for hand in self.hands.values()):
            return
        pace = self.pace(now)
        queue, free = self._unfinished(), later(free_at(self.hands, pace, now), AROUND_MS)
        if holds_until(work_at(queue, None, 1.0), free, pace) is None:
            return  # everybody goes as deep as may be
        plan, goes = deepest(queue, free, pace)
        if plan.late is None and not self._uneven(queue, goes):
            return
        cut = cut_short(self.hands, pace, now)
        if cut is None:
            return
        free, places = cut
        with as_if_cut(places):
            other, goes = deepest(self._unfinished(), later(free, AROUND_MS), pace)
        if plan.late is not None or other.late is None:
            for worker, hand in self.hands.items():
                if hand.busy is not None and any(job in places for job in hand.busy.run.jobs):
                    self._shorten(worker, hand.busy, plan, other, goes, places)

    def _uneven(self, queue: list[Job], goes: dict[int, int]) -> bool:
        """Whether somebody who waits goes less far than what runs now, by more than one place."""
        runs = [hand.busy.target for hand in self.hands.values() if hand.busy is not None]
        return any(goes[job.id] + 1 < min(job.alone, max(runs)) for job in queue if not job.running)

    def _shorten(
        self, worker: int, busy: Busy, plan: Plan, other: Plan, goes: dict[int, int], places: dict[Job, int]
    ) -> None:
        run = busy.run
        first = next((chunk for chunk in other.chunks if chunk.worker in (None, worker)), None)
        if plan.late is not None and first is not None and first.samples[0] not in run.jobs:
            target = run.place  # somebody else goes first
        else:
            target = max((goes.get(job.id, busy.target) for job in run.jobs if not job.gone), default=run.place)
        if target < busy.target:
            busy.target = target
            for job in run.jobs:
                job.foresee(max(places.get(job, 0) - 1, target))
            self.effects.append(Send(worker, Shorten(run.id, target)))

    def _ended(self, hand: Hand, place: int) -> None:
        """A run is over, behind this place: who is done, and who goes on."""
        assert hand.busy is not None
        run, hand.busy = hand.busy.run, None
        sure = sure_of(run.jobs, place)
        for job in run.jobs:
            job.running = False
            if job.gone:
                hand.forgotten.append(job.id)
                self.effects.append(Release(job))
                continue
            job.place, job.answered, job.ready = place + 1, job.given, True
            if not run.track.chain:
                job.worker = None
            if job.broken:
                self._give_up(job, Refusal(503, "model_unhealthy", "The model gave values that are not finite."))
            elif job.given == place and (place >= job.deepest or run.track.choice):
                self._finish(job, job.cut_reason())
            elif job in sure:
                self._finish(job, "confident")
            else:
                self._tell([job], place)

    def _tell(self, jobs: list[Job], place: int) -> None:
        """Whoever wants every exit gets the one that was just read."""
        for job in jobs:
            if job.every and not job.gone and job.given == place:
                assert job.logits is not None
                self.effects.append(Done(job, place, job.logits, "deadline", False))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _finish(self, job: Job, reason: str) -> None:
        assert job.logits is not None
        self.effects.append(Done(job, job.given, job.logits, reason, True))
        self._leave(job)

    def _refuse(self, job: Job, why: Refusal) -> None:
        self.effects.append(Refused(job, why))
        self._leave(job)

    def _give_up(self, job: Job, why: Refusal) -> None:
        """With the answer in hand, if there is one."""
        if job.given >= 0 and len(job.choices) > 1:
            self._finish(job, job.cut_reason())
        else:
            self._refuse(job, why)

    def _leave(self, job: Job) -> None:
        job.gone = True
        self.queue.remove(job)
        if not job.running:
            if job.worker in self.hands and job.worker is not None:
                self.hands[job.worker].forgotten.append(job.id)
            self.effects.append(Release(job))
            return
        hand = self.hands.get(-1 if job.worker is None else job.worker)
        busy = None if hand is None else hand.busy
        if busy is not None and busy.target > busy.run.place and all(one.gone for one in busy.run.jobs):
            busy.target = busy.run.place
            assert job.worker is not None
            self.effects.append(Send(job.worker, Shorten(busy.run.id, busy.target)))

    def _flush(self, worker: int, hand: Hand) -> None:
        self.effects.append(Send(worker, Forget(hand.forgotten)))
        hand.forgotten = []
