"""How metrics of queues are asked for and told: as bytes, and back."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.queue_metrics import (
    GonePartition,
    JournalCursor,
    QueueMetricsPage,
    QueueMetricsRequest,
    QueueMetricsRow,
    decode_cursor,
    decode_page,
    decode_request,
    encode_cursor,
    encode_page,
    encode_request,
)


def test_request_and_page_are_read_as_they_were_written() -> None:
    request = QueueMetricsRequest(b"cursor", (1, 2))
    page = QueueMetricsPage(
        "b1", [QueueMetricsRow(1, 2, 3, 4, visible=5)], b"next", [GonePartition(6, 7, 3)], has_more=True
    )

    assert decode_request(encode_request(request)) == request
    assert decode_page(encode_page(page)) == page


def test_row_of_a_newer_program_is_read_without_what_it_adds() -> None:
    row = [*msgspec.structs.astuple(QueueMetricsRow(1, 2, 3, 4, wait_ms=5)), "newer"]

    page = decode_page(msgspec.msgpack.encode(["b1", [row]]))

    assert page.rows == [QueueMetricsRow(1, 2, 3, 4, wait_ms=5)]


def test_cursor_that_is_none_begins_at_the_start() -> None:
    cursors = {7: JournalCursor(2, 1_000)}

    assert decode_cursor(encode_cursor(cursors)) == cursors
    assert decode_cursor(b"") == {}
    assert decode_cursor(b"\xc1 no cursor") == {}
    assert decode_cursor(b"\xa2\xff\xff") == {}
