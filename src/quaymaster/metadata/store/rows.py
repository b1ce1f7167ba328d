"""What metadata keeps in the store: the keys' names and the bytes of each kind of row.

    /queues/ACCOUNT/NAME        QueueDefinition                        (core/values/queues/queue_definitions)
    /pending/ACCOUNT/NAME       PendingRow: the journal may not know the queue's newest state yet
    /deleted/ACCOUNT/NAME       DeletedRow: the name was in use lately
    /deleted/QUEUE-ID           DeletedRow: the same, when the name was used again since
    /purges/QUEUE-ID            PurgeRow: when the queue was purged last
    /accounts/ID                AccountRow; of a deleted account, too
    /access_keys/ID             AccessKeyRow                           secrets wrapped
    /users/ACCOUNT/NAME         UserRow: a user and its policies; NAME in lower case
    /roles/ACCOUNT/NAME         RoleRow: a role, its policies and its trust policy; NAME in lower case
    /data_keys/ID               DataKeyRow                             key wrapped; deleted when unused
    /account_keys/ACCOUNT       AccountKeyRow: the data key of the account's new queues
    /queue_keys/QUEUE-ID        QueueKeyRow: the data key of a queue with KmsMasterKeyId, for a day
    /kms_keys/ACCOUNT/ID        KmsKeyRow: a key for queues            key wrapped
    /kms_aliases/ACCOUNT/NAME   KmsAliasRow: which key an alias names
    /data_key_sweep             KeySweepRow: when data keys are looked for that nothing needs
    /receipt_keys/ID            ReceiptKeyRow                          key wrapped
    /limits/ACCOUNT/QUEUE/ACTION LimitRow; queue and action may be empty
    /alerts/ACCOUNT/NAME, /alert_states/..., /alert_destinations/..., /past_alerts/...   (core/alerts/alerts; consoles)
    /dashboards/ACCOUNT/NAME    DashboardRow                           (core/monitoring/dashboards; consoles)
    /confirmation_mails/WHO     MailCount: an account, or the hash of a mail address (consoles)
    /session_keys/ID            SessionKeyRow                          key wrapped
    /push_secrets/QUEUE-ID      PushSecretRow: what signs calls to a queue's endpoint, and headers for them; wrapped
    /push_states/QUEUE-ID       PushStateRow: how calls to a queue's endpoint go
    /oidc/NAME                  IssuerRow: an issuer of web identity tokens, without https://
    /nodes/NAME                 NodeRow: a metadata node's beat            (clusters)
    /readers/NAME               ReaderRow: a front end, and which master keys it has
    /master_key                 MasterKeyRow: which key wraps
    /wrapping_keys/ID           WrappingKeyRow                         wrapped with a master key; others are with it
    /ids/KIND                   the last number of a kind that was set aside (text)
    /ids/KIND@NODE              the last number of the block that a node has set aside
    /ids/data_key_floor         data keys up to this number were given before the store went back (text)
    /authorization_floor        its revision is that of the last change that could take permissions away
    /counted_time               how long the store was watched (text, ms; coordination/counted_time)
    /accepted                   an operator decided to go on with a store that went back (text: when, in ms)

Next to them, written with the rows of queues: pushed/QUEUE-ID (coordination/push_rows).

Rows are a version byte and a MessagePack array. To change one: append fields with defaults, or raise
ROW_VERSION and keep decoding the old one. Ids in keys are 16 hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeVar

import msgspec

from quaymaster.coordination.cell_keys import AUTHORIZATION_FLOOR as AUTHORIZATION_FLOOR
from quaymaster.coordination.counted_time import COUNTED_TIME
from quaymaster.coordination.interface import Coordination, StoreUnusable
from quaymaster.core.values import row_codec
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, decode_queue_definition
from quaymaster.core.values.row_codec import RowCodec

ROW_VERSION: Final = 1
ROOT: Final = "/"
QUEUES: Final = "/queues/"
PENDING: Final = "/pending/"
DELETED: Final = "/deleted/"
PURGES: Final = "/purges/"
ACCOUNTS: Final = "/accounts/"
ACCESS_KEYS: Final = "/access_keys/"
USERS: Final = "/users/"
ROLES: Final = "/roles/"
DATA_KEYS: Final = "/data_keys/"
DATA_KEYS_KEPT_MAX: Final = 16_384
"""So many data keys a node or front end of a cell has in memory; the others are looked up when they are needed."""
ACCOUNT_KEYS: Final = "/account_keys/"
KEY_SWEEP: Final = "/data_key_sweep"
RECEIPT_KEYS: Final = "/receipt_keys/"
SESSION_KEYS: Final = "/session_keys/"
PUSH_SECRETS: Final = "/push_secrets/"
PUSH_STATES: Final = "/push_states/"
ISSUERS: Final = "/oidc/"
MASTER_KEY: Final = "/master_key"
WRAPPING_KEYS: Final = "/wrapping_keys/"
QUEUE_KEYS: Final = "/queue_keys/"
KMS_KEYS: Final = "/kms_keys/"
KMS_ALIASES: Final = "/kms_aliases/"
LIMITS: Final = "/limits/"
IDS: Final = "/ids/"
NODES: Final = "/nodes/"
READERS: Final = "/readers/"
ACCEPTED: Final = "/accepted"
DATA_KEY_FLOOR: Final = "/ids/data_key_floor"
_UNCOUNTED: Final = (NODES, READERS, IDS, PENDING, KEY_SWEEP, COUNTED_TIME, ACCEPTED, PUSH_STATES)
"""Beats, and what is made again or guarded in another way: a store that lost only these lost nothing."""


def is_counted(key: str) -> bool:
    """Tell whether a store that lost the last change of a key has lost what somebody was told is so."""
    return key.startswith(ROOT) and not key.startswith(_UNCOUNTED)


AccountState = Literal["enabled", "disabled", "deleted"]


class QueueRows:
    """The queues as the store has them now, for callers that ask seldom and keep no copy."""

    def __init__(self, store: Coordination) -> None:
        self._store = store

    async def find(self, account_id: str, name: str) -> QueueDefinition | None:
        """Return a queue in whatever state, None when there is none; raises NotNow."""
        found = await self._store.get(f"{QUEUES}{account_id}/{name}")
        return None if found is None else decode_queue_definition(found.value)


class PendingRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something was decided about a queue that its journal may not have heard of. Older programs read `since_ms`."""

    queue_id: int
    since_ms: int


class DeletedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue of this name was deleted; its partitions were in these journals.

    `numbers` are those of the partitions, in the same order; empty: 0, 1, ... Journals without a number had partitions
    that were not listed any more. Older programs read `deleted_ms`.
    """

    queue_id: int
    deleted_ms: int
    journal_ids: tuple[int, ...] = (0,)
    numbers: tuple[int, ...] = ()


class PurgeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The queue's last purge began. Older programs read `purged_ms`."""

    purged_ms: int


class AccountRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who owns queues: 12 digits, and a name for people.

    Rows of older programs have no state: these accounts are enabled. Only cells of format 5 have other states, since
    older programs overlook them.
    """

    account_id: str
    name: str
    created_ms: int
    is_enabled: bool = True
    deleted_ms: int | None = None

    @property
    def state(self) -> AccountState:
        """What the account is now."""
        if self.deleted_ms is not None:
            return "deleted"
        return "enabled" if self.is_enabled else "disabled"


class AccessKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An access key with its wrapped secret.

    `rotated_ms`: when its secret was set last, or it was disabled last: temporary credentials of before have ended. The
    three fields behind it are of temporary credentials that older programs stored; they are refused, and deleted.

    `user` is the name of the user whose key it is, and `principal_id` the user's id; empty: a root key. Only cells of
    format 6 have keys of users, since older programs take them for root keys. `sessions_generation`, of a root key, is
    in the tokens of its sessions, as of users.
    """

    access_key_id: str
    account_id: str
    principal_id: str
    name: str
    wrapped_secret: bytes
    is_enabled: bool
    created_ms: int
    rotated_ms: int
    wrapped_session_token: bytes | None = None
    expires_ms: int | None = None
    parent_id: str | None = None
    user: str = ""
    sessions_generation: int = 0


class UserRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A user of an account, with its identity policies by their names.

    `sessions_generation` is in all session tokens of the user; those with another number are refused. It is
    no time, for tokens are made by clocks that differ, and random, for a store that went back would count to the same
    number again. It begins with 0; older programs counted. `password` is the hash of the user's password; empty: it has
    none.
    """

    account_id: str
    name: str
    user_id: str
    created_ms: int
    path: str = "/"
    policies: dict[str, str] = {}
    sessions_generation: int = 0
    password: str = ""


class RoleRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A role of an account, with its identity policies by their names; `sessions_generation` as of users.

    `trust_policy` says who may assume it, for `session_max_s` at most. `trusted_ids` has the ids of the users and roles
    that it names, by ARN, as they were when it was written.
    """

    account_id: str
    name: str
    role_id: str
    created_ms: int
    trust_policy: str
    path: str = "/"
    session_max_s: int = 3_600
    trusted_ids: dict[str, str] = {}
    policies: dict[str, str] = {}
    sessions_generation: int = 0


class DataKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A wrapped key that messages are encrypted with: those of one queue, or of up to 1,024 of an account.

    `unused_sweeps` and `retiring_since_ms`, which is of counted time, are `core/values/data_key_life`. With a `service`
    (local, vault, aws) its key `kms_key` wraps it, bound to the ARN of the queue; otherwise the store's wrapping key
    does.
    """

    key_id: int
    wrapped: bytes
    created_ms: int
    unused_sweeps: int = 0
    retiring_since_ms: int = 0
    service: str = ""
    kms_key: str = ""
    queue_arn: str = ""
    queue_id: int = 0


class AccountKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The data key that new queues of an account share. No other one begins to be used."""

    key_id: int


class QueueKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The data key that a queue with KmsMasterKeyId encrypts with, made for that attribute by that service.

    `kms_key` is the key that wraps it, which the attribute named then.
    """

    data_key_id: int
    service: str
    kms_master_key_id: str
    created_ms: int
    kms_key: str = ""


class KmsKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A wrapped key that wraps data keys of queues. With `deletion_ms` it is pending deletion.

    `deletion_ms` is the date that is shown. The key is deleted at `due_counted_ms`, by counted time.
    """

    key_id: str
    account_id: str
    description: str
    wrapped: bytes
    created_ms: int
    is_enabled: bool = True
    deletion_ms: int | None = None
    due_counted_ms: int | None = None


class KmsAliasRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key that an alias names."""

    key_id: str


class KeySweepRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The next look for unused data keys is due then: by counted time, and as older programs go by, by a wall clock."""

    due_ms: int
    due_counted_ms: int | None = None


class ReceiptKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A wrapped key that receipt handles are signed with. `since_counted_ms`: when it was made, by counted time."""

    key_id: int
    wrapped: bytes
    created_ms: int
    since_counted_ms: int | None = None


class LimitRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """So many requests and bytes a second; None: no limit. The key says on what."""

    requests: int | None
    bytes: int | None


class SessionKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A wrapped key that session tokens are encrypted with. `since_counted_ms`: as of `ReceiptKeyRow`."""

    key_id: int
    wrapped: bytes
    created_ms: int
    since_counted_ms: int | None = None


class PushSecretRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The wrapped key that signs calls to a queue's endpoint, and headers for them: JSON, wrapped; None: none.

    `wrapped_older_key` signs as well for a day from `rotated_counted_ms` on, which is of counted time.
    """

    account_id: str
    queue_name: str
    wrapped_key: bytes
    created_ms: int
    wrapped_headers: bytes | None = None
    wrapped_older_key: bytes | None = None
    rotated_counted_ms: int = 0


class PushStateRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How calls to an endpoint go, one of `core/push/states`. `endpoint_mark` says which endpoint it was.

    `calls_per_minute`: so many it allows; None: as many as it takes.
    """

    state: str
    endpoint_mark: str
    since_ms: int
    calls_per_minute: int | None = None


class IssuerRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An issuer of web identity tokens: its URL, those for whom its tokens may be, and its public keys.

    `key_set` is a JSON Web Key Set; empty: it is fetched from `keys_url`, or from where the issuer's discovery document
    says that it is.
    """

    issuer: str
    audiences: tuple[str, ...]
    key_set: str
    changed_ms: int
    keys_url: str = ""


class MasterKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key that wraps from now on, and those that are on their way out (none between rotations).

    They are wrapping keys; in stores that were not rotated since cell format 6, master keys.
    """

    current_key_id: str
    retiring_key_ids: tuple[str, ...] = ()


class WrappingKeyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key that wraps other secrets, wrapped with a master key."""

    key_id: str
    master_key_id: str
    wrapped: bytes


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A metadata node was there at this time."""

    name: str
    beat_ms: int


class ReaderRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A front end was there at this time, with these master keys.

    `seen_counted_ms`: the same by counted time. Of an older program it is put there by another front end.
    """

    name: str
    key_ids: tuple[str, ...]
    seen_ms: int
    seen_counted_ms: int | None = None


Row = TypeVar("Row", bound=msgspec.Struct)


def encode_row(row: msgspec.Struct) -> bytes:
    """Return the stored bytes of a row."""
    return row_codec.encode_row(row, ROW_VERSION)


def row_decoder(row_type: type[Row]) -> Callable[[bytes], Row]:
    """Return what reads `encode_row`'s bytes; StoreUnusable names the kind of row, never its content."""
    what = f"a {row_type.__name__} in the metadata store"
    return RowCodec(row_type, what, version=ROW_VERSION, error=StoreUnusable).decode


def id_text(number: int) -> str:
    """Return how a 64-bit id is written in a key."""
    return f"{number:016x}"
