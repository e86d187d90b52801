"""What a connection may cost the server before a request has even been understood. Without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one connection, unless said otherwise."""

    head_s: float = 5.0  # from the first byte (or the connection) until the headers are complete
    head_bytes: int = 32_768  # request line, headers and trailers
    head_fields: int = 100
    body_bytes: int = 20_000_000
    body_rate: float = 64_000.0  # bytes per second, on average
    grace_s: float = 1.0  # before the rate counts
    stall_s: float = 5.0  # however much has come before, a body may pause no longer
    spare_wire_bytes: int = 65_536  # what chunks may cost beside their content; an eighth of the content is added
    idle_s: int = 15  # between requests
    linger_s: float = 2.0  # after a refusal, so that a client that is still sending gets to read it
    pipelined: int = 16  # requests that wait behind one another
    connections: int = 1000  # at the same time, in all
    all_bodies_bytes: int = 256_000_000  # of requests that are not answered yet, in all


class Pace:
    """Until when a body may pause: a moment that every byte moves on, and that our own pauses move on as well.

    Moments are those of the event loop's clock. What came early counts for `stall_s` at most: otherwise a client could
    send megabytes at once, and hold them for minutes with nothing more.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._rate, self._stall = limits.body_rate, limits.stall_s
        self._paused_at: float | None = None
        self.due = now + limits.grace_s

    def received(self, count: int, now: float) -> None:
        self.due = max(self.due, min(self.due + count / self._rate, now + self._stall))

    def pause(self, now: float) -> None:
        """Nothing is read any more: what the client sends meanwhile is not seen."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is not None:
            self.due += now - self._paused_at
            self._paused_at = None

    @property
    def paused(self) -> bool:
        return self._paused_at is not None


def wire_allowed(limits: Limits, content: int) -> int:
    """Bytes that a body of so much content may take with its chunk sizes, extensions and trailers.

    A chunk costs about a microsecond whatever it holds: 20 MB of single bytes would keep the server busy for 20 s.
    """
    return content + content // 8 + limits.spare_wire_bytes
