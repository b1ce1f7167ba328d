"""A steady load that knows each of its requests: what clients saw before, during and after something happened.

    parent   ── start ──────────── it happens ───────────── stop ─┐
    child        due, due, due, ...  (open loop)                    └──▶ every request: due, answered, messages

Times are those of the monotonic clock, which parent and child share, so that each request belongs to a time span of the
parent's. Latency counts from when a request was due: a server that stops for a while is charged with all that would
have come meanwhile. A client tries nothing again: whatever is refused has failed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple, Self

from bench.load import NS_PER_S, Driver, Load
from bench.requests import Endpoint
from bench.work import Fields, Send, no_fields

ENDLESS_S = 3_600.0
READY_S = 0.3
"""From the start of the load's process to that of the load, so that all are connected."""
STOP_TIMEOUT_S = 60.0
"""More than a driver waits for answers."""
CONNECTIONS = 32


class Request(NamedTuple):
    """A request that ended. `messages`: how many of it were taken; fewer than it had: it failed."""

    due_ns: int
    answered_ns: int
    messages: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw of the requests that were due in a time span, in milliseconds.

    `silence_ms`: the longest time in which no request was answered well. Without requests all but counts are 0.
    """

    requests: int
    failed: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    silence_ms: float


def seen(requests: Sequence[Request], from_ns: int, until_ns: int, batch: int) -> Seen:
    """Return what clients saw of requests of `batch` messages that were due in a time span."""
    due = [one for one in requests if from_ns <= one.due_ns < until_ns]
    failed = sum(one.messages < batch for one in due)
    took_ms = sorted((one.answered_ns - one.due_ns) / 1e6 for one in due)
    if not took_ms:
        return Seen(0, 0, 0.0, 0.0, 0.0, 0.0)
    answered_ns = sorted(one.answered_ns for one in due if one.messages >= batch)
    moments_ns = [from_ns, *answered_ns] if answered_ns else [from_ns, until_ns]
    silence_ns = max(after - before for before, after in itertools.pairwise(moments_ns))
    return Seen(len(due), failed, _share(took_ms, 0.5), _share(took_ms, 0.99), took_ms[-1], silence_ns / 1e6)


def _share(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that such a share does not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


@dataclass(slots=True)
class Stopped:
    """All that a load sent. `late`: requests that were due and never sent, as no connection was free."""

    requests: list[Request]
    failure: str
    late: int
    driver_share: float


class Stream:
    """Sends messages to a queue at a steady rate, from a process of its own, as long as its block runs."""

    def __init__(
        self,
        endpoint: Endpoint,
        queue_url: str,
        *,
        messages_per_s: float,
        batch: int,
        body_bytes: int,
        fields: Fields = no_fields,
        first_number: int = 0,
    ) -> None:
        self.batch = batch
        self._load = Load(endpoint, CONNECTIONS, ENDLESS_S, rate=messages_per_s / batch, naps=True)
        self._work = Send(
            endpoint, queue_url, body_bytes=body_bytes, batch=batch, fields=fields, start=first_number
        )
        self._stopped: Stopped | None = None

    def __enter__(self) -> Self:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._child = fork.Process(target=_drive, args=(self._load, self._work, theirs), daemon=True)
        self._child.start()
        theirs.close()
        time.sleep(READY_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._child.kill()
        else:
            self.stop()
        self._child.join()
        self._pipe.close()

    def stop(self) -> Stopped:
        """End the load, when all that it sent is answered, and return what it saw."""
        if self._stopped is None:
            self._pipe.send(None)
            if not self._pipe.poll(STOP_TIMEOUT_S):
                raise RuntimeError(f"a load that was to end did not within {STOP_TIMEOUT_S:g} s")
            try:
                each, failure, late, driver_share = self._pipe.recv()
            except EOFError:
                raise RuntimeError("a load ended without a result; its error is above") from None
            flat = iter(each)
            requests = [Request(*one) for one in zip(flat, flat, flat, strict=True)]
            self._stopped = Stopped(requests, failure, late, driver_share)
        return self._stopped


def _drive(load: Load, work: Send, pipe: Pipe) -> None:
    each = array("q")

    def note(*one: int) -> None:
        each.extend(one)

    driver = Driver(load, work, time.monotonic_ns() + int(READY_S * NS_PER_S), note)

    def wait() -> Any:
        pipe.recv()
        driver.stop()

    threading.Thread(target=wait, daemon=True).start()
    result = driver.run()
    pipe.send((each, result.failure[:500], result.late, result.driver_share))
