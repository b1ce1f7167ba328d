"""Whether closed days are as they were closed: the chain of closes, the files of gold.usage_daily, and their sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from quaymaster_pipeline.checks.gold_checks import sum_of_day
from quaymaster_pipeline.checks.usage_breaks import Findings, UsageBreak
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.expired import ExpiredBlocks, ExpiredUsage
from quaymaster_pipeline.warehouse.closes import SUMS, DayClose, hash_of, is_closed_file
from quaymaster_pipeline.warehouse.data_files import TablePlace, hash_of_file, read_batches
from quaymaster_pipeline.warehouse.schemas import BLOCKS, CLOSES, USAGE_DAILY, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import NO_BATCH

_READ_ROWS: Final = 1 << 16
_MEASURES: Final = {
    "requests": "rows",
    **{name: name for name in ("messages", "bytes", "chunks", "errors")},
}
"""What control totals call the sums of a close."""
_READ: Final = ("requests", "billed_requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")


def judge_closes(closes: Sequence[DayClose], last: int) -> Iterator[UsageBreak]:
    """Yield where the rows of ops.closes are not a chain from the first close up to number `last`."""
    number, previous, through, day = -1, b"", -1, None
    for close in closes:
        if close.number > number + 1:
            yield _at(close, f"close {number + 1} is missing")
        if close.previous != previous:
            yield _at(close, "it does not have the hash of the row before it", "previous")
        if close.hash != hash_of(close):
            yield _at(close, "it was changed: its hash is another", "hash")
        if close.number > number and close.first_batch != through + 1:
            yield _at(close, f"it begins with batch {close.first_batch}, not {through + 1}", "first_batch")
        if not close.is_late:
            if day is not None and close.day <= day:
                yield _at(close, f"{day} was closed before", "day")
            day = close.day
        number, previous, through = close.number, close.hash, close.through_batch
    if number < last:
        yield UsageBreak(
            CLOSES.name, f"its end is missing: there were {last + 1} closes, and it has {number + 1}"
        )


def judge_last_close(
    closes: Iterable[DayClose], noted: Sequence[DayClose], later: Iterable[DayClose]
) -> Iterator[UsageBreak]:
    """Yield where the last close is not as usage_daily notes it, and `later` ones, that usage_daily never had."""
    known = {(close.number, close.day): close for close in closes}
    for close in noted:
        if known.pop((close.number, close.day), None) != close:
            yield _at(close, f"{USAGE_DAILY.name} notes another one, or it is missing")
    last = noted[0].number if noted else -1
    for close in (*(close for close in known.values() if close.number >= last), *later):
        yield _at(close, f"it was put in: {USAGE_DAILY.name} has no such close")


def judge_closed_files(closes: Iterable[DayClose], paths: Iterable[str]) -> Iterator[UsageBreak]:
    """Yield closed files that usage_daily lacks, and those that no close has."""
    there = {path for path in paths if is_closed_file(path)}
    known: set[str] = set()
    for close in closes:
        for path in close.files:
            known.add(path)
            if path not in there:
                yield _day(close, f"the closed file {path} is not in the table")
    for path in sorted(there - known):
        yield UsageBreak(USAGE_DAILY.name, f"no close has the closed file {path}")


def judge_closed_blocks(
    closes: Sequence[DayClose], blocks_of: Mapping[int, int], expired: ExpiredBlocks
) -> Iterator[UsageBreak]:
    """Yield closes whose batches do not have as many blocks as when days were closed. `blocks_of` batches.

    Of batches that have expired there is one number, for all of them: so the first close that has later ones is
    compared along with all closes before it.
    """
    begun = said = 0
    is_first = True
    for number in sorted({close.number for close in closes}):
        one = next(close for close in closes if close.number == number)
        said += one.blocks
        if one.through_batch < expired.through:
            continue
        if not is_first or expired.through == NO_BATCH:
            begun, said = one.first_batch, one.blocks
        is_first = False
        found = sum(count for batch, count in blocks_of.items() if begun <= batch <= one.through_batch)
        found += expired.blocks if begun <= expired.through else 0
        if found != said:
            had = f"there were {said} when days were closed"
            yield UsageBreak(
                BLOCKS.name, f"batches {begun} to {one.through_batch} have {found} blocks; {had}"
            )


def judge_expired_days(
    closes: Sequence[DayClose],
    dates: Iterable[str],
    counts: Mapping[str, int],
    expired: ExpiredUsage,
    later: Collection[str],
    hours: ExpiredUsage,
) -> Iterator[UsageBreak]:
    """Yield days whose hours do not add up to what was closed, where requests have expired.

    `dates` are those that have hours, and `counts` has their sums. Days in `later` have usage that is not closed yet.
    What differed when a day was closed, an operator has accepted. Of days whose `hours` have expired, too, there are
    those that came late since.
    """
    closed: dict[str, Counter[str]] = {date: Counter() for date in dates}
    differed = set(later)
    for close in closes:
        if hours.has(str(close.day)) and close.through_batch <= hours.through:
            continue
        closed.setdefault(str(close.day), Counter()).update({name: getattr(close, name) for name in SUMS})
        if close.difference:
            differed.add(str(close.day))
    for date, sums in sorted(closed.items()):
        if not expired.has(date) or date in differed:
            continue
        for name in SUMS:
            found = counts.get(sum_of_day(date, name), 0)
            if found != sums[name]:
                reason = f"{date}: {name} is {found} over its hours; it was closed with {sums[name]}"
                yield UsageBreak(USAGE_HOURLY.name, reason, column=name)


def judge_expired_hours(closes: Iterable[DayClose], hours: ExpiredUsage) -> Iterator[UsageBreak]:
    """Yield what hours that have expired had otherwise than what their days were closed with."""
    of_them = [
        close for close in closes if hours.has(str(close.day)) and close.through_batch <= hours.through
    ]
    if any(close.difference for close in of_them):
        return  # an operator has accepted it
    for name, measure in _MEASURES.items():
        found, said = hours.counts.get(measure, 0), sum(getattr(close, name) for close in of_them)
        if found != said:
            reason = f"{found} {name} have expired in hours before {hours.before}; their days were closed with {said}"
            yield UsageBreak(USAGE_HOURLY.name, reason, column=name)


def plan_closed_files(closes: Iterable[DayClose], paths: Iterable[str]) -> list[str]:
    """Return items of work: the closed files that are there, a day at a time."""
    there = set(paths)
    return [
        json.dumps([close.to_json(), [path for path in close.files if path in there]])
        for close in closes
        if close.files
    ]


def closed_file_work(place: TablePlace) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: compare the files of a closed day with their hashes, and what they add up to.

    Its counts are the sums of files that are as they were.
    """

    def work(item: str) -> Iterator[Any]:
        fields, paths = json.loads(item)
        close = DayClose.from_json(fields)
        findings = Findings()
        findings.add_all(_judge_files(place, close, paths, findings.counts))
        yield from findings.answers()

    return work


