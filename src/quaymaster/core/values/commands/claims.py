"""Commands on claims: many messages that a consumer takes, reads and settles together."""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, gc=False, array_like=True, tag=50):
    """Have a consumer claim up to `count_max` visible messages, or hold what it has claimed.

    What a claim is: `core/structures/orders/claims`.

    With `count_max` above 0 the claim begins, or has more messages, as long as it has `known` of them, the number that
    the caller knows of: so one that is asked again takes no messages for which the caller has no room. With 0 it is
    held until `held_ms` from now, and grows no more.

    `owner`: who asks for the consumer. With `takes` it owns the consumer from now on; others are refused then.
    """

    queue_id: int
    partition: int
    consumer: str
    owner: str
    claim_id: int
    count_max: int
    known: int
    held_ms: int
    takes: bool = False


class ClaimOutcome(msgspec.Struct, gc=False, array_like=True, tag=50):
    """A claim as it is now: `state` is none, growing, held or broken; `taken`: how many messages this added.

    `unfinished`: asking again at once may find more.
    """

    state: str
    count: int
    taken: int = 0
    unfinished: bool = False


class ReadClaim(msgspec.Struct, gc=False, array_like=True, tag=51):
    """Read the messages [start, stop) of a claim, by their places in it; a claim that was read grows no more.

    As many as fit into `bytes_max`, but one if there is one. The answer is a `FetchOutcome`: `next_sequence` is the
    place from which to go on, `end` how many messages the claim has. If some of those asked for are gone, or others
    received them, the claim is broken, and the answer is a `ClaimOutcome`.
    """

    queue_id: int
    partition: int
    consumer: str
    claim_id: int
    start: int
    stop: int
    bytes_max: int
    with_messages: bool = True


class Settle(msgspec.Struct, gc=False, array_like=True, tag=52):
    """Be done with a consumer's claims up to one: delete what they have, unless they are broken. Idempotent.

    `owner` and `takes` as in Claim.
    """

    queue_id: int
    partition: int
    consumer: str
    owner: str
    claim_id: int
    takes: bool = False


class SettledOutcome(msgspec.Struct, gc=False, array_like=True, tag=52):
    """The claims up to this one are settled; so many messages were deleted by this command."""

    settled: int
    deleted: int


class DescribeClaims(msgspec.Struct, gc=False, array_like=True, tag=53):
    """Ask for the claims of a partition; the answer waits for commit."""

    queue_id: int
    partition: int


class ClaimView(msgspec.Struct, gc=False, array_like=True):
    """An open claim. `state` is growing, held, lapsed or broken; `left_ms`: until it lapses."""

    claim_id: int
    state: str
    count: int
    left_ms: int


class ClaimConsumerView(msgspec.Struct, gc=False, array_like=True):
    """A consumer: who owns it, the last claim that is settled, and those that are open."""

    consumer: str
    owner: str
    settled: int
    claims: list[ClaimView]


class ClaimsOutcome(msgspec.Struct, gc=False, array_like=True, tag=53):
    """The consumers that claim, by name, and how many messages are visible."""

    consumers: list[ClaimConsumerView]
    visible: int


class ReleaseClaims(msgspec.Struct, gc=False, array_like=True, tag=54):
    """Break all open claims of a consumer, so that others receive what they have; idempotent.

    With `forgets`, a consumer whose claims are all settled or broken is not known any more.
    """

    queue_id: int
    partition: int
    consumer: str
    forgets: bool = False


class ReleasedOutcome(msgspec.Struct, gc=False, array_like=True, tag=54):
    """How many messages the claims had that are broken now."""

    messages: int
