"""Claims as the fake broker keeps them: no deadlines, and nothing else receives."""

from __future__ import annotations

from typing import Any

from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimConsumerView,
    ClaimOutcome,
    ClaimsOutcome,
    ClaimView,
    DescribeClaims,
    ReadClaim,
    ReleaseClaims,
    ReleasedOutcome,
    Settle,
    SettledOutcome,
)
from quaymaster.core.values.commands.logs import FetchOutcome
from quaymaster.core.values.errors import ClaimIsSettled, ClaimNotFound, ClaimTakenOver
from quaymaster.core.values.messages import prefix_bytes

ClaimCommand = Claim | ReadClaim | Settle | DescribeClaims | ReleaseClaims
ClaimAnswer = ClaimOutcome | FetchOutcome | SettledOutcome | ClaimsOutcome | ReleasedOutcome


class FakeClaims:
    """The claims of one queue, by consumer and id."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.settled: dict[str, int] = {}
        self.open: dict[tuple[str, int], list[int]] = {}
        self.broken: set[tuple[str, int]] = set()

    def answer(self, command: ClaimCommand, messages: dict[int, Any]) -> ClaimAnswer:
        """Answer a command; `messages` are all that the queue has."""
        match command:
            case Claim():
                return self._claim(command, messages)
            case ReadClaim():
                return self._read(command, messages)
            case Settle():
                self._check_owner(command)
                gone = 0
                for consumer, claim_id in list(self.open):
                    if consumer == command.consumer and claim_id <= command.claim_id:
                        sequences = self.open.pop((consumer, claim_id))
                        if (consumer, claim_id) not in self.broken:
                            gone += sum(messages.pop(sequence, None) is not None for sequence in sequences)
                settled = max(self.settled.get(command.consumer, 0), command.claim_id)
                self.settled[command.consumer] = settled
                return SettledOutcome(settled, gone)
            case DescribeClaims():
                views = [
                    ClaimConsumerView(
                        name,
                        owner,
                        self.settled.get(name, 0),
                        [
                            ClaimView(claim_id, "held", len(sequences), 1_000)
                            for (consumer, claim_id), sequences in self.open.items()
                            if consumer == name
                        ],
                    )
                    for name, owner in self.owners.items()
                ]
                taken = {sequence for sequences in self.open.values() for sequence in sequences}
                return ClaimsOutcome(views, len(messages.keys() - taken))
            case ReleaseClaims(consumer=name):
                keys = [key for key in self.open if key[0] == name]
                self.broken.update(keys)
                return ReleasedOutcome(sum(len(self.open[key]) for key in keys))

    def _claim(self, command: Claim, messages: dict[int, Any]) -> ClaimOutcome:
        self._check_owner(command)
        settled = self.settled.get(command.consumer, 0)
        if command.claim_id <= settled:
            raise ClaimIsSettled(command.consumer, command.claim_id, settled)
        key = command.consumer, command.claim_id
        taken = {sequence for sequences in self.open.values() for sequence in sequences}
        room = command.count_max if len(self.open.get(key, ())) == command.known else 0
        new = sorted(messages.keys() - taken)[:room]
        if new:
            self.open.setdefault(key, []).extend(new)
        if key not in self.open:
            return ClaimOutcome("none", 0)
        state = "broken" if key in self.broken else "growing" if command.count_max else "held"
        return ClaimOutcome(state, len(self.open[key]), len(new))

    def _read(self, command: ReadClaim, messages: dict[int, Any]) -> FetchOutcome | ClaimOutcome:
        key = command.consumer, command.claim_id
        if key not in self.open:
            raise ClaimNotFound(command.consumer, command.claim_id)
        claimed = self.open[key]
        sequences = claimed[command.start : command.stop]
        if key in self.broken or not messages.keys() >= set(sequences):
            return ClaimOutcome("broken", len(claimed))
        kept = [messages[sequence] for sequence in sequences]
        bodies = [one.new.payload[prefix_bytes(one.new.flags) :] for one in kept]
        return FetchOutcome(
            sequences,
            [one.sent_ms for one in kept],
            bodies if command.with_messages else [],
            command.start + len(sequences),
            0,
            len(claimed),
        )

    def _check_owner(self, command: Claim | Settle) -> None:
        owner = self.owners.setdefault(command.consumer, command.owner)
        if owner != command.owner and not command.takes:
            raise ClaimTakenOver(command.consumer)
        self.owners[command.consumer] = command.owner
