"""The order in which replies of one connection leave."""

from __future__ import annotations

import pytest

from quaymaster.net.http.message import CONNECTION_CLOSE, HTTPRequest
from quaymaster.net.http.replies import ReplyQueue


def request(connection_line: bytes = b"") -> HTTPRequest:
    return HTTPRequest(b"GET", b"/", b"/", b"", [], "192.0.2.1", 0.0, {}, connection_line)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_replies_leave_in_the_order_of_their_requests_which_keep_none(order: tuple[int, ...]) -> None:
    queue = ReplyQueue()
    requests = [request(), request(), request(CONNECTION_CLOSE)]
    queue.pending.extend(requests)

    turns = [queue.answer(requests[at], (b"%d" % at, b".")) for at in order]

    assert b"".join(queue.ready) == b"0.1.2."
    assert turns == [at == 0 or 0 in order[:place] for place, at in enumerate(order)]
    assert queue.closes
    assert not queue.pending
    assert [one._reply for one in requests] == [(), (), ()]
