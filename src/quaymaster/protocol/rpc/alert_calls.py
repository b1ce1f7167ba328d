"""What front ends ask a console for alerts that are told to queues, as it goes over the RPC; MessagePack.

    alerts.take      TakeNotifications ─▶ TakenNotifications    waits until there is one, or for `wait_ms`
    alerts.settle    SettleNotifications ─▶ empty               what came of them

A console cannot send to queues: a front end does, as the account of the alert, and only where that account may. What is
taken and not settled within LEASE_MS is given to the next one who asks, so a message may be sent twice. Fields are only
ever appended, with defaults.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

TAKE: Final = "alerts.take"
SETTLE: Final = "alerts.settle"
TAKEN_MAX: Final = 10
LEASE_MS: Final = 30_000

Settled = Literal["delivered", "retry", "failed"]


class TakeNotifications(msgspec.Struct, frozen=True, array_like=True):
    """Give me up to TAKEN_MAX; `wait_ms` is how long to wait for the first."""

    wait_ms: int


class QueueNotification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message to send to `queue_arn` as the root of `account_id`. `transition_id` is the same each time.

    `ticket` names it when it is settled. `alert_arn` is the group of a FIFO queue.
    """

    ticket: int
    account_id: str
    queue_arn: str
    body: str
    transition_id: str
    alert_arn: str


class TakenNotifications(msgspec.Struct, frozen=True, array_like=True):
    """Those that were taken; none: there are none now."""

    notifications: list[QueueNotification] = []


class SettledNotification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What came of one."""

    ticket: int
    outcome: Settled
    reason: str = ""


class SettleNotifications(msgspec.Struct, frozen=True, array_like=True):
    """What came of those that were taken."""

    settled: list[SettledNotification]


encode_alert_call = msgspec.msgpack.Encoder().encode
decode_take = msgspec.msgpack.Decoder(TakeNotifications).decode
decode_taken = msgspec.msgpack.Decoder(TakenNotifications).decode
decode_settle = msgspec.msgpack.Decoder(SettleNotifications).decode
