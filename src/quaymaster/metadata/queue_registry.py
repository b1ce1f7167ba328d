"""The registry of a store: its rows in memory, the queues that they define, and what keeps them in order.

    store ──source──▶ rows in memory ──▶ queues, accounts ◀── changes ──▶ journal
                            ▲                                   │
                            └────────── transactions ◀──────────┘

A server has one, and asks it directly; so has each metadata node, which is asked by front ends. It has no master key:
secrets come wrapped, stay wrapped and leave wrapped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from quaymaster.coordination.counted_time import COUNTED_TIME
from quaymaster.coordination.interface import Coordination
from quaymaster.core.values.errors import NotNow
from quaymaster.metadata.data_key_sweep import LOOK_INTERVAL_MS, DataKeySweep
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities
from quaymaster.metadata.limits.known_limits import KnownLimits
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queues.queue_journals import JOURNAL_TIMEOUT_MS, QueueJournal
from quaymaster.metadata.queues.queues import Queues
from quaymaster.metadata.store.authorization_floor import FollowedFloor
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.following import RowSource
from quaymaster.metadata.store.identity import check_identity
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import ROOT
from quaymaster.metadata.upkeep import Upkeep
from quaymaster.monitoring.metrics import Sample
from quaymaster.protocol.rpc.metadata_messages import CountedQueues

PENDING_TOO_LONG_MS: Final = 2 * JOURNAL_TIMEOUT_MS
"""Older changes are not just being made by somebody else."""
CATCH_UP_MS: Final = 2_000
"""How long is waited for the source to bring a revision that somebody has seen."""


class QueueRegistry:
    """Queues and accounts over one coordination store. Several of one store know nothing of each other."""

    data_keys_max: Final = None
    """All of them are kept."""
    limit_owners: Final = None
    """Front ends of a cell ask its metadata nodes; a server has its limits alone."""

    def __init__(
        self,
        store: Coordination,
        options: MetadataOptions,
        *,
        now_ms: Callable[[], int],
        source: RowSource | None = None,
        journals: Callable[[], Sequence[int]] = lambda: (0,),
        node: str = "",
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source` follows the store, unless the store itself does. `node`: its name, among all of this store."""
        self._store = store
        self._options = options
        self.mirror = Mirror(store, source or store, monotonic_s)
        self.counted_time = CountedTime(self.mirror)
        self.floor = FollowedFloor(self.mirror)
        self.accounts = KnownAccounts(self.mirror)
        self.limits = KnownLimits(self.mirror, self.accounts, options.cell_format)
        self.identities = KnownIdentities(self.mirror)
        self.queues = Queues(
            self.mirror, self.accounts, self.identities, options, now_ms=now_ms, journals=journals, node=node
        )
        self.data_key_sweep = DataKeySweep(store, self.mirror, self.queues, now_ms, self.counted_time)
        self._upkeep = Upkeep()

    async def start(self) -> None:
        """Read everything, and keep up with the store.

        Raises:
            StoreUnusable: the store holds what this program cannot read, or is another cell's.
            NotNow: the store cannot be reached.
        """
        await check_identity(self._store, self._options.account_id, self._options.region)
        await self.mirror.start()
        self._upkeep.repeat("counted time", self.counted_time.count, self._options.upkeep_interval_ms)
        self._upkeep.repeat("data key sweep", self.data_key_sweep.run_if_due, LOOK_INTERVAL_MS)
        self.queues.partition_changes.start()
        self._upkeep.repeat("queue upkeep", self.run_upkeep, self._options.upkeep_interval_ms)

    async def close(self) -> None:
        """Stop following the store, which stays open."""
        await self._upkeep.close()
        await self.queues.partition_changes.close()
        await self.mirror.close()

    async def is_empty(self) -> bool:
        """Tell whether nothing was written yet; NotNow."""
        return all(row.key == COUNTED_TIME for row in (await self._store.list_prefix(ROOT, limit=2)).items)

    @property
    def failure(self) -> BaseException | None:
        """Why look-ups are no longer fresh (then nothing should be served); None while all is well."""
        return self.mirror.failure

    def why_not_ready(self) -> str | None:
        """Return why requests should go elsewhere, None when all is well."""
        return None if self.failure is None else f"The metadata store cannot be followed: {self.failure}"

    def samples(self) -> list[Sample]:
        """Give the metrics of the queues and their data keys: a source for `Metrics`."""
        return [
            Sample("quaymaster_metadata_queues", len(self.queues)),
            *(
                Sample("quaymaster_partitions", number, (state,))
                for state, number in self.queues.partition_states.items()
            ),
            *self.data_key_sweep.samples(),
            *self.queues.partition_changes.samples(),
        ]

    def attach_journal(self, journal: QueueJournal) -> None:
        """Say who writes QUEUE_SET and QUEUE_DELETE."""
        self.queues.journals.attach(journal)

    async def reconcile(self) -> int:
        """Finish, at the start, every creation, change and deletion that a crash cut in half.

        Rows that are only to be dropped are left to the upkeep: serving does not wait for thousands of durable writes.
        """
        return await self.queues.finish_pending()

    async def run_upkeep(self) -> None:
        """Finish what others, or this one before its restart, left half done."""
        if self.queues.journals.is_attached:
            await self.queues.reconcile(older_than_ms=PENDING_TOO_LONG_MS)

    async def reached(self, revision: int) -> None:
        """Return when every change up to a revision is known; NotNow when that takes too long."""
        if self.mirror.position >= revision:
            return
        try:
            async with asyncio.timeout(CATCH_UP_MS / 1000):
                await self.mirror.reached(revision)
        except TimeoutError:
            raise NotNow("Not all is known yet that was changed elsewhere.") from None

    async def count(self, account_id: str, at_least: int) -> CountedQueues:
        """Return how many queues and consumer groups an account has at a revision or later; NotNow."""
        await self.reached(at_least)
        return self.queues.count(account_id)

    def miss(self, key: str) -> None:
        """Nothing: what is not in memory is not in the store."""
