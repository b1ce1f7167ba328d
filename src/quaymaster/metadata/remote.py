"""Metadata as a front end of a cell has it: in memory, fed by metadata nodes; secrets unwrapped here and nowhere else.

    start ──list──▶ tables ◀──changes── metadata node (another one when it fails)
                      │ ▲                    ▲
     find_queue, ◀────┘ └── own changes      │ CreateQueue, ... , look-ups of what is not in memory
     access_key, data_key   applied at once ─┘

Look-ups answer from memory, as fast as in one process. What is not there is asked for (`NotYetKnown`): either it
comes into memory, or there is no such thing in the store.

**When no node answers**, what is known goes on being served, however old: messages flow. What is not known, and every
change, fails as "not now". `age_ms` says how old what is known may be.

Memory is bounded: of queues at most `rows_max` are kept, of data keys DATA_KEYS_KEPT_MAX; the others are asked for when
needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from quaymaster.coordination.interface import (
    Put,
)
from quaymaster.core.values.errors import (
    NotNow,
    NotYetKnown,
    UnsupportedOperation,
)
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.metadata.keys.accounts import AccessKey, Accounts
from quaymaster.metadata.keys.data_keys import UPKEEP_FAILS, DataKeys, MasterKeyRotation
from quaymaster.metadata.keys.master_keys import KeyProvider, KeysUnusable, MasterKeyMissing, MasterKeys
from quaymaster.metadata.options import UPKEEP_INTERVAL_MS, MetadataOptions
from quaymaster.metadata.queues.declared_queues import (
    apply_declared_queues,
    load_declared_queues,
    note_nothing,
)
from quaymaster.metadata.read_through import CacheLoader, ReadThroughCache
from quaymaster.metadata.remote_queues import RemoteQueues
from quaymaster.metadata.remote_rows import (
    LIST_MS,
    RemoteLimits,
    RemoteSource,
    RemoteStore,
)
from quaymaster.metadata.store.identity import Identity, compare_identities
from quaymaster.metadata.store.mirror import MirrorTable
from quaymaster.metadata.store.other_clocks import OtherClocks
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    DATA_KEYS_KEPT_MAX,
    READERS,
    ReaderRow,
    encode_row,
    row_decoder,
)
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.routing.metadata_client import MetadataClient, known, one_request
from quaymaster.protocol.rpc.metadata_messages import (
    CountedQueues,
    CountQueues,
    Greet,
    Greeting,
)
from quaymaster.protocol.sqs.receipts import ReceiptHandles

log = logging.getLogger(__name__)

HEARD_MS: Final = 2_000
"""So long a start waits for the first word of how old the node's knowledge is."""
RECEIPT_KEY_LEAD_MS: Final = 60_000
"""A new receipt key signs when every front end that hears of changes at all has had it for long."""
READER_GONE_MS: Final = 5 * UPKEEP_INTERVAL_MS
"""A front end not heard of for longer is gone, and need not have a new master key."""

_ACCESS_KEY: Final = re.compile(ACCESS_KEYS + "[A-Z0-9]{20}", re.ASCII)


async def _count_queues(
    client: MetadataClient, deadline_ms: int, account_id: str, at_least: int
) -> CountedQueues:
    return await client.ask(CountQueues(account_id, at_least), CountedQueues, deadline_ms=deadline_ms)


