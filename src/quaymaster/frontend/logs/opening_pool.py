"""Worker processes that open messages of logs for a front end, on other cores than its own.

    give ──▶ the worker that has least to do, at most AT_ONCE pieces each ──▶ columns
      │                   └── ends, or is silent for too long: nothing, and the caller opens the piece itself
      └── all have enough: the same; and another worker starts, up to `workers_max`

The first starts when a log is read in bulk, and each ends when it has had nothing to do for a while. What is sent to
them and what they keep is in memory only. When a front end is killed its sockets are closed, and its workers end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from quaymaster.frontend.logs.opening import Piece, frame_of
from quaymaster.frontend.logs.opening_pace import OpeningPace
from quaymaster.frontend.logs.opening_process import OpeningProcess
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample
from quaymaster.protocol.logs.log_columns import Block

AT_ONCE: Final = 2
"""So many pieces a worker has at most: one in work, and one that waits, so that the worker need not."""
IDLE_S: Final = 60.0
REST_MIN_S: Final = 1.0
REST_MAX_S: Final = 60.0
"""How long after one that failed no other is started; it doubles each time, until one has answered."""

COMMAND: Final = (sys.executable, "-P", "-m", "quaymaster.frontend.logs.opening_worker")

log = logging.getLogger(__name__)

_monotonic = time.monotonic


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use: those it may run on, and no more than its container is given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or another system
        return cores


class OpeningPool:
    """The workers of one front end, on the loop's thread. `command` starts one, with its socket as standard input."""

    def __init__(self, workers_max: int, *, command: Sequence[str] = COMMAND) -> None:
        self.workers_max = workers_max
        self.command = command
        self._workers: list[OpeningProcess] = []
        """Those that are ready."""
        self._living: dict[OpeningProcess, asyncio.Task[None]] = {}
        """All that were started and are not reaped."""
        self._looking: asyncio.TimerHandle | None = None
        self._rests_until_s = 0.0
        self._failures_in_turn = 0
        self._failures = 0
        self._pauses = 0
        self._pieces = 0
        self._pace = OpeningPace()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are ready."""
        return [worker.pid for worker in self._workers]

    @property
    def outstanding(self) -> int:
        """How many pieces the workers have now."""
        return sum(len(worker.waiting) for worker in self._workers)

    @property
    def is_ready(self) -> bool:
        """Whether there are workers, and cores for them."""
        return bool(self._workers) and not self._pace.is_paused(_monotonic())

    @property
    def may_start(self) -> bool:
        """Whether another worker may be started: there are cores, none is starting or ending, and none just failed."""
        is_changing = len(self._living) > len(self._workers)
        is_full = len(self._living) >= self.workers_max
        now_s = _monotonic()
        is_resting = now_s < self._rests_until_s or self._pace.is_paused(now_s)
        return not (self._is_closed or is_changing or is_full or is_resting)

    def find_room(self) -> bool:
        """Tell whether a worker takes another piece now; where all have work, another may start."""
        has_room = any(len(worker.waiting) < AT_ONCE for worker in self._workers)
        if not has_room or all(worker.waiting for worker in self._workers):
            self.start_one()
        return has_room

    def give(self, piece: Piece) -> asyncio.Future[Block | None]:
        """Give a piece to the worker that has least to do, when there is room; return what it will answer.

        None: the caller must open the messages itself, which also tells what is wrong with one of them.
        """
        worker = min(self._workers, key=lambda worker: len(worker.waiting))
        assert len(worker.waiting) < AT_ONCE, "pieces are given where there is room"
        self._pieces += 1
        return worker.send(frame_of(piece))

    async def close(self) -> None:
        """End all workers; returns when they have ended."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        for worker in self._living:
            worker.end()
        await asyncio.gather(*self._living.values())

    def samples(self) -> Iterable[Sample]:
        """Return what metrics say of the workers."""
        yield Sample("quaymaster_log_workers", len(self._workers))
        yield Sample("quaymaster_log_worker_pieces_total", self._pieces)
        yield Sample("quaymaster_log_worker_failures_total", self._failures)
        yield Sample("quaymaster_log_worker_pauses_total", self._pauses)

    # Workers come and go

    def start_one(self) -> None:
        """Start a worker if there may be one more; it takes pieces when it is ready."""
        if not self.may_start:
            return
        worker = OpeningProcess(self._on_ready, self._on_answer, self._on_lost)
        self._living[worker] = asyncio.get_running_loop().create_task(self._run(worker))

    async def _run(self, worker: OpeningProcess) -> None:
        """See a worker through its life, and note how it ended."""
        try:
            code: int | str = await worker.run(self.command)
        except OSError as error:
            code = str(error)
        finally:
            del self._living[worker]
        if worker.is_ending:
            return
        self._failures += 1
        self._failures_in_turn += 1
        rest_s = min(REST_MAX_S, REST_MIN_S * 2 ** min(self._failures_in_turn - 1, 10))
        self._rests_until_s = _monotonic() + rest_s
        log_event(log, logging.WARNING, "log worker failed", pid=worker.pid, ended=code, rest_s=rest_s)

    def _on_ready(self, worker: OpeningProcess) -> None:
        self._workers.append(worker)
        if self._looking is None:
            self._look_later()

    def _on_answer(self, took_s: float, cpu_s: float) -> None:
        self._failures_in_turn = 0
        if self._pace.note(took_s, cpu_s, _monotonic()):
            self._pauses += 1

    def _on_lost(self, worker: OpeningProcess) -> None:
        if worker in self._workers:
            self._workers.remove(worker)

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(IDLE_S / 2, self._look)

    def _look(self) -> None:
        """End those that had nothing to do for a while."""
        self._looking = None
        now_s = _monotonic()
        for worker in list(self._workers):
            if not worker.waiting and now_s - worker.used_s >= IDLE_S:
                self._workers.remove(worker)
                worker.end()
        if self._workers:
            self._look_later()
