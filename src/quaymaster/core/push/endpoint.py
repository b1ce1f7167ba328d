"""How many calls an endpoint gets at once: as many as it takes, and few or none while it fails.

    open ──5 failures in a row──▶ unreachable ──1 s, then doubled to 60 s──▶ a probe ──answered──▶ open
      ├──410──▶ gone ──an hour──▶ a probe ──┘
      └──its address may not be called──▶ refused ──as unreachable──▶ a probe

While it is open its window says how many calls may be under way. The window begins with 1, and doubles with each window
of calls that the endpoint took. Its first failure ends that: from then on a failure halves it, and a window of
successes adds 1. Calls that failed together halve it once.

A probe is a call with one message. What calls say that began before the endpoint was shut opens it again, unless it is
gone.

Pure: times are milliseconds of a clock that does not jump.
"""

from __future__ import annotations

from typing import Final, Literal

from quaymaster.core.push.flow import RETRY_AFTER_MS_MAX, Judged

FAILURES_MAX: Final = 5
"""So many in a row shut an endpoint."""
PROBE_MS_MIN: Final = 1_000
PROBE_MS_MAX: Final = 60_000
GONE_MS: Final = 3_600_000

EndpointState = Literal["active", "unreachable", "gone", "refused"]


class Endpoint:
    """The window and the circuit of one queue's endpoint."""

    __slots__ = (
        "_begun",
        "_doubles",
        "_failures",
        "_halved_at",
        "_paused_until_ms",
        "_probe_at_ms",
        "_probe_wait_ms",
        "_shut_at",
        "_successes",
        "_window_max",
        "is_probing",
        "state",
        "window",
    )

    def __init__(self, window_max: int) -> None:
        self.state: EndpointState = "active"
        self.window = 1
        self.is_probing = False
        """Whether a probe is under way, or its message being received."""
        self._window_max = window_max
        self._doubles = True
        self._successes = 0
        """Since the window grew last."""
        self._failures = 0
        """In a row."""
        self._begun = 0
        """Calls so far. A call's number says whether it began before something else."""
        self._halved_at = 0
        self._shut_at = 0
        self._paused_until_ms = 0
        self._probe_at_ms = 0
        self._probe_wait_ms = PROBE_MS_MIN

    @property
    def is_shut(self) -> bool:
        """Whether it gets probes only."""
        return self.state != "active"

    def room(self, now_ms: int, under_way: int) -> int:
        """Return how many more calls may begin while so many are under way."""
        if now_ms < self._paused_until_ms:
            return 0
        if self.is_shut:
            return 1 if now_ms >= self._probe_at_ms and not self.is_probing else 0
        return max(0, self.window - under_way)

    def next_ms(self, now_ms: int) -> int | None:
        """Return when there may be room by time alone; None: only when a call ends."""
        due_ms = self._paused_until_ms
        if self.is_shut and not self.is_probing:
            due_ms = max(due_ms, self._probe_at_ms)
        return due_ms if due_ms > now_ms else None

    def begin(self) -> int:
        """A call begins: return its number."""
        self._begun += 1
        return self._begun

    def end(self, number: int, judged: Judged, now_ms: int, *, is_probe: bool = False) -> None:
        """A call has ended so."""
        if is_probe:
            self.is_probing = False
        if judged.retry_after_ms:
            pause_ms = min(judged.retry_after_ms, RETRY_AFTER_MS_MAX)
            self._paused_until_ms = max(self._paused_until_ms, now_ms + pause_ms)
        match judged.verdict:
            case "works" | "rejects":
                self._on_answer(number, has_worked=judged.verdict == "works")
            case "fails":
                self._on_failure(number, now_ms, is_probe=is_probe)
            case "gone":
                self._shut("gone", now_ms, GONE_MS)
            case _:
                self._shut("refused", now_ms, self._next_wait_ms(is_probe=is_probe))

    def _on_answer(self, number: int, *, has_worked: bool) -> None:
        if self.state == "gone" and number <= self._shut_at:
            return
        self.state = "active"
        self._failures = 0
        self._probe_wait_ms = PROBE_MS_MIN
        if not has_worked:
            return
        self._successes += 1
        if self._doubles or self._successes >= self.window:
            self._successes = 0
            self.window = min(self._window_max, self.window + 1)

    def _on_failure(self, number: int, now_ms: int, *, is_probe: bool) -> None:
        self._doubles = False
        if number > self._halved_at:
            self.window = max(1, self.window // 2)
            self._successes = 0
            self._halved_at = self._begun
        self._failures += 1
        if is_probe or (not self.is_shut and self._failures >= FAILURES_MAX):
            self._shut("unreachable", now_ms, self._next_wait_ms(is_probe=is_probe))

    def _next_wait_ms(self, *, is_probe: bool) -> int:
        """Return how long the next probe waits: twice as long as the one before, if that has just failed."""
        if is_probe:
            self._probe_wait_ms = min(PROBE_MS_MAX, self._probe_wait_ms * 2)
        return self._probe_wait_ms

    def _shut(self, state: EndpointState, now_ms: int, wait_ms: int) -> None:
        self.state = state
        self.window = 1
        self._doubles = False
        self._successes = 0
        self._shut_at = self._begun
        self._probe_at_ms = now_ms + wait_ms
