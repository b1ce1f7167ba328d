"""Which receipts are good, and what is said of the others. A receipt names one delivery; the next one ends it."""

from __future__ import annotations

from typing import Final

from quaymaster.core.partition.partition import VISIBILITY_TIMEOUT_MAX_MS, Partition
from quaymaster.core.partition.partition_state import RESETS_SHIFT
from quaymaster.core.values.commands.messages import RECEIPT_HANDLE_PLACEHOLDER, Receipt
from quaymaster.core.values.errors import InvalidParameterValue, OverLimit

EXPIRED: Final = "The receipt handle has expired."
NOT_AVAILABLE: Final = "Message does not exist or is not available for visibility timeout change."


def holds(partition: Partition, receipt: Receipt, now_ms: int) -> bool:
    """Return whether the message is out with the delivery that a receipt names: FIFO and ExactlyOnce heed no other."""
    row = partition.in_flight.get(receipt.sequence)
    return (
        row is not None
        and row.epoch == receipt.epoch
        and row.delivery_count == receipt.delivery_count
        and row.deadline_ms > now_ms
    )


def was_finished_by(partition: Partition, receipt: Receipt, now_ms: int) -> bool:
    """Return whether the delivery that a receipt names finished its message lately (ExactlyOnce)."""
    settled = partition.settled
    if settled is None:
        return False
    resets = receipt.epoch >> RESETS_SHIFT
    return settled.find(receipt.sequence, receipt.delivery_count, resets, now_ms) is not None


def visibility_error(
    partition: Partition, receipt: Receipt, timeout_ms: int, now_ms: int, in_flight_max: int
) -> Exception | None:
    """Return why a message cannot be hidden for so long with a receipt, None when it can."""
    sequence = receipt.sequence
    if partition.definition.is_exactly_once and not holds(partition, receipt, now_ms):
        return receipt_invalid(EXPIRED)
    if (
        not partition.is_live(sequence)
        or sequence in partition.moving
        or partition.is_leaving(sequence)
        or (partition.definition.is_fifo and not holds(partition, receipt, now_ms))
    ):
        return receipt_invalid(NOT_AVAILABLE)
    row = partition.in_flight.get(sequence)
    if row is None:
        if len(partition.in_flight) >= in_flight_max and timeout_ms:
            return OverLimit.in_flight(in_flight_max)
        return None
    elapsed_ms = (now_ms - row.received_ms) // 1000 * 1000
    if timeout_ms and elapsed_ms + timeout_ms > VISIBILITY_TIMEOUT_MAX_MS:
        return InvalidParameterValue(
            f"Value {timeout_ms // 1000} for parameter VisibilityTimeout is invalid. Reason: Total "
            f"VisibilityTimeout for the message is beyond the limit [{VISIBILITY_TIMEOUT_MAX_MS // 1000} seconds]"
        )
    return None


def receipt_invalid(reason: str) -> InvalidParameterValue:
    """Return what is said of a receipt that is not good; who knows the handle puts it in."""
    return InvalidParameterValue(
        f"Value {RECEIPT_HANDLE_PLACEHOLDER} for parameter ReceiptHandle is invalid. Reason: {reason}"
    )
