"""When the ends of several journals are one moment of a cell: no message that moves between them is lost or doubled.

A message that goes from journal A to journal B leaves three records: OUT in A, MOVE in B, END in A, each committed
before the next one is proposed. A restored cell has it once if its cut holds END only with MOVE, and MOVE only with
OUT: with OUT alone it is sent again, under its number. So between the first and the last end no MOVE may be written:

    hold    all leaders take nothing from other journals any more, and write a barrier
    cut     each writes a barrier: there its journal ends in the backup
    check   each writes a barrier, and says whether it took nothing all the time; then they take again

A barrier is committed only if no leader of a later epoch was there when it was asked for. So a leader that wrote all
three in one epoch was alone, and its hold is the journal's. What was acknowledged before `hold` lies before `cut`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class BackupBarrier(msgspec.Struct, frozen=True):
    """A barrier was committed in this epoch; `hold` numbers what keeps moves out, 0 when nothing does (any more)."""

    epoch: int
    hold: int


def why_no_cut(
    held: Mapping[int, BackupBarrier], cut: Mapping[int, BackupBarrier], checked: Mapping[int, BackupBarrier]
) -> str | None:
    """Return why the ends of these journals are not of one moment, None if they are."""
    for number in sorted(held):
        first, second, third = held[number], cut[number], checked[number]
        if not first.epoch == second.epoch == third.epoch:
            return f"journal {number} got another leader"
        if not first.hold == second.hold == third.hold or not first.hold:
            return f"journal {number} took messages of other journals meanwhile"
    return None
