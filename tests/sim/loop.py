"""An event loop for asyncio whose callbacks are events of the simulation: the product's tasks run as they are."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from sim.kernel import SECOND, Kernel

ROUNDS_MAX = 50


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one process: it can be paused, and it can end in the middle of everything."""

    def __init__(self, kernel: Kernel) -> None:
        self.is_over = False
        self._kernel = kernel
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_due = False
        self._is_paused = False

    # The process

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Run what was due meanwhile, and go on."""
        self._is_paused = False
        self._wake()

    def end(self) -> None:
        """The process is gone. Its tasks are cancelled only so that nothing is left of them."""
        self.is_over = True
        for task in list(self._tasks):
            task.cancel()
        for _ in range(ROUNDS_MAX):
            if not self._ready:
                break
            self._run_ready()

    def call(self, act: Callable[..., object], *arguments: Any) -> None:
        """Do something at once that expects a running loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            act(*arguments)
        finally:
            events._set_running_loop(before)

    # What asyncio needs

    def time(self) -> float:
        return self._kernel.now_us / SECOND

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]  # the arguments' types are nobody's concern here
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_later(  # type: ignore[override]  # see above
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # see above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._kernel.at(max(round(when * SECOND), self._kernel.now_us), self._fire, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap, and does nothing when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # see above
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.is_over and error is not None:
            raise error

    # Inside

    def _fire(self, handle: asyncio.TimerHandle) -> None:
        if not self.is_over and not handle.cancelled():
            self._ready.append(handle)
            self._wake()

    def _wake(self) -> None:
        if not self._is_due and self._ready and not self.is_over and not self._is_paused:
            self._is_due = True
            self._kernel.after(0, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if not self.is_over and not self._is_paused:
            self._run_ready()
            self._wake()

    def _run_ready(self) -> None:
        ready = self._ready
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
