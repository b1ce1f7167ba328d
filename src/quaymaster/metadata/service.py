"""The metadata service: the one door to queues, accounts and keys.

    service = MetadataService(store, key_provider, options, now_ms=...)
    await service.start()                  # tables filled, first account and keys made
    service.attach_journal(journal)
    await service.reconcile()              # finish what a crash cut in half
    definition = service.queue(account_id, name)      # plain look-ups from here on
    ...
    await service.close()

Reading is synchronous and from RAM; changing is async and answered when durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from quaymaster.coordination.interface import Coordination
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.metadata.data_key_sweep import LOOK_INTERVAL_MS, DataKeySweep
from quaymaster.metadata.keys.accounts import AccessKey, Accounts
from quaymaster.metadata.keys.data_keys import UPKEEP_FAILS, DataKeys, MasterKeyRotation
from quaymaster.metadata.keys.master_keys import KeyProvider, MasterKeys
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queues.declared_queues import (
    apply_declared_queues,
    load_declared_queues,
    note_nothing,
)
from quaymaster.metadata.queues.queue_journals import QueueJournal
from quaymaster.metadata.queues.queues import Queues
from quaymaster.metadata.store.identity import check_identity
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import ROOT
from quaymaster.monitoring.supervision import supervise
from quaymaster.protocol.rpc.metadata_messages import CountedQueues
from quaymaster.protocol.sqs.receipts import ReceiptHandles

log = logging.getLogger(__name__)

PENDING_TOO_LONG_MS: Final = 60_000
CATCH_UP_MS: Final = 2_000
"""How long is waited for the watch to bring what this process has written."""


class MetadataService:
    """Queues, accounts and keys over one coordination store."""

    def __init__(
        self,
        store: Coordination,
        key_provider: KeyProvider,
        options: MetadataOptions,
        *,
        now_ms: Callable[[], int],
        journal_id: int = 0,
    ) -> None:
        self.region = options.region
        self.account_id = options.account_id
        self._store = store
        self._upkeep_interval_ms = options.upkeep_interval_ms
        self._mirror = Mirror(store, store)
        self.master_keys = MasterKeys(key_provider, self._mirror)
        self.data_keys = DataKeys(self._mirror, self.master_keys, now_ms)
        self.accounts = Accounts(
            self._mirror,
            self.master_keys,
            now_ms,
            count_queues=self._count_queues,
            keys_max=options.quotas.account_access_keys_max,
        )
        self.queues = Queues(
            self._mirror,
            self.accounts,
            options,
            now_ms=now_ms,
            new_data_key=self.data_keys.new_data_key,
            journals=lambda: (journal_id,),
        )
        self.data_key_sweep = DataKeySweep(store, self._mirror, self.queues, now_ms)
        self._rotation = MasterKeyRotation(self._mirror, self.master_keys)
        self._default_key: AccessKey | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # The look-ups of every request, without a step in between.
        self.queue = self.queues.queue
        self.find_queue = self.queues.find
        self.access_key = self.accounts.access_key
        self.data_key = self.data_keys.data_key

    async def start(self) -> None:
        """Read everything, make what a first start needs, and take up a rotation that was cut short.

        Raises:
            KeysUnusable: a master key is missing or damaged.
            StoreUnusable: the store holds what this program cannot read.
        """
        await check_identity(self._store, self.account_id, self.region)
        is_empty = not (await self._store.list_prefix(ROOT, limit=1)).items
        await self._mirror.start()
        try:
            await self.master_keys.start(store_is_empty=is_empty)
            await self.data_keys.start()
            self._default_key = await self.accounts.ensure_default(self.account_id)
        except BaseException:
            await self._mirror.close()
            raise
        self._tasks = [
            supervise(
                asyncio.create_task(
                    self._repeat(self.run_upkeep, self._upkeep_interval_ms), name="metadata-upkeep"
                )
            ),
            supervise(
                asyncio.create_task(
                    self._repeat(self.data_key_sweep.run_if_due, LOOK_INTERVAL_MS), name="data-key-sweep"
                )
            ),
        ]

    async def close(self) -> None:
        """Stop following the store, which stays open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._mirror.close()

    @property
    def default_access_key(self) -> AccessKey | None:
        """The default account's key that `quaymaster env` shows, as of the start; None: all are disabled."""
        return self._default_key

    @property
    def failure(self) -> BaseException | None:
        """Why look-ups are no longer fresh (then nothing should be served); None while all is well."""
        return self._mirror.failure

    @property
    def receipt_handles(self) -> ReceiptHandles:
        """Mints and parses receipt handles with the keys of the moment."""
        return self.data_keys.receipt_handles

    def queue_by_id(self, queue_id: int) -> QueueDefinition | None:
        """Return an active queue by its id, or None."""
        return self.queues.queue_by_id(queue_id)

    def attach_journal(self, journal: QueueJournal) -> None:
        """Say who writes QUEUE_SET and QUEUE_DELETE."""
        self.queues.journals.attach(journal)

    async def reconcile(self) -> int:
        """Finish, at the start, every creation, change and deletion that a crash cut in half.

        Rows that are only to be dropped are left to the upkeep: serving does not wait for thousands of durable writes.
        """
        return await self.queues.finish_pending()

    async def load_queues_file(
        self, path: Path, *, note: Callable[[], Awaitable[None]] = note_nothing
    ) -> int:
        """Create and change the queues a TOML file declares; DeclaredQueuesError. Returns how many changed.

        `note` is called before the first change.
        """
        declared = load_declared_queues(path, region=self.region, account_id=self.account_id)
        return await apply_declared_queues(
            self.queues, declared, path=path, account_id=self.account_id, note=note
        )

    @property
    def master_key_id(self) -> str:
        """The id of the master key that wraps everything now."""
        return self.master_keys.row.current_key_id

    async def rotate_master_key(self) -> str:
        """Make a new master key, wrap everything with it, retire the old one; return its id."""
        return await self._rotation.rotate()

    async def rotate_receipt_key(self) -> int:
        """Sign receipt handles with a new key; those given out stay good for 12 h. Returns its id."""
        return await self.data_keys.rotate_receipt_key()

    async def run_upkeep(self) -> None:
        """Do what is due: a rotation cut short, queues pending too long, keys and sessions past their time."""
        await self._rotation.finish()
        await self.data_keys.drop_old_receipt_keys()
        await self.accounts.drop_expired_sessions()
        await self.accounts.drop_keys_of_deleted_accounts()
        if self.queues.journals.is_attached:
            await self.queues.reconcile(older_than_ms=PENDING_TOO_LONG_MS)

    async def _count_queues(self, account_id: str, at_least: int) -> CountedQueues:
        try:
            async with asyncio.timeout(CATCH_UP_MS / 1000):
                await self._mirror.reached(at_least)
        except TimeoutError:
            raise NotNow("The tables do not show yet which queues there are.") from None
        return self.queues.count(account_id)

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_ms: int) -> None:
        while True:
            try:
                await work()
            except UPKEEP_FAILS as error:
                log.warning("metadata %s failed error=%s", work.__name__, error)
            await asyncio.sleep(interval_ms / 1000)
