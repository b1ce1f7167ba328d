"""The metadata service: the one door to queues, accounts and keys, where the master keys are.

    service = MetadataService(registry, key_provider, options, now_ms=...)
    await service.start()                             # rows read, first account and keys made
    definition = service.queue(account_id, name)      # plain look-ups from here on
    ...
    await service.close()

    requests ──▶ look-ups ──in memory──▶ answer
                    └──not there──▶ registry: in this process there is no such row; of metadata nodes it is asked for
    changes of queues ──▶ registry        changes of keys and accounts ──▶ rows, wrapped here and nowhere else

The registry is that of the store in this process (`QueueRegistry`: a server), or the metadata nodes of a cell
(`RemoteRegistry`: a front end). Reading is synchronous and from RAM; changing is async and answered when durable.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from quaymaster.core.values.errors import NotNow, NotYetKnown, UnsupportedOperation
from quaymaster.metadata.alert_rows import drop_alerts_of
from quaymaster.metadata.keyed_queues import KeyedQueues, RegisteredQueues
from quaymaster.metadata.keys.accounts import AccessKey, Accounts
from quaymaster.metadata.keys.data_keys import DataKeys, MasterKeyRotation
from quaymaster.metadata.keys.identities import Identities
from quaymaster.metadata.keys.issuers import Issuers
from quaymaster.metadata.keys.key_providers import KeyProvider, KeysUnusable, MasterKeyMissing
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities
from quaymaster.metadata.keys.master_keys import MasterKeys
from quaymaster.metadata.keys.push_secrets import PushSecretKeys
from quaymaster.metadata.keys.session_keys import SessionKeys
from quaymaster.metadata.keys.sessions import Sessions
from quaymaster.metadata.kms.key_service import KeyService
from quaymaster.metadata.kms.local_keys import LocalKeys
from quaymaster.metadata.kms.queue_keys import QueueKeys
from quaymaster.metadata.limits.known_limits import KnownLimits
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.other_front_ends import OtherFrontEnds
from quaymaster.metadata.push_states import PushStates
from quaymaster.metadata.queues.declared_queues import (
    apply_declared_queues,
    load_declared_queues,
    note_nothing,
)
from quaymaster.metadata.store.authorization_floor import FollowedFloor
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import ACCESS_KEYS
from quaymaster.metadata.upkeep import Upkeep
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample
from quaymaster.net.routing.metadata_client import known, one_request
from quaymaster.protocol.rpc.metadata_messages import BucketReport, CountedQueues, GrantedShares
from quaymaster.protocol.sqs.receipts import ReceiptHandles

KEY_LEAD_MS: Final = 60_000
"""A new key of receipts or sessions is used when every front end that hears of changes at all has had it for long."""

log = logging.getLogger(__name__)

_ACCESS_KEY: Final = re.compile(ACCESS_KEYS + "[A-Z0-9]{20}", re.ASCII)


class LimitOwners(Protocol):
    """The metadata nodes of a cell, as owners of limits (`remote/limit_owners`)."""

    def owner_of(self, account_id: str) -> str | None: ...

    async def report(self, owner: str, reports: list[BucketReport]) -> GrantedShares: ...

    async def probe_for_ever(self) -> None: ...


class Registry(Protocol):
    """The rows of a store, in memory, and its queues."""

    @property
    def mirror(self) -> Mirror: ...

    @property
    def counted_time(self) -> CountedTime: ...

    @property
    def accounts(self) -> KnownAccounts: ...

    @property
    def floor(self) -> FollowedFloor: ...

    @property
    def identities(self) -> KnownIdentities: ...

    @property
    def limits(self) -> KnownLimits: ...

    @property
    def limit_owners(self) -> LimitOwners | None: ...

    @property
    def queues(self) -> RegisteredQueues: ...

    async def is_empty(self) -> bool:
        """Tell whether nothing was written yet: this is the store's first start; NotNow."""
        ...

    @property
    def data_keys_max(self) -> int | None:
        """So many data keys are kept in memory; None: all."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why look-ups are no longer fresh (then nothing should be served); None while all is well."""
        ...

    async def start(self) -> None:
        """Fill memory, and follow from then on; after `close`, again. Raises StoreUnusable, NotNow."""

    async def close(self) -> None: ...

    def why_not_ready(self) -> str | None: ...

    def samples(self) -> list[Sample]: ...

    def miss(self, key: str) -> None:
        """Return when there is no such row; otherwise raise NotYetKnown, or Overloaded."""

    async def count(self, account_id: str, at_least: int) -> CountedQueues:
        """Return how many queues and consumer groups an account has at a revision or later; NotNow."""
        ...


