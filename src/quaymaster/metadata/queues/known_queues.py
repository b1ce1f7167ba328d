"""What is known of queues: their rows as the mirror has them, found by name, by id and by journal, and listed.

Only active queues are found. Where a queue's partitions are is also known while it is being deleted, and for a while
after: its journals may have to be told once more.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, get_args

import msgspec

from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.partition_tables import is_at_rest, journal_of_partition
from quaymaster.core.values.queues.attributes import LOG, RETENTION_MODE
from quaymaster.core.values.queues.queue_definitions import (
    PartitionState,
    QueueDefinition,
    decode_queue_definition,
    group_definition,
)
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.metadata.queues.active_queues import ActiveQueues
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.quotas import QueueQuotas, Quotas
from quaymaster.metadata.store.rows import DELETED, QUEUES, DeletedRow, row_decoder
from quaymaster.protocol.rpc.metadata_messages import (
    CountedQueues,
    ListDeadLetterSources,
    ListGroups,
    QueueListing,
)
from quaymaster.protocol.sqs.internal_queues import is_internal

PAGE_MAX: Final = 1_000
GONE_MAX: Final = 20_000
"""Deleted queues whose journals are known, beside those that still have a row."""
_TOKEN_VERSION: Final = b"\x01"


class QueuePage(msgspec.Struct, frozen=True):
    """Some queues in order of their names. `next_token` None: these were the last."""

    queues: list[QueueDefinition]
    next_token: str | None


class KnownQueues(ActiveQueues):
    """Queue definitions: all that a store has."""

    def __init__(self, mirror: Mirror, *, region: str, quotas: Quotas | None = None) -> None:
        super().__init__()
        self._region = region
        self.on_table: Callable[[str, QueueDefinition | None], None] = lambda suffix, definition: None
        """Called for each change of a queue whose table is not at rest, or was not; None: it is not active any more."""
        self.quotas = QueueQuotas(quotas or Quotas())
        self.rows: MirrorTable[QueueDefinition] = mirror.table(
            QUEUES, decode_queue_definition, self._on_queue
        )
        """Queues in whatever state."""
        self.deleted: MirrorTable[DeletedRow] = mirror.table(
            DELETED, row_decoder(DeletedRow), self._on_deleted, is_timed=True
        )
        """Queues whose names rest."""
        # Active queues only:
        self._logs: dict[int, QueueDefinition] = {}
        """Those that are log-retained, without their consumer groups."""
        self._names: dict[str, list[str]] = {}
        self._dead_letter_sources: dict[QueueArn, list[str]] = {}
        self._partitions_in: Counter[int] = Counter()
        self.partition_states: Counter[PartitionState] = Counter(dict.fromkeys(get_args(PartitionState), 0))
        """How many partitions are in each state; consumer groups have none of their own."""
        # Queues in any state:
        self._queues_with_key: Counter[int] = Counter()
        self._groups_of: dict[int, set[str]] = {}
        """Consumer groups in any state, by account and name, of each log; also of one that is gone."""
        self._gone_logs: set[int] = set()
        """Of those, the ids that no queue has: the queue is gone, consumer groups of it are not."""
        # Queues in any state, and those lately deleted, whose journals may have to be told once more:
        self._by_any_id: dict[int, QueueDefinition] = {}
        self._gone_journals_of: dict[int, Mapping[int, int]] = {}

    # Finding

    def row(self, account_id: str, name: str) -> tuple[QueueDefinition, int] | None:
        """Return a queue in whatever state it is, and the revision of its row; None when there is none."""
        suffix = f"{account_id}/{name}"
        definition = self.rows.get(suffix)
        return None if definition is None else (definition, self.rows.revision(suffix))

    def journal_of(self, queue_id: int, partition: int) -> int | None:
        """Return which journal has a partition (ALL_PARTITIONS: the oldest), or None.

        It is known also of a queue that is being deleted, or lately was.
        """
        definition = self._by_any_id.get(queue_id)
        if definition is not None:
            definition = self.in_force(definition)
            return journal_of_partition(definition, partition)
        gone = self._gone_journals_of.get(queue_id, {})
        return next(iter(gone.values()), None) if partition == ALL_PARTITIONS else gone.get(partition)

    def in_force(self, definition: QueueDefinition) -> QueueDefinition:
        """Return a consumer group as its log says that it is, any other queue itself."""
        log = self._by_any_id.get(definition.group_of) if definition.group_of else None
        return definition if log is None else group_definition(definition, log)

    def has_id(self, queue_id: int) -> bool:
        """Tell whether there is a queue of an id, in whatever state."""
        return queue_id in self._by_any_id

    def active_logs(self) -> list[QueueDefinition]:
        """Return all active queues that are log-retained, of all accounts, in no order."""
        return list(self._logs.values())

    def arn_of(self, account_id: str, name: str) -> QueueArn:
        """Return the ARN of a queue, there or not."""
        return QueueArn(self._region, account_id, name)

    def arn(self, definition: QueueDefinition) -> str:
        """Return a queue's ARN."""
        return str(self.arn_of(definition.account_id, definition.name))

    def groups_of(self, queue_id: int) -> list[str]:
        """Return the consumer groups of a log in any state, also of one that is gone, as ACCOUNT/NAME."""
        return list(self._groups_of.get(queue_id, ()))

    def gone_logs(self) -> list[int]:
        """Return the ids of queues that are gone while consumer groups of theirs are not."""
        return list(self._gone_logs)

    def partitions_in(self, journal_id: int) -> int:
        """Return how many partitions of active queues are in a journal and not drained, consumer groups aside."""
        return self._partitions_in[journal_id]

    def queues_with_key(self, data_key_id: int) -> int:
        """Return how many queues, consumer groups included, have a data key."""
        return self._queues_with_key.get(data_key_id, 0)

    def count(self, account_id: str) -> CountedQueues:
        """Return how many queues and consumer groups an account has, in any state."""
        return self.quotas.count(account_id)

    # Listing

    async def list_page(self, request: QueueListing) -> QueuePage:
        """Return the queues that are asked for, in order of their names.

        Raises:
            InvalidParameterValue: the token is none of ours.
            QueueDoesNotExist: there is no such dead-letter queue.
        """
        if isinstance(request, ListDeadLetterSources):
            return self._list_dead_letter_sources(request)
        if isinstance(request, ListGroups):
            return self._list_groups(request)
        prefix = request.prefix
        names = self._names.get(request.account_id, [])
        after = _parse_token(request.next_token)
        start = bisect_left(names, prefix) if after is None else bisect_right(names, max(after, prefix))
        found: list[str] = []
        for name in names[start : start + _limit(request) + 1]:
            if not name.startswith(prefix):
                break
            found.append(name)
        return self._page(request, found)

    def _list_dead_letter_sources(self, request: ListDeadLetterSources) -> QueuePage:
        target = self.queue(request.account_id, request.name)
        after = _parse_token(request.next_token)
        names = self._dead_letter_sources.get(self.arn_of(target.account_id, target.name), [])
        start = 0 if after is None else bisect_right(names, after)
        return self._page(request, names[start : start + _limit(request) + 1])

    def _list_groups(self, request: ListGroups) -> QueuePage:
        log = self.queue(request.account_id, request.name)
        suffixes = self._groups_of.get(log.queue_id, ())
        names = sorted(suffix.rpartition("/")[2] for suffix in suffixes)
        after = _parse_token(request.next_token)
        found = [
            name
            for name in names
            if (request.account_id, name) in self._by_name and (after is None or name > after)
        ]
        return self._page(request, found[: _limit(request) + 1])

    def _page(self, request: QueueListing, names: list[str]) -> QueuePage:
        account_id, limit = request.account_id, _limit(request)
        more = len(names) > limit and request.results_max is not None
        names = names[:limit]
        return QueuePage(
            [self._by_name[account_id, name] for name in names], _render_token(names[-1]) if more else None
        )

    # Following the rows

    def _on_queue(self, suffix: str, old: QueueDefinition | None, new: QueueDefinition | None) -> None:
        self._note(old, new)
        if (old is not None and not is_at_rest(old)) or (new is not None and not is_at_rest(new)):
            is_active = new is not None and new.state == "active" and not new.group_of
            self.on_table(suffix, new if is_active else None)
        if old is not None and old.state == "active":
            self._unindex(old)
        if new is not None and new.state == "active":
            self._index(new)
        self.quotas.note(old, new)
        if new is not None:
            self._queues_with_key[new.data_key_id] += 1
        if old is not None:
            self._queues_with_key[old.data_key_id] -= 1
            if not self._queues_with_key[old.data_key_id]:
                del self._queues_with_key[old.data_key_id]
        if old is not None and old.group_of:
            groups = self._groups_of[old.group_of]
            groups.discard(suffix)
            if not groups:
                del self._groups_of[old.group_of]
                self._gone_logs.discard(old.group_of)
        if new is not None and new.group_of:
            self._groups_of.setdefault(new.group_of, set()).add(suffix)
            if new.group_of not in self._by_any_id:
                self._gone_logs.add(new.group_of)
        if old is not None and (new is None or new.queue_id != old.queue_id):
            del self._by_any_id[old.queue_id]
            self._note_gone(old.queue_id, {entry.number: entry.journal_id for entry in old.partitions})
            if old.queue_id in self._groups_of:
                self._gone_logs.add(old.queue_id)
        if new is not None:
            self._by_any_id[new.queue_id] = new
            self._gone_logs.discard(new.queue_id)

    def _on_deleted(self, suffix: str, old: DeletedRow | None, new: DeletedRow | None) -> None:
        if new is not None:
            numbers = new.numbers or range(len(new.journal_ids))
            self._note_gone(new.queue_id, dict(zip(numbers, new.journal_ids, strict=False)))

    def _note_gone(self, queue_id: int, journal_ids: Mapping[int, int]) -> None:
        self._gone_journals_of.pop(queue_id, None)
        self._gone_journals_of[queue_id] = journal_ids
        if len(self._gone_journals_of) > GONE_MAX:
            del self._gone_journals_of[next(iter(self._gone_journals_of))]

    def _index(self, definition: QueueDefinition) -> None:
        key = (definition.account_id, definition.name)
        if definition.group_of:
            return
        # Not `is_log`: what a definition works out for itself it keeps; that is too much to keep of each queue.
        if RETENTION_MODE.of(definition.attributes) == LOG:
            self._logs[definition.queue_id] = definition
        if not is_internal(*key):
            insort(self._names.setdefault(definition.account_id, []), definition.name)
        self._partitions_in.update(_counted_journals(definition))
        self.partition_states.update(entry.state for entry in definition.partitions)
        policy = definition.redrive_policy
        if policy is not None:
            insort(self._dead_letter_sources.setdefault(policy.target, []), definition.name)

    def _unindex(self, definition: QueueDefinition) -> None:
        key = (definition.account_id, definition.name)
        self._logs.pop(definition.queue_id, None)
        if definition.group_of:
            return
        if not is_internal(*key):
            names = self._names[definition.account_id]
            del names[bisect_left(names, definition.name)]
        self._partitions_in.subtract(_counted_journals(definition))
        self.partition_states.subtract(entry.state for entry in definition.partitions)
        policy = definition.redrive_policy
        if policy is not None:
            sources = self._dead_letter_sources[policy.target]
            del sources[bisect_left(sources, definition.name)]
            if not sources:
                del self._dead_letter_sources[policy.target]


def deleted_row(definition: QueueDefinition) -> DeletedRow:
    """Return what is remembered of a queue that is deleted."""
    return DeletedRow(
        definition.queue_id,
        definition.modified_ms,
        (*(partition.journal_id for partition in definition.partitions), *definition.left_journals),
        tuple(partition.number for partition in definition.partitions),
    )


def _counted_journals(definition: QueueDefinition) -> list[int]:
    return [entry.journal_id for entry in definition.partitions if entry.state != "drained"]


def _limit(request: QueueListing) -> int:
    return min(request.results_max or PAGE_MAX, PAGE_MAX)


def _render_token(name: str) -> str:
    return base64.urlsafe_b64encode(_TOKEN_VERSION + name.encode()).decode()


def _parse_token(token: str | None) -> str | None:
    if token is None:
        return None
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        name = data[1:].decode("ascii")
    except (UnicodeError, binascii.Error, ValueError):
        data, name = b"", ""
    if data[:1] != _TOKEN_VERSION or not name:
        raise InvalidParameterValue.of("NextToken", token, "The token is not one that was given out.")
    return name
