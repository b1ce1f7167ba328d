"""Records as they lie in memory until blocks are made of them, on another thread than the one that noted them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from quaymaster.protocol.usage.dropped_records import DroppedCount, add_dropped
from quaymaster.protocol.usage.usage_records import Change, UsageContext, chunks_of
from quaymaster.protocol.usage.usage_rows import UsageRows

CELLS: Final = 10
"""Of a record: context, ms when answered, ms when received, ms waited in a long poll, bytes of request and response,
payload bytes, messages, duplicates, request id. Milliseconds are of `time.monotonic`."""
MS_TO_US: Final = 1000


class TakenRows(msgspec.Struct):
    """What was recorded since the last time, in the order it was answered."""

    contexts: list[UsageContext]
    cells: list[Any]
    """CELLS for each record, one record after another."""
    changes: list[Change]
    anchor_us: int
    """What to add to a monotonic clock to have the wall clock's microseconds."""
    watermark_us: int
    """What comes later was not answered before this."""
    overflow: int
    """Records that were too many, after the rows."""
    overflow_counts: list[DroppedCount]
    owed: list[int] = []
    """Rows that are kept until they can be written, ascending."""

    @property
    def count(self) -> int:
        """How many records there are, but for those that were too many."""
        return len(self.cells) // CELLS

    def columns(self, start: int, end: int) -> UsageRows:
        """Return some of the rows as a block has them, with the contexts they need."""
        anchor_us = self.anchor_us
        columns = [self.cells[start * CELLS + column : end * CELLS : CELLS] for column in range(CELLS)]
        at, answered, received, waited, asked, responded, payload, messages, duplicates, request_ids = columns
        numbers = {number: new for new, number in enumerate(dict.fromkeys(at))}
        latency_us = [
            max(0, int((ended - began) * MS_TO_US)) for ended, began in zip(answered, received, strict=True)
        ]
        server_us = [
            max(0, took - int(waited_ms * MS_TO_US)) if waited_ms else took
            for took, waited_ms in zip(latency_us, waited, strict=True)
        ]
        return UsageRows(
            [self.contexts[number] for number in numbers],
            [numbers[number] for number in at],
            [anchor_us + int(ended * MS_TO_US) for ended in answered],
            latency_us,
            server_us,
            asked,
            responded,
            payload,
            messages,
            duplicates,
            request_ids,
            [
                Change(change.row - start, change.request_params, change.response_elements)
                for change in self.changes
                if start <= change.row < end
            ],
        )

    def after(self, earlier: TakenRows) -> TakenRows:
        """Return these rows behind rows that were taken before."""
        shift_ms = (earlier.anchor_us - self.anchor_us) / MS_TO_US
        count, known = earlier.count, len(earlier.contexts)
        cells = [*earlier.cells, *self.cells]
        for at in range(0, len(cells), CELLS):
            if at < count * CELLS:
                cells[at + 1] += shift_ms
                cells[at + 2] += shift_ms
            else:
                cells[at] += known
        changes = [msgspec.structs.replace(change, row=change.row + count) for change in self.changes]
        return msgspec.structs.replace(
            self,
            contexts=[*earlier.contexts, *self.contexts],
            cells=cells,
            changes=[*earlier.changes, *changes],
            owed=[*earlier.owed, *(row + count for row in self.owed)],
        )

    def split(self, start: int, end: int) -> tuple[TakenRows, TakenRows]:
        """Return of some of the rows those that are owed, and the others. They say nothing of later ones."""
        owed = {row for row in self.owed if start <= row < end}
        return self._pick(sorted(owed)), self._pick([row for row in range(start, end) if row not in owed])

    def _pick(self, rows: Sequence[int]) -> TakenRows:
        numbers = dict.fromkeys(self.cells[row * CELLS] for row in rows)
        contexts = [self.contexts[number] for number in numbers]
        new = {number: at for at, number in enumerate(numbers)}
        at = {row: index for index, row in enumerate(rows)}
        cells: list[Any] = []
        for row in rows:
            cells.append(new[self.cells[row * CELLS]])
            cells += self.cells[row * CELLS + 1 : (row + 1) * CELLS]
        changes = [
            msgspec.structs.replace(change, row=at[change.row]) for change in self.changes if change.row in at
        ]
        owed = [at[row] for row in self.owed if row in at]
        return TakenRows(contexts, cells, changes, self.anchor_us, 0, 0, [], owed)

    def request_ids(self, start: int, end: int) -> list[str]:
        """Return the request ids of some of the rows."""
        return self.cells[start * CELLS + CELLS - 1 : end * CELLS : CELLS]

    def counts(self, start: int, end: int) -> list[DroppedCount]:
        """Return sums of some of the rows, for when they cannot be written."""
        counts: dict[tuple[str, str], DroppedCount] = {}
        for at in range(start * CELLS, end * CELLS, CELLS):
            context = self.contexts[self.cells[at]]
            payload_bytes, messages = self.cells[at + 6 : at + 8]
            add_dropped(
                counts,
                one_dropped(context.account_id, context.action, messages, payload_bytes, context.http_status),
            )
        return list(counts.values())


def one_dropped(account_id: str, action: str, messages: int, payload_bytes: int, status: int) -> DroppedCount:
    """Return the count of one request that is dropped."""
    return DroppedCount(
        account_id, action, 1, messages, payload_bytes, chunks_of(payload_bytes), int(status >= 400)
    )
