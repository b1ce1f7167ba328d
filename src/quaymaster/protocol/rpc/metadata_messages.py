"""What front ends ask metadata nodes, and what those answer: MessagePack arrays, requests with their kind in front.

    rows        ListRows, FindRows, GetRow, GetChanges, Transact        the store's, secrets wrapped
    queues      CreateQueue, SetAttributes, ... DeleteQueue             answered when metadata and journal are durable
    lists       ListQueues, ListDeadLetterSources, ListGroups, CountQueues
    limits      ReportShares
    managers    FindQueues, ChangePartitions

Nothing secret is in them in the clear: access key secrets, data keys and receipt keys travel as they are stored,
wrapped by a master key that metadata nodes do not have.

To change one: append fields with defaults, which older and newer peers then still read; or add a kind, and go on
answering the old one for a release. Kinds are never used again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quaymaster.core.values.errors import MalformedInput
from quaymaster.core.values.unreadable import UNREADABLE

METHOD = "metadata"
"""The RPC method that all of them are bodies of."""

QUEUES_FOUND_MAX = 128
"""Queues that are looked for together."""

PAGE_ROWS_MAX = 1_000
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of the values in one answer: a frame holds it, whatever their number."""


class StoreRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of the store as of a revision; `value` None: it is gone."""

    key: str
    value: bytes | None
    revision: int


class Swap(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A condition of a transaction: the key is at this revision (0: there is none)."""

    key: str
    revision: int


