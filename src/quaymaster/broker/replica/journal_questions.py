"""Questions to the leaders of other journals, asked again and again until nothing is left to ask.

begin(key) ─▶ next question ─▶ asked ──▶ answered: the next one at once
               ▲      │          └─────▶ no answer, or refused: the next one after a pause ─┐
               │      └── none: this key is done                                            │
               └────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.supervision import supervise

Key = TypeVar("Key")

log = logging.getLogger(__name__)


class JournalQuestion(NamedTuple):
    """What is asked next for a key."""

    ask: Callable[[], Awaitable[bool]]
    """Asks, takes the answer, and returns whether it was one. Raises NotNow without any, CallerError or OSError when it
    is refused."""
    about: Mapping[str, object]
    """What the log says of it if it is not answered."""


class JournalQuestions(Generic[Key]):
    """Those of one journal, for each key one at a time. Use within one event loop."""

    def __init__(
        self,
        journal_id: int,
        *,
        next_question: Callable[[Key], JournalQuestion | None],
        pause_s: Callable[[int, Exception | None], float],
        told_after: int,
        unanswered_event: str,
        refused_event: str,
        settle_silent: Callable[[Key], Awaitable[bool]] | None = None,
        silent_after: int = 1,
    ) -> None:
        """`pause_s` is of how many in a row had no answer, and why the last one has none.

        The log tells of one that is unanswered after `told_after` others, and of each that is refused. `settle_silent`
        is called after `silent_after` without an answer, and each time after as many more: it settles what is asked if
        no answer will ever come, and returns whether it has.
        """
        self._journal_id = journal_id
        self._next_question = next_question
        self._pause_s = pause_s
        self._told_after = told_after
        self._unanswered_event = unanswered_event
        self._refused_event = refused_event
        self._settle_silent = settle_silent
        self._silent_after = silent_after
        self._asking: dict[Key, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._asking)

    def begin(self, key: Key) -> None:
        """Ask for a key, if it is not asked for already."""
        if key not in self._asking:
            self._asking[key] = supervise(asyncio.get_running_loop().create_task(self._ask(key)))

    def stop(self) -> None:
        """Ask nothing more."""
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    async def close(self) -> None:
        """Stop, and wait until that is so."""
        tasks = list(self._asking.values())
        self.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Key) -> None:
        unanswered = 0
        while (question := self._next_question(key)) is not None:
            why: Exception | None = None
            try:
                if await question.ask():
                    unanswered = 0
                    continue
            except NotNow as error:
                why = error
                if unanswered == self._told_after:
                    said = {**question.about, "reason": str(error)}
                    log_event(log, logging.WARNING, self._unanswered_event, journal=self._journal_id, **said)
            except (
                CallerError,
                OSError,
            ) as error:  # what one journal refuses must not strand what others take
                why = error
                log_failure(log, self._refused_event, error, journal=self._journal_id)
            unanswered += 1
            settle = self._settle_silent
            if settle is not None and unanswered % self._silent_after == 0 and await settle(key):
                unanswered = 0
                continue
            await asyncio.sleep(self._pause_s(unanswered, why))
        # No await since nothing was found: what comes from now on begins another task.
        self._asking.pop(key, None)
