"""Messages go to the oldest partition of their key that is open or closing, and on from there.

    closing partition ──knows the id──▶ duplicate
                      ──sealed────────▶ Elsewhere ──▶ the next partition of the key

Only the older partition knows what was sent before it was sealed, so it is asked first about each message that may be
a repeat. What cannot be one goes to the open partition at once, when the older one is known to be sealed. Where there
are deduplication ids, that is what has one that the older one does not know; in FIFO queues with it the whole group in
the request.

Entries whose partition has no leader fail alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from quaymaster.core.spread.parts import Part, partitions_are_changing
from quaymaster.core.values.commands.messages import Elsewhere, NewMessage, Send, SendOutcome, SendResult
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import NotNow, Timeout
from quaymaster.core.values.partition_tables import in_state, taking
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

ATTEMPTS_MAX: Final = 5
"""So often a message is brought to a partition: each attempt but the last meets one that was sealed meanwhile."""
PATIENCE_MS: Final = 300
"""A peer that has not answered for so long is left, and another one asked: its broker may hang."""
_KEY_BYTES: Final = 8


def key_of(definition: QueueDefinition, message: NewMessage, first: NewMessage) -> int:
    """Return the key that chooses a message's partition. `first`: the first message of its request.

    In FIFO queues it is the group. Else it is that of a deduplication id; without one, all of a request have one, the
    same when the request is repeated.
    """
    if definition.is_fifo:
        return message.group
    if message.dedup is not None:
        return int.from_bytes(message.dedup[:_KEY_BYTES], "big")
    return int.from_bytes((first.retry or first.message_id)[:_KEY_BYTES], "big")


class SpreadSend:
    """A Send to a queue of several partitions.

    `is_known_sealed(number)`: whether a partition was heard to be sealed, with its seal committed.
    `may_know(number, dedup)`: whether such a partition may know a deduplication id. `asked`: a partition that was asked
    about all messages by an old row, and what it answered.
    """

    def __init__(
        self,
        definition: QueueDefinition,
        messages: Sequence[NewMessage],
        is_known_sealed: Callable[[int], bool] = lambda number: False,
        may_know: Callable[[int, bytes], bool] = lambda number, dedup: True,
        asked: tuple[int, Elsewhere] | None = None,
    ) -> None:
        self.result: SendOutcome | Exception | None = None
        self._definition = definition
        self._messages = messages
        self._is_known_sealed = is_known_sealed
        self._may_know = may_know
        self._asked = asked
        self._results: list[SendResult | Exception | None] = [None] * len(messages)

    def begin(self) -> list[Part]:
        """Return a Send to each partition that is asked first."""
        everything = range(len(self._messages))
        if self._asked is None:
            return self._ask(everything)
        number, answer = self._asked
        before = Part(number, Send(self._definition.queue_id, number, [*self._messages]), [*everything])
        return self.on_outcome(before, answer, self._definition)

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take an answer. What a sealed partition does not know goes on to younger ones."""
        self._definition = definition
        if isinstance(outcome, SendOutcome):
            self._note(part.indexes, outcome.results)
        elif isinstance(outcome, Elsewhere) and outcome.results:
            self._note(part.indexes, outcome.results)
            rest = [
                index for index, result in zip(part.indexes, outcome.results, strict=True) if result is None
            ]
            parts = self._ask(rest, part)
            if parts:
                return parts
        else:
            assert isinstance(outcome, Exception), f"a Send is not answered so: {outcome}"
            self._note(part.indexes, [outcome] * len(part.indexes))
        self._finish()
        return []

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """The partition is not known where it was sought; by this newer table the messages go elsewhere."""
        self._definition = definition
        parts = self._ask(part.indexes, msgspec.structs.replace(part, number=-1))
        self._finish()
        return parts

    def _ask(self, indexes: Iterable[int], before: Part | None = None) -> list[Part]:
        """Return Sends of messages to where they go, behind the partition of a part that came before."""
        by_number: dict[int, list[int]] = {}
        for index, number in self._targets(indexes, before).items():
            if number is None:
                self._results[index] = partitions_are_changing()
            else:
                by_number.setdefault(number, []).append(index)
        attempts = 1 if before is None else before.attempts + 1
        queue_id = self._definition.queue_id
        return [
            Part(
                number, Send(queue_id, number, [self._messages[index] for index in chosen]), chosen, attempts
            )
            for number, chosen in by_number.items()
        ]

    def _targets(self, indexes: Iterable[int], before: Part | None) -> dict[int, int | None]:
        targets = {index: self._target(self._messages[index], before) for index in indexes}
        if self._definition.is_fifo and len(targets) > 1:
            # Messages of a group keep their order: all go where the first one of them has to be asked about.
            oldest: dict[int, int] = {}
            for index, number in targets.items():
                if number is not None:
                    group = self._messages[index].group
                    oldest[group] = min(number, oldest.get(group, number))
            targets = {index: oldest.get(self._messages[index].group) for index in targets}
        return targets

    def _target(self, message: NewMessage, before: Part | None) -> int | None:
        if before is not None and before.attempts >= ATTEMPTS_MAX:
            return None
        key = key_of(self._definition, message, self._messages[0])
        after = -1 if before is None else before.number
        numbers = [entry.number for entry in taking(self._definition, key) if entry.number > after]
        while (
            len(numbers) > 1
            and self._is_known_sealed(numbers[0])
            and not self._may_be_in(numbers[0], message)
        ):
            del numbers[0]
        return numbers[0] if numbers else None

    def _may_be_in(self, number: int, message: NewMessage) -> bool:
        """Return whether a sealed partition may have stored the same message."""
        if message.dedup is not None:
            return self._may_know(number, message.dedup)
        if self._definition.is_fifo:
            return True
        return message.retry is not None and message.may_be_retry

    def _note(self, indexes: Sequence[int], results: Sequence[SendResult | Exception | None]) -> None:
        for index, result in zip(indexes, results, strict=True):
            self._results[index] = result

    def _finish(self) -> None:
        if any(result is None for result in self._results):
            return
        errors = [result if isinstance(result, Exception) else None for result in self._results]
        failed = [error for error in errors if error is not None]
        if len(failed) == len(self._results):
            self.result = failed[0]
            return
        nothing = SendResult(0, b"")
        results = [result if isinstance(result, SendResult) else nothing for result in self._results]
        self.result = SendOutcome(results, errors if failed else [])


