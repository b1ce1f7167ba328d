"""A receive asks the partitions of its queue in turn, until one has messages.

It is answered empty when each partition had nothing, or its limit in flight, at some moment since the request: never
because one could not be asked. One without a leader is passed by at first, and waited for only where no other has
messages. So is one that cannot say yet: it holds groups that an older partition may have messages of. Where waiting for
one was in vain, the others are asked once more without it. A partition whose journal has a newer table says so instead
of "nothing"; then those that the table adds are asked, too, and in FIFO queues it once more: it may hold groups.

In an AtMostOnce queue what a lost answer took is gone: the receive fails then, so that its caller hears of it.

With an attempt id all partitions are first asked whether they know the attempt: it is to bring the same messages again,
or is refused because they were deleted or changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from quaymaster.core.spread.parts import Part
from quaymaster.core.values.commands.messages import Elsewhere, Receive, ReceiveOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import (
    ConnectionLost,
    InvalidParameterValue,
    JournalStopped,
    NotLeader,
    NotNow,
    OverLimit,
    StaleEpoch,
    Timeout,
    Unreachable,
)
from quaymaster.core.values.partition_tables import entry_of, is_read, read_partitions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

_UNKNOWN: Final = (Timeout, ConnectionLost, StaleEpoch, JournalStopped)
"""Errors after which what was asked may have happened."""


def may_have_lost(command: Receive, outcome: Outcome | Exception) -> bool:
    """Tell whether messages may be gone with the answer of a receive that takes them for good."""
    return command.takes_for_good and isinstance(outcome, _UNKNOWN)


class SpreadReceive:
    """A Receive of a queue of several partitions; it does not wait for messages.

    `turn` says which partition begins; it hears of `empty_before`. When it is done, `unknown` has the partitions that
    could not be asked; with `is_patient` leaders were waited for.
    """

    def __init__(
        self,
        definition: QueueDefinition,
        command: Receive,
        turn: int,
        *,
        is_patient: bool = True,
        empty_before: int = 0,
    ) -> None:
        self.result: ReceiveOutcome | Exception | None = None
        self.unknown: dict[int, Exception] = {}
        self._definition = definition
        self._command = command
        self._empty_before = empty_before
        self._left: deque[int] = deque()
        self._met: set[int] = set()
        self._full: OverLimit | None = None
        self._nothing = False
        """Whether a partition had nothing, its limit in flight aside."""
        self._attempts_left = 0
        self._spent: InvalidParameterValue | None = None
        """Said by a partition of a receive with this attempt id; another may have a later one that can be repeated."""
        self._may_wait = is_patient
        self._waited_for: deque[int] = deque()
        """Partitions that have no leader, or had none, and are asked once more; those that could not say."""
        self._waits = True
        """Whether one that is asked once more is waited for."""
        self._meet(definition)
        self._left.rotate(-turn)

    def begin(self) -> list[Part]:
        """Return what is asked first: all partitions about the attempt, or one for messages."""
        if self._command.attempt is None:
            return self._next()
        return self._ask_attempts(self._left)

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take an answer: messages end it; else another partition is asked, or it is done."""
        if self.result is not None:
            return []
        if isinstance(outcome, ReceiveOutcome) and outcome.deliveries:
            self.result = msgspec.structs.replace(outcome, partition=part.number)
            return []
        self._definition = definition
        added = self._meet(definition)
        is_attempt = part.command.only_attempt  # type: ignore[union-attr]  # it is a Receive
        if isinstance(outcome, OverLimit):
            self._full = outcome
            self.unknown.pop(part.number, None)
        elif isinstance(outcome, NotNow):
            self.unknown[part.number] = outcome
            if isinstance(outcome, NotLeader | Unreachable):  # it heard of nothing: another one does
                self._empty_before += part.command.empty_before  # type: ignore[union-attr]  # as above
            self._waits = self._waits and _is_brief(part)
            if is_attempt or may_have_lost(
                self._command, outcome
            ):  # it may be the one that knows, or took some
                self.result = outcome
                return []
        elif is_attempt and isinstance(outcome, InvalidParameterValue):
            self._spent = outcome
        elif isinstance(outcome, Exception):
            self.result = outcome
            return []
        else:
            assert isinstance(outcome, ReceiveOutcome | Elsewhere), f"a Receive is not answered so: {outcome}"
            self._nothing = True
            self.unknown.pop(part.number, None)
            if isinstance(outcome, Elsewhere) and self._may_hold_groups(part):
                (self._left if _is_brief(part) else self._waited_for).appendleft(part.number)
        if is_attempt:
            self._attempts_left -= 1
            asked = self._ask_attempts(added)
            if asked or self._attempts_left:
                return asked
            if self._spent is not None:
                self.result = self._spent
                return []
            self._nothing = False  # no partition was asked for messages yet
        return self._next()

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """Ask the partition again by this newer table; one that it does not list any more has nothing."""
        entry = entry_of(definition, part.number)
        if entry is None or not is_read(entry):
            return self.on_outcome(part, Elsewhere(definition), definition)
        self._definition = definition
        command = msgspec.structs.replace(
            part.command, table_version=definition.table_version, empty_before=0
        )
        return [Part(part.number, command)]

    def _meet(self, definition: QueueDefinition) -> list[int]:
        """Put partitions that were not met before behind those that are left to be asked; return them."""
        numbers = [entry.number for entry in read_partitions(definition) if entry.number not in self._met]
        self._met.update(numbers)
        self._left.extend(numbers)
        return numbers

    def _ask_attempts(self, numbers: Iterable[int]) -> list[Part]:
        parts = [self._part(number, only_attempt=True) for number in numbers]
        self._attempts_left += len(parts)
        return parts

    def _next(self) -> list[Part]:
        listed = {entry.number for entry in read_partitions(self._definition)}
        while self._left:
            number = self._left.popleft()
            if number in listed:  # else it was drained since
                return [self._part(number)]
        # What was drained since has nothing.
        self.unknown = {number: error for number, error in self.unknown.items() if number in listed}
        if self._may_wait:
            self._may_wait = False
            self._waited_for.extend(self.unknown)
        while self._waited_for:
            number = self._waited_for.popleft()
            if number in listed:
                return [self._part(number, fails_fast=not self._waits)]
        if self.unknown:
            self.result = next(iter(self.unknown.values()))
        elif self._full is not None and not self._nothing:
            self.result = self._full
        else:
            self.result = ReceiveOutcome(0, [])
        return []

    def _may_hold_groups(self, part: Part) -> bool:
        """Return whether a partition that told of its table is to be asked once more: by a newer one than before."""
        command: Receive = part.command  # type: ignore[assignment]  # it is one
        is_newer = command.table_version < self._definition.table_version
        return self._definition.is_fifo and is_newer and not command.only_attempt

    def _part(self, number: int, *, only_attempt: bool = False, fails_fast: bool = True) -> Part:
        empty_before, self._empty_before = self._empty_before, 0
        command = msgspec.structs.replace(
            self._command,
            partition=number,
            wait_ms=0,
            table_version=self._definition.table_version,
            only_attempt=only_attempt,
            fails_fast=fails_fast and not only_attempt,
            is_part=True,
            empty_before=empty_before,
        )
        return Part(number, command)


def _is_brief(part: Part) -> bool:
    """Return whether a partition was asked without waiting for it."""
    return part.command.fails_fast  # type: ignore[union-attr]  # it is a Receive
