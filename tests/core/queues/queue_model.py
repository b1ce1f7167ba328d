"""What a queue is, in plain dicts and lists and with no care for speed: the reference for `test_queue_model`.

It says which messages a receive *may* and *must* give; the order among them is the implementation's, but for FIFO.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEDUP_WINDOW_MS = 300_000
SETTLED_WINDOW_MS = 300_000
SLOT_MS = 50


def slot_end(time_ms: int) -> int:
    return -(-time_ms // SLOT_MS) * SLOT_MS


@dataclass
class ModelMessage:
    sequence: int
    message_id: bytes
    group: int
    sent_ms: int
    due_ms: int
    origin: int = 0
    count: int = 0
    arrived: int = 0
    first_ms: int = 0
    deadline_ms: int = 0
    holder: tuple[int, int] = (0, 0)
    changed: bool = False
    moving_to: int | None = None
    was_due: bool = False


@dataclass
class ModelQueue:
    queue_id: int
    name: str
    is_fifo: bool
    visibility_ms: int = 30_000
    delay_ms: int = 0
    retention_ms: int = 345_600_000
    target: int | None = None
    receives_max: int = 0
    next_sequence: int = 1
    live: dict[int, ModelMessage] = field(default_factory=dict)
    stored: dict[tuple[str, bytes], list[tuple[int, bytes]]] = field(default_factory=dict)
    repeats_until_ms: int = 0
    """A message that may repeat another was stored: until then every first attempt is looked for."""
    retries_before: list[int] = field(default_factory=list)
    """When an earlier leader stored messages with retry ids."""
    attempts: dict[bytes, tuple[int, list[tuple[int, int]]]] = field(default_factory=dict)
    task: dict[str, object] | None = None
    is_exactly_once: bool | None = None
    resets: int = 0
    finished_ms: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """When deliveries finished their messages: sequence, count and resets of each."""

    def set_exactly_once(self, is_exactly_once: bool) -> None:
        if is_exactly_once and self.is_exactly_once is False:  # not when it is made
            self.resets += 1
        self.is_exactly_once = is_exactly_once

    def receipt_epoch(self, epoch: int) -> int:
        return epoch + self.resets * 2**48

    # Time

    def advance(self, now_ms: int) -> None:
        for message in self.live.values():
            if message.deadline_ms and message.deadline_ms <= now_ms:
                message.deadline_ms = 0
            if self.is_due(message, now_ms):
                message.was_due = True

    def is_due(self, message: ModelMessage, now_ms: int) -> bool:
        if message.count > message.arrived:
            return True
        return (message.sent_ms + self.delay_ms if self.is_fifo else message.due_ms) <= now_ms

    def is_expired(self, message: ModelMessage, now_ms: int) -> bool:
        return message.sent_ms + self.retention_ms <= now_ms

    # Sending

    def find_stored(self, kind: str, key: bytes, now_ms: int, window_ms: int) -> bytes | None:
        for time_ms, message_id in reversed(self.stored.get((kind, key), [])):
            if now_ms - time_ms < window_ms:
                return message_id
        return None

    def send(self, message_id: bytes, group: int, now_ms: int, delay_ms: int) -> ModelMessage:
        delay_ms = self.delay_ms if delay_ms < 0 or self.is_fifo else delay_ms
        due_ms = slot_end(now_ms + delay_ms) if delay_ms else now_ms
        message = ModelMessage(self.next_sequence, message_id, group, now_ms, due_ms)
        self.live[self.next_sequence] = message
        self.next_sequence += 1
        return message

    # Receiving

    def is_exhausted(self, message: ModelMessage) -> bool:
        return self.target is not None and message.count - message.arrived >= self.receives_max

    def candidates(self, now_ms: int, committed: int, *, strictly: bool) -> list[list[ModelMessage]]:
        """Return runs of messages that may be taken; `strictly`: that must be, while there is room.

        A run is taken from its front. On a standard queue each message is a run of its own.
        """
        runs: dict[int, list[ModelMessage]] = {}
        blocked: set[int] = set()
        for message in sorted(self.live.values(), key=lambda message: message.sequence):
            key = message.group if self.is_fifo else message.sequence
            if key in blocked:
                continue
            is_due = self.is_due(message, now_ms) or (message.was_due and self.is_fifo and not strictly)
            is_out = message.deadline_ms > 0 or message.moving_to is not None
            if is_out or not is_due or message.sequence >= committed:
                blocked.add(key)
            else:
                runs.setdefault(key, []).append(message)
        return list(runs.values())

    def take(self, message: ModelMessage, now_ms: int, timeout_ms: int, epoch: int) -> None:
        message.count += 1
        message.first_ms = message.first_ms or now_ms
        self.hide(message, now_ms, timeout_ms, epoch)

    def timeout_end(self, now_ms: int, timeout_ms: int) -> int:
        if not timeout_ms:
            return 0
        return now_ms + timeout_ms if self.is_fifo else slot_end(now_ms + timeout_ms)

    def hide(self, message: ModelMessage, now_ms: int, timeout_ms: int, epoch: int) -> None:
        message.deadline_ms = self.timeout_end(now_ms, timeout_ms)
        message.holder = (self.receipt_epoch(epoch), message.count)
        message.changed = False

    def find_attempt(self, attempt: bytes, now_ms: int) -> list[tuple[int, int]] | None:
        time_ms, taken = self.attempts.get(attempt, (-DEDUP_WINDOW_MS, []))
        if now_ms - time_ms >= DEDUP_WINDOW_MS or not taken:
            return None
        for sequence, count in taken:
            message = self.live.get(sequence)
            if message is None or not message.deadline_ms or message.count != count or message.changed:
                return None
        return taken

    def is_spent(self, attempt: bytes, now_ms: int) -> bool:
        time_ms, taken = self.attempts.get(attempt, (-DEDUP_WINDOW_MS, []))
        if now_ms - time_ms >= DEDUP_WINDOW_MS:
            return False
        for sequence, count in taken:
            message = self.live.get(sequence)
            if message is None or (message.deadline_ms and message.count == count and message.changed):
                return True
        return False

    # Deleting and hiding by receipt

    def is_held_by(self, sequence: int, epoch: int, count: int) -> bool:
        message = self.live[sequence]
        return message.deadline_ms > 0 and message.holder == (epoch, count)

    def delete(self, sequence: int, epoch: int, count: int, now_ms: int) -> bool:
        """Return whether it is answered with success."""
        if self.is_exactly_once:
            delivery = sequence, count, epoch // 2**48
            if sequence not in self.live or not self.is_held_by(sequence, epoch, count):
                return now_ms - self.finished_ms.get(delivery, -SETTLED_WINDOW_MS) < SETTLED_WINDOW_MS
            self.finished_ms[delivery] = now_ms
        if sequence not in self.live:
            return True
        if self.is_fifo and not self.is_held_by(sequence, epoch, count):
            return False
        del self.live[sequence]
        return True

    def change_visibility(self, sequence: int, epoch: int, count: int, now_ms: int, timeout_ms: int) -> bool:
        message = self.live.get(sequence)
        if message is None or message.moving_to is not None:
            return False
        if (self.is_fifo or self.is_exactly_once) and not self.is_held_by(sequence, epoch, count):
            return False
        if not message.deadline_ms:
            if not timeout_ms:
                return True
            message.holder = (epoch, max(message.count, count))
            message.count = max(message.count, count)
            message.first_ms = message.first_ms or now_ms
        message.deadline_ms = self.timeout_end(now_ms, timeout_ms)
        message.changed = True
        return True

    # Counting

    def counts(self, now_ms: int) -> tuple[int, int, int, int]:
        """Return visible, in flight, and delayed at least and at most."""
        in_flight = sum(message.deadline_ms > 0 for message in self.live.values())
        waiting = [message for message in self.live.values() if not message.deadline_ms]
        waiting = [message for message in waiting if not self.is_due(message, now_ms)]
        surely = sum(not (self.is_fifo and message.was_due) for message in waiting)
        return len(self.live) - in_flight, in_flight, surely, len(waiting)


def move(
    source: ModelQueue, target: ModelQueue, sequence: int, now_ms: int, new_message_id: bytes | None
) -> ModelMessage:
    """Put a message into another queue; with a new id it starts afresh."""
    message = source.live.pop(sequence)
    is_new = new_message_id is not None
    keeps_age = not is_new and not target.is_fifo
    moved = ModelMessage(
        target.next_sequence,
        new_message_id or message.message_id,
        message.group,
        message.sent_ms if keeps_age else now_ms,
        now_ms,
        origin=source.queue_id,
        count=0 if is_new else message.count,
        arrived=0 if is_new else message.count,
        first_ms=0 if is_new else message.first_ms,
    )
    target.live[target.next_sequence] = moved
    target.next_sequence += 1
    return moved
