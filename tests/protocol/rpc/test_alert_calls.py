"""What front ends and consoles say of alerts that go to queues."""

from __future__ import annotations

import msgspec

from quaymaster.protocol.rpc.alert_calls import (
    QueueNotification,
    SettledNotification,
    SettleNotifications,
    TakenNotifications,
    TakeNotifications,
    decode_settle,
    decode_take,
    decode_taken,
    encode_alert_call,
)


def test_calls_are_read_as_they_were_made() -> None:
    one = QueueNotification(1, "000000000000", "arn:aws:sqs:us-east-1:000000000000:told", "{}", "ab", "arn")

    assert decode_take(encode_alert_call(TakeNotifications(500))) == TakeNotifications(500)
    assert decode_taken(encode_alert_call(TakenNotifications([one]))) == TakenNotifications([one])
    settled = SettleNotifications([SettledNotification(1, "failed", "AccessDenied")])
    assert decode_settle(encode_alert_call(settled)) == settled


def test_a_peer_of_a_newer_program_may_say_more() -> None:
    assert decode_take(msgspec.msgpack.encode([500, "more"])) == TakeNotifications(500)
    assert decode_settle(msgspec.msgpack.encode([[[1, "delivered"]]])).settled[0].reason == ""
