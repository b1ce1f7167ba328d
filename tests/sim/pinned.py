"""Seeds that are kept: for each planted bug one that catches it, and those that once found something."""

from __future__ import annotations

CAUGHT_BY: dict[str, int] = {
    "earlyack": 0,
    "softpromise": 0,
    "reuse": 38,
    "noprev": 0,
    "nofetch": 2,
    "tail-not-compared": 159,
    "fig8": 0,
    "volpromise": 94,
    "noprevcheck": 114,
    "longack": 10,
    "nofence": 21,
    "commit-unverified": 36,
    "learner-votes": 3,
    "mismatch-ignored": 0,
    "lost-append": 0,
    "eternal-lease": 0,
    "unsynced-recovery": 47,
    "fsync-retried": 19,
    "disk-keeps-name": 16,
    "half-is-enough": 3,
    "activated-again": 2,
    "wrong-previous": 0,
    "swap-in-epoch": 0,
    "blind-put": 0,
    "deaf-manager": 0,
    "early-snapshot": 5,
    "stale-snapshot": 1,
    "log-cut-early": 1,
    "copy-over-longer-log": 3,
    "copy-without-bodies": 4,
    "copy-forgotten": 5,
    "cut-not-noticed": 10,
    "serves-early": 0,
    "unknown-is-done": 33,
    "no-lease": 271,
    "answer-rests-on-nothing": 3,
    "fifo-receive-uncommitted": 31,
    "duplicate-uncommitted": 3,
    "delete-uncommitted": 3,
    "send-on-received": 0,
    "hands-out-uncommitted": 0,
    "dedup-forgotten": 0,
    "group-forgotten": 0,
    "delay-forgotten": 0,
    "receives-forgotten": 0,
    "visibility-forgotten": 0,
    "dead-letter-lost": 0,
    "dead-letter-stays": 0,
    "time-goes-back": 1,
    "retry-is-new": 0,
    "answers-mixed-up": 3,
}
"""Not here are `nochain`, `noactivate`, `probably-activated`, `gap-after-rebuild` and `stale-rebuild`.

They take hundreds of seeds, or have not been caught in cells yet. The first two are caught in `protocol_model`.
"""

FOUND_BY: dict[int, str] = {
    6: "a leader appointed again, with sends that wait for a majority to have received them, raised KeyError",
    25: "the same, after members had changed",
}
