"""Carries a spread request out: sends its parts to brokers, and answers once when all that it needs is there."""

from __future__ import annotations

import asyncio
from functools import partial

from quaymaster.core.spread.parts import Part, Spread, partitions_are_changing
from quaymaster.core.values.commands.messages import Elsewhere, Send
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist, Timeout
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.net.routing.broker_client import BrokerClient, Reply, Submitted


class SpreadCall:
    """One spread request on its way. `cancel` takes back what can be taken back; the reply is then never called."""

    def __init__(
        self,
        broker: BrokerClient,
        tables: PartitionTables,
        definition: QueueDefinition,
        spread: Spread,
        reply: Reply,
        *,
        has_met_change: bool = False,
    ) -> None:
        """`has_met_change`: the request is on its way here because its partition sent it elsewhere, or is gone."""
        self._broker = broker
        self._tables = tables
        self._definition = definition
        self._spread = spread
        self._reply: Reply | None = reply
        self._submitted: dict[int, Submitted] = {}
        self._has_outcomes = False
        """Whether a part was answered: it may have been carried out."""
        self._timers: list[asyncio.TimerHandle] = []
        self._looking: set[asyncio.Task[None]] = set()
        self._met_change_s = asyncio.get_running_loop().time() if has_met_change else None
        """When it was first heard that a partition had just been changed; None: none was."""

    def start(self) -> None:
        """Ask the first ones. The reply never comes from inside of this."""
        parts = self._spread.begin()
        if self._spread.result is not None:
            asyncio.get_running_loop().call_soon(self._ask, parts)
        else:
            self._ask(parts)

    def cancel(self) -> None:
        """Forget it: who asked has gone."""
        self._reply = None
        self._let_go()

    def withdraw(self) -> bool:
        """Take it back if it has one part, which no broker got; see `Submitted`."""
        if self._has_outcomes or len(self._submitted) != 1:
            return False
        (only,) = self._submitted.values()
        if not only.withdraw():
            return False
        self.cancel()
        return True

    def _let_go(self) -> None:
        submitted, self._submitted = self._submitted, {}
        for each in submitted.values():
            each.cancel()
        for timer in self._timers:
            timer.cancel()
        for looking in self._looking:
            looking.cancel()

    def _ask(self, parts: list[Part]) -> None:
        for part in parts:
            if self._reply is None:
                return
            on_outcome = partial(self._on_outcome, part, self._definition.table_version)
            self._submitted[id(part)] = self._broker.submit(part.command, on_outcome)
            if part.patience_ms:
                loop = asyncio.get_running_loop()
                self._timers.append(loop.call_later(part.patience_ms / 1000, on_outcome, Timeout()))
        if self._spread.result is not None:
            self._answer(self._spread.result)

    def _on_outcome(self, part: Part, version: int, outcome: Outcome | Exception) -> None:
        if self._submitted.pop(id(part), None) is None or self._reply is None:
            return
        self._has_outcomes = True
        if isinstance(outcome, Elsewhere):
            self._tables.meet(outcome.definition)
            if isinstance(part.command, Send):
                if not self._tables.is_known_sealed(self._definition.queue_id, part.number):
                    self._meet_change()
                self._tables.note_sealed(self._definition.queue_id, part.number)
        elif isinstance(outcome, QueueDoesNotExist):
            if isinstance(part.command, Send):
                self._meet_change()
            self._look_again(part, version)
            return
        self._ask(self._spread.on_outcome(part, outcome, self._newest()))

    def _meet_change(self) -> None:
        if self._met_change_s is None:
            self._met_change_s = asyncio.get_running_loop().time()

    def _newest(self) -> QueueDefinition:
        found = self._tables.find(self._definition.queue_id)
        if found is not None:
            self._definition = found
        return self._definition

    def _look_again(self, part: Part, version: int) -> None:
        """A partition is not known where it was sought: the table may be old, or the queue gone.

        `version`: by which table it was sought.
        """
        looking = asyncio.get_running_loop().create_task(self._look(part, version))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)

    async def _look(self, part: Part, version: int) -> None:
        error: Exception = partitions_are_changing()
        try:
            await self._tables.look(self._definition)
        except (CallerError, NotNow) as refused:
            error = refused
        if self._reply is None:
            return
        found = self._tables.find(self._definition.queue_id)
        if found is None:
            self._ask(self._spread.on_outcome(part, QueueDoesNotExist(), self._definition))
        elif found.table_version > version:
            self._definition = found
            self._ask(self._spread.again(part, found))
        else:
            self._ask(self._spread.on_outcome(part, error, found))

    def _answer(self, result: Outcome | Exception) -> None:
        reply, self._reply = self._reply, None
        self._let_go()
        if self._met_change_s is not None and not isinstance(result, Exception):
            self._tables.pauses.observe(asyncio.get_running_loop().time() - self._met_change_s)
        if reply is not None:
            reply(result)
