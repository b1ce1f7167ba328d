"""Judges a recorded history after everything was drained: a total-queue checker, with FIFO, delays and moves.

A message is followed by its token (what its body says) and by its *places*: (queue, message id). A dead letter
keeps its id and changes the queue; a message that a move task carried has a new id. What an operation with an
unknown outcome did is never held against the server, either way: such an operation may have taken effect at any
moment of its interval, or not at all.

| rule | says |
|---|---|
| I15 | an acknowledged message is delivered and deleted, purged or expired: it is never just gone |
| I16 | what is delivered was sent, to this queue or one it moves from, and is unaltered |
| I17 | no receive that starts after an acknowledged delete, purge or deletion of the queue returns the message |
| I18 | a FIFO group is delivered in the order of its sequence numbers, and the next only when the first are gone |
| I19 | one message for each deduplication id and window; a send that is tried again is stored once |
| I20 | two deliveries of a message are at least its visibility timeout apart |
| I21 | no delivery before the delay has passed or after the retention period |
| I22 | the receive count grows with each delivery and does not pass maxReceiveCount |
| place | a message is in one queue at a time |
| count | the approximate numbers are within what the history allows |
| drain | nothing is left after the drain |

I23 (unknown outcomes are reported as unknown) is what makes the others fail when the server says `fail` about
something it did. Standard queues write receives behind, so I20 and I22 are looser across the end of a process. A
FIFO queue is not deleted and made again in a history: its sequence numbers would begin anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from harness.history import (
    FAIL,
    NEVER_NS,
    OK,
    UNKNOWN,
    ChangeVisibility,
    Count,
    Delete,
    DeleteQueue,
    DeliveredMessage,
    Disturbed,
    HandledMessage,
    History,
    Operation,
    Purge,
    Receive,
    Send,
    SentMessage,
    ServerEnded,
)

SLACK_NS = 20_000_000
"""Server and clients read two clocks of one machine, in milliseconds."""
PACE = 100
"""A wait may be so much shorter or longer, one part in so many: how queue time approaches wall clocks."""
DEDUP_WINDOW_NS = 300_000_000_000
VIOLATIONS_PER_RULE_MAX = 50
"""More of one rule tell nothing new."""

MS = 1_000_000


class Violation(NamedTuple):
    """A rule that was broken, where, and the evidence in one sentence."""

    rule: str
    queue: str
    text: str


class Verdict(msgspec.Struct):
    """What the checker found. `violations` is empty when all is well."""

    violations: list[Violation]
    counts_by_rule: Counter[str]
    """Of all violations, also of those past VIOLATIONS_PER_RULE_MAX."""
    acknowledged: int = 0
    unknown: int = 0
    delivered: int = 0
    redelivered: int = 0
    deleted: int = 0
    moved: int = 0
    server_ends: int = 0
    counts_checked: int = 0
    stored_again: int = 0
    """Messages of a cell's standard queues that are stored twice after a client tried again."""

    @property
    def lost(self) -> int:
        return self.counts_by_rule["I15"]

    @property
    def invented(self) -> int:
        return self.counts_by_rule["I16"]

    def report(self) -> str:
        """Return figures and violations as lines of text."""
        lines = [
            f"acknowledged {self.acknowledged}, unknown {self.unknown}, delivered {self.delivered} "
            f"(again {self.redelivered}), deleted {self.deleted}, moved {self.moved}, "
            f"stored again {self.stored_again}, server ends {self.server_ends}, counts {self.counts_checked}: "
            f"lost {self.lost}, invented {self.invented}, violations {sum(self.counts_by_rule.values())}"
        ]
        lines += [f"{found.rule} {found.queue}: {found.text}" for found in self.violations]
        return "\n".join(lines)


class _Sent(NamedTuple):
    send: Send
    entry: SentMessage


class _Received(NamedTuple):
    receive: Receive
    message: DeliveredMessage


class _Handled(NamedTuple):
    operation: Delete | ChangeVisibility
    entry: HandledMessage


class _Place:
    """One message in one queue: what was done with it there."""

    __slots__ = ("changes", "deletes", "message_id", "queue", "receives", "token")

    def __init__(self, queue: str, message_id: str) -> None:
        self.queue = queue
        self.message_id = message_id
        self.token: int | None = None
        self.receives: list[_Received] = []
        self.deletes: list[_Handled] = []
        self.changes: list[_Handled] = []


