"""`mode=consume`: a plain queue as a stream. What a batch has is claimed, read, and settled when the next one begins.

    latestOffset(start) ──▶ Spark's log ──▶ partitions(start, end) ──▶ read ...
      settles up to start,                   holds claim `end`, again      │
      claims start + 1                       after a restart               │
          ▲                                                                │
          └──────────── next trigger: start is the last batch's end ◀──────┘

The offset of a partition is the number of its last claim. `start` of `latestOffset` is through in any case (see
`pyspark_quaymaster/source`), so what it names is deleted then; `commit` does nothing. A claim that is there already,
because the driver ended before Spark's log had it, is used as it is. After a restart the claim of the batch that Spark
repeats is held again and reads the same rows, unless others received of it: then its rows come in a later batch.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_quaymaster.client import ClaimedPartition, ClaimedQueue, ClaimKey, Client, KnownConsumer
from pyspark_quaymaster.errors import (
    CheckpointIsOld,
    ClaimIsLost,
    DataIsLost,
    GroupIsTaken,
    OptionIsInvalid,
    QuaymasterError,
    RequestRefused,
)
from pyspark_quaymaster.offsets import (
    Offsets,
    Range,
    key_of,
    parse_offsets,
    plan_tasks,
    render_offsets,
    share,
)
from pyspark_quaymaster.options import ConsumeOptions
from pyspark_quaymaster.reading import Piece, read_pieces
from pyspark_quaymaster.schema import arrow_schema, columns_to_fetch

if TYPE_CHECKING:
    import pyarrow as pa

CLAIMED_AT_ONCE_MAX: Final = 1_000
CLAIM_MESSAGES_MAX: Final = 50_000
HELD_S_MAX: Final = 12 * 3_600
"""A claim that is read for longer is not held any further: as long as a visibility timeout may be."""
TAKEN_OVER: Final = "ClaimTakenOver"
SETTLED: Final = "ClaimIsSettled"
BROKEN: Final = frozenset({"ClaimIsBroken", "ClaimNotFound"})
NEW_CONSUMER = KnownConsumer("", 0, {})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimRange(Range):
    """Places [first, end) in a claim."""

    claim_id: int = 0


class ClaimPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[ClaimRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class ConsumeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Consumes plain queues. One lives on the driver as long as the query; copies of it go to the executors."""

    def __init__(self, options: ConsumeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._owner = uuid.uuid4().hex
        self._client: Client | None = None
        self._holder: ClaimHolder | None = None
        self._urls: dict[str, str] = {}
        self._owned: set[str] = set()
        """The partitions of which this driver owns the consumer."""
        self._left: dict[str, int] | None = None
        """How many rows an AvailableNow query still claims of each partition."""
        self._turn = 0

    def __getstate__(self) -> dict[str, Any]:
        # Executors need no connection of the driver's, nor its thread.
        return {**self.__dict__, "_client": None, "_holder": None}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        settled = {key: self._known(one).settled for key, (_, _, one) in self._partitions().items()}
        return render_offsets(settled)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_per_trigger_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._left = {key: one.visible for key, (_, _, one) in self._partitions().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = parse_offsets(start)
        found = self._partitions()
        self._check_queues(begun, found)
        self._check_owner(found)
        self._turn += 1
        end = dict(begun)  # a partition that is not told of just now, or never again, stays where it is
        growing: dict[str, _Growing] = {}
        for key, (queue, number, one) in found.items():
            known = self._known(one)
            if key not in begun:
                end[key] = known.settled  # it enters, and is claimed from the next time on
                continue
            claim = self._key(queue.url, number, begun[key])
            if known.settled > begun[key]:
                raise _old(claim, known.settled)
            if known.settled < begun[key] or key not in self._owned:
                self._settle(key, claim)
            there = known.claims.get(begun[key] + 1, ("none", 0))
            growing[key] = _Growing(
                replace(claim, claim_id=begun[key] + 1), there[1], one.visible, is_open=there[0] != "none"
            )
        self._grow(growing, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        for key, one_growing in growing.items():
            if one_growing.is_open:
                end[key] += 1
                self._hold_from_now(key, one_growing.claim)
        return start if end == begun else render_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Nothing: an offset counts claims, and how many there will be is not known. Lag is what is visible."""
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = parse_offsets(start), parse_offsets(end)
        found = self._partitions()
        self._check_queues(begun, found)
        ranges: list[ClaimRange] = []
        for key, claim_id in ended.items():
            if claim_id <= begun.get(key, claim_id):
                continue
            if key not in found:
                self._lose(f"claim {claim_id} of {key}: the partition is gone")
                continue
            queue, number, _ = found[key]
            claim = self._key(queue.url, number, claim_id)
            held = self._hold(key, claim)
            if held:
                ranges.append(ClaimRange(queue.url, queue.queue_id, number, 0, held, claim_id=claim_id))
        tasks = plan_tasks(ranges, {}, self._options.tasks)
        return [ClaimPartition(_of_claims(task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ranges = partition.ranges if isinstance(partition, ClaimPartition) else ()
        return read_claims(ranges, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the next `latestOffset` settles what is through, also when this is not called."""

    def stop(self) -> None:
        if self._holder is not None:
            self._holder.stop()
        if self._client is not None:
            self._client.close()

    # Claims

    def _grow(self, growing: dict[str, _Growing], rows_max: int | None) -> None:
        """Claim rows of all partitions, as many as fit into a batch, by turns."""
        room = rows_max if rows_max is not None else len(growing) * CLAIM_MESSAGES_MAX
        room -= sum(one.count for one in growing.values())
        wanted = share(
            {key: self._wanted(key, one) for key, one in growing.items()}, max(0, room), self._turn
        )
        for key, rows in wanted.items():
            one = growing[key]
            while rows > 0:
                answer = self._claim(key, one.claim, min(rows, CLAIMED_AT_ONCE_MAX), one.count)
                one.is_open = answer.state != "none"
                # More than were claimed now: those of a request whose answer was lost.
                rows -= answer.rows - one.count
                if answer.rows == one.count and not answer.unfinished:
                    break
                if self._left is not None:
                    self._left[key] -= answer.rows - one.count
                one.count = answer.rows

    def _wanted(self, key: str, one: _Growing) -> int:
        wanted = min(one.visible, CLAIM_MESSAGES_MAX - one.count)
        if self._left is not None:
            wanted = min(wanted, self._left.get(key, 0))
        return max(0, wanted)

    def _claim(self, key: str, claim: ClaimKey, count_max: int, known: int) -> Any:
        client, timeout_s = self._driver(), self._options.claim_timeout_s
        claim = self._taking(key, claim)
        try:
            answer = client.claim_messages(claim, count_max=count_max, known=known, timeout_s=timeout_s)
        except RequestRefused as error:
            raise _told(error, claim) from error
        self._owned.add(key)
        return answer

    def _settle(self, key: str, claim: ClaimKey) -> None:
        if self._holder is not None:
            self._holder.forget(key, claim.claim_id)
        claim = self._taking(key, claim)
        try:
            self._driver().settle_claims(claim)
        except RequestRefused as error:
            raise _told(error, claim) from error
        self._owned.add(key)

    def _hold(self, key: str, claim: ClaimKey) -> int:
        """Hold a claim whose rows are to be read; return how many it has, 0 when it is lost."""
        answer = self._claim(key, claim, 0, 0)
        if answer.state != "held":
            self._lose(
                f"claim {claim.claim_id} of {claim.url} partition {claim.partition} is "
                f"{'not there' if answer.state == 'none' else answer.state}"
            )
            return 0
        self._hold_from_now(key, claim)
        return int(answer.rows)

    def _hold_from_now(self, key: str, claim: ClaimKey) -> None:
        if self._holder is None:
            self._holder = ClaimHolder(self._options)
        self._holder.hold(key, claim)

    def _lose(self, what: str) -> None:
        text = f"{what}: others received of it, or it was released. Its rows come again in a later batch"
        if self._options.fails_on_lost_claim:
            raise ClaimIsLost(
                f"{text}, once the query runs with lostClaim=redeliver (consumer {self._consumer})"
            )
        _log.warning("claim lost: %s", text)

    def _taking(self, key: str, claim: ClaimKey) -> ClaimKey:
        return claim if key in self._owned else replace(claim, takes=True)

    # Queues

    @property
    def _consumer(self) -> str:
        return self._options.consumer

    def _driver(self) -> Client:
        if self._holder is not None and self._holder.failure is not None:
            raise self._holder.failure
        if self._client is None:
            self._client = Client(self._options.endpoint, self._options.patience)
        return self._client

    def _partitions(self) -> dict[str, tuple[ClaimedQueue, int, ClaimedPartition]]:
        """Return the partitions of all queues, as they are now, by key."""
        client = self._driver()
        found: dict[str, tuple[ClaimedQueue, int, ClaimedPartition]] = {}
        for name in self._options.queues:
            if name not in self._urls:
                self._urls[name] = name if "://" in name else client.queue_url(name)
            queue = client.describe_claims(self._urls[name])
            for number, one in queue.partitions.items():
                if key_of(queue.queue_id, number) in found:
                    raise OptionIsInvalid("a queue is named twice, by its name and by its URL")
                found[key_of(queue.queue_id, number)] = queue, number, one
        return found

    def _known(self, partition: ClaimedPartition) -> KnownConsumer:
        return partition.consumers.get(self._consumer, NEW_CONSUMER)

    def _key(self, url: str, partition: int, claim_id: int) -> ClaimKey:
        return ClaimKey(url, partition, self._consumer, self._owner, claim_id)

    def _check_queues(
        self, begun: Offsets, found: Mapping[str, tuple[ClaimedQueue, int, ClaimedPartition]]
    ) -> None:
        """Raise DataIsLost when a queue of the checkpoint is not one of those that are consumed."""
        known = {key.partition("/")[0] for key in found}
        for key in begun:
            queue_id = key.partition("/")[0]
            if queue_id not in known:
                raise DataIsLost(
                    f"the checkpoint has claims of queue {queue_id}, which is none of "
                    f"{', '.join(self._options.queues)}: it was deleted or created again, or the query consumes other "
                    "queues now. Start with a new checkpoint"
                )

    def _check_owner(self, found: Mapping[str, tuple[ClaimedQueue, int, ClaimedPartition]]) -> None:
        """Raise GroupIsTaken before anything is claimed, if another query took a partition of this one."""
        for key in self._owned & found.keys():
            if self._known(found[key][2]).owner != self._owner:
                raise _taken_over(self._consumer)


class _Growing:
    """The claim that is made of a partition."""

    def __init__(self, claim: ClaimKey, count: int, visible: int, *, is_open: bool) -> None:
        self.claim = claim
        self.count = count
        self.visible = visible
        self.is_open = is_open


class ClaimHolder:
    """Extends the deadlines of claims while the driver's process lives: a thread with a connection of its own."""

    def __init__(self, options: ConsumeOptions) -> None:
        self._options = options
        self._claims: dict[str, tuple[ClaimKey, float]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.failure: QuaymasterError | None = None
        """Why it holds nothing any more: another query owns the consumer."""
        # A daemon: Spark ends this process by closing its pipe, and waits for no thread.
        self._thread = threading.Thread(target=self._run, name="quaymaster-claims", daemon=True)
        self._thread.start()

    def hold(self, key: str, claim: ClaimKey) -> None:
        """Hold a claim of a partition, in place of the one before."""
        with self._lock:
            before = self._claims.get(key)
            since_s = before[1] if before is not None and before[0] == claim else time.monotonic()
            self._claims[key] = claim, since_s

    def forget(self, key: str, claim_id: int) -> None:
        """Hold a partition's claim no more, if it is this one or one before."""
        with self._lock:
            held = self._claims.get(key)
            if held is not None and held[0].claim_id <= claim_id:
                del self._claims[key]

    def stop(self) -> None:
        """Hold nothing any more."""
        self._ended.set()
        self._thread.join(self._options.patience.request_timeout_s)

    def _run(self) -> None:
        patience = self._options.patience
        # A journal that is away keeps no claims of others from being held in time.
        patience = replace(patience, deadline_s=min(patience.deadline_s, self._options.claim_timeout_s / 6))
        with Client(self._options.endpoint, patience) as client:
            while self.failure is None and not self._ended.wait(self._options.claim_timeout_s / 3):
                self._extend(client)

    def _extend(self, client: Client) -> None:
        with self._lock:
            held = dict(self._claims)
        for key, (claim, since_s) in held.items():
            if time.monotonic() - since_s > HELD_S_MAX:
                _log.warning("claim %d of %s is held no longer: 12 hours are over", claim.claim_id, claim.url)
                self.forget(key, claim.claim_id)
                continue
            try:
                answer = client.claim_messages(
                    claim, count_max=0, known=0, timeout_s=self._options.claim_timeout_s
                )
            except QuaymasterError as error:
                if isinstance(error, RequestRefused) and error.code == TAKEN_OVER:
                    self.failure = _taken_over(self._options.consumer)
                    return
                _log.warning("claim %d of %s is not held: %s", claim.claim_id, claim.url, error)
                continue  # others may be
            if answer.state != "held":
                _log.warning("claim %d of %s is %s", claim.claim_id, claim.url, answer.state)
                self.forget(key, claim.claim_id)


def read_claims(
    ranges: Sequence[ClaimRange], options: ConsumeOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of claims by their places, as batches of exactly `schema`.

    Raises ClaimIsLost when a claim is broken meanwhile: Spark repeats the batch then, without its rows.
    """
    target = arrow_schema(schema)
    columns = columns_to_fetch(schema)
    with Client(options.endpoint, options.patience) as client, ThreadPoolExecutor(1) as ahead:
        for one in ranges:
            claim = ClaimKey(one.url, one.partition, options.consumer, "", one.claim_id)

            def fetch(first: int, claim: ClaimKey = claim, end: int = one.end) -> Piece:
                try:
                    fetched = client.read_claim(
                        claim,
                        first,
                        end,
                        bytes_max=options.fetch_bytes,
                        columns=columns,
                        form=options.fetch_format,
                    )
                except RequestRefused as error:
                    raise _told(error, claim) from error
                return Piece(first, fetched)

            yield from read_pieces(one, fetch, ahead, target)


def _of_claims(task: tuple[Range, ...]) -> tuple[ClaimRange, ...]:
    return tuple(one for one in task if isinstance(one, ClaimRange))


def _told(error: RequestRefused, claim: ClaimKey) -> QuaymasterError:
    """Return what a refusal means for the query."""
    if error.code == TAKEN_OVER:
        return _taken_over(claim.consumer)
    if error.code == SETTLED:
        return _old(claim, None)
    if error.code in BROKEN:
        return ClaimIsLost(
            f"claim {claim.claim_id} of {claim.url} partition {claim.partition} was lost while it was read: others "
            "received of it, or it was released. Start the query again: the rows come in a later batch"
        )
    return error


def _old(claim: ClaimKey, settled: int | None) -> CheckpointIsOld:
    until = "" if settled is None else f", as all up to {settled}"
    return CheckpointIsOld(
        f"claim {claim.claim_id} of {claim.url} partition {claim.partition} is settled{until}: its rows are deleted. "
        f"The checkpoint is older than what consumer {claim.consumer} has done since; another query, or another copy "
        "of this checkpoint, went on. Start with a new checkpoint, or with another consumerGroup"
    )


def _taken_over(consumer: str) -> GroupIsTaken:
    return GroupIsTaken(
        f"another query consumes as {consumer} since: give one of them a consumerGroup of its own, and start this one "
        "again"
    )
