"""Threads that do one turn of their work after another, so that who asks for a turn need not wait for it.

main thread                      another thread
ask() ─────────────────────────▶ turn(), then a pause, then the next one if it was asked for meanwhile
check(), pause(), finish() ◀──── what a turn raises: it ends the thread
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

STOP_S: Final = 10.0
"""How long the turns that are under way may delay the end, all together."""


class Turns:
    """One thread. At most one turn is under way, and at most one more is waited for."""

    def __init__(self, name: str, turn: Callable[[], float | None], alarm: threading.Event) -> None:
        """`turn` returns how many seconds the next one may not begin; `alarm` is set when it raises."""
        self._turn = turn
        self._alarm = alarm
        self._changed = threading.Condition()
        self._is_asked = self._is_busy = self._is_hurried = self._is_stopped = False
        self._error: BaseException | None = None
        # The end of the process does not wait for it: whatever is cut off, the next run finds.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Let a turn begin that sees what there is now, as soon as one that is under way has ended."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()

    def finish(self) -> None:
        """Ask for a turn, without a pause before it, and wait until it has ended. Raises as `check`."""
        with self._changed:
            self._is_asked = self._is_hurried = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error is not None or not (self._is_asked or self._is_busy))
            self._is_hurried = False
        self.check()

    def check(self) -> None:
        """Raise what a turn raised."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let no turn begin any more; one that is under way goes on."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self, patience_s: float) -> None:
        """Wait until a turn that is under way has ended, but not longer."""
        self._thread.join(max(0.0, patience_s))

    def _run(self) -> None:
        try:
            while self._is_next():
                self._pause(self._turn() or 0.0)
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._alarm.set()

    def _is_next(self) -> bool:
        """Wait for the next turn to be asked for; False when there is none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_asked or self._is_stopped)
            self._is_busy, self._is_asked = not self._is_stopped, False
            return self._is_busy

    def _pause(self, pause_s: float) -> None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_hurried or self._is_stopped, pause_s)


class Background:
    """The threads of a run, while the block runs. Its end stops them, and waits for STOP_S at most."""

    def __init__(self) -> None:
        self._alarm = threading.Event()
        self._threads: list[Turns] = []

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        until_s = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join(until_s - time.monotonic())

    def start(self, name: str, turn: Callable[[], float | None]) -> Turns:
        """Start a thread."""
        thread = Turns(name, turn, self._alarm)
        self._threads.append(thread)
        return thread

    def check(self) -> None:
        """Raise what a thread's turn raised."""
        for thread in self._threads:
            thread.check()

    def pause(self, seconds: float) -> None:
        """Wait; no longer than until a thread's turn raises something, which this then raises."""
        if self._alarm.wait(seconds):
            self.check()