class PeerSend:
    """A Send to a queue with ReplicationMode=Peers: any open partition may take it, so none is waited for.

    The partition of its key begins: there a repeat of the request is found. Where no answer comes from it, another
    takes the messages, perhaps twice. Only when all have failed, one is waited for.
    """

    def __init__(self, definition: QueueDefinition, messages: list[NewMessage]) -> None:
        self.result: Outcome | Exception | None = None
        self._definition = definition
        self._messages = messages
        self._tried: set[int] = set()
        self._is_unknown = False
        self._may_wait = True

    def begin(self) -> list[Part]:
        """Return the Send to the partition of its key."""
        return self._ask()

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take an answer; another partition is asked when this one could not be."""
        self._definition = definition
        if isinstance(outcome, NotNow):
            self._is_unknown = self._is_unknown or isinstance(outcome, Timeout)
            return self._ask(outcome)
        if isinstance(outcome, Elsewhere):
            if all(result is not None for result in outcome.results):
                self.result = SendOutcome([result for result in outcome.results if result is not None])
                return []
            return self._ask()
        self.result = outcome
        return []

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """The partition is not listed any more by this newer table."""
        self._definition = definition
        return self._ask()

    def _ask(self, error: NotNow | None = None) -> list[Part]:
        opened = in_state(self._definition, "open")
        key = key_of(self._definition, self._messages[0], self._messages[0])
        opened.sort(key=lambda entry: (key > entry.last_key, entry.number))
        left = [entry.number for entry in opened if entry.number not in self._tried]
        if left:
            self._tried.add(left[0])
            return [self._part(left[0], fails_fast=True)]
        if self._may_wait:
            self._may_wait = False
            return [self._part(opened[0].number, fails_fast=False)]
        # An earlier attempt may have been carried out.
        self.result = Timeout() if self._is_unknown or error is None else error
        return []

    def _part(self, number: int, *, fails_fast: bool) -> Part:
        command = Send(self._definition.queue_id, number, self._messages, fails_fast)
        return Part(number, command, patience_ms=PATIENCE_MS if fails_fast else 0)
