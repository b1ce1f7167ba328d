"""Seeds that are kept: for each planted bug one that catches it."""

from __future__ import annotations

CAUGHT_BY: dict[str, int] = {
    "earlyack": 0,
    "softpromise": 9,
    "reuse": 9,
    "noprev": 7,
    "nofetch": 1,
    "fig8": 0,
    "mismatch-ignored": 0,
    "lost-append": 0,
    "eternal-lease": 0,
    "disk-keeps-name": 7,
    "half-is-enough": 2,
    "blind-put": 2,
    "wrong-previous": 0,
    "swap-in-epoch": 0,
    "deaf-manager": 0,
    "deposes-who-is-heard": 4,
    "lagging-member": 11,
    "appoints-the-silent": 2,
    "forgotten-move": 0,
    "stale-snapshot": 0,
    "in-flight-compacted": 2,
    "cut-not-noticed": 3,
    "serves-early": 9,
    "answer-rests-on-nothing": 0,
    "fifo-receive-uncommitted": 9,
    "duplicate-uncommitted": 0,
    "delete-uncommitted": 7,
    "send-on-received": 0,
    "hands-out-uncommitted": 2,
    "dedup-forgotten": 0,
    "group-forgotten": 0,
    "delay-forgotten": 0,
    "receives-forgotten": 0,
    "visibility-forgotten": 0,
    "dead-letter-lost": 2,
    "dead-letter-stays": 2,
    "time-goes-back": 0,
    "purge-in-front-only": 0,
    "no-delay": 2,
    "move-taken-again": 5,
    "move-not-awaited": 0,
    "moves-not-resumed": 10,
    "retry-is-new": 0,
    "answers-mixed-up": 0,
}
"""Not here are `tail-not-compared`, `noactivate`, `volpromise`, `nochain`, `noprevcheck`, `longack`, `nofence`,
`commit-unverified`, `learner-votes`, `unsynced-recovery`, `fsync-retried`, `probably-activated`, `activated-again`,
`never-settles`, `lost-answer-is-a-failure`, `early-snapshot`, `log-cut-early`, `copy-over-longer-log`,
`copy-without-bodies`, `copy-forgotten`, `compacted-by-what-was-cut`, `compacted-before-commit`, `gap-after-rebuild`,
`stale-rebuild`, `unknown-is-done`, `no-lease`, `never-expires`, `moves-forgotten`, `move-answered-early` and
`move-sent-early`.

They take many seeds or seconds, or have not been caught in cells yet; `nochain` and `noactivate` are caught in
`protocol_model`.
"""
