"""The workers of a server, as the process has them that started them: kept running, looked at, asked, ended.

start ──▶ a child for each worker ──look, again and again──▶ why not ready, notices
end ──DRAIN──▶ each serves nothing new ──all have drained──▶ CLOSE: journals are closed, in no order
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.rpc import RPCClient
from quaymaster.node.children.child import Child
from quaymaster.node.children.lifeline import CLOSE, DRAIN, HURRY
from quaymaster.node.node import WorkerNotStarted
from quaymaster.node.workers.brief import WorkerBrief, encode_brief
from quaymaster.node.workers.calls import (
    ACCEPT_CLOCK,
    LOOK,
    METRICS,
    STATUS,
    WorkerLook,
    decode_look,
    decode_status,
)

COMMAND: Final = (sys.executable, "-P", "-m", "quaymaster.node.workers.worker")
LOOK_S: Final = 0.25
LOOK_STARTING_S: Final = 0.02
ASK_MS: Final = 1_000
STATUS_MS: Final = 30_000
DRAINED_S: Final = 5.0
"""So much longer than their requests may take workers are waited for until they have drained."""
END_S: Final = 30.0
"""A worker that has not closed its journals after so long is killed: they are recovered at the next start."""


class Worker:
    """One of them."""

    def __init__(self, child: Child, client: RPCClient, number: int) -> None:
        self.child = child
        self.client = client
        self.number = number
        self.seen: WorkerLook | None = None
        """How it was when it was asked last; None while it does not answer."""


class Crew:
    """All workers. `start` returns when all serve."""

    def __init__(
        self,
        briefs: Sequence[WorkerBrief],
        connect: Callable[[WorkerBrief], RPCClient],
        *,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._is_starting = True
        self._is_draining = False
        self._first_ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.workers = [
            Worker(self._make_child(brief, pass_fds), connect(brief), brief.number) for brief in briefs
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all workers; return when they serve. Raises WorkerNotStarted."""
        for worker in self.workers:
            for work in (worker.child.keep(), self._look_for_ever(worker)):
                self._tasks.append(supervise(asyncio.create_task(work, name=f"worker-{worker.number}")))
        while not all(worker.seen is not None and worker.seen.is_serving for worker in self.workers):
            if not self._first_ended.done():
                await asyncio.sleep(LOOK_STARTING_S)
                continue
            raise WorkerNotStarted(
                f"worker {self._first_ended.result()} could not start; its own line in the log says why"
            )
        self._is_starting = False

    def drain(self) -> None:
        """Let all take no more requests."""
        self._tell_to_end(DRAIN)

    async def end(self, grace_s: float, *, hurry: bool) -> None:
        """Let all drain, which takes `grace_s` at most, and end; without notice to balancers if there is a hurry."""
        self._tell_to_end(HURRY if hurry else DRAIN)
        until_s = time.monotonic() + grace_s + DRAINED_S
        pause_s = LOOK_STARTING_S
        while self._some_drain() and time.monotonic() < until_s:
            await asyncio.gather(*(self._look(worker) for worker in self.workers))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_S)  # requests of clients may take long
        for worker in self.workers:
            worker.child.tell(CLOSE)
        await asyncio.gather(*(worker.child.end(END_S) for worker in self.workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.client.close() for worker in self.workers))

    # What is seen

    def why_not_ready(self) -> str | None:
        """Return which worker serves no clients now, and why; None while all do."""
        for worker in self.workers:
            if worker.seen is None:
                return f"Worker {worker.number} is starting."
            if worker.seen.reason is not None and not worker.seen.keeps_clients:
                return f"Worker {worker.number}: {worker.seen.reason}"
        return None

    def why_no_clients(self) -> str | None:
        """Return which worker should get no more clients, though it serves those that it has, and why."""
        for worker in self.workers:
            if worker.seen is not None and worker.seen.reason is not None and worker.seen.keeps_clients:
                return f"Worker {worker.number}: {worker.seen.reason}"
        return None

    def notices(self) -> list[str]:
        """Return what an operator should know of the workers, each thing once."""
        seen = [worker.seen for worker in self.workers if worker.seen is not None]
        return list(dict.fromkeys(notice for look in seen for notice in look.notices))

    def pauses(self) -> list[dict[str, float]]:
        """Return the longest pauses of the workers' event loops."""
        return [
            {**pause, "worker": worker.number}
            for worker in self.workers
            if worker.seen is not None
            for pause in worker.seen.pauses
        ]

    # What is asked

    async def metrics(self) -> Mapping[str, bytes]:
        """Return the metrics of each worker that answers."""
        texts = await self._ask_all(METRICS, STATUS_MS)
        return {str(number): zlib.decompress(text) for number, text in texts.items() if text is not None}

    async def status(self) -> list[dict[str, Any]]:
        """Return the figures of all journals. Raises NotNow."""
        answers = await self._ask_each(STATUS, STATUS_MS)
        return [journal for answer in answers for journal in decode_status(answer)]

    async def accept_clock(self) -> None:
        """Let messages of all journals expire again. Raises NotNow."""
        await self._ask_each(ACCEPT_CLOCK, ASK_MS)

    # Inside

    def _make_child(self, brief: WorkerBrief, pass_fds: Sequence[int]) -> Child:
        starts = 0

        def write() -> bytes:
            nonlocal starts
            starts += 1
            return encode_brief(msgspec.structs.replace(brief, is_first=starts == 1))

        def on_ended(code: int) -> None:
            if not self._first_ended.done():
                self._first_ended.set_result(brief.number)

        command = (*COMMAND, str(brief.number))  # for those who look at processes; it is told by the brief
        return Child(f"worker {brief.number}", command, write, on_ended=on_ended, pass_fds=pass_fds)

    async def _look_for_ever(self, worker: Worker) -> None:
        while True:
            await self._look(worker)
            if worker.seen is not None and worker.seen.has_drained and not self._is_draining:
                worker.child.tell(CLOSE)  # somebody told this one alone to end, and it will be back
            await asyncio.sleep(LOOK_STARTING_S if self._is_starting or worker.seen is None else LOOK_S)

    async def _look(self, worker: Worker) -> None:
        try:
            worker.seen = decode_look(await worker.client.ask(LOOK, b"", ASK_MS))
        except (NotNow, CallerError):
            worker.seen = None

    def _tell_to_end(self, how: bytes) -> None:
        self._is_draining = True
        for worker in self.workers:
            worker.child.let_go()
            worker.child.tell(how)

    def _some_drain(self) -> bool:
        return any(
            worker.child.pid is not None and not (worker.seen is not None and worker.seen.has_drained)
            for worker in self.workers
        )

    async def _ask_each(self, method: str, deadline_ms: int) -> list[bytes]:
        return await asyncio.gather(*(worker.client.ask(method, b"", deadline_ms) for worker in self.workers))

    async def _ask_all(self, method: str, deadline_ms: int) -> dict[int, bytes | None]:
        """Ask each; None for one that does not answer."""

        async def ask(worker: Worker) -> bytes | None:
            try:
                return await worker.client.ask(method, b"", deadline_ms)
            except (NotNow, CallerError):
                return None

        answers = await asyncio.gather(*(ask(worker) for worker in self.workers))
        return {worker.number: answer for worker, answer in zip(self.workers, answers, strict=True)}