class Written(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key to write."""

    key: str
    value: bytes


# Requests


class Greet(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Who are you?"""


class ListRows(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The rows under a prefix behind a key, in order: as in the node's memory, or (`is_stored`) in the store."""

    prefix: str
    after: str = ""
    is_stored: bool = False


class FindRows(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """These rows, of at least a revision: from the node's memory, from the store those it does not have.

    `is_stored`: all from the store.
    """

    keys: list[str]
    at_least: int = 0
    is_stored: bool = False


class GetRow(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """One row as the store has it."""

    key: str


class GetChanges(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """What changed under some prefixes after a revision; waits up to `wait_ms` for the first change."""

    prefixes: list[str]
    after_revision: int
    wait_ms: int


class Transact(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """All of it or nothing, if every condition holds."""

    compares: list[Swap]
    puts: list[Written]
    deletes: list[str]


class NewDataKey(msgspec.Struct, frozen=True, array_like=True):
    """A data key that a front end made and wrapped. Good while the master key's row is at this revision."""

    key_id: int
    master_key_revision: int
    row: bytes


class NewPushSecret(msgspec.Struct, frozen=True, array_like=True):
    """What signs a queue's calls, and headers for them, wrapped by a front end: the row of `/push_secrets/`.

    Good while the master key's row and the one that it replaces are at these revisions; 0: there is none.
    """

    master_key_revision: int
    row_revision: int
    row: bytes


class CreateQueue(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Create a queue, or find the one that exists with the attributes given (others are not compared).

    `data_key` is for the queue if it needs a new one, made by a process that has the master key. Without one, a node
    that has no master key answers that it needs one.
    `push_secret`: if the queue has an endpoint; what is secret of its attributes is in there alone. From cell format 8.
    """

    account_id: str
    name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    data_key: NewDataKey | None = None
    at_least: int = 0
    push_secret: NewPushSecret | None = None


class SetAttributes(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Change attributes; an empty value removes those that can be removed.

    `push_secret` is stored with them; one that is not good any more is answered as a data key is. From cell format 8.
    """

    account_id: str
    name: str
    changes: dict[str, str]
    at_least: int = 0
    queue_id: int = 0
    push_secret: NewPushSecret | None = None


class AddPermission(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Add a statement to the queue's Policy."""

    account_id: str
    name: str
    label: str
    account_ids: list[str]
    actions: list[str]
    at_least: int = 0
    queue_id: int = 0


class RemovePermission(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Remove a statement from the queue's Policy; without the last one there is no Policy."""

    account_id: str
    name: str
    label: str
    at_least: int = 0
    queue_id: int = 0


class TagQueue(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Set tags; the journal does not hear of them."""

    account_id: str
    name: str
    tags: dict[str, str]
    at_least: int = 0
    queue_id: int = 0


class UntagQueue(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Remove tags; those that are not there are no error."""

    account_id: str
    name: str
    keys: list[str]
    at_least: int = 0
    queue_id: int = 0


class DeleteQueue(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Delete a queue and its messages. Its data key stays, its dead letters need it."""

    account_id: str
    name: str
    at_least: int = 0
    queue_id: int = 0


class BeginPurge(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Note that a purge begins."""

    account_id: str
    name: str
    queue_id: int
    at_least: int = 0


class CancelPurge(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Take back what `BeginPurge` noted: the journal refused, and the caller may try again at once."""

    account_id: str
    name: str
    queue_id: int
    at_least: int = 0


class CreateGroup(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Create a consumer group of a log-retained queue, or find it; `name` is `<queue>@<group>`.

    `start`: see `core/partition/consumer_groups`; empty: as the queue's GroupStart says. One that is there stays where
    it is. `log_id`: of the queue, as `queue_id` in `QueueChange`.
    """

    account_id: str
    name: str
    start: str = ""
    at_least: int = 0
    log_id: int = 0


PartitionChange = Literal["split", "merge", "move", "cancel", "give up"]


class ChangePartitions(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Split, merge or move open partitions of a queue. The answer comes once that is stored; it is done after that.

    "cancel" gives up the change that is under way, as long as its new partitions are not open. "give up" is about one
    partition whose journal is lost for good: a sealed one counts as drained, for an open one there is a new one, which
    is open once the lost one is closing (from cell format 8 on).
    `into`: in how many parts one is split. `partitions`: which, by number; none: of a split the one with most keys, of
    a merge all, of a move the only one. `journals`: where the new ones will be, in turn; none: wherever there are few.
    `key`: where the second of two parts begins; 0: parts are of the same size. `table_version`: of the table that the
    caller saw; another one is not changed. 0: any is. From cell format 7 on.
    """

    account_id: str
    name: str
    kind: PartitionChange
    into: int = 0
    partitions: list[int] = []
    journals: list[int] = []
    at_least: int = 0
    queue_id: int = 0
    key: int = 0
    table_version: int = 0


class CheckTable(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Ask the queue's journals whether they have a later partition table than its row, which then takes it.

    So asks who met one: the store was restored. From cell format 7 on.
    """

    account_id: str
    name: str
    at_least: int = 0
    queue_id: int = 0


class ListQueues(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """An account's queues whose names start with `prefix`, up to 1000.

    There is a token to go on with only where `results_max` was given.
    """

    account_id: str
    prefix: str = ""
    results_max: int | None = None
    next_token: str | None = None
    at_least: int = 0


class ListDeadLetterSources(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """The queues whose redrive policy names this one, up to 1000; tokens as in `ListQueues`."""

    account_id: str
    name: str
    results_max: int | None = None
    next_token: str | None = None
    at_least: int = 0


class ListGroups(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """The consumer groups of a log-retained queue, up to 1000; tokens as in `ListQueues`."""

    account_id: str
    name: str
    results_max: int | None = None
    next_token: str | None = None
    at_least: int = 0


class CountQueues(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """How many queues and consumer groups an account has, in any state; `at_least` as in `QueueChange`.

    From cell format 5 on.
    """

    account_id: str
    at_least: int = 0


class FindQueues(msgspec.Struct, frozen=True, array_like=True, tag=36):
    """Active queues by their ids, at most QUEUES_FOUND_MAX, as in the node's memory; so managers ask, and front ends.

    The answer is a QueueList without a token, in the order of the ids. Queues that there are not are left out.
    """

    queue_ids: list[int]


class BucketReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a front end uses its part of a limit: what is asked for in a second, and what is left of its tokens.

    `limit` names it (`core/limits`); `is_bytes`: its tokens are bytes, else requests. `unused` below 0 is debt.
    `was_owner`: the front end has had this node as owner of the account for a while.
    """

    limit: str
    is_bytes: bool
    demand: float
    unused: float
    was_owner: bool


class ReportShares(msgspec.Struct, frozen=True, array_like=True, tag=48):
    """How a front end uses its parts of limits; without reports it only asks whether the node is there.

    From cell format 6 on.
    """

    front_end: str
    reports: list[BucketReport]


QueueChange = (
    CreateQueue
    | SetAttributes
    | AddPermission
    | RemovePermission
    | TagQueue
    | UntagQueue
    | DeleteQueue
    | BeginPurge
    | CancelPurge
    | CreateGroup
    | ChangePartitions
    | CheckTable
)
"""Each is answered by the queue as it then is. Processes that have queues take these, and do what they say or ask a
node to: what can be asked of queues is declared here and nowhere else. `at_least`: the node that is asked must know
what there is up to this revision. `queue_id`: the queue that the caller was allowed to change. One of its name that was
created since is another, and for this request does not exist. 0: whichever has the name, as older front ends ask."""
QueueListing = ListQueues | ListDeadLetterSources | ListGroups
Request = (
    Greet
    | ListRows
    | FindRows
    | GetRow
    | GetChanges
    | Transact
    | QueueChange
    | QueueListing
    | CountQueues
    | FindQueues
    | ReportShares
)


# Answers


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """What everything the node keeps rests on, and in which zone it is; empty where it does not say."""

    region: str
    account_id: str
    zone: str = ""


class RowPage(msgspec.Struct, frozen=True, array_like=True):
    """Some rows in order. Changes after `revision` are not all in them; `more`: rows follow the last one."""

    rows: list[StoreRow]
    revision: int
    more: bool


class FoundRows(msgspec.Struct, frozen=True, array_like=True):
    """Those of the rows that there are, as of `position`: of the store, or (`age_ms` over 0) of the node's memory,
    which was there `age_ms` ago at the latest."""

    rows: list[StoreRow]
    position: int
    age_ms: int


class Changes(msgspec.Struct, frozen=True, array_like=True):
    """All changes up to `position`. `is_lost`: the node does not know them all; list again.

    `more`: it knows later ones; ask on.
    """

    rows: list[StoreRow]
    position: int
    age_ms: int
    is_lost: bool = False
    more: bool = False


class Transacted(msgspec.Struct, frozen=True, array_like=True):
    """The revision of what was done; or the condition that did not hold, and where that key is."""

    revision: int
    failed: Swap | None = None
    found_revision: int = 0


class ChangedQueue(msgspec.Struct, frozen=True, array_like=True):
    """The queue as stored, and the row's revision.

    `definition` None: the data key was wrapped by a master key of before; wrap another, and ask again.
    """

    definition: bytes | None
    revision: int = 0


class QueueList(msgspec.Struct, frozen=True, array_like=True):
    """Queues as stored, in order of their names, and where to go on."""

    definitions: list[bytes]
    next_token: str | None


class CountedQueues(msgspec.Struct, frozen=True, array_like=True):
    """How many queues and consumer groups there are, those included that are being created or deleted."""

    queues: int
    groups: int


class BucketGrant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens for the next half second, below 0 those to give back; and the share, in tokens a second.

    A share below 0: the node knows no such limit.
    """

    tokens: float
    rate: float


class GrantedShares(msgspec.Struct, frozen=True, array_like=True):
    """The name of the node, and a grant for each report, in their order."""

    node: str
    grants: list[BucketGrant]


Answer = (
    Greeting
    | RowPage
    | FoundRows
    | Changes
    | Transacted
    | ChangedQueue
    | QueueList
    | CountedQueues
    | GrantedShares
)

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def encode_message(message: Request | Answer) -> bytes:
    """Return the bytes of a request or an answer."""
    return _encoder.encode(message)


def decode_request(data: bytes | memoryview) -> Request:
    """Return a request; MalformedInput when it is none that this program knows."""
    try:
        return _request_decoder.decode(data)
    except UNREADABLE as error:
        raise MalformedInput(f"not a request to a metadata node: {error}") from None
