"""The registry of a cell as a front end has it: rows in memory, fed by metadata nodes, which make all changes.

    start ──list──▶ rows ◀──changes── metadata node (another one when it fails)
                     │ ▲                   ▲
       look-ups ◀────┘ └── own changes     │ CreateQueue, ... , look-ups of what is not in memory
                           applied at once ┘

Look-ups answer from memory, as fast as in one process. What is not there is asked for (`NotYetKnown`): either it
comes into memory, or there is no such thing in the store.

**When no node answers**, what is known goes on being served, however old: messages flow. What is not known, and every
change, fails as "not now". `age_ms` says how old what is known may be.

Memory is bounded: of queues at most `rows_max` are kept, of data keys DATA_KEYS_KEPT_MAX; the others are asked for when
needed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities
from quaymaster.metadata.limits.known_limits import KnownLimits
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.remote.limit_owners import LimitOwners
from quaymaster.metadata.remote.queues import RemoteQueues
from quaymaster.metadata.remote.read_through import CacheLoader, ReadThroughCache
from quaymaster.metadata.remote.rows import LIST_MS, RemoteLimits, RemoteSource, RemoteStore
from quaymaster.metadata.store.authorization_floor import FollowedFloor
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.identity import Identity, compare_identities
from quaymaster.metadata.store.rows import DATA_KEYS, DATA_KEYS_KEPT_MAX
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.routing.metadata_client import MetadataClient
from quaymaster.protocol.rpc.metadata_messages import CountedQueues, CountQueues, Greet, Greeting

HEARD_MS: Final = 2_000
"""So long a start waits for the first word of how old the node's knowledge is."""


class RemoteRegistry:
    """The same to `MetadataService` as the registry of its own process."""

    def __init__(
        self,
        client: MetadataClient,
        options: MetadataOptions,
        limits: RemoteLimits | None = None,
        *,
        name: str = "",
    ) -> None:
        """`name`: of this front end."""
        self._limits = limits = limits or RemoteLimits()
        self._identity = Identity(options.account_id, options.region)
        self._client = client
        self.lookups = CacheLoader(client, limits)
        store = RemoteStore(client, limits.change_ms)
        self.mirror = ReadThroughCache(store, RemoteSource(client, limits.rows_max), self.lookups)
        self.lookups.mirror = self.mirror
        self.counted_time = CountedTime(self.mirror)  # metadata nodes count
        self.floor = FollowedFloor(self.mirror, lambda: client.age_ms)
        self.accounts = KnownAccounts(self.mirror)
        self.identities = KnownIdentities(self.mirror)
        self.limits = KnownLimits(self.mirror, self.accounts, options.cell_format)
        self.queues = RemoteQueues(client, self.mirror, self.lookups, limits)
        self.limit_owners = LimitOwners(client, name)
        self.data_keys_max = min(limits.rows_max, DATA_KEYS_KEPT_MAX)
        self.miss = self.lookups.miss
        self._meeting: asyncio.Task[None] | None = None
        self.identities.users.on_missing = self.identities.roles.on_missing = self.miss

    async def start(self) -> None:
        """Fill the tables from a node, and follow from then on.

        Raises:
            StoreUnusable: the nodes are another cell's, or keep what this program cannot read.
            NotNow: no node can be reached.
        """
        greeting = await self._client.ask(Greet(), Greeting, deadline_ms=LIST_MS)
        compare_identities(self._identity, Identity(greeting.account_id, greeting.region))
        await self._client.meet()
        self._meeting = supervise(asyncio.create_task(self._client.meet_for_ever(), name="metadata-zones"))
        await self.mirror.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_MS / 1000):
                await self._client.heard.wait()

    async def close(self) -> None:
        """Stop following."""
        if self._meeting is not None:
            self._meeting.cancel()
            await asyncio.gather(self._meeting, return_exceptions=True)
        await self.lookups.close()
        await self.mirror.close()

    async def is_empty(self) -> bool:
        """Tell whether there is nothing in memory that somebody made; nodes have rows of their own in a new store."""
        return not (self.accounts.count_accounts() or len(self.queues) or self.mirror.count(DATA_KEYS))

    @property
    def failure(self) -> BaseException | None:
        """Why changes are no longer taken (then nothing should be served); None while all is well."""
        return self.mirror.failure

    @property
    def age_ms(self) -> float:
        """How old what is known may be."""
        return self._client.age_ms

    def why_not_ready(self) -> str | None:
        """Return why requests should go elsewhere, None when all is well; old knowledge is no reason."""
        return None if self.failure is None else f"Metadata cannot be followed: {self.failure}"

    def samples(self) -> list[Sample]:
        """Give metadata's metrics: a source for `Metrics`."""
        return [
            Sample("quaymaster_metadata_age_seconds", self.age_ms / 1000),
            Sample("quaymaster_metadata_queues", len(self.queues)),
            Sample("quaymaster_metadata_retries_total", self._client.retries),
            Sample("quaymaster_metadata_nodes_silent", self._client.nodes_silent),
            Sample("quaymaster_metadata_other_zone", float(self._client.is_abroad)),
            *(
                Sample("quaymaster_metadata_lookups_total", number, (result,))
                for result, number in self.lookups.results.items()
            ),
        ]

    async def count(self, account_id: str, at_least: int) -> CountedQueues:
        """Return how many queues and consumer groups an account has at a revision or later; NotNow."""
        return await self._client.ask(
            CountQueues(account_id, at_least), CountedQueues, deadline_ms=self._limits.change_ms
        )
