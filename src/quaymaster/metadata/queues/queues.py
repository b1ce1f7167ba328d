"""Queues as they are made, changed and deleted, and the two steps that keep metadata and journal of one mind.

    CreateQueue ──▶ creating ──QUEUE_SET──▶ active ──DeleteQueue──▶ deleting ──QUEUE_DELETE──▶ gone, name resting
                                             │  ▲
                               SetAttributes └──┘ QUEUE_SET of the next revision

Each arrow starts with a transaction that also leaves a `pending` row, then tells the journal (idempotent by
revision), then takes the row away. What a crash or an unreachable journal cuts in half, `reconcile` finishes: the
pending rows say where.

A caller is answered when metadata and journal are both durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from quaymaster.coordination.interface import (
    ABSENT,
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Put,
    RevisionMismatch,
)
from quaymaster.core.partition.consumer_groups import check_start
from quaymaster.core.partition.partition_moves import NUMBERED_MOVES
from quaymaster.core.queues.defined_queues import GROUPS_MAX
from quaymaster.core.values.attribute_rules import change_attributes, create_attributes, spelled
from quaymaster.core.values.attributes import (
    GROUP_START,
    KMS_KEY,
    LOG,
    POLICY,
    REDRIVE_POLICY,
    RETENTION_MODE,
)
from quaymaster.core.values.errors import (
    CallerError,
    NotNow,
    OverLimit,
    Overloaded,
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueIdTaken,
    QueueNameExists,
    QueueRevisionTaken,
    Timeout,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import KEYED_IDS, LOG_QUEUES, SHARED_DATA_KEYS, CellFormat
from quaymaster.core.values.policies import invalid_redrive_policy
from quaymaster.core.values.queue_definitions import (
    QueueDefinition,
    differing_attribute,
    encode_queue_definition,
    one_partition,
    replace_definition,
)
from quaymaster.core.values.queue_marks import QueueIdentity, QueueMarks, identity_of
from quaymaster.core.values.queue_names import check_group_name, split_group
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.queues.id_guard import MARKS_ASKED, IdGuard, LostAttributes
from quaymaster.metadata.queues.known_queues import KnownQueues, journal_ids_of
from quaymaster.metadata.queues.permissions import add_permission, remove_permission
from quaymaster.metadata.queues.placement import choose_journal
from quaymaster.metadata.store.ids import IdAllocator
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.metadata.store.rows import (
    ACCOUNT_KEYS,
    DATA_KEYS,
    DELETED,
    MASTER_KEY,
    PENDING,
    PURGES,
    QUEUES,
    AccountKeyRow,
    DeletedRow,
    PendingRow,
    PurgeRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.protocol.actions.validation import check_tags
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    CancelPurge,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    NewDataKey,
    QueueChange,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)
from quaymaster.protocol.sqs.internal_queues import is_internal

log = logging.getLogger(__name__)

Item = TypeVar("Item")

ATTEMPTS_MAX: Final = 16
JOURNAL_TIMEOUT_MS: Final = 30_000
LATE_SET_MS: Final = 2 * JOURNAL_TIMEOUT_MS
"""When a journal has been told of a queue by every node that meant to before the queue was deleted."""
RECONCILED_AT_ONCE: Final = 32
"""So many queues that were left half done are finished at the same time."""
DROPPED_AT_ONCE: Final = TRANSACTION_OPERATIONS_MAX // 2
"""Each row that is dropped takes two operations of a transaction."""


class QueueJournal(Protocol):
    """The journal's side of a queue's life. Each call returns when its record is committed and durable."""

    async def set_queue(self, definition: QueueDefinition) -> None:
        """Make the journal know the queue at this revision; idempotent.

        QueueRevisionTaken if it has a later one, or other attributes of this one.
        """
        ...

    async def delete_queue(self, queue_id: int, identity: QueueIdentity | None = None) -> None:
        """Make the journal forget the queue and its messages; idempotent, also for a queue it never knew.

        `identity`: who it must be; QueueIdTaken if the journal has another one under this id.
        """
        ...

    async def marks(self, journal_id: int) -> QueueMarks:
        """Return the highest ids that a journal ever saw."""
        ...

    async def data_keys(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name; NotNow when its leader does not answer."""
        ...


QUEUES_PER_DATA_KEY: Final = 1_024
"""So many queues of an account share a data key; a few more, when several are created at the same moment."""


class DataKeyStale(Exception):
    """Nothing was done: the queue needs a new data key, and none was given, or the master key was rotated since."""


