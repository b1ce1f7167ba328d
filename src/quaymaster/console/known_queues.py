"""Which queues there are, as the store has them: little of each, for there may be 100,000."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import msgspec

from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.values.queues.queue_definitions import decode_queue_definition

RELIST_S: Final = 600.0
"""Watches tell of changes; to list 100,000 queues again takes a second of processor time."""


class KnownQueue(msgspec.Struct, frozen=True, gc=False):
    """A queue. `dead_letters_to`: the queue of its redrive policy, as (account, name)."""

    queue_id: int
    account: str
    name: str
    is_fifo: bool
    is_log: bool
    created_ms: int
    dead_letters_to: tuple[str, str] | None


class KnownQueues:
    """The queues of the store at `prefix`."""

    def __init__(self, store: Coordination, prefix: str) -> None:
        self._watch = WatchedPrefix(store, prefix, self._on_row, relist_s=RELIST_S)
        self._prefix = prefix
        self._accounts: dict[str, dict[str, KnownQueue]] = {}
        self._by_id: dict[int, KnownQueue] = {}
        self._sources: dict[tuple[str, str], int] = {}
        self.version = 0
        """Grows with each change."""

    async def start(self) -> None:
        """Begin to follow the store; return when all queues are known."""
        self._watch.start()
        await self._watch.listed.wait()

    async def close(self) -> None:
        """Stop following."""
        await self._watch.close()

    def find(self, account: str, name: str) -> KnownQueue | None:
        """Return a queue, None where there is none."""
        return self._accounts.get(account, {}).get(name)

    def by_id(self, queue_id: int) -> KnownQueue | None:
        """Return a queue, None where there is none."""
        return self._by_id.get(queue_id)

    def created_ms(self, queue_id: int) -> int | None:
        """Return when a queue was created, None where it is not known."""
        queue = self._by_id.get(queue_id)
        return None if queue is None else queue.created_ms

    def accounts(self) -> list[str]:
        """Return the accounts that have queues."""
        return [account for account, queues in self._accounts.items() if queues]

    def all(self, account: str | None = None) -> Iterator[KnownQueue]:
        """Yield the queues of an account, or of all accounts."""
        if account is not None:
            yield from self._accounts.get(account, {}).values()
        else:
            yield from self._by_id.values()

    def dead_letters_of(self, queue: KnownQueue) -> int:
        """Return of how many queues the dead letters come to this one."""
        return self._sources.get((queue.account, queue.name), 0)

    def _on_row(self, key: str, value: bytes | None) -> None:
        account, _, name = key.removeprefix(self._prefix).partition("/")
        self.version += 1
        before = self._accounts.get(account, {}).pop(name, None)
        if before is not None:
            self._by_id.pop(before.queue_id, None)
            self._count_source(before, -1)
        if value is None:
            return
        definition = decode_queue_definition(value)
        if definition.state == "deleting":
            return
        target = definition.redrive_policy
        queue = KnownQueue(
            definition.queue_id,
            sys.intern(definition.account_id),
            definition.name,
            definition.is_fifo,
            definition.is_log,
            definition.created_ms,
            None if target is None else (target.target.account_id, target.target.name),
        )
        self._accounts.setdefault(account, {})[name] = queue
        self._by_id[queue.queue_id] = queue
        self._count_source(queue, 1)

    def _count_source(self, queue: KnownQueue, change: int) -> None:
        if queue.dead_letters_to is not None:
            left = self._sources.pop(queue.dead_letters_to, 0) + change
            if left:
                self._sources[queue.dead_letters_to] = left
