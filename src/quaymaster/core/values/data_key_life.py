"""When a data key that nothing needs is deleted: never by one look, and never before a week has passed.

    in use ──not named in 2 sweeps──▶ retiring ──not named in 7 more, and 7 days later──▶ deleted
       ▲                                  │
       └────────────── named ─────────────┘

A sweep asks every journal's leader which data keys its segments name, and metadata which keys queues have. One sweep
may miss a message that moves from a journal not asked yet to one already asked. It cannot miss it again and again:
a message that has moved stays where it is.

Times are counted by monotonic clocks. Where an older program has written the time of a wall clock, that lies far ahead;
then the sweeps alone count, of which there is one a day.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quaymaster.core.values.written_times import has_passed

UNUSED_SWEEPS: Final = 2
"""After so many sweeps without a use a key is retiring."""
RETIRING_SWEEPS: Final = 7
"""So many more sweeps must find no use, whatever clocks say."""
RETIRING_MS: Final = 7 * 86_400_000


class KeyLife(NamedTuple):
    """How many sweeps in a row found no use of a key, and since when it is retiring; 0: it is not."""

    unused_sweeps: int = 0
    retiring_since_ms: int = 0


IN_USE: Final = KeyLife()


def after_sweep(life: KeyLife, *, is_in_use: bool, now_ms: int) -> KeyLife | None:
    """Return a key's life after a sweep; None: delete the key."""
    if is_in_use:
        return IN_USE
    unused_sweeps = life.unused_sweeps + 1
    if not life.retiring_since_ms:
        return KeyLife(unused_sweeps, max(1, now_ms) if unused_sweeps >= UNUSED_SWEEPS else 0)
    is_over = has_passed(life.retiring_since_ms, RETIRING_MS, now_ms)
    if is_over and unused_sweeps >= UNUSED_SWEEPS + RETIRING_SWEEPS:
        return None
    return KeyLife(unused_sweeps, life.retiring_since_ms)