def check(history: History, *, is_drained: bool = True) -> Verdict:
    """Judge a history. Without `is_drained` nothing is said about loss: messages may still be in their queues."""
    checker = _Checker(history)
    return checker.judge(is_drained)


class _Checker:
    def __init__(self, history: History) -> None:
        self._facts = history.queues
        self._sent: dict[int, _Sent] = {}
        self._tokens_of_id: dict[str, list[int]] = defaultdict(list)
        self._places: dict[tuple[str, str], _Place] = {}
        self._places_of_token: dict[int, list[_Place]] = defaultdict(list)
        self._receives: list[Receive] = []
        self._sends: list[Send] = []
        self._uses_of_dedup_id: Counter[tuple[str, str]] = Counter()
        self._clearings: dict[str, list[Purge | DeleteQueue]] = defaultdict(list)
        self._counts: list[Count] = []
        self._ends: list[ServerEnded] = []
        self._stored_again: set[int] = set()
        self._disturbed: list[tuple[int, int]] = []
        """When leaders of a cell may have moved: intervals that do not touch, in order."""
        self._last_ns = 0
        self._verdict = Verdict([], Counter())
        self._index(history)
        self._move_families = {facts.family for facts in self._facts.values() if facts.is_move_target}
        self._family_sizes = Counter(facts.family for facts in self._facts.values())
        self._ends.sort(key=lambda end: end.completed_ns)
        self._end_completions = [end.completed_ns for end in self._ends]

    def judge(self, is_drained: bool) -> Verdict:
        self._find_stored_again()
        self._check_deliveries()
        for place in self._places.values():
            self._check_deletes(place)
            self._check_visibility(place)
            self._check_receive_counts(place)
            self._check_times(place)
        for token, places in self._places_of_token.items():
            if token not in self._stored_again:
                self._verdict.moved += len(places) > 1
                self._check_one_place(token)
        self._check_group_orders()
        self._check_sequences_given()
        self._check_deduplication()
        self._check_counts()
        if is_drained:
            self._check_nothing_lost()
            self._check_nothing_left()
        return self._verdict

    # Reading

    def _index(self, history: History) -> None:
        verdict = self._verdict
        for event in history.events():
            if isinstance(event, ServerEnded):
                self._ends.append(event)
                verdict.server_ends += 1
                continue
            if isinstance(event, Disturbed):
                self._disturb(event)
                continue
            self._last_ns = max(self._last_ns, event.completed_ns)
            assert event.queue in self._facts, f"the history says nothing of queue {event.queue}"
            if isinstance(event, Send):
                self._index_send(event)
            elif isinstance(event, Receive):
                self._index_receive(event)
            elif isinstance(event, Delete):
                for entry in event.entries:
                    self._place(event.queue, entry.message_id).deletes.append(_Handled(event, entry))
                    verdict.deleted += entry.outcome == OK
            elif isinstance(event, ChangeVisibility):
                for entry in event.entries:
                    self._place(event.queue, entry.message_id).changes.append(_Handled(event, entry))
            elif isinstance(event, Purge | DeleteQueue):
                if event.outcome != FAIL:
                    self._clearings[event.queue].append(event)
            elif isinstance(event, Count):
                self._counts.append(event)

    def _index_send(self, send: Send) -> None:
        self._sends.append(send)
        for entry in send.entries:
            assert entry.token not in self._sent, f"token {entry.token} was sent twice: the test is wrong"
            self._sent[entry.token] = _Sent(send, entry)
            if entry.dedup_id is not None:
                self._uses_of_dedup_id[send.queue, entry.dedup_id] += 1
            if entry.outcome == OK:
                assert entry.message_id is not None, "an acknowledged send has a message id"
                self._tokens_of_id[entry.message_id].append(entry.token)
                self._verdict.acknowledged += 1
            elif entry.outcome != FAIL:
                self._verdict.unknown += 1

    def _index_receive(self, receive: Receive) -> None:
        self._receives.append(receive)
        for message in receive.messages:
            place = self._place(receive.queue, message.message_id)
            self._verdict.delivered += 1
            self._verdict.redelivered += bool(place.receives)
            place.receives.append(_Received(receive, message))
            if place.token is None and message.token is not None:
                place.token = message.token
                self._places_of_token[message.token].append(place)

    def _place(self, queue: str, message_id: str) -> _Place:
        place = self._places.get((queue, message_id))
        if place is None:
            place = self._places[queue, message_id] = _Place(queue, message_id)
        return place

    def _horizon_ns(self, operation: Operation) -> int:
        """Return until when the operation may have taken effect."""
        if self._disturbed and operation.outcome == UNKNOWN:
            return NEVER_NS  # whatever of the cell holds it may have been stopped meanwhile
        if not operation.is_open_ended:
            return operation.completed_ns
        index = bisect_left(self._end_completions, operation.completed_ns)
        return self._end_completions[index] if index < len(self._ends) else NEVER_NS

    def _disturb(self, event: Disturbed) -> None:
        start_ns, end_ns = event.invoked_ns, event.completed_ns
        if self._disturbed and self._disturbed[-1][1] >= start_ns:
            start_ns, before_ns = self._disturbed.pop()
            end_ns = max(end_ns, before_ns)
        self._disturbed.append((start_ns, end_ns))

    def _ended_between(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether what a leader had not committed may have been forgotten in this interval."""
        index = bisect_left(self._end_completions, start_ns)
        if index < len(self._ends) and self._ends[index].invoked_ns <= end_ns:
            return True
        index = bisect_left(self._disturbed, start_ns, key=lambda interval: interval[1])
        return index < len(self._disturbed) and self._disturbed[index][0] <= end_ns

    def _violate(self, rule: str, queue: str, text: str) -> None:
        verdict = self._verdict
        verdict.counts_by_rule[rule] += 1
        if verdict.counts_by_rule[rule] <= VIOLATIONS_PER_RULE_MAX:
            verdict.violations.append(Violation(rule, queue, text))

    def _own_send(self, place: _Place) -> _Sent | None:
        """Return the send that put the message here under this id; None for one that moved, or is not known."""
        sent = None if place.token is None else self._sent.get(place.token)
        if sent is None or sent.send.queue != place.queue or sent.entry.message_id != place.message_id:
            return None
        return sent

    def _find_stored_again(self) -> None:
        """Find what a cell's standard queues have twice after a client tried again: at least once, as SQS says.

        The first attempt was held up in a front end or on the network, and came after the one that was to replace it.
        """
        if not self._disturbed:
            return
        for token, (send, entry) in self._sent.items():
            facts = self._facts[send.queue]
            if send.attempts == 1 or facts.is_fifo or facts.family in self._move_families:
                continue
            ids = {place.message_id for place in self._places_of_token.get(token, ())}
            if len(ids | ({entry.message_id} if entry.outcome == OK else set())) > 1:
                self._stored_again.add(token)
        self._verdict.stored_again = len(self._stored_again)

    # I16

    def _check_deliveries(self) -> None:
        for receive in self._receives:
            ids = [message.message_id for message in receive.messages]
            if len(ids) != len(set(ids)):
                self._violate("I20", receive.queue, f"one receive returned a message twice: {ids}")
            for message in receive.messages:
                wrong = self._why_invented(receive, message)
                if wrong:
                    self._violate("I16", receive.queue, f"message {message.message_id}: {wrong}")

    def _why_invented(self, receive: Receive, message: DeliveredMessage) -> str | None:
        if message.token is None or not message.is_intact:
            return f"the body is not what was sent (token {message.token})"
        sent = self._sent.get(message.token)
        if sent is None:
            return f"nobody sent token {message.token}"
        send, entry = sent
        if entry.outcome == FAIL:
            return f"token {message.token}: the server said that it did not take it"
        if self._places[receive.queue, message.message_id].token != message.token:
            return f"token {message.token}: the id was that of another message before"
        family = self._facts[send.queue].family
        if self._facts[receive.queue].family != family:
            return f"token {message.token} was sent to {send.queue}"
        if receive.completed_ns < send.invoked_ns:
            return f"token {message.token} was delivered before it was sent"
        if entry.group is not None and message.group != entry.group:
            return f"token {message.token} was sent to group {entry.group}, is now in {message.group}"
        if entry.outcome == OK and entry.message_id != message.message_id:
            if family not in self._move_families and message.token not in self._stored_again:
                return f"token {message.token} was acknowledged with id {entry.message_id}"
        elif (
            receive.queue == send.queue
            and None not in (entry.sequence, message.sequence)
            and entry.sequence != message.sequence
        ):
            return f"sequence {message.sequence} was {entry.sequence} when it was sent"
        return None

    # I15

    def _check_nothing_lost(self) -> None:
        for message_id, tokens in self._tokens_of_id.items():
            sent = min((self._sent[token] for token in tokens), key=lambda one: one.send.invoked_ns)
            if self._may_be_gone(message_id, tokens, sent.send):
                continue
            times = sum(len(place.receives) for token in tokens for place in self._places_of_token[token])
            self._violate(
                "I15",
                sent.send.queue,
                f"message {message_id} (tokens {tokens}) was acknowledged at {sent.send.completed_ns}, delivered "
                f"{times} times, never deleted, and is gone",
            )

    def _may_be_gone(self, message_id: str, tokens: Sequence[int], send: Send) -> bool:
        facts = self._facts[send.queue]
        places = [place for token in tokens for place in self._places_of_token[token]]
        own = self._places.get((send.queue, message_id))
        if own is not None:
            places.append(own)
        if any(handled.entry.outcome != FAIL for place in places for handled in place.deletes):
            return True
        if not facts.survives_kill and self._ended_between(send.invoked_ns, NEVER_NS):
            return True
        if send.invoked_ns + facts.retention_ms * MS <= self._last_ns:
            return True
        queues = {send.queue, *(place.queue for place in places)}
        return any(
            self._horizon_ns(clearing) >= send.invoked_ns
            for queue in queues
            for clearing in self._clearings.get(queue, ())
        )

    # I17

    def _check_deletes(self, place: _Place) -> None:
        deletes = [handled for handled in place.deletes if handled.entry.outcome == OK]
        if deletes:
            deleted_ns = min(handled.operation.completed_ns for handled in deletes)
            self._check_stays_gone(place.receives, deleted_ns, "a delete of it was acknowledged")
        if place.token is not None and any(self._is_surely_deleted(place, handled) for handled in deletes):
            surely_ns = min(
                handled.operation.completed_ns
                for handled in deletes
                if self._is_surely_deleted(place, handled)
            )
            for other in self._places_of_token[place.token]:
                if other is not place and place.token not in self._stored_again:
                    self._check_stays_gone(
                        other.receives,
                        surely_ns,
                        f"it was deleted in {place.queue} while it was hidden there",
                    )
        sent = self._own_send(place)
        if sent is None:
            return
        for clearing in self._clearings.get(place.queue, ()):
            if clearing.outcome == OK and clearing.invoked_ns > self._horizon_ns(sent.send):
                what = "the queue was purged" if isinstance(clearing, Purge) else "the queue was deleted"
                self._check_stays_gone(place.receives, clearing.completed_ns, what)

    def _check_stays_gone(self, receives: Iterable[_Received], since_ns: int, why: str) -> None:
        for receive, message in receives:
            if receive.invoked_ns > since_ns:
                self._violate(
                    "I17",
                    receive.queue,
                    f"message {message.message_id} (token {message.token}) was delivered by a receive at "
                    f"{receive.invoked_ns}, {(receive.invoked_ns - since_ns) / 1e9:.3f} s after {why}",
                )

    def _is_surely_deleted(self, place: _Place, deleted: _Handled) -> bool:
        """Tell whether the message was still here, hidden by the delivery whose handle the delete used."""
        receive = next(
            (one.receive for one in place.receives if one.message.handle == deleted.entry.handle), None
        )
        if receive is None:
            return False
        completed_ns = deleted.operation.completed_ns
        if completed_ns + _slack_ns(receive.visibility_ms) >= receive.invoked_ns + receive.visibility_ms * MS:
            return False
        if any(
            change.entry.outcome != FAIL and self._horizon_ns(change.operation) >= receive.invoked_ns
            for change in place.changes
        ):
            return False
        return self._facts[place.queue].is_fifo or not self._ended_between(receive.invoked_ns, completed_ns)

    # I18

    def _check_group_orders(self) -> None:
        groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        for place in self._places.values():
            for _, message in place.receives:
                if message.group is not None and message.sequence is not None:
                    groups[place.queue, message.group][message.sequence] = place.message_id
        for token, (send, entry) in self._sent.items():
            if entry.group is None or entry.sequence is None or entry.message_id is None:
                continue
            if self._facts[send.queue].is_fifo and self._owner(entry.message_id) == token:
                groups[send.queue, entry.group].setdefault(entry.sequence, entry.message_id)
        order: dict[tuple[str, str], _GroupOrder] = {}
        for (queue, group), ids in groups.items():
            sequences = sorted(ids)
            gone_ns = [self._gone_from_ns(queue, ids[sequence]) for sequence in sequences]
            order[queue, group] = _GroupOrder(sequences, gone_ns)
        for receive in self._receives:
            if self._facts[receive.queue].is_fifo:
                self._check_receive_order(receive, order)

    def _check_receive_order(self, receive: Receive, order: dict[tuple[str, str], _GroupOrder]) -> None:
        by_group: dict[str, list[int]] = defaultdict(list)
        for message in receive.messages:
            if message.group is not None and message.sequence is not None:
                by_group[message.group].append(message.sequence)
        for group, sequences in by_group.items():
            if sequences != sorted(sequences):
                self._violate(
                    "I18", receive.queue, f"group {group}: one receive gave {sequences}, not in order"
                )
                continue
            blocking = order[receive.queue, group].first_blocking(sequences, receive.completed_ns)
            if blocking is not None:
                self._violate(
                    "I18",
                    receive.queue,
                    f"group {group}: {sequences} were delivered at {receive.completed_ns} while {blocking} "
                    "was not deleted",
                )

    def _gone_from_ns(self, queue: str, message_id: str) -> int:
        """Return from when on the message may have been gone from this queue."""
        place = self._places.get((queue, message_id))
        facts = self._facts[queue]
        token = place.token if place is not None else None
        if token is None:
            token = self._owner(message_id)
        if token is not None and len(self._places_of_token.get(token, ())) > 1:
            return 0  # it moved on at some time
        gone_ns = NEVER_NS
        if place is not None:
            for handled in place.deletes:
                if handled.entry.outcome != FAIL:
                    gone_ns = min(gone_ns, handled.operation.invoked_ns)
        sent = self._sent.get(token) if token is not None else None
        sent_ns = sent.send.invoked_ns if sent is not None else 0
        for clearing in self._clearings.get(queue, ()):
            if self._horizon_ns(clearing) >= sent_ns:
                gone_ns = min(gone_ns, clearing.invoked_ns)
        if not facts.survives_kill and (end := self._first_end_after(sent_ns)) is not None:
            gone_ns = min(gone_ns, end.invoked_ns)
        return min(gone_ns, sent_ns + facts.retention_ms * MS)

    def _first_end_after(self, time_ns: int) -> ServerEnded | None:
        index = bisect_left(self._end_completions, time_ns)
        return self._ends[index] if index < len(self._ends) else None

    def _owner(self, message_id: str) -> int | None:
        """Return the token whose body is stored under an acknowledged id: that delivered, else that first sent."""
        tokens = self._tokens_of_id.get(message_id)
        if not tokens:
            return None
        place = self._places.get((self._sent[tokens[0]].send.queue, message_id))
        if place is not None and place.token is not None:
            return place.token
        return min(tokens, key=lambda token: self._sent[token].send.invoked_ns)

    def _check_sequences_given(self) -> None:
        """Sends to a group one after the other get numbers in this order; so do the entries of a batch."""
        sends: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
        for send in self._sends:
            last: dict[str, int] = {}
            for entry in send.entries:
                if entry.outcome != OK or entry.group is None or entry.sequence is None:
                    continue
                assert entry.message_id is not None, "an acknowledged send has a message id"
                if entry.dedup_id is not None and self._uses_of_dedup_id[send.queue, entry.dedup_id] > 1:
                    continue  # a duplicate has the number of its original
                if last.get(entry.group, -1) >= entry.sequence:
                    self._violate(
                        "I18", send.queue, f"entries of a batch got {last[entry.group]}, {entry.sequence}"
                    )
                last[entry.group] = entry.sequence
                # One that was tried again may have been stored by any of its attempts.
                sends[send.queue, entry.group].append((send.invoked_ns, send.completed_ns, entry.sequence))
        for (queue, group), given in sends.items():
            given.sort()
            by_end = sorted(given, key=lambda one: one[1])
            highest, ended = -1, 0
            for invoked_ns, _, sequence in given:
                while ended < len(by_end) and by_end[ended][1] < invoked_ns:
                    highest = max(highest, by_end[ended][2])
                    ended += 1
                if sequence < highest:
                    self._violate(
                        "I18", queue, f"group {group}: {sequence} was given after {highest} was answered"
                    )

    # I19

    def _check_deduplication(self) -> None:
        stored: dict[tuple[str, str, str], dict[int, _Sent]] = defaultdict(dict)
        for token, sent in self._sent.items():
            send, entry = sent
            self._check_stored_once(token, send)
            if entry.dedup_id is None:
                continue
            facts = self._facts[send.queue]
            scope = entry.group or "" if facts.dedup_by_group else ""
            if entry.outcome == OK and entry.message_id is not None:
                owner = self._owner(entry.message_id)
                if owner in self._sent:  # else it was invented, and another rule says so
                    stored[send.queue, scope, entry.dedup_id][owner] = self._sent[owner]
            if self._places_of_token.get(token):
                stored[send.queue, scope, entry.dedup_id][token] = sent
        for (queue, _, dedup_id), owners in stored.items():
            ordered = sorted(owners.items(), key=lambda one: one[1].send.invoked_ns)
            for (token, first), (other, second) in pairwise(ordered):
                if self._is_same_window(queue, first.send, second.send):
                    self._violate(
                        "I19", queue, f"deduplication id {dedup_id} was stored as tokens {token}, {other}"
                    )

    def _check_stored_once(self, token: int, send: Send) -> None:
        places = self._places_of_token.get(token, ())
        if len(places) < 2 or self._facts[send.queue].family in self._move_families:
            return
        ids = {place.message_id for place in places}
        if len(ids) > 1 and token not in self._stored_again:
            self._violate(
                "I19", send.queue, f"token {token}, sent once in {send.attempts} attempts, is stored as {ids}"
            )

    def _is_same_window(self, queue: str, first: Send, second: Send) -> bool:
        """Tell whether both fell into one window whenever exactly they were decided."""
        start_ns, end_ns = first.invoked_ns, max(self._horizon_ns(first), self._horizon_ns(second))
        if end_ns - start_ns >= DEDUP_WINDOW_NS:
            return False
        if not self._facts[queue].survives_kill and self._ended_between(start_ns, end_ns):
            return False
        return not any(
            self._horizon_ns(clearing) >= start_ns and clearing.invoked_ns <= end_ns
            for clearing in self._clearings.get(queue, ())
        )

    # I20

    def _check_visibility(self, place: _Place) -> None:
        is_fifo = self._facts[place.queue].is_fifo
        for first, second in pairwise(place.receives):
            if first.receive is second.receive:
                continue
            start_ns = min(first.receive.invoked_ns, second.receive.invoked_ns)
            end_ns = max(first.receive.completed_ns, second.receive.completed_ns)
            if not is_fifo and self._ended_between(start_ns, end_ns):
                continue
            if self._may_follow(place, first, second):
                continue
            if first.receive.completed_ns >= second.receive.invoked_ns and self._may_follow(
                place, second, first
            ):
                continue
            gap_s = (second.receive.completed_ns - first.receive.invoked_ns) / 1e9
            self._violate(
                "I20",
                place.queue,
                f"message {place.message_id} (token {place.token}) was delivered again at most {gap_s:.3f} s after "
                f"a delivery that hides it for {first.receive.visibility_ms / 1000} s",
            )

    def _may_follow(self, place: _Place, first: _Received, second: _Received) -> bool:
        """Tell whether the message could be visible again for `second` after it was handed out to `first`."""
        receive = first.receive
        until_ns = receive.invoked_ns + receive.visibility_ms * MS
        changes = sorted(
            (
                change
                for change in place.changes
                if change.entry.outcome != FAIL
                and self._horizon_ns(change.operation) >= receive.invoked_ns
                and change.operation.invoked_ns <= second.receive.completed_ns
            ),
            key=lambda change: change.operation.invoked_ns,
        )
        certain_ns = until_ns
        before_ns = receive.completed_ns
        for change in changes:
            operation, entry = change
            changed_ns = operation.invoked_ns + entry.timeout_ms * MS
            until_ns = min(until_ns, changed_ns)
            is_certain = (
                entry.outcome == OK
                and entry.handle == first.message.handle
                and before_ns <= operation.invoked_ns
                and operation.completed_ns < certain_ns
                and operation.completed_ns <= second.receive.invoked_ns
            )
            certain_ns = changed_ns if is_certain else -1
            before_ns = operation.completed_ns
        hidden_ns = max(until_ns, certain_ns)
        return second.receive.completed_ns + _slack_ns((hidden_ns - receive.invoked_ns) // MS) >= hidden_ns

    # I21

    def _check_times(self, place: _Place) -> None:
        sent = self._own_send(place)
        if sent is None:
            return
        facts = self._facts[place.queue]
        delay_ms = facts.delay_ms if sent.entry.delay_ms is None else sent.entry.delay_ms
        visible_ns = sent.send.invoked_ns + delay_ms * MS
        expired_ns = self._horizon_ns(sent.send) + facts.retention_ms * MS
        for receive, _ in place.receives:
            if receive.completed_ns + _slack_ns(delay_ms) < visible_ns:
                early_s = (visible_ns - receive.completed_ns) / 1e9
                self._violate(
                    "I21", place.queue, f"message {place.message_id} was delivered {early_s:.3f} s too early"
                )
            if receive.invoked_ns - _slack_ns(facts.retention_ms) > expired_ns:
                late_s = (receive.invoked_ns - expired_ns) / 1e9
                self._violate(
                    "I21",
                    place.queue,
                    f"message {place.message_id} was delivered {late_s:.3f} s after it expired",
                )

    # I22

    def _check_receive_counts(self, place: _Place) -> None:
        facts = self._facts[place.queue]
        receives = place.receives
        for index, (receive, message) in enumerate(receives):
            if facts.max_receive_count and message.count > facts.max_receive_count:
                self._violate(
                    "I22",
                    place.queue,
                    f"message {place.message_id} was delivered with count {message.count}, "
                    f"over maxReceiveCount {facts.max_receive_count}",
                )
            for earlier, before in receives[:index]:
                if earlier.completed_ns >= receive.invoked_ns:
                    continue
                may_repeat = not facts.is_fifo and self._ended_between(
                    earlier.invoked_ns, receive.completed_ns
                )
                if message.count < before.count or (message.count == before.count and not may_repeat):
                    self._violate(
                        "I22",
                        place.queue,
                        f"message {place.message_id} was delivered with count {before.count}, later with "
                        f"{message.count}",
                    )
                    break

    # One place at a time

    def _check_one_place(self, token: int) -> None:
        places = self._places_of_token[token]
        for place in places:
            for other in places:
                if place is not other and _comes_back(place, other):
                    self._violate(
                        "place",
                        place.queue,
                        f"token {token} was delivered as {place.message_id}, then from {other.queue} as "
                        f"{other.message_id}, then here again",
                    )

    # Counts

    def _check_counts(self) -> None:
        rounds: dict[int, list[Count]] = defaultdict(list)
        for count in self._counts:
            rounds[count.round].append(count)
        if not rounds:
            return
        bounds = self._family_bounds()
        for counts in rounds.values():
            start_ns = min(count.invoked_ns for count in counts)
            end_ns = max(count.completed_ns for count in counts)
            totals: Counter[str] = Counter({facts.family: 0 for facts in self._facts.values()})
            for count in counts:
                totals[self._facts[count.queue].family] += count.total
            for family, total in totals.items():
                lowest, highest = bounds[family].at(start_ns, end_ns)
                self._verdict.counts_checked += 1
                if not lowest <= total <= highest:
                    details = [(c.queue, c.visible, c.in_flight, c.delayed) for c in counts]
                    mine = [one for one in details if self._facts[one[0]].family == family]
                    self._violate(
                        "count", family, f"{total} messages at {start_ns}, not {lowest} to {highest}: {mine}"
                    )

    def _family_bounds(self) -> dict[str, _Bounds]:
        bounds = {facts.family: _Bounds() for facts in self._facts.values()}
        for token, (send, entry) in self._sent.items():
            if entry.outcome == FAIL:
                continue
            if entry.message_id is not None and self._owner(entry.message_id) != token:
                continue  # a duplicate is not stored
            facts = self._facts[send.queue]
            places = self._places_of_token.get(token, ())
            surely_in_ns = send.completed_ns if entry.outcome == OK else NEVER_NS
            for place in places:
                surely_in_ns = min(
                    surely_in_ns, *(received.receive.completed_ns for received in place.receives)
                )
            maybe_out_ns = send.invoked_ns + facts.retention_ms * MS
            surely_out_ns = NEVER_NS
            if not facts.survives_kill and (end := self._first_end_after(send.invoked_ns)) is not None:
                maybe_out_ns = min(maybe_out_ns, end.invoked_ns)
            for place in places:
                for handled in place.deletes:
                    if handled.entry.outcome != FAIL:
                        maybe_out_ns = min(maybe_out_ns, handled.operation.invoked_ns)
                    if handled.entry.outcome == OK and (
                        self._family_sizes[facts.family] == 1 or self._is_surely_deleted(place, handled)
                    ):
                        surely_out_ns = min(surely_out_ns, handled.operation.completed_ns)
            for clearing in self._clearings.get(send.queue, ()):
                if self._horizon_ns(clearing) >= send.invoked_ns:
                    maybe_out_ns = min(maybe_out_ns, clearing.invoked_ns)
                    if (
                        clearing.outcome == OK
                        and clearing.invoked_ns > self._horizon_ns(send)
                        and not (self._family_sizes[facts.family] > 1)
                    ):
                        surely_out_ns = min(surely_out_ns, clearing.completed_ns)
            bounds[facts.family].add(send.invoked_ns, surely_in_ns, maybe_out_ns, surely_out_ns)
        for one in bounds.values():
            one.sort()
        return bounds

    def _check_nothing_left(self) -> None:
        if not self._counts:
            return
        last = max(count.round for count in self._counts)
        for count in self._counts:
            if count.round == last and count.total:
                self._violate(
                    "drain",
                    count.queue,
                    f"after the drain it has {count.visible} visible, {count.in_flight} in flight, "
                    f"{count.delayed} delayed",
                )


class _GroupOrder:
    """The messages of one FIFO group by sequence number, and from when on each may have been gone."""

    __slots__ = ("_gone_ns", "_highest_ns", "_sequences")

    def __init__(self, sequences: list[int], gone_ns: list[int]) -> None:
        self._sequences = sequences
        self._gone_ns = gone_ns
        self._highest_ns: list[int] = []
        highest = -1
        for one in gone_ns:
            highest = max(highest, one)
            self._highest_ns.append(highest)

    def first_blocking(self, delivered: list[int], time_ns: int) -> int | None:
        """Return a message before the last of `delivered`, not among them, that was surely there at `time_ns`."""
        first = bisect_left(self._sequences, delivered[0])
        if first and self._highest_ns[first - 1] > time_ns:
            return next(self._sequences[index] for index in range(first) if self._gone_ns[index] > time_ns)
        last = bisect_left(self._sequences, delivered[-1])
        among = set(delivered)
        for index in range(first, last):
            if self._gone_ns[index] > time_ns and self._sequences[index] not in among:
                return self._sequences[index]
        return None


class _Bounds:
    """How many messages of a family there surely and possibly are at a time."""

    __slots__ = ("_maybe_in", "_maybe_out", "_surely_in", "_surely_out")

    def __init__(self) -> None:
        self._surely_in: list[int] = []
        self._maybe_out: list[int] = []
        self._maybe_in: list[int] = []
        self._surely_out: list[int] = []

    def add(self, maybe_in_ns: int, surely_in_ns: int, maybe_out_ns: int, surely_out_ns: int) -> None:
        if surely_in_ns < maybe_out_ns:
            self._surely_in.append(surely_in_ns)
            self._maybe_out.append(maybe_out_ns)
        self._maybe_in.append(maybe_in_ns)
        self._surely_out.append(surely_out_ns)

    def sort(self) -> None:
        for times in (self._surely_in, self._maybe_out, self._maybe_in, self._surely_out):
            times.sort()

    def at(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the bounds of a count taken between two times. No operation is under way then."""
        lowest = bisect_left(self._surely_in, start_ns) - bisect_right(self._maybe_out, end_ns)
        highest = bisect_right(self._maybe_in, end_ns) - bisect_left(self._surely_out, start_ns)
        return max(0, lowest), highest


def _comes_back(place: _Place, other: _Place) -> bool:
    """Tell whether a delivery from `place` surely lies after one from `other` that lies after one from `place`."""
    here_ns = min(received.receive.completed_ns for received in place.receives)
    there = [
        received.receive.completed_ns for received in other.receives if received.receive.invoked_ns > here_ns
    ]
    if not there:
        return False
    there_ns = min(there)
    return any(received.receive.invoked_ns > there_ns for received in place.receives)


def _slack_ns(waited_ms: int) -> int:
    """Return how far off the end of a wait may be."""
    return SLACK_NS + max(0, waited_ms) * MS // PACE
