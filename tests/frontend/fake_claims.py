"""Claims as the fake broker keeps them: no deadlines, and nothing else receives."""

from __future__ import annotations

from typing import Any

from quaymaster.core.values import commands
from quaymaster.core.values.errors import ClaimIsSettled, ClaimNotFound, ClaimTakenOver
from quaymaster.core.values.messages import prefix_bytes

ClaimCommand = (
    commands.Claim | commands.ReadClaim | commands.Settle | commands.DescribeClaims | commands.ReleaseClaims
)
ClaimAnswer = (
    commands.ClaimOutcome
    | commands.FetchOutcome
    | commands.SettledOutcome
    | commands.ClaimsOutcome
    | commands.ReleasedOutcome
)


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
            case commands.Claim():
                return self._claim(command, messages)
            case commands.ReadClaim():
                return self._read(command, messages)
            case commands.Settle():
                self._check_owner(command)
                gone = 0
                for consumer, claim_id in list(self.open):
                    if consumer == command.consumer and claim_id <= command.claim_id:
                        sequences = self.open.pop((consumer, claim_id))
                        if (consumer, claim_id) not in self.broken:
                            gone += sum(messages.pop(sequence, None) is not None for sequence in sequences)
                settled = max(self.settled.get(command.consumer, 0), command.claim_id)
                self.settled[command.consumer] = settled
                return commands.SettledOutcome(settled, gone)
            case commands.DescribeClaims():
                views = [
                    commands.ClaimConsumerView(
                        name,
                        owner,
                        self.settled.get(name, 0),
                        [
                            commands.ClaimView(claim_id, "held", len(sequences), 1_000)
                            for (consumer, claim_id), sequences in self.open.items()
                            if consumer == name
                        ],
                    )
                    for name, owner in self.owners.items()
                ]
                taken = {sequence for sequences in self.open.values() for sequence in sequences}
                return commands.ClaimsOutcome(views, len(messages.keys() - taken))
            case commands.ReleaseClaims(consumer=name):
                keys = [key for key in self.open if key[0] == name]
                self.broken.update(keys)
                return commands.ReleasedOutcome(sum(len(self.open[key]) for key in keys))

    def _claim(self, command: commands.Claim, messages: dict[int, Any]) -> commands.ClaimOutcome:
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
            return commands.ClaimOutcome("none", 0)
        state = "broken" if key in self.broken else "growing" if command.count_max else "held"
        return commands.ClaimOutcome(state, len(self.open[key]), len(new))

    def _read(
        self, command: commands.ReadClaim, messages: dict[int, Any]
    ) -> commands.FetchOutcome | commands.ClaimOutcome:
        key = command.consumer, command.claim_id
        if key not in self.open:
            raise ClaimNotFound(command.consumer, command.claim_id)
        claimed = self.open[key]
        sequences = claimed[command.start : command.stop]
        if key in self.broken or not messages.keys() >= set(sequences):
            return commands.ClaimOutcome("broken", len(claimed))
        kept = [messages[sequence] for sequence in sequences]
        bodies = [one.new.payload[prefix_bytes(one.new.flags) :] for one in kept]
        return commands.FetchOutcome(
            sequences,
            [one.sent_ms for one in kept],
            bodies if command.with_messages else [],
            command.start + len(sequences),
            0,
            len(claimed),
        )

    def _check_owner(self, command: commands.Claim | commands.Settle) -> None:
        owner = self.owners.setdefault(command.consumer, command.owner)
        if owner != command.owner and not command.takes:
            raise ClaimTakenOver(command.consumer)
        self.owners[command.consumer] = command.owner
