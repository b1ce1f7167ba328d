"""Which authorization floor brokers enforce: a front end that is behind it must not answer from memory either.

    each second ──`enforced`──▶ the brokers in use, at least WITNESSES of the cell ──▶ the highest floor of any
                                          └─ none answers: `silent_ms` grows

Brokers hear of revocations from the coordination store by themselves, so they tell a front end that is cut off from its
metadata nodes what it cannot know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from quaymaster.core.values.errors import CallerError
from quaymaster.net.rpc import OnReply
from quaymaster.protocol.rpc.broker_calls import ENFORCED, REVISION

INTERVAL_S: Final = 1.0
ANSWER_MS: Final = 1_000


class AsksBrokers(Protocol):
    """The part of the router that asks brokers."""

    def ask_some(self, method: str, deadline_ms: int, on_reply: Callable[[str], OnReply]) -> list[str]: ...


class EnforcedFloor:
    """Asks brokers again and again. Use within one event loop."""

    def __init__(self, brokers: AsksBrokers) -> None:
        self._brokers = brokers
        self._told: dict[str, int] = {}
        """What each broker's address said last."""
        self._heard_s = float("-inf")
        self.revision = 0
        """The highest floor that a broker enforces; 0: none that is known."""

    @property
    def silent_ms(self) -> float:
        """For how long no broker has answered; inf: none ever did. From the question on: nothing later is certain."""
        return (time.monotonic() - self._heard_s) * 1000

    async def ask_for_ever(self) -> None:
        """Ask each second."""
        while True:
            self.ask()
            await asyncio.sleep(INTERVAL_S)

    def ask(self) -> None:
        """Ask once; the answers come later."""
        asked_s = time.monotonic()
        asked = self._brokers.ask_some(
            ENFORCED, ANSWER_MS, lambda address: partial(self._on_reply, address, asked_s)
        )
        # Of one that is gone nothing counts any more, once another has answered.
        for address in self._told.keys() - set(asked):
            del self._told[address]

    def _on_reply(self, address: str, asked_s: float, result: bytes | Exception) -> None:
        if isinstance(result, CallerError):
            revision = 0  # a broker of a version that does not know the question
        elif isinstance(result, Exception):
            return
        else:
            (revision,) = REVISION.unpack(result)
        self._heard_s = max(self._heard_s, asked_s)
        self._told[address] = revision
        self.revision = max(self._told.values())
