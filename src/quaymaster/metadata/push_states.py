"""How calls to the endpoints of queues go: noted by the process that makes them, and shown by all others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import cast

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.core.push.states import FIRST_STATE, PushState, endpoint_mark
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, decode_queue_definition
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import PUSH_STATES, QUEUES, PushStateRow, encode_row, id_text, row_decoder


class PushStates:
    """Answers from memory; a state is written when it changes, which is seldom."""

    def __init__(self, mirror: Mirror, now_ms: Callable[[], int]) -> None:
        self._mirror = mirror
        self._now_ms = now_ms
        self._rows: MirrorTable[PushStateRow] = mirror.table(PUSH_STATES, row_decoder(PushStateRow))

    def of(self, queue: QueueDefinition) -> PushState:
        """Return how calls to a queue's endpoint go; nothing is known of an endpoint that was just set."""
        row = self._row(queue)
        return FIRST_STATE if row is None else cast(PushState, row.state)

    def calls_per_minute(self, queue: QueueDefinition) -> int | None:
        """Return how many calls a queue's endpoint allows; None: it set no bound, as far as is known."""
        row = self._row(queue)
        return None if row is None else row.calls_per_minute

    async def note(
        self, queue: QueueDefinition, state: PushState, calls_per_minute: int | None = None
    ) -> None:
        """Store how calls to a queue's endpoint go, unless that is known or the queue is gone. Raises NotNow."""
        if (self.of(queue), self.calls_per_minute(queue)) == (state, calls_per_minute):
            return
        key = f"{QUEUES}{queue.account_id}/{queue.name}"
        stored = await self._mirror.store.get(key)
        if stored is None or decode_queue_definition(stored.value).queue_id != queue.queue_id:
            return
        row = PushStateRow(state, endpoint_mark(queue.push_endpoint), self._now_ms(), calls_per_minute)
        put = Put(PUSH_STATES + id_text(queue.queue_id), encode_row(row))
        with suppress(RevisionMismatch):  # the queue changed just now: it is noted the next time
            await self._mirror.transact([Compare(key, stored.revision)], [put])

    def _row(self, queue: QueueDefinition) -> PushStateRow | None:
        row = self._rows.get(id_text(queue.queue_id))
        if row is None or row.endpoint_mark != endpoint_mark(queue.push_endpoint):
            return None
        return row
