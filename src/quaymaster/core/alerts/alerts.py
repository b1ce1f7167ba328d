"""What an alert is, its state, where it is told, and the bytes of all three.

    /alerts/ACCOUNT/NAME               Alert
    /alert_states/ACCOUNT/NAME         AlertStatus: as evaluated last, and notifications that are still to be delivered
    /alert_destinations/ACCOUNT/NAME   Destination
    /past_alerts/ACCOUNT/NAME          PastAlert: its changes, the newest first, at most HISTORY_MAX

An alert is CloudWatch's alarm, with two subjects that CloudWatch lacks: a prefix of names, and all dead-letter queues
of the account. NAME in keys is percent-encoded where it has characters of keys.

Rows are a version byte and a MessagePack array. To change one: append fields with defaults, or raise ALERT_VERSION and
keep decoding the old one.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal, TypeVar
from urllib.parse import quote, unquote

import msgspec

from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.row_codec import RowCodec, encode_row

ALERT_VERSION: Final = 1

ROWS: Final = "/alert"
"""All rows that consoles keep in memory begin so."""
ALERTS: Final = "/alerts/"
ALERT_STATES: Final = "/alert_states/"
ALERT_DESTINATIONS: Final = "/alert_destinations/"
PAST_ALERTS: Final = "/past_alerts/"
CONFIRMATION_MAILS: Final = "/confirmation_mails/"

HISTORY_MAX: Final = 100
"""Changes of an alert that are kept."""
OUTBOX_MAX: Final = 32
"""Notifications of an alert that wait for delivery. Above it the oldest are dropped."""
ALARMING_MAX: Final = 100
"""Queues of an alert over several that its state names."""

Subject = Literal["queue", "prefix", "dead_letter_queues"]
Statistic = Literal["SampleCount", "Average", "Sum", "Minimum", "Maximum"]
Comparison = Literal[
    "GreaterThanOrEqualToThreshold",
    "GreaterThanThreshold",
    "LessThanThreshold",
    "LessThanOrEqualToThreshold",
]
MissingData = Literal["missing", "ignore", "breaching", "notBreaching"]
State = Literal["OK", "ALARM", "INSUFFICIENT_DATA"]
DestinationKind = Literal["webhook", "email", "queue"]
HistoryKind = Literal["ConfigurationUpdate", "StateUpdate", "Action"]

SYMBOLS: Final[dict[str, str]] = {
    "GreaterThanOrEqualToThreshold": ">=",
    "GreaterThanThreshold": ">",
    "LessThanThreshold": "<",
    "LessThanOrEqualToThreshold": "<=",
}


class UnknownAlertFormat(UnknownFormat):
    """A row that this program cannot read."""


class Alert(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rule: `breaching` of the last `periods` values compare so with the threshold.

    `pattern` is the queue, or the prefix of names; "" with dead-letter queues. Actions are ARNs: of SQS a queue, of SNS
    a destination of that name. With `is_enabled` false the alert is evaluated, but nothing is told.
    """

    account_id: str
    name: str
    subject: Subject
    pattern: str
    metric: str
    statistic: Statistic
    period_s: int
    comparison: Comparison
    threshold: float
    periods: int
    breaching: int
    missing_data: MissingData = "missing"
    alarm_actions: tuple[str, ...] = ()
    ok_actions: tuple[str, ...] = ()
    insufficient_data_actions: tuple[str, ...] = ()
    is_enabled: bool = True
    description: str = ""
    tags: dict[str, str] = {}
    unit: str = ""
    created_ms: int = 0
    updated_ms: int = 0

    def actions(self, state: State) -> tuple[str, ...]:
        """Return what is told when the alert enters a state."""
        if state == "ALARM":
            return self.alarm_actions
        return self.ok_actions if state == "OK" else self.insufficient_data_actions

    @property
    def all_actions(self) -> tuple[str, ...]:
        """What is told when it enters any state; some of them may be the same."""
        return (*self.alarm_actions, *self.ok_actions, *self.insufficient_data_actions)

    @property
    def subject_text(self) -> str:
        """For people: the queue, `prefix*`, or `dead-letter queues`."""
        if self.subject == "dead_letter_queues":
            return "dead-letter queues"
        return self.pattern if self.subject == "queue" else f"{self.pattern}*"

    @property
    def condition_text(self) -> str:
        """For people: `ApproximateAgeOfOldestMessage Maximum > 300 for 3 of 5 periods of 60 s`."""
        return (
            f"{self.metric} {self.statistic} {SYMBOLS[self.comparison]} {self.threshold:.15g} "
            f"for {self.breaching} of {self.periods} periods of {self.period_s} s"
        )


class Notification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One transition that one action is to be told of. Its id is that of the transition, the same for all actions."""

    id: str
    action: str
    old_state: State
    new_state: State
    reason: str
    at_ms: int


class AlertStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an alert stands: since when, why, which queues of several are in alarm, and what is not delivered yet.

    `number` counts its transitions. `reason_data` is JSON, as CloudWatch gives it. `dropped`: notifications for which
    the outbox had no place.
    """

    state: State = "INSUFFICIENT_DATA"
    reason: str = "Unchecked: Initial alarm creation"
    reason_data: str = ""
    changed_ms: int = 0
    number: int = 0
    alarming: tuple[str, ...] = ()
    outbox: tuple[Notification, ...] = ()
    dropped: int = 0


class PastChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to an alert. `data` is JSON, as CloudWatch gives it."""

    at_ms: int
    kind: HistoryKind
    summary: str
    data: str = ""


class PastAlert(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The changes of an alert, the newest first."""

    changes: tuple[PastChange, ...] = ()

    def with_change(self, change: PastChange) -> PastAlert:
        """Return it with another change; the oldest one gives way."""
        return PastAlert((change, *self.changes)[:HISTORY_MAX])


class Destination(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where notifications go: a URL, a mail address, or the ARN of a queue.

    `id` is random, and never used again: a webhook's secret comes from it. Nothing is mailed to an address before
    `confirmed_ms`; other kinds are confirmed from the beginning.
    """

    account_id: str
    name: str
    kind: DestinationKind
    target: str
    id: str
    created_ms: int
    confirmed_ms: int | None = None


class MailCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Confirmation mails that an account asked for, or an address was sent, on a day (days since 1970, UTC)."""

    day: int
    count: int


def row_name(account_id: str, name: str) -> str:
    """Return how an alert or destination is named in keys: ACCOUNT/NAME, where NAME has no slash."""
    return f"{account_id}/{quote(name, safe='')}"


def parse_row_name(text: str) -> tuple[str, str]:
    """Return the account and the name that `row_name` was given."""
    account_id, _, name = text.partition("/")
    return account_id, unquote(name)


Row = TypeVar("Row", bound=msgspec.Struct)


def encode_alert_row(row: msgspec.Struct) -> bytes:
    """Return the stored bytes of a row."""
    return encode_row(row, ALERT_VERSION)


def decode_alert_row(data: bytes, kind: type[Row]) -> Row:
    """Read what `encode_alert_row` wrote; UnknownAlertFormat says what is wrong."""
    row: Row = _codec_of(kind).decode(data)
    return row


@cache
def _codec_of(kind: type[Row]) -> RowCodec[Row]:
    return RowCodec(kind, f"a row {kind.__name__}", version=ALERT_VERSION, error=UnknownAlertFormat)