class Queues(KnownQueues):
    """Queues that can be changed: `KnownQueues` says what they are, and what is here is async."""

    def __init__(
        self,
        mirror: Mirror,
        *,
        accounts: KnownAccounts,
        region: str,
        now_ms: Callable[[], int],
        new_data_key: Callable[[], Awaitable[NewDataKey]] | None = None,
        purge_interval_s: int = 60,
        queue_name_reuse_s: int = 60,
        journals: Callable[[], Sequence[int]] = lambda: (0,),
        journal_timeout_ms: int = JOURNAL_TIMEOUT_MS,
        cell_format: CellFormat | None = None,
        quotas: Quotas | None = None,
        node: str = "",
    ) -> None:
        """`node`: the name of whoever changes queues, among all who do."""
        super().__init__(mirror, region=region, quotas=quotas)
        self._mirror = mirror
        self._accounts = accounts
        self._now_ms = now_ms
        self._purge_interval_s = purge_interval_s
        self._reuse_s = queue_name_reuse_s
        self._new_data_key = new_data_key
        self._journals = journals
        self._journal_timeout_ms = journal_timeout_ms
        self._cell_format = cell_format or CellFormat()
        self._journal: QueueJournal | None = None
        self._ids = IdAllocator(mirror.store, "queue", node)
        self._guard = IdGuard(mirror.store, self._ids, self._ask_marks)
        self._pending: MirrorTable[PendingRow] = mirror.table(PENDING, row_decoder(PendingRow))
        self.account_keys: MirrorTable[AccountKeyRow] = mirror.table(
            ACCOUNT_KEYS, row_decoder(AccountKeyRow), self._on_account_key
        )
        """The data key of each account's new queues."""
        self._account_with_key: dict[int, str] = {}
        self._purges: MirrorTable[PurgeRow] = mirror.table(PURGES, row_decoder(PurgeRow))
        self.lost_attributes = LostAttributes()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def attach_journal(self, journal: QueueJournal) -> None:
        """Say who writes QUEUE_SET and QUEUE_DELETE. Needed before anything is created, set or deleted."""
        self._journal = journal

    async def raise_ids(self, marks: QueueMarks) -> None:
        """Give no ids that a journal has seen: it was decided to go on with a store that is behind it."""
        await self._guard.raise_to(marks)

    async def tell_again(self, definition: QueueDefinition) -> None:
        """Tell the journal of an active queue as the store has it, whatever later changes the journal knows of."""
        try:
            await self._tell_journal(definition)
        except QueueRevisionTaken:
            await self._settle(definition, [self.rows.compare(_suffix(definition))])

    def what_is_settled(self) -> tuple[dict[int, QueueDefinition], set[int]]:
        """Return all queues by id, and the ids of those about which the journal is still to be told something."""
        stored = {definition.queue_id: definition for _, definition in self.rows.items()}
        unsettled = {row.queue_id for _, row in self._pending.items()}
        unsettled |= {row.queue_id for _, row in self.deleted.items()}
        return stored, unsettled

    @property
    def problem(self) -> str | None:
        """Why no queue is created before an operator has decided; None when nothing of that kind was found."""
        return self._guard.problem

    def distrust_store(self) -> None:
        """The store was away, and may have come back as it was before: give no id before the journals are asked."""
        self._guard.distrust()

    async def _ask_marks(self) -> list[QueueMarks]:
        if not self._cell_format.version_of(MARKS_ASKED):
            return []  # a broker of the cell may not know the question
        assert self._journal is not None, "a journal is attached before queues are created"
        return [await self._journal.marks(journal_id) for journal_id in self._journals()]

    @property
    def has_journal(self) -> bool:
        """Tell whether queues can be created, set and deleted."""
        return self._journal is not None

    async def data_keys_in(self, journal_id: int) -> set[int]:
        """Return the data keys that a journal's messages name; NotNow when its leader does not answer."""
        assert self._journal is not None, "a journal is attached before it is asked"
        return await self._journal.data_keys(journal_id)

    def account_with_key(self, data_key_id: int) -> str | None:
        """Return the account whose new queues have this data key, or None."""
        return self._account_with_key.get(data_key_id)

    def _on_account_key(self, account_id: str, old: AccountKeyRow | None, new: AccountKeyRow | None) -> None:
        if old is not None:
            self._account_with_key.pop(old.key_id, None)
        if new is not None:
            self._account_with_key[new.key_id] = account_id

    async def refresh(self, definition: QueueDefinition) -> None:
        """Nothing: whoever changes queues here has them in memory."""

    # Changing

    async def change(self, request: QueueChange) -> QueueDefinition:
        """Do what is asked (see `protocol/rpc/metadata_messages`), and return the queue as it then is.

        Raises:
            QueueDoesNotExist: there is no such queue.
            InvalidClientTokenId: the account is disabled or deleted.
            DataKeyStale: a new data key is needed; the one given was wrapped before the master key was rotated.
            QueueNameExists: what is to be created has another value for an attribute, which the error names.
            OverLimit: the account, or the queue, has as many of something as it may have.
            QueueDeletedRecently: the name has not rested for `queue_name_reuse_s`.
            PurgeQueueInProgress: it is within `purge_interval_s` of the one before.
            InvalidParameterValue, InvalidAttributeName, InvalidAttributeValue: name or attributes cannot be.
        """
        match request:
            case CreateQueue():
                return await self._create(request)
            case SetAttributes():
                return await self._set_attributes(request)
            case AddPermission():
                return await self._add_permission(request)
            case RemovePermission():
                return await self._remove_permission(request)
            case TagQueue():
                return await self._tag(request)
            case UntagQueue():
                return await self._untag(request)
            case DeleteQueue():
                return (await self._delete(request))[0]
            case BeginPurge():
                return await self._begin_purge(request)
            case CancelPurge():
                return await self._cancel_purge(request)
            case CreateGroup():
                return await self._create_group(request)

    async def change_row(self, request: QueueChange) -> tuple[QueueDefinition, int]:
        """Do what is asked; return the queue's row of one moment, and that moment's revision.

        Of a deleted queue it is the revision from when on nobody found it. Raises as `change`, and NotNow when the
        queue was deleted meanwhile.
        """
        if isinstance(request, DeleteQueue):
            return await self._delete(request)
        definition = await self.change(request)
        row = self.row(request.account_id, request.name)
        if row is None or row[0].queue_id != definition.queue_id:
            raise NotNow("The queue was deleted at the same time.")
        return row

    # Creating

    async def _create(self, request: CreateQueue) -> QueueDefinition:
        account_id, name, data_key = request.account_id, request.name, request.data_key
        given = request.attributes
        attributes = create_attributes(self.arn_of(account_id, name), given)
        if RETENTION_MODE.of(attributes) == LOG and not self._cell_format.version_of(LOG_QUEUES):
            raise UnsupportedOperation(
                "Log-retained queues can be created once all processes of this cell run this version: "
                "`quaymaster cell upgrade`."
            )
        asked = spelled(attributes, given)
        suffix = f"{account_id}/{name}"
        async with self._only_one(suffix):
            async for _ in _attempts(suffix):
                existing = self.rows.get(suffix)
                # From the same moment as what is decided on it: other nodes go on while ids are fetched.
                unchanged = [self.rows.compare(suffix), self.deleted.compare(suffix)]
                if existing is None:
                    unchanged.append(self._accounts.check_open(account_id))
                    self._check_dead_letter_target(account_id, name, attributes, given)
                    self._check_name_has_rested(suffix)
                    if not is_internal(account_id, name):
                        self._quotas.check_queue(account_id, has_policy=POLICY.name in attributes)
                    existing = await self._begin_creation(
                        account_id, name, attributes, request.tags, data_key, unchanged
                    )
                elif existing.state == "deleting":
                    if self._reuse_s:
                        raise QueueDeletedRecently(self._reuse_s)
                    await self._finish_deletion(existing)
                    continue
                else:
                    difference = differing_attribute(existing, asked)
                    if difference is not None:
                        raise QueueNameExists(difference)
                if existing is not None:
                    active = await self._finish_creation(existing)
                    if active is not None:
                        return active
            raise Overloaded

    async def _begin_creation(
        self,
        account_id: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        given_data_key: NewDataKey | None,
        unchanged: Sequence[Compare],
    ) -> QueueDefinition | None:
        """Store the queue as `creating`; None when something it rests on changed meanwhile."""
        suffix = f"{account_id}/{name}"
        predecessor = self.deleted.get(suffix)
        # A queue that is created with a key of its own has a data key of its own.
        shares_key = bool(self._cell_format.version_of(SHARED_DATA_KEYS)) and KMS_KEY.name not in attributes
        shared = self.account_keys.get(account_id) if shares_key else None
        # From the moment of the look: whoever takes the account's key away, or gives it another, is noticed.
        key_unchanged = [self.account_keys.compare(account_id)] if shares_key else []
        key_puts: list[Put] = []
        await self._guard.check()
        queue_id = await self._ids.next_id()
        block = self._ids.block_compare()
        if shared is not None and self.queues_with_key(shared.key_id) < QUEUES_PER_DATA_KEY:
            data_key_id = shared.key_id
        else:
            data_key = given_data_key or await self._make_data_key()
            data_key_id = data_key.key_id
            if data_key_id <= self._guard.data_key_floor:
                raise DataKeyStale  # set aside by a store that has gone back: a journal may have messages under it
            key_row = DATA_KEYS + id_text(data_key_id)
            key_unchanged += [Compare(MASTER_KEY, data_key.master_key_revision), Compare(key_row, ABSENT)]
            key_puts.append(Put(key_row, data_key.row))
            if shares_key:
                key_puts.append(Put(ACCOUNT_KEYS + account_id, encode_row(AccountKeyRow(data_key_id))))
        now_ms = self._now_ms()
        definition = QueueDefinition(
            queue_id=queue_id,
            account_id=account_id,
            name=name,
            state="creating",
            revision=1,
            created_ms=now_ms,
            modified_ms=now_ms,
            attributes=dict(attributes),
            tags=dict(tags),
            data_key_id=data_key_id,
            partitions=one_partition(choose_journal(self, self._journals(), account_id, name, attributes)),
            has_keyed_ids=bool(self._cell_format.version_of(KEYED_IDS)),
        )
        puts = [
            *key_puts,
            Put(QUEUES + suffix, encode_queue_definition(definition)),
            Put(PENDING + suffix, encode_row(PendingRow(queue_id, now_ms))),
        ]
        if predecessor is not None:  # the journal is told of its deletion once more, see `_drop_old_rows`
            puts.append(Put(DELETED + id_text(predecessor.queue_id), encode_row(predecessor)))
        try:
            await self._mirror.transact(
                [block, *key_unchanged, *unchanged],
                puts,
                [DELETED + suffix],
            )
        except RevisionMismatch as mismatch:
            if given_data_key is not None and mismatch.key.startswith((MASTER_KEY, DATA_KEYS)):
                raise DataKeyStale from None
            self._note_lost_block(mismatch)
            return None
        return definition

    def _note_lost_block(self, mismatch: RevisionMismatch) -> None:
        if mismatch.key == self._ids.block_key:
            log.warning(
                "ids set aside are unknown to the store key=%s revision=%d", mismatch.key, mismatch.found
            )
            self._ids.drop_block()
            self._guard.distrust()

    async def _create_group(self, request: CreateGroup) -> QueueDefinition:
        account_id, name = request.account_id, request.name
        log_name, group = split_group(name)
        check_group_name(group)
        if request.start:
            check_start(request.start)
        suffix = f"{account_id}/{name}"
        async with self._only_one(suffix):
            async for _ in _attempts(suffix):
                queue = self.queue(account_id, log_name)
                if not queue.is_log:
                    raise UnsupportedOperation(
                        f"The queue {log_name} has no consumer groups: its RetentionMode is not Log."
                    )
                existing = self.rows.get(suffix)
                unchanged = [
                    self.rows.compare(suffix),
                    self.deleted.compare(suffix),
                    self.rows.compare(_suffix(queue)),
                ]
                if existing is None:
                    existing = await self._begin_group(queue, name, request.start, unchanged)
                elif existing.state == "deleting" or existing.group_of != queue.queue_id:
                    await self._finish_deletion(existing)
                    continue
                if existing is not None:
                    active = await self._finish_creation(existing)
                    if active is not None:
                        return active
            raise Overloaded

    async def _begin_group(
        self, queue: QueueDefinition, name: str, start: str, unchanged: Sequence[Compare]
    ) -> QueueDefinition | None:
        """Store a consumer group as `creating`; None when something it rests on changed meanwhile."""
        if len(self.groups_of(queue.queue_id)) >= GROUPS_MAX:
            raise OverLimit(f"A log-retained queue may have {GROUPS_MAX} consumer groups.")
        self._quotas.check_group(queue.account_id)
        suffix = f"{queue.account_id}/{name}"
        predecessor = self.deleted.get(suffix)
        await self._guard.check()
        queue_id = await self._ids.next_id()
        block = self._ids.block_compare()
        now_ms = self._now_ms()
        group = replace_definition(
            queue,
            queue_id=queue_id,
            name=name,
            state="creating",
            revision=1,
            created_ms=now_ms,
            modified_ms=now_ms,
            attributes={GROUP_START.name: start} if start else {},
            tags={},
            group_of=queue.queue_id,
        )
        puts = [
            Put(QUEUES + suffix, encode_queue_definition(group)),
            Put(PENDING + suffix, encode_row(PendingRow(queue_id, now_ms))),
        ]
        if predecessor is not None:
            puts.append(Put(DELETED + id_text(predecessor.queue_id), encode_row(predecessor)))
        try:
            await self._mirror.transact([block, *unchanged], puts, [DELETED + suffix])
        except RevisionMismatch as mismatch:
            self._note_lost_block(mismatch)
            return None
        return group

    async def _make_data_key(self) -> NewDataKey:
        if self._new_data_key is None:  # who has no master key is given data keys
            raise DataKeyStale
        return await self._new_data_key()

    async def _finish_creation(self, definition: QueueDefinition) -> QueueDefinition | None:
        """Tell the journal and make the queue active; None when it became another one meanwhile."""
        suffix = _suffix(definition)
        latest = self.rows.get(suffix)  # another node may have gone on with it
        if latest is None or latest.queue_id != definition.queue_id or latest.state == "deleting":
            return None
        if latest.state == "active":
            return latest
        compare = self.rows.compare(suffix)
        active = replace_definition(latest, state="active")
        try:
            await self._tell_journal(active)
        except QueueIdTaken:
            # Nothing of it is in the journal, where the id is another queue's: it begins once more with another id.
            self._guard.distrust()
            await self._drop_creation(compare, suffix)
            return None
        except QueueRevisionTaken as taken:
            await self._outrank(latest, taken.revision)
            return None
        except CallerError:  # the journal does not have the group's log (any more), or no room for the group
            await self._finish_deletion(latest)
            raise
        try:
            await self._mirror.transact(
                [compare], [Put(QUEUES + suffix, encode_queue_definition(active))], [PENDING + suffix]
            )
        except RevisionMismatch:
            await self._forget_if_gone(active)
            return None
        log.info("queue created queue=%s queue_id=%d", suffix, active.queue_id)
        return active

    async def _drop_creation(self, compare: Compare, suffix: str) -> None:
        with suppress(RevisionMismatch):
            await self._mirror.transact([compare], deletes=[QUEUES + suffix, PENDING + suffix])

    def _check_name_has_rested(self, suffix: str) -> None:
        deleted = self.deleted.get(suffix)
        if deleted is not None and not has_passed(deleted.deleted_ms, self._reuse_s * 1000, self._now_ms()):
            raise QueueDeletedRecently(self._reuse_s)

    def _check_dead_letter_target(
        self,
        account_id: str,
        name: str,
        attributes: Mapping[str, str],
        given: Mapping[str, str],
        source: QueueDefinition | None = None,
    ) -> None:
        policy = REDRIVE_POLICY.of(attributes)
        text = given.get(REDRIVE_POLICY.name)
        if policy is None or not text:
            return
        target = self.find(policy.target.account_id, policy.target.name)
        if target is None:
            raise invalid_redrive_policy(text, "Dead letter target does not exist.")
        if target.is_log:
            raise invalid_redrive_policy(text, "A log-retained queue cannot be a dead-letter queue.")
        if not target.redrive_allow_policy.allows(self.arn_of(account_id, name)):
            raise invalid_redrive_policy(
                text, "The dead letter target does not allow this queue as a source."
            )
        is_elsewhere = source is not None and (
            source.partitions[0].journal_id != target.partitions[0].journal_id
        )
        if is_elsewhere and not self._cell_format.version_of(NUMBERED_MOVES):
            raise UnsupportedOperation(
                f"The queues {name} and {target.name} are in different journals of this cell, between which "
                "messages move once all its processes run this version: `quaymaster cell upgrade`."
            )

    # Attributes and tags

    async def _set_attributes(self, request: SetAttributes) -> QueueDefinition:
        account_id, name, changes = request.account_id, request.name, request.changes

        def edit(current: QueueDefinition) -> dict[str, str]:
            arn = self.arn_of(account_id, name)
            if current.group_of:
                raise UnsupportedOperation(
                    "A consumer group has the attributes of its queue: set them there."
                )
            changed = change_attributes(arn, current.attributes, changes)
            self._check_dead_letter_target(account_id, name, changed, changes, current)
            return changed

        return await self._change_attributes(account_id, name, edit)

    async def _add_permission(self, request: AddPermission) -> QueueDefinition:
        arn = str(self.arn_of(request.account_id, request.name))
        return await self._change_policy(
            request.account_id,
            request.name,
            lambda policy: add_permission(
                policy,
                queue_arn=arn,
                label=request.label,
                account_ids=request.account_ids,
                actions=request.actions,
            ),
        )

    async def _remove_permission(self, request: RemovePermission) -> QueueDefinition:
        arn = str(self.arn_of(request.account_id, request.name))
        return await self._change_policy(
            request.account_id,
            request.name,
            lambda policy: remove_permission(policy, queue_arn=arn, label=request.label),
        )

    async def _tag(self, request: TagQueue) -> QueueDefinition:
        def add(current: dict[str, str]) -> dict[str, str]:
            # Again: since the front end looked, others may have added theirs.
            check_tags(request.name, request.tags, current)
            return {**current, **request.tags}

        return await self._change_tags(request.account_id, request.name, add)

    async def _untag(self, request: UntagQueue) -> QueueDefinition:
        gone = frozenset(request.keys)
        return await self._change_tags(
            request.account_id,
            request.name,
            lambda current: {key: value for key, value in current.items() if key not in gone},
        )

    async def _change_policy(
        self, account_id: str, name: str, edit_policy: Callable[[str | None], str]
    ) -> QueueDefinition:
        def edit(current: QueueDefinition) -> dict[str, str]:
            policy = edit_policy(current.attributes.get(POLICY.name))
            attributes = {**current.attributes, POLICY.name: policy}
            if not policy:
                del attributes[POLICY.name]
            return attributes

        return await self._change_attributes(account_id, name, edit)

    async def _change_attributes(
        self, account_id: str, name: str, edit: Callable[[QueueDefinition], dict[str, str]]
    ) -> QueueDefinition:
        suffix = f"{account_id}/{name}"
        async with self._only_one(suffix):
            async for _ in _attempts(suffix):
                current = self.queue(account_id, name)
                compare = self.rows.compare(suffix)
                now_ms = self._now_ms()
                attributes = edit(current)
                if POLICY.name in attributes and POLICY.name not in current.attributes:
                    self._quotas.check_policy(account_id)
                changed = replace_definition(
                    current, attributes=attributes, revision=current.revision + 1, modified_ms=now_ms
                )
                try:
                    revision = await self._mirror.transact(
                        [compare],
                        [
                            Put(QUEUES + suffix, encode_queue_definition(changed)),
                            Put(PENDING + suffix, encode_row(PendingRow(changed.queue_id, now_ms))),
                        ],
                    )
                except RevisionMismatch:
                    continue
                await self._settle(changed, [Compare(PENDING + suffix, revision)])
                log.info("queue attributes set queue=%s revision=%d", suffix, changed.revision)
                return changed
            raise Overloaded

    async def _change_tags(
        self, account_id: str, name: str, edit: Callable[[dict[str, str]], dict[str, str]]
    ) -> QueueDefinition:
        suffix = f"{account_id}/{name}"
        async with self._only_one(suffix):
            async for _ in _attempts(suffix):
                current = self.queue(account_id, name)
                compare = self.rows.compare(suffix)
                changed = replace_definition(current, tags=edit(current.tags))
                try:
                    await self._mirror.transact(
                        [compare], [Put(QUEUES + suffix, encode_queue_definition(changed))]
                    )
                except RevisionMismatch:
                    continue
                return changed
            raise Overloaded

    async def _settle(self, definition: QueueDefinition, unchanged: Sequence[Compare]) -> None:
        """Tell the journal of an active queue's revision, and take the pending row away if it is of that revision:
        if `unchanged` holds."""
        suffix = _suffix(definition)
        async for _ in _attempts(suffix):
            try:
                await self._tell_journal(definition)
                break
            except QueueRevisionTaken as taken:
                outranking = await self._outrank(definition, taken.revision)
            if outranking is None:
                break  # whoever made a later change tells the journal of that
            definition, unchanged = outranking
        else:
            raise Overloaded
        if await self._forget_if_gone(definition):
            return
        try:
            await self._mirror.transact(unchanged, deletes=[PENDING + suffix])
        except RevisionMismatch:
            # A newer change is pending, and whoever made it settles that; but if it was the deletion, the journal
            # may have heard of that first.
            await self._mirror.refresh(QUEUES + suffix)
            await self._forget_if_gone(definition)

    async def _outrank(
        self, definition: QueueDefinition, revision: int
    ) -> tuple[QueueDefinition, Sequence[Compare]] | None:
        """Give a queue a revision above the journal's, which has later changes than the store: that has gone back.

        Return the queue as it then is, and what holds until it is changed again; None when the store has a later
        change, too.
        """
        suffix = _suffix(definition)
        async for _ in _attempts(suffix):
            await self._mirror.refresh(QUEUES + suffix)
            latest = self.rows.get(suffix)
            if (
                latest is None
                or latest.queue_id != definition.queue_id
                or (latest.revision, latest.state) != (definition.revision, definition.state)
            ):
                return None
            changed = replace_definition(latest, revision=revision + 1)
            try:
                stored = await self._mirror.transact(
                    [self.rows.compare(suffix)],
                    [
                        Put(QUEUES + suffix, encode_queue_definition(changed)),
                        Put(PENDING + suffix, encode_row(PendingRow(changed.queue_id, self._now_ms()))),
                    ],
                )
            except RevisionMismatch:
                continue
            self.lost_attributes.note(suffix)
            log.error(
                "store behind journal queue=%s store_revision=%d journal_revision=%d: what the store has counts",
                suffix,
                definition.revision,
                revision,
            )
            return changed, [Compare(PENDING + suffix, stored)]
        raise Overloaded

    async def _forget_if_gone(self, definition: QueueDefinition) -> bool:
        """Tell whether another node deleted the queue while we set it; then the journal must not keep what we wrote
        after."""
        latest = self.rows.get(_suffix(definition))
        if latest is not None and latest.queue_id == definition.queue_id and latest.state != "deleting":
            return False
        await self._tell_journal_deleted(definition.queue_id, identity_of(definition))
        return True

    # Deleting

    async def _delete(self, request: DeleteQueue) -> tuple[QueueDefinition, int]:
        """Delete a queue, and return the revision of its row from when on nobody found it."""
        async with self._only_one(f"{request.account_id}/{request.name}"):
            deleting, revision = await self._begin_delete(request.account_id, request.name)
            await self._finish_deletion(deleting)
            return deleting, revision

    async def _begin_delete(self, account_id: str, name: str) -> tuple[QueueDefinition, int]:
        suffix = f"{account_id}/{name}"
        async for _ in _attempts(suffix):
            current = self.queue(account_id, name)
            _check_hold(current)
            compare = self.rows.compare(suffix)
            now_ms = self._now_ms()
            deleting = replace_definition(current, state="deleting", modified_ms=now_ms)
            try:
                revision = await self._mirror.transact(
                    [compare],
                    [
                        Put(QUEUES + suffix, encode_queue_definition(deleting)),
                        Put(PENDING + suffix, encode_row(PendingRow(deleting.queue_id, now_ms))),
                    ],
                )
            except RevisionMismatch:
                continue
            return deleting, revision
        raise Overloaded

    async def _finish_deletion(self, definition: QueueDefinition) -> None:
        suffix = _suffix(definition)
        latest = self.rows.get(suffix)
        compare = self.rows.compare(suffix)
        await self._tell_journal_deleted(definition.queue_id, identity_of(definition))
        await self._drop_groups_of(definition.queue_id)
        if latest is None or latest.queue_id != definition.queue_id:
            return  # another node finished it, and the name may be in use again
        try:
            await self._mirror.transact(
                [compare],
                [Put(DELETED + suffix, encode_row(_deleted_row(definition)))],
                [QUEUES + suffix, PENDING + suffix, PURGES + id_text(definition.queue_id)],
            )
        except RevisionMismatch:
            return  # another node finished it
        log.info("queue deleted queue=%s queue_id=%d", suffix, definition.queue_id)

    async def _drop_groups_of(self, queue_id: int) -> None:
        """Take away the consumer groups of a queue that is gone; the journal forgot them with it."""
        for suffix in self.groups_of(queue_id):
            group = self.rows.get(suffix)
            assert group is not None, "who is noted as a group has a row"
            gone = [QUEUES + suffix, PENDING + suffix, PURGES + id_text(group.queue_id)]
            with suppress(RevisionMismatch):  # another node does the same
                await self._mirror.transact([self.rows.compare(suffix)], deletes=gone)

    # Purging

    async def _begin_purge(self, request: BeginPurge) -> QueueDefinition:
        definition = self._purged_queue(request)
        _check_hold(definition)
        if not self._purge_interval_s:
            return definition
        suffix = id_text(definition.queue_id)
        now_ms = self._now_ms()
        purged = self._purges.get(suffix)
        if purged is None or has_passed(purged.purged_ms, self._purge_interval_s * 1000, now_ms):
            try:
                await self._mirror.transact(
                    [self._purges.compare(suffix)], [Put(PURGES + suffix, encode_row(PurgeRow(now_ms)))]
                )
            except RevisionMismatch:
                pass  # another purge came first
            else:
                return definition
        raise PurgeQueueInProgress(definition.name, self._purge_interval_s)

    async def _cancel_purge(self, request: CancelPurge) -> QueueDefinition:
        definition = self._purged_queue(request)
        suffix = id_text(definition.queue_id)
        if self._purges.get(suffix) is not None:
            await self._mirror.transact([], deletes=[PURGES + suffix])
        return definition

    def _purged_queue(self, request: BeginPurge | CancelPurge) -> QueueDefinition:
        definition = self.queue(request.account_id, request.name)
        if definition.queue_id != request.queue_id:
            raise QueueDoesNotExist
        return definition

    # Finishing what was cut in half

    async def reconcile(self, *, older_than_ms: int = 0) -> int:
        """Finish what is pending for `older_than_ms`, and drop rows whose time is over; return how many were finished.

        Nobody waits for it: there may be thousands of such rows, and each takes a durable write or a part of one.
        """
        finished = await self.finish_pending(older_than_ms=older_than_ms)
        for queue_id in self.gone_logs():
            await self._drop_groups_of(queue_id)  # made while their queue was deleted
        await self._drop_old_rows()
        return finished

    async def finish_pending(self, *, older_than_ms: int = 0) -> int:
        """Finish creations, changes and deletions that are pending for `older_than_ms`; return how many.

        At the start everything pending was cut in half; later only what is older than any request lasts. What
        the journal cannot take now stays pending. Some are finished at a time: their writes go together.
        """
        now_ms = self._now_ms()
        waiting = [
            suffix
            async for suffix, row in self._pending.in_turns()
            if has_passed(row.since_ms, older_than_ms, now_ms)
        ]
        # Logs before their consumer groups, whose names go on behind theirs.
        logs = [suffix for suffix in waiting if not split_group(suffix)[1]]
        groups = [suffix for suffix in waiting if split_group(suffix)[1]]
        finished = 0
        for some in (*_batched(logs, RECONCILED_AT_ONCE), *_batched(groups, RECONCILED_AT_ONCE)):
            finished += sum(await asyncio.gather(*(self._finish_one(suffix) for suffix in some)))
        return finished

    async def _finish_one(self, suffix: str) -> bool:
        async with self._only_one(suffix):
            try:
                return await self._finish(suffix)
            except NotNow as error:
                log.warning("queue still pending queue=%s error=%s", suffix, error)
            except CallerError as error:
                log.warning("queue given up queue=%s error=%s", suffix, error)
        return False

    async def _finish(self, suffix: str) -> bool:
        if self._pending.get(suffix) is None:
            return False  # settled while we waited for the lock
        definition = self.rows.get(suffix)
        match definition:
            case None:
                await self._mirror.transact([], deletes=[PENDING + suffix])
            case QueueDefinition(state="creating"):
                await self._finish_creation(definition)
            case QueueDefinition(state="deleting"):
                await self._finish_deletion(definition)
            case _:
                await self._settle(definition, [self.rows.compare(suffix), self._pending.compare(suffix)])
        log.info("queue reconciled queue=%s", suffix)
        return True

    async def _drop_old_rows(self) -> None:
        now_ms = self._now_ms()
        rest_ms = max(self._reuse_s * 1000, LATE_SET_MS)
        interval_ms = self._purge_interval_s * 1000
        deleted = [
            (key, row)
            async for key, row in self.deleted.in_turns()
            if has_passed(row.deleted_ms, rest_ms, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS)
        ]
        for some in _batched(deleted, DROPPED_AT_ONCE):
            # Once more: a node that died while it set the queue may have told the journal after the deletion.
            compares = [self.deleted.compare(key) for key, _ in some]
            try:
                for _, row in some:
                    await self._tell_journal_deleted(row.queue_id)
            except NotNow as error:
                log.warning("queues not deleted again queues=%d error=%s", len(some), error)
                break
            await self._drop(compares)
        purged = [
            self._purges.compare(key)
            async for key, row in self._purges.in_turns()
            if has_passed(row.purged_ms, interval_ms, now_ms)
        ]
        for marks in _batched(purged, DROPPED_AT_ONCE):
            await self._drop(marks)

    async def _drop(self, compares: Sequence[Compare]) -> None:
        """Drop rows that are as they were; one that is not keeps no other from going."""
        while compares:
            try:
                await self._mirror.transact(compares, deletes=[compare.key for compare in compares])
            except (
                RevisionMismatch
            ) as mismatch:  # the name was used, or the queue purged, again, or it is gone
                compares = [compare for compare in compares if compare.key != mismatch.key]
            else:
                return

    # Inside

    async def _tell_journal(self, definition: QueueDefinition) -> None:
        assert self._journal is not None, "a journal is attached before queues are created or set"
        try:
            await self._in_time(self._journal.set_queue(definition))
        except QueueIdTaken as error:
            log.error(
                "queue refused queue=%s queue_id=%d error=%s", definition.name, definition.queue_id, error
            )
            raise

    async def _tell_journal_deleted(self, queue_id: int, identity: QueueIdentity | None = None) -> None:
        assert self._journal is not None, "a journal is attached before queues are deleted"
        with suppress(QueueDoesNotExist):  # forgotten for so long that nobody knows its journal
            try:
                await self._in_time(self._journal.delete_queue(queue_id, identity))
            except QueueIdTaken as error:  # it has nothing of the one that is to go
                log.error("queue deleted in metadata only queue_id=%d error=%s", queue_id, error)

    async def _in_time(self, call: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._journal_timeout_ms / 1000):
                await call
        except TimeoutError:
            raise Timeout from None

    @asynccontextmanager
    async def _only_one(self, suffix: str) -> AsyncIterator[None]:
        """Let one change of a queue at a time through, so that the journal hears of them in order."""
        lock = self._locks.get(suffix)
        if lock is None:
            lock = self._locks[suffix] = asyncio.Lock()
        async with lock:
            yield


def _batched(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Return a sequence in stretches of so many items."""
    return [items[at : at + count] for at in range(0, len(items), count)]


def _deleted_row(definition: QueueDefinition) -> DeletedRow:
    return DeletedRow(definition.queue_id, definition.modified_ms, journal_ids_of(definition))


def _suffix(definition: QueueDefinition) -> str:
    return f"{definition.account_id}/{definition.name}"


def _check_hold(definition: QueueDefinition) -> None:
    if definition.is_log and definition.has_legal_hold:
        raise UnsupportedOperation(
            f"The queue {definition.name} is under a legal hold: nothing of it is deleted until LegalHold is false."
        )


async def _attempts(suffix: str) -> AsyncIterator[int]:
    """Count tries of a change that others may get in the way of, a little apart."""
    for attempt in range(ATTEMPTS_MAX):
        yield attempt
        await asyncio.sleep(0.001 * attempt)
    log.warning("queue change gave up queue=%s attempts=%d", suffix, ATTEMPTS_MAX)
