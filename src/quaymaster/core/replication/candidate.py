"""How an appointed replica becomes the one that leads: it asks for promises, and fetches what its log lacks.

    preparing ──majority promised──▶ [fetching] ──▶ elected
        ▲                                │
        └── who has it does not give it ─┘

It needs promises from a majority of the members and of the last activated members, and the longest log among the
latter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from quaymaster.core.replication.log_copy import LogCopy
from quaymaster.core.replication.messages import FetchBatches, Prepare, Promise, Tail
from quaymaster.core.values.journal_configuration import JournalConfiguration

RETRY_MS: Final = 200
"""A question to another replica is asked again after so long."""
FETCH_TIMEOUT_MS: Final = 2_000
"""Who promised and gives no tail for so long is no longer counted on."""


class Candidate:
    """The replica of a log on its way to lead an epoch."""

    def __init__(self, log: LogCopy, configuration: JournalConfiguration, now_ms: int) -> None:
        self.stage: Literal["preparing", "fetching", "elected"] = "preparing"
        self.members = configuration.members
        self._log = log
        self._epoch = configuration.epoch
        self._previous = configuration.previous_members or configuration.members
        self._promises: dict[str, Promise] = {}
        self._asked_ms = 0
        self._fetching = ""
        self._fetched_ms = 0
        self._fetch_start = 0
        log.persist_promise(self._epoch)
        self.ask_for_promises(now_ms)

    def is_question_due(self, now_ms: int) -> bool:
        """Whether it is time to ask again."""
        return now_ms - self._asked_ms >= RETRY_MS

    def ask_for_promises(self, now_ms: int) -> None:
        """Ask those who have not promised."""
        self._asked_ms = now_ms
        for member in dict.fromkeys((*self.members, *self._previous)):
            if member != self._log.node and member not in self._promises:
                self._log.say(member, Prepare(self._epoch))

    def ask_all_again(self, now_ms: int) -> None:
        """Ask everyone, also those who have promised: for how their clocks are now."""
        self._promises = {}
        self.ask_for_promises(now_ms)

    def on_promise(self, member: str, promise: Promise, now_ms: int) -> None:
        """A member has promised, perhaps this one itself."""
        self._promises[member] = promise
        self._look_at_promises(now_ms)

    def on_tail(self, sender: str, message: Tail, now_ms: int) -> bool:
        """Take a part of the better log. False: it is not to be had so, and who has it must lead."""
        start = self._fetch_start
        if sender != self._fetching or message.start != start:
            return True
        log = self._log
        promised = self._promises[sender]
        if message.is_gone or not message.batches or not log.continues(start, message.batches[0]):
            if not log.verified_end and start > log.commit:
                # The logs differ before; below the commit index none do.
                self._ask_for_tail(log.commit, now_ms)
            elif message.is_gone:
                return False  # only a copy could help, and there is no leader to give one
            else:
                self._give_up_on(sender, now_ms)
            return True
        log.take_in(message.batches)
        end = log.verified_end = message.batches[-1].next_offset
        self._fetched_ms = now_ms
        position = log.tail.position_at(end)
        assert position is not None, "a tail ends with a batch"
        if (position.epoch, end) >= (promised.last_epoch, promised.end):
            assert end == log.end.end, "what was behind differed from the better log, and was cut"
            self.stage = "elected"
        else:
            self._ask_for_tail(end, now_ms)
        return True

    def fetch_again(self, now_ms: int) -> None:
        """Time has passed while a tail was fetched."""
        if now_ms - self._fetched_ms >= FETCH_TIMEOUT_MS:
            self._give_up_on(self._fetching, now_ms)
        elif self.is_question_due(now_ms):
            self._ask_for_tail(self._fetch_start, now_ms)

    def _look_at_promises(self, now_ms: int) -> None:
        promised = self._promises.keys()
        log = self._log
        if log.node not in promised or not (
            _is_majority(promised, self.members) and _is_majority(promised, self._previous)
        ):
            return
        own = self._promises[log.node]
        best = max(
            (self._promises[member] for member in self._previous if member in promised),
            key=lambda promise: (promise.last_epoch, promise.end),
        )
        if (own.last_epoch, own.end) >= (best.last_epoch, best.end):
            self.stage = "elected"
            return
        self._fetching = next(member for member in self._previous if self._promises.get(member) == best)
        self.stage = "fetching"
        self._fetched_ms = now_ms
        # From where the own log ends: if they agree there, nothing is fetched twice, and nothing compacted is needed.
        self._ask_for_tail(log.end.end, now_ms)

    def _ask_for_tail(self, start: int, now_ms: int) -> None:
        self._fetch_start = start
        self._asked_ms = now_ms
        self._log.say(self._fetching, FetchBatches(self._epoch, start))

    def _give_up_on(self, member: str, now_ms: int) -> None:
        """Who promised a log and does not give it is asked for a promise again."""
        log = self._log
        del self._promises[member]
        log.verified_end = 0
        self.stage = "preparing"
        if log.durable_end == log.end.end:
            self._promises[log.node] = log.promise(self._epoch)
        else:  # a part of a tail was written: it counts when it is durable
            self._promises.pop(log.node, None)
            log.persist_promise(self._epoch)
        self.ask_for_promises(now_ms)


def _is_majority(voters: Iterable[str], members: tuple[str, ...]) -> bool:
    return 2 * len(set(voters) & set(members)) > len(members)