def in_closed_files(name: str) -> str:
    """Return under which name tasks answer a sum over closed files."""
    return f"{name} in closed files"


def _judge_files(
    place: TablePlace, close: DayClose, paths: Sequence[str], counts: Counter[str]
) -> Iterator[UsageBreak]:
    # A row that was changed may have more of one than of the other; its chain says so.
    hashes = dict(zip(close.files, close.file_hashes, strict=False))
    sums = dict.fromkeys(SUMS, 0)
    for path in paths:
        try:
            digest = hash_of_file(place, path)
        except FileNotFoundError:
            yield _day(close, f"the closed file {path} is gone")
            return
        if digest != hashes.get(path):
            yield _day(close, f"the closed file {path} was changed: its SHA-256 is another")
            return
        for rows in read_batches(place, USAGE_DAILY, path, _READ, _READ_ROWS):
            for name, count in gold.day_sums(rows).items():
                sums[name] += count
    counts.update({in_closed_files(name): count for name, count in sums.items()})
    if len(paths) < len(close.files):
        return  # another check says so
    for name in SUMS:
        if sums[name] != getattr(close, name):
            yield _day(close, f"{name} is {sums[name]}; it was closed with {getattr(close, name)}", name)


def _at(close: DayClose, reason: str, column: str | None = None) -> UsageBreak:
    return UsageBreak(CLOSES.name, f"close {close.number} of {close.day}: {reason}", column=column)


def _day(close: DayClose, reason: str, column: str | None = None) -> UsageBreak:
    return UsageBreak(USAGE_DAILY.name, f"{close.day}: {reason}", column=column)
