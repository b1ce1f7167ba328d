"""What a manager asks a broker, as it goes over the RPC.

    report                                  ─▶ BrokerReport (core/cell/cell)
    prepare    journal id, u64 little-endian ─▶ the member's name, UTF-8: a replica is there, a new one is empty
    transfer   TransferRequest              ─▶ bool: the leader has resigned, and the member has everything
    drop       DropRequest                  ─▶ bool: the replica is gone; false: a configuration names it

A front end says of itself, and asks of all:

    follows    revision, u64 little-endian  notice: its rows are complete up to this authorization floor
    followers                               ─▶ {name: revision} of the front ends that are connected
    enforced                                ─▶ revision, u64: below this floor it refuses them; 0: none

And an operator:

    accept_clock AcceptClockRequest         ─▶ nothing: wall clocks are right, in all journals that it has

And those who watch queues, a console above all:

    queue_metrics QueueMetricsRequest      ─▶ QueueMetricsPage (core/values/queue_metrics): of the journals led there

Structs and bools are MessagePack; fields are only ever appended, with defaults.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from quaymaster.core.cell.cell import BrokerReport

REPORT: Final = "report"
PREPARE: Final = "prepare"
TRANSFER: Final = "transfer"
DROP: Final = "drop"
ACCEPT_CLOCK: Final = "accept_clock"
FOLLOWS: Final = "follows"
FOLLOWERS: Final = "followers"
ENFORCED: Final = "enforced"
QUEUE_METRICS: Final = "queue_metrics"

JOURNAL_ID: Final = struct.Struct("<Q")
REVISION: Final = struct.Struct("<Q")


class TransferRequest(msgspec.Struct, frozen=True):
    """Hand the leadership of a journal to one of its members."""

    journal: int
    member: str


class DropRequest(msgspec.Struct, frozen=True):
    """Drop a replica that the configuration of `epoch`, and every later one, does without."""

    journal: int
    member: str
    epoch: int


class AcceptClockRequest(msgspec.Struct, frozen=True):
    """Say that wall clocks are right. `by`: the user and host that say so, as far as the caller tells."""

    by: str = ""


encode_call = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(BrokerReport).decode
decode_transfer = msgspec.msgpack.Decoder(TransferRequest).decode
decode_drop = msgspec.msgpack.Decoder(DropRequest).decode
decode_accept_clock = msgspec.msgpack.Decoder(AcceptClockRequest).decode
decode_followers = msgspec.msgpack.Decoder(dict[str, int]).decode
decode_answer = msgspec.msgpack.Decoder(bool).decode
