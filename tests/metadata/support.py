"""A metadata service over a store that lives on, with a clock and a journal the test owns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from harness.server_metadata import ServerMetadata
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import Coordination, Event
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.errors import (
    CallerError,
    ExpiredToken,
    InvalidClientTokenId,
    QueueDoesNotExist,
    QueueIdTaken,
    QueueRevisionTaken,
)
from quaymaster.core.values.partition_tables import is_newer_table
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, QueueMarks, identity_of
from quaymaster.metadata.keys.key_providers import FileKeyProvider, KeyProvider
from quaymaster.metadata.keys.sessions import NewSession
from quaymaster.metadata.kms.key_service import KeyService
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService

ACCOUNT = "000000000000"
REGION = "us-east-1"
START_MS = 1_700_000_000_000


class Clock:
    """The time, moved by the test: `ms` is what a wall clock shows, which may be set, `elapsed_s` only grows."""

    def __init__(self) -> None:
        self.ms = START_MS
        self.elapsed_s = 0.0

    def __call__(self) -> int:
        return self.ms

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, "time does not run back; a clock may be set back"
        self.elapsed_s += seconds
        self.set_s(seconds)

    def set_s(self, seconds: float) -> None:
        """Set the wall clock forward or back, while no time passes."""
        self.ms += int(seconds * 1000)

    def monotonic_s(self) -> float:
        return self.elapsed_s


class FakeJournal:
    """A journal that keeps the newest revision of each queue, as the real one does; `error` makes calls fail."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueDefinition] = {}
        self.deleted: list[int] = []
        self.seen = QueueMarks()
        self.asked_marks = 0
        self.calls = 0
        self.named: dict[int, set[int]] = {}
        """Data keys that messages of each journal name."""
        self.error: Exception | None = None
        self.before: Callable[[], Awaitable[None]] | None = None

    async def set_queue(self, definition: QueueDefinition, journal_id: int = 0) -> QueueDefinition | None:
        await self._enter()
        known = self.queues.get(definition.queue_id)
        if known is not None and identity_of(known) != identity_of(definition):
            raise QueueIdTaken
        if definition.group_of:
            self._set_group(definition)
            return None
        self.seen.note(definition)
        if known is not None and is_newer_table(known, definition):
            return known
        if known is not None and known.revision >= definition.revision:
            if (known.revision, known.attributes) != (definition.revision, definition.attributes):
                raise QueueRevisionTaken(known.revision)
            return None
        self.queues[definition.queue_id] = definition
        return None

    def _set_group(self, group: QueueDefinition) -> None:
        if group.group_of not in self.queues:
            raise QueueDoesNotExist
        self.seen.note(group)
        self.queues.setdefault(group.queue_id, group)

    async def marks(self, journal_id: int) -> QueueMarks:
        self.asked_marks += 1
        return msgspec.structs.replace(self.seen)

    async def delete_queue(
        self, queue_id: int, identity: QueueIdentity | None = None, journal_id: int | None = None
    ) -> None:
        await self._enter()
        known = self.queues.get(queue_id)
        if identity is not None and known is not None and identity_of(known) != identity:
            raise QueueIdTaken
        self.queues.pop(queue_id, None)
        self.deleted.append(queue_id)

    async def partition(self, queue_id: int, number: int) -> PartitionOutcome:
        raise AssertionError("no test asks one journal about partitions")

    async def data_keys(self, journal_id: int) -> set[int]:
        await self._enter()
        return set(self.named.get(journal_id, ()))

    async def _enter(self) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before()
        if self.error is not None:
            raise self.error


class World:
    """What survives the service: store, keys, journal, clock."""

    def __init__(self, keys: Path, store: Coordination | None = None) -> None:
        self.clock = Clock()
        self.journal: Any = FakeJournal()
        self.journal_ids: tuple[int, ...] = (0,)
        """Journals that take new queues."""
        self.keys = keys
        self.memory = MemoryCoordination()
        self.store: Coordination = store or self.memory
        self.provider: KeyProvider | None = None
        self.key_services: dict[str, KeyService] = {}

    @asynccontextmanager
    async def service(self, **options: Any) -> AsyncIterator[ServerMetadata]:
        """Start a service as a process would; several in a row (or at once) see the same store.

        `options`: fields of `MetadataOptions`.
        """
        of_store = MetadataOptions(REGION, ACCOUNT, upkeep_interval_ms=3_600_000, **options)
        registry = QueueRegistry(
            self.store,
            of_store,
            now_ms=self.clock,
            monotonic_s=self.clock.monotonic_s,
            journals=lambda: self.journal_ids,
        )
        provider = self.provider or FileKeyProvider(self.keys)
        service = ServerMetadata(
            registry, provider, of_store, now_ms=self.clock, key_services=self.key_services
        )
        await service.start()
        registry.attach_journal(self.journal)
        try:
            yield service
        finally:
            await service.close()


def is_good(service: MetadataService, session: NewSession) -> bool:
    """Tell whether a session is taken; raises NotYetKnown."""
    try:
        found = service.session(session.content.access_key_id, session.token)
    except (InvalidClientTokenId, ExpiredToken):
        return False
    assert found.content == session.content
    return True


class ActingStore(MemoryCoordination):
    """A store in which something else happens right before the n-th transaction from now on."""

    has_acted = True

    def act_before(self, step: int, act: Callable[[], Awaitable[object]]) -> None:
        self.has_acted, self._left, self._act = False, step, act

    async def transaction(self, compares, puts=(), deletes=()):  # type: ignore[no-untyped-def]
        if not self.has_acted:
            self._left -= 1
            if self._left < 0:
                self.has_acted = True
                with suppress(CallerError):
                    await self._act()
        return await super().transaction(compares, puts, deletes)


class HeldStore(MemoryCoordination):
    """A store whose first watcher hears of changes only while `told` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()
        self.told.set()
        self._begun = 0

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        is_first = not self._begun
        self._begun += 1
        async for events in super().watch(prefix, after_revision):
            if is_first:
                await self.told.wait()
            yield events


def run(scenario: Callable[[World], Awaitable[None]], keys: Path) -> None:
    """Run a scenario in a world of its own."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario(World(keys))

    asyncio.run(main())


async def eventually(holds: Callable[[], bool]) -> None:
    """Let other tasks run until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
