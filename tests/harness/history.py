"""What clients asked and what they were told: the recorded history that the checker judges.

One list of events for each client, so that recording takes no lock; `History.events()` merges them. Times are
monotonic nanoseconds of the machine on which the clients run: an operation took effect, if it did, between
`invoked_ns` and `completed_ns`. `wall_ms` is the wall clock at the invocation, for people who compare it with a
server's log.

    invoke ──▶ answered 2xx ─────────────────────────▶ ok
          ├──▶ answered 4xx ─────────────────────────▶ fail      it was not done
          └──▶ connection broke, 5xx, no answer ─────▶ unknown   it was done, or not, or is still to be done

A send that is tried again with the same invocation id is one operation from its first attempt to its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

Outcome = Literal["ok", "fail", "unknown"]

OK: Outcome = "ok"
FAIL: Outcome = "fail"
UNKNOWN: Outcome = "unknown"

NEVER_NS = 1 << 62


class QueueFacts(msgspec.Struct, frozen=True):
    """What the checker must know of a queue; it stays the same over all queues of this name.

    Messages move only between queues of one `family`. `is_move_target` says that move tasks put messages there,
    which have a new message id then. `max_receive_count` is that of its redrive policy, 0 without one. A queue
    with `survives_kill` keeps acknowledged messages when the process is killed (`Sync` and `Async`).
    """

    name: str
    family: str
    is_fifo: bool = False
    retention_ms: int = 345_600_000
    max_receive_count: int = 0
    is_move_target: bool = False
    survives_kill: bool = True
    dedup_by_group: bool = False
    delay_ms: int = 0
    """Of the queue; a message's own delay is in its SentMessage."""


class SentMessage(msgspec.Struct):
    """One entry of a send. `token` is what its body says; no two entries have the same."""

    token: int
    outcome: Outcome
    message_id: str | None = None
    sequence: int | None = None
    group: str | None = None
    dedup_id: str | None = None
    delay_ms: int | None = None


class DeliveredMessage(msgspec.Struct):
    """One message of a receive. `token` is None when the body names none; `is_intact` is False when it was altered."""

    token: int | None
    message_id: str
    count: int
    handle: int
    is_intact: bool = True
    sequence: int | None = None
    group: str | None = None


class HandledMessage(msgspec.Struct):
    """One entry of a delete or of a change of visibility; `handle` is that of the delivery."""

    token: int | None
    message_id: str
    handle: int
    outcome: Outcome
    timeout_ms: int = 0
    """What the visibility timeout was changed to."""


class Operation(msgspec.Struct, kw_only=True):
    """What all operations have. `is_open_ended`: unknown, and the server may carry it out after `completed_ns`."""

    queue: str
    invoked_ns: int
    completed_ns: int
    wall_ms: int = 0
    outcome: Outcome = OK
    is_open_ended: bool = False


class Send(Operation, tag="send"):
    """SendMessage or SendMessageBatch; each entry has an outcome of its own."""

    entries: list[SentMessage]
    attempts: int = 1


class Receive(Operation, tag="receive"):
    """ReceiveMessage with a visibility timeout of its own."""

    visibility_ms: int
    messages: list[DeliveredMessage]


class Delete(Operation, tag="delete"):
    """DeleteMessage or DeleteMessageBatch."""

    entries: list[HandledMessage]


class ChangeVisibility(Operation, tag="visibility"):
    """ChangeMessageVisibility, single or batch."""

    entries: list[HandledMessage]


class Purge(Operation, tag="purge"):
    """PurgeQueue."""


class CreateQueue(Operation, tag="create"):
    """CreateQueue."""


class SetQueue(Operation, tag="set"):
    """SetQueueAttributes, of attributes the checker does not depend on."""


class DeleteQueue(Operation, tag="delete-queue"):
    """DeleteQueue."""


class MoveTask(Operation, tag="move-task"):
    """StartMessageMoveTask; `queue` is the source."""


class Count(Operation, tag="count"):
    """The three ApproximateNumberOf... of a queue, read while no other operation was under way.

    The counts of one `round` are compared together; a queue that does not exist then has none.
    """

    round: int
    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        return self.visible + self.in_flight + self.delayed


class ServerEnded(msgspec.Struct, tag="server-ended"):
    """The server was killed or ended between these times; what it kept in memory is gone."""

    invoked_ns: int
    completed_ns: int
    how: str = "kill -9"


class Disturbed(msgspec.Struct, tag="disturbed"):
    """Something of a cell was killed, stopped or cut off between these times, or had yet to recover from it.

    A leader may have moved. Calls under way did not end with it, as they do with the one process of a server.
    """

    invoked_ns: int
    completed_ns: int
    how: str


Event = (
    Send
    | Receive
    | Delete
    | ChangeVisibility
    | Purge
    | CreateQueue
    | SetQueue
    | DeleteQueue
    | MoveTask
    | Count
    | ServerEnded
    | Disturbed
)


class _Header(msgspec.Struct):
    queues: list[QueueFacts]


class History:
    """The queues there were, and the events of every client."""

    def __init__(self, queues: Iterable[QueueFacts] = ()) -> None:
        self.queues: dict[str, QueueFacts] = {facts.name: facts for facts in queues}
        self._lanes: list[list[Event]] = []

    def lane(self) -> list[Event]:
        """Return a new list for one client to append its events to."""
        lane: list[Event] = []
        self._lanes.append(lane)
        return lane

    def add(self, *events: Event) -> None:
        """Append events that belong to no client's list."""
        if not self._lanes:
            self.lane()
        self._lanes[0].extend(events)

    def events(self) -> list[Event]:
        """Return all events in the order in which they were invoked."""
        return sorted((event for lane in self._lanes for event in lane), key=lambda event: event.invoked_ns)

    def save(self, path: Path) -> None:
        """Write the history as JSON lines: the queues, then one event a line."""
        encode = msgspec.json.Encoder().encode
        with path.open("wb") as file:
            file.write(encode(_Header(list(self.queues.values()))) + b"\n")
            for event in self.events():
                file.write(encode(event) + b"\n")

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what `save` wrote."""
        with path.open("rb") as file:
            history = cls(msgspec.json.decode(file.readline(), type=_Header).queues)
            history.lane().extend(_decode_lines(file))
        return history


def _decode_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    decoder = msgspec.json.Decoder(Event)
    for line in lines:
        yield decoder.decode(line)