class RemoteMetadata:
    """What a front end of a cell asks of metadata; the same to it as `MetadataService`. Has the master keys."""

    def __init__(
        self,
        client: MetadataClient,
        key_provider: KeyProvider,
        *,
        name: str,
        options: MetadataOptions,
        now_ms: Callable[[], int],
        limits: RemoteLimits | None = None,
    ) -> None:
        limits = limits or RemoteLimits()
        self.name = name
        self.region = options.region
        self.account_id = options.account_id
        self._client = client
        self._now_ms = now_ms
        self._provider = key_provider
        self._upkeep_interval_ms = options.upkeep_interval_ms
        self.lookups = CacheLoader(client, limits)
        store = RemoteStore(client, limits.change_ms)
        self._mirror = ReadThroughCache(store, RemoteSource(client, limits.rows_max), self.lookups)
        self.lookups.mirror = self._mirror
        self._readers: MirrorTable[ReaderRow] = self._mirror.table(READERS, row_decoder(ReaderRow))
        self._other_clocks = OtherClocks()
        self.master_keys = MasterKeys(
            key_provider, self._mirror, check_new=self._check_all_have, retires_with_others=True
        )
        self.data_keys = DataKeys(
            self._mirror,
            self.master_keys,
            now_ms,
            capacity=min(limits.rows_max, DATA_KEYS_KEPT_MAX),
            receipt_key_lead_ms=RECEIPT_KEY_LEAD_MS,
            on_missing=self.lookups.miss,
        )
        self.accounts = Accounts(
            self._mirror,
            self.master_keys,
            now_ms,
            count_queues=partial(_count_queues, client, limits.change_ms),
            on_missing=self._miss_access_key,
            keys_max=options.quotas.account_access_keys_max,
            cell_format=options.cell_format,
        )
        self.queues = RemoteQueues(
            client, self._mirror, self.lookups, self.data_keys, limits, options.cell_format
        )
        self._rotation = MasterKeyRotation(self._mirror, self.master_keys)
        self._default_key: AccessKey | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        # The look-ups of every request, without a step in between.
        self.queue = self.queues.queue
        self.find_queue = self.queues.find
        self.journal_of = self.queues.journal_of
        self.access_key = self.accounts.access_key
        self.data_key = self.data_keys.data_key

    def _miss_access_key(self, key: str) -> None:
        # Anybody can make up credentials; what is no key's id costs no look-up.
        if _ACCESS_KEY.fullmatch(key) is not None:
            self.lookups.miss(key)

    async def start(self) -> None:
        """Fill the tables from a node, make what a cell's first start needs, and follow from then on.

        Raises:
            KeysUnusable: a master key is missing or damaged here.
            StoreUnusable: the nodes are another cell's, or keep what this program cannot read.
            NotNow: no node can be reached.
        """
        greeting = await self._client.ask(Greet(), Greeting, deadline_ms=LIST_MS)
        compare_identities(
            Identity(self.account_id, self.region), Identity(greeting.account_id, greeting.region)
        )
        await self._mirror.start()
        try:
            await self._start_keys()
            await self.data_keys.start()
            self._default_key = await self.accounts.ensure_default(self.account_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARD_MS / 1000):
                    await self._client.heard.wait()
            with contextlib.suppress(NotNow):  # the store cannot be written now; upkeep tries again
                await self._note_reader()
        except BaseException:
            await self._mirror.close()
            raise
        self._upkeep_task = supervise(asyncio.create_task(self._upkeep(), name="metadata-upkeep"))

    async def _start_keys(self) -> None:
        is_empty = not (self.data_keys.has_keys or self.accounts.count_accounts())
        try:
            await self.master_keys.start(store_is_empty=is_empty)
        except MasterKeyMissing as missing:
            raise KeysUnusable(
                f"{missing} The front ends of a cell share their master keys: copy {missing.key_id}.key (mode "
                "0600) from keys/ of a front end that runs."
            ) from None

    async def close(self) -> None:
        """Stop following."""
        if self._upkeep_task:
            self._upkeep_task.cancel()
            await asyncio.gather(self._upkeep_task, return_exceptions=True)
        await self.lookups.close()
        await self._mirror.close()

    @property
    def default_access_key(self) -> AccessKey | None:
        """The default account's key that `quaymaster env` shows, as of the start; None: all are disabled."""
        return self._default_key

    @property
    def failure(self) -> BaseException | None:
        """Why changes are no longer taken (then nothing should be served); None while all is well."""
        return self._mirror.failure

    @property
    def age_ms(self) -> float:
        """How old what is known may be."""
        return self._client.age_ms

    def why_not_ready(self) -> str | None:
        """Return why requests should go elsewhere, None when all is well; old knowledge is no reason."""
        return None if self.failure is None else f"Metadata cannot be followed: {self.failure}"

    def samples(self) -> list[Sample]:
        """Give metadata's metrics: a source for `Metrics`."""
        age_s = self._client.age_ms / 1000
        return [
            Sample("quaymaster_metadata_age_seconds", age_s),
            Sample("quaymaster_metadata_queues", len(self.queues)),
            Sample("quaymaster_metadata_retries_total", self._client.retries),
            Sample("quaymaster_metadata_nodes_silent", self._client.nodes_silent),
            *(
                Sample("quaymaster_metadata_lookups_total", number, (result,))
                for result, number in self.lookups.results.items()
            ),
        ]

    @property
    def receipt_handles(self) -> ReceiptHandles:
        """Mints and parses receipt handles with the keys of the moment."""
        return self.data_keys.receipt_handles

    @property
    def master_key_id(self) -> str:
        """The id of the master key that wraps everything now."""
        return self.master_keys.row.current_key_id

    async def load_queues_file(
        self, path: Path, *, note: Callable[[], Awaitable[None]] = note_nothing
    ) -> int:
        """Create and change the queues a TOML file declares; DeclaredQueuesError. Returns how many changed.

        `note` is called before the first change.
        """
        declared = load_declared_queues(path, region=self.region, account_id=self.account_id)
        with one_request():
            for queue in declared:
                try:
                    self.find_queue(self.account_id, queue.name)
                except NotYetKnown as unknown:
                    await known(unknown)
            return await apply_declared_queues(
                self.queues, declared, path=path, account_id=self.account_id, note=note
            )

    async def rotate_master_key(self) -> str:
        """Make a new master key, or take the one that was made and copied; wrap everything with it; retire the old.

        UnsupportedOperation names the front ends that do not have it yet: nothing was changed then.
        """
        try:
            return await self._rotation.rotate()
        except KeysUnusable as error:
            raise UnsupportedOperation(str(error)) from None

    async def rotate_receipt_key(self) -> int:
        """Sign receipt handles with a new key, once every front end knows it. Returns its id."""
        return await self.data_keys.rotate_receipt_key()

    async def run_upkeep(self) -> None:
        """Do what is due: a rotation cut short, keys and sessions past their time."""
        await self._note_reader()
        await self._rotation.finish()
        self.data_keys.take_receipt_keys()
        await self.data_keys.drop_old_receipt_keys()
        self.accounts.other_ms = self._other_clocks.look(
            {row.name: row.seen_ms for _, row in self._readers.items() if row.name != self.name}
        )
        await self.accounts.drop_expired_sessions()
        await self.accounts.drop_keys_of_deleted_accounts()

    async def _note_reader(self) -> None:
        key_ids = tuple(await asyncio.to_thread(self._provider.key_ids))
        row = ReaderRow(self.name, key_ids, self._now_ms())
        await self._mirror.transact([], [Put(READERS + self.name, encode_row(row))])

    def _check_all_have(self, key_id: str) -> None:
        now_ms = self._now_ms()
        without = sorted(
            row.name
            for _, row in self._readers.items()
            if row.name != self.name
            and not has_passed(row.seen_ms, READER_GONE_MS, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS)
            and key_id not in row.key_ids
        )
        if without:
            raise KeysUnusable(
                f"Nothing was rotated: the front ends {', '.join(without)} do not have the new master key {key_id}. "
                f"Unless they read the key directory of {self.name}, give it to them ({key_id}.key from there, mode "
                f"0600; or QUAYMASTER_MASTER_KEY_PREVIOUS); then wait half a minute, and rotate again."
            )

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(self._upkeep_interval_ms / 1000)
            try:
                await self.run_upkeep()
            except UPKEEP_FAILS as error:
                log.warning("metadata upkeep failed error=%s", error)