class MetadataService:
    """Queues, accounts and keys of one registry."""

    def __init__(
        self,
        registry: Registry,
        key_provider: KeyProvider,
        options: MetadataOptions,
        *,
        now_ms: Callable[[], int],
        name: str | None = None,
        key_services: Mapping[str, KeyService] | None = None,
    ) -> None:
        """`name`: of this front end, where others may have the master keys too. `key_services`: see `QueueKeys`."""
        self.region = options.region
        self.account_id = options.account_id
        self.registry = registry
        self._upkeep_interval_ms = options.upkeep_interval_ms
        mirror = registry.mirror
        self._others = (
            None
            if name is None
            else OtherFrontEnds(
                mirror, key_provider, name=name, now_ms=now_ms, counted_time=registry.counted_time
            )
        )
        self.master_keys = MasterKeys(
            key_provider,
            mirror,
            check_new=None if self._others is None else self._others.check_all_have,
            retires_with_others=self._others is not None,
            cell_format=options.cell_format,
        )
        lead_ms = 0 if self._others is None else KEY_LEAD_MS
        self.data_keys = DataKeys(
            mirror,
            self.master_keys,
            now_ms,
            counted_time=registry.counted_time,
            capacity=registry.data_keys_max,
            receipt_key_lead_ms=lead_ms,
            on_missing=registry.miss,
        )
        self.accounts = Accounts(
            registry.accounts,
            registry.identities,
            mirror,
            self.master_keys,
            now_ms,
            count_queues=registry.count,
            on_missing=self._miss_access_key,
            keys_max=options.quotas.account_access_keys_max,
            cell_format=options.cell_format,
            on_deleted=self._drop_rows_of,
        )
        self.identities = Identities(
            registry.identities,
            registry.accounts,
            mirror,
            now_ms,
            quotas=options.quotas,
            cell_format=options.cell_format,
        )
        self.limits = registry.limits
        self.session_keys = SessionKeys(
            mirror,
            self.master_keys,
            now_ms,
            cell_format=options.cell_format,
            counted_time=registry.counted_time,
            lead_ms=lead_ms,
            on_missing=registry.miss,
        )
        self.issuers = Issuers(mirror, now_ms, cell_format=options.cell_format)
        self.sessions = Sessions(
            self.session_keys, self.accounts, self.identities, now_ms, age_ms=lambda: registry.floor.age_ms
        )
        self.local_keys = LocalKeys(
            mirror,
            self.master_keys,
            now_ms,
            accounts=registry.accounts,
            region=options.region,
            cell_format=options.cell_format,
            counted_time=registry.counted_time,
        )
        self.queue_keys = QueueKeys(
            options.kms,
            key_services or {},
            self.local_keys,
            mirror,
            self.data_keys,
            region=options.region,
            cell_format=options.cell_format,
            now_ms=now_ms,
        )
        self._key_provider = key_provider
        self.push_secrets = PushSecretKeys(
            mirror,
            self.master_keys,
            now_ms,
            cell_format=options.cell_format,
            counted_time=registry.counted_time,
        )
        self.push_states = PushStates(mirror, now_ms)
        self.queues = KeyedQueues(registry.queues, self.data_keys, mirror, options, self.push_secrets)
        self._rotation = MasterKeyRotation(mirror, self.master_keys)
        self._default_key: AccessKey | None = None
        self._upkeep = Upkeep()
        # The look-ups of every request, without a step in between.
        self.queue = self.queues.queue
        self.find_queue = self.queues.find
        self.access_key = self.accounts.access_key
        self.floor = registry.floor
        self.user = self.identities.user
        self.role = self.identities.role
        self.session = self.sessions.find
        self.data_key = self.data_keys.data_key

    def _miss_access_key(self, key: str) -> None:
        # Anybody can make up credentials; what is no key's id costs no look-up.
        if _ACCESS_KEY.fullmatch(key) is not None:
            self.registry.miss(key)

    async def _drop_rows_of(self, account_id: str) -> None:
        await self.registry.limits.drop_all_of(account_id)
        await drop_alerts_of(self.registry.mirror, account_id)

    async def start(self) -> None:
        """Read everything, make what a first start needs, and take up a rotation that was cut short.

        Raises:
            KeysUnusable: a master key is missing or damaged here.
            StoreUnusable: the store holds what this program cannot read, or is another account's or region's.
            NotNow: the store, or the node that has its rows, cannot be reached.
        """
        try:
            await self.registry.start()
            await self._start_keys()
            await self.data_keys.start()
            await self.session_keys.start()
            self._default_key = await self.accounts.ensure_default(self.account_id)
            if self._others is not None:
                with suppress(NotNow):  # the store cannot be written now; upkeep tries again
                    await self._others.note_own_keys()
        except BaseException:
            await self._close_keys()
            await self.registry.close()
            raise
        # Who is not alone has just told the others of itself.
        is_due = self._others is None
        self._upkeep.repeat("metadata upkeep", self.run_upkeep, self._upkeep_interval_ms, is_due=is_due)

    async def _start_keys(self) -> None:
        try:
            await self.master_keys.start(store_is_empty=await self.registry.is_empty())
        except MasterKeyMissing as missing:
            if self._others is None:
                raise
            raise KeysUnusable(
                f"{missing} The front ends of a cell share their master keys: copy {missing.key_id}.key (mode "
                "0600) from keys/ of a front end that runs."
            ) from None

    async def close(self) -> None:
        """Stop following the store, which stays open."""
        await self._upkeep.close()
        await self._close_keys()
        await self.registry.close()

    async def _close_keys(self) -> None:
        await self.queue_keys.close()
        await self.master_keys.close()
        await self._key_provider.close()

    @property
    def limit_owners(self) -> LimitOwners | None:
        """Who divides limits among the front ends of a cell; None: there are no others."""
        return self.registry.limit_owners

    def count_front_ends(self) -> int:
        """Return how many front ends of the cell were heard of lately, with this one."""
        return 1 if self._others is None else self._others.count_alive()

    @property
    def default_access_key(self) -> AccessKey | None:
        """The default account's key that `quaymaster env` shows, as of the start; None: all are disabled."""
        return self._default_key

    @property
    def receipt_handles(self) -> ReceiptHandles:
        """Mints and parses receipt handles with the keys of the moment."""
        return self.data_keys.receipt_handles

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
            changed = await apply_declared_queues(
                self.queues, declared, path=path, account_id=self.account_id, note=note
            )
        log_event(log, logging.INFO, "declared queues loaded", changed=changed)
        return changed

    @property
    def master_key_id(self) -> str:
        """The id of the master key that wraps everything now."""
        return self.master_keys.master_key_id

    async def rotate_master_key(self) -> str:
        """Make a new master key, or take the one that was made and copied; wrap everything with it; retire the old.

        Returns its id. UnsupportedOperation says why it cannot be used, and names front ends that lack it: nothing
        was changed then.
        """
        try:
            return await self._rotation.rotate()
        except KeysUnusable as error:
            raise UnsupportedOperation(str(error)) from None

    async def rotate_receipt_key(self) -> int:
        """Sign receipt handles with a new key, once every front end knows it; those given out stay good for 12 h.

        Returns its id.
        """
        return await self.data_keys.rotate_receipt_key()

    async def rotate_session_key(self) -> int:
        """Encrypt session tokens with a new key, once every front end knows it; those given out stay good.

        Returns its id. UnsupportedOperation in a cell of an older format.
        """
        return await self.session_keys.rotate()

    async def run_upkeep(self) -> None:
        """Do what is due: a rotation cut short, keys past their time."""
        if self._others is not None:
            await self._others.note_own_keys()
            await self._others.begin_counting()
        await self._rotation.finish()
        self.data_keys.take_receipt_keys()
        await self.data_keys.drop_old_receipt_keys()
        await self.session_keys.keep_up()
        await self.accounts.drop_stored_sessions()
        await self.push_secrets.drop_older_keys()
        self.queue_keys.drop_expired()
        await self.local_keys.schedule_those_of_deleted_accounts()
        await self.local_keys.drop_due()
        await self.limits.drop_those_of_deleted_accounts()
        await self.accounts.drop_keys_of_deleted_accounts()
        await self.identities.drop_those_of_deleted_accounts()
        await self.accounts.drop_keys_of_deleted_users()
