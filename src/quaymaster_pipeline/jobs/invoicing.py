"""Makes the invoices of a month: plans, lets tasks make them by stretches of accounts, and commits.

    gold.usage_daily ──tasks: one stretch of accounts each──▶ gold.charges ──▶ gold.adjustments ──▶ gold.invoices

A final invoice is of closed days alone (`ops.closes`), whose files are first compared with the hashes and sums that
they were closed with. A provisional one is of all daily rows there are. The commit to gold.invoices, the last, makes
all valid: killed before, the next run replaces what is there. The driver has lists of files, and at most a hundred
refusals.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quaymaster_pipeline.billing.periods import GRACE, Month, PeriodStage, stage_of
from quaymaster_pipeline.billing.reconciliation import BillingComparison, differing, of_closes
from quaymaster_pipeline.billing.service import (
    NotIssued,
    StoreDamaged,
    closed_until,
    first_open,
    refuse_unless_over,
    window,
)
from quaymaster_pipeline.billing.store import (
    APP,
    FINAL,
    HEADS,
    BillingStore,
    files_of,
    files_of_months,
    issued_in,
    noted_issued,
    refuse_others,
)
from quaymaster_pipeline.billing.tables import ACCOUNT_COLUMN, ACCOUNTS, ADJUSTMENTS, CHARGES, INVOICES
from quaymaster_pipeline.checks.close_checks import (
    closed_file_work,
    in_closed_files,
    judge_closed_files,
    judge_closes,
    judge_last_close,
    plan_closed_files,
)
from quaymaster_pipeline.checks.usage_breaks import Findings
from quaymaster_pipeline.jobs.invoice_tasks import (
    BILLED,
    CHANGED,
    COUNTS,
    HASHES,
    ISSUED,
    LEFT_OUT,
    MADE,
    REFUSALS,
    REFUSED,
    InvoicePlan,
    invoice_work,
    item_of,
)
from quaymaster_pipeline.usage.tasks import Answers, Workers, answer_counts
from quaymaster_pipeline.warehouse.account_rows import Accounts, ranges_of
from quaymaster_pipeline.warehouse.closes import DayClose, is_closed_file, noted_in
from quaymaster_pipeline.warehouse.data_files import (
    DataFile,
    delete_files,
)
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.row_sums import RowSum
from quaymaster_pipeline.warehouse.schemas import CLOSES, USAGE_DAILY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

REFUSALS_MAX: Final = 100
_NONE_CLOSED: Final = -1
_HEADS_BY: Final = "account_id"
_WRITTEN: Final = (CHARGES, ADJUSTMENTS, INVOICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceRequest:
    """Which invoices are made, and what is known for it.

    `closes` are all of ops.closes and `last_closed` the last closed day, both of the version of gold.usage_daily that
    is read; `first_used` is the first day with usage. `why_open` says what keeps the next day open. `compared` are
    comparisons of what was recorded with what the brokers did; `why_not_final` gives another reason for which a month's
    invoices cannot be final yet, or None.
    """

    month: Month
    now: datetime.datetime
    accounts: tuple[str, ...] | None = None
    """None: all."""
    is_final: bool = False
    closes: Sequence[DayClose] = ()
    last_closed: datetime.date | None = None
    first_used: datetime.date | None = None
    grace: datetime.timedelta = GRACE
    why_open: str = "as front ends may still report usage of it"
    compared: tuple[BillingComparison, ...] = ()
    why_not_final: Callable[[Month], str | None] = field(default=lambda month: None)

    @property
    def stage(self) -> PeriodStage:
        """How far the month has come for accounts without a final invoice."""
        until = closed_until(self.last_closed)
        return stage_of(self.month, self.now, closed_until=until, is_closed=False, grace=self.grace)

    def refuse_unless_over(self) -> None:
        """Raise NotIssued unless the month is over, all of its days are closed, and grace is over."""
        day = first_open(self.month, self.last_closed, self.first_used)
        why = f"{day} is not closed, {self.why_open}"
        refuse_unless_over(self.month, self.stage, self.now, self.grace, why)

    @property
    def last_close(self) -> DayClose | None:
        """The last row of ops.closes."""
        return self.closes[-1] if self.closes else None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Accounts of an earlier month without a final invoice although others have one; the first hundred by name."""

    accounts: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Invoiced:
    """What a call did. `left_out` is of all accounts, and empty when some were named."""

    made: int = 0
    left_out: Mapping[Month, LeftOut] = field(default_factory=dict)


def is_issued(store: BillingStore, warehouse: Warehouse, request: InvoiceRequest) -> bool:
    """Return whether all that is asked for has final invoices already, so that there is nothing to make."""
    if request.accounts is not None:
        return store.count_final(request.month, request.accounts) == len(set(request.accounts))
    whole = store.final_months()
    through = whole.get(request.month, _NONE_CLOSED)
    daily = _Daily(warehouse, request.closes)
    months = [month for month in (*window(request.month), request.month) if month in whole]
    return through > _NONE_CLOSED and not any(daily.after(month, through) for month in months)


def make_invoices(
    workers: Workers,
    warehouse: Warehouse,
    request: InvoiceRequest,
    on_done: Callable[[int, int], None] | None = None,
) -> Invoiced:
    """Make the invoices that are asked for, all or none; final ones that there are stay as they are.

    `on_done` is told how many stretches of accounts are done, and how many there are.

    Raises:
        NotIssued: final ones are asked for, and the month is open or in grace, counts differ, or an earlier month comes
            first.
        NothingToBill: a named account used nothing, and nothing is to be corrected.
        StoreDamaged: closed days or issued invoices are not what they were.
        NoPrice, BadUsage, AmountTooLarge: usage cannot be rated.
        CommitConflict: another process billed meanwhile; nothing of this call is valid.
    """
    daily = _Daily(warehouse, request.closes)
    compared = comparisons_of(request)
    BillingStore(warehouse).check_names()
    _check_issued(workers, warehouse.table(INVOICES), request.month)
    if request.is_final:
        request.refuse_unless_over()
        _check_closes(daily.table, request.closes)
        compared += _check_closed_days(workers, daily, request.month)
        _refuse_unless_agreed(request, compared)
    plan = _plan(warehouse, daily, request, compared)
    if request.is_final:
        # Corrections are rated from all closed days of their month.
        of_late = [one for month in plan.late for one in _check_closed_days(workers, daily, month)]
        _refuse_if_differing(request.month, of_late)
    ranges = _ranges(plan, workers.cores, request.accounts)
    answers = _over(workers, plan, ranges, on_done)
    try:
        _refuse(answers)
        counts = answers.counts(COUNTS)
        _check_counts(request, plan, counts)
    except Exception:
        _delete(plan, answers)
        raise
    note = _note_of(warehouse, request, counts)
    if counts[CHANGED]:
        # If it fails half-way nothing is deleted: some table may have its files.
        _commit(warehouse, plan, answers, note)
    else:
        _delete(plan, answers)
        if note is not None:
            _commit_next(warehouse.table(INVOICES), [], [], note)
    left_out = {} if request.accounts is not None else _left_out(warehouse, answers, counts)
    return Invoiced(counts[MADE], left_out)


class _Daily:
    """The files of gold.usage_daily, and which close brought them."""

    def __init__(self, warehouse: Warehouse, closes: Iterable[DayClose]) -> None:
        self.table = warehouse.table(USAGE_DAILY)
        self._closes: dict[str, int] = {}
        self._by_month: dict[Month, list[DayClose]] = {}
        for close in closes:
            self._closes |= dict.fromkeys(close.files, close.number)
            self._by_month.setdefault(Month(close.day.year, close.day.month), []).append(close)

    def closes_of(self, month: Month) -> list[DayClose]:
        """Return the closes of the days of a month."""
        return self._by_month.get(month, [])

    def files(self, month: Month) -> list[DataFile]:
        """Return all files of a month."""
        return list(files_of(self.table, month))

    def closed(self, month: Month) -> list[DataFile]:
        """Return the files of closed days of a month."""
        return [file for file in self.files(month) if is_closed_file(file.path)]

    def after(self, month: Month, close: int) -> list[tuple[int, DataFile]]:
        """Return closed files of a month that a later close brought, each with that close."""
        found = ((self._closes.get(file.path, _NONE_CLOSED), file) for file in self.closed(month))
        return [(number, file) for number, file in found if number > close]

    def not_in(self, month: Month, close: int) -> list[DataFile]:
        """Return the files of a month that no close up to this one brought."""
        return [
            file
            for file in self.files(month)
            if not is_closed_file(file.path) or self._closes.get(file.path, close + 1) > close
        ]


# What must be so before invoices are final


def comparisons_of(request: InvoiceRequest) -> tuple[BillingComparison, ...]:
    """Return what the closes of the month and the brokers compared."""
    days = [
        (str(close.day), close.difference, close.accepted)
        for close in request.closes
        if Month(close.day.year, close.day.month) == request.month
    ]
    return (*of_closes(str(request.month), days), *request.compared)


def _refuse_unless_agreed(request: InvoiceRequest, compared: Sequence[BillingComparison]) -> None:
    _refuse_if_differing(request.month, compared)
    reason = request.why_not_final(request.month)
    if reason is not None:
        raise NotIssued(f"nobody is billed for {request.month}: {reason}")


def _refuse_if_differing(month: Month, compared: Sequence[BillingComparison]) -> None:
    differences = differing(compared)
    if differences:
        raise NotIssued(
            f"counts differ, so nobody is billed for {month}: " + "; ".join(map(str, differences))
        )


def _check_closes(daily: Table, closes: Sequence[DayClose]) -> None:
    """Raise StoreDamaged unless the rows of ops.closes are those that were written: a difference is accepted there."""
    findings, noted = Findings(REFUSALS_MAX), noted_in(daily)
    findings.add_all(judge_closes(closes, closes[-1].number if closes else _NONE_CLOSED))
    if noted:
        findings.add_all(judge_last_close(closes, noted, ()))
    _refuse_breaks(f"{CLOSES.name} is not what was written when days were closed", findings)


def _refuse_breaks(what: str, findings: Findings) -> None:
    if findings.breaks:
        reasons = "; ".join(one.reason for one in findings.breaks)
        raise StoreDamaged(f"{what}, so nothing is billed: {reasons}")


def _check_closed_days(workers: Workers, daily: _Daily, month: Month) -> tuple[BillingComparison, ...]:
    """Compare the files of the closed days of a month with what they were when they were closed."""
    closes, paths = daily.closes_of(month), [file.path for file in daily.closed(month)]
    findings = Findings(REFUSALS_MAX)
    findings.add_all(judge_closed_files(closes, paths))
    findings.take(workers.over(plan_closed_files(closes, paths), closed_file_work(daily.table.place)))
    _refuse_breaks(f"closed days of {month} in {USAGE_DAILY.name} are not what they were", findings)
    scope = f"closed days of {month}"
    return tuple(
        BillingComparison(
            scope,
            name.replace("_", " "),
            (
                ("closes", sum(getattr(close, name) for close in closes)),
                ("files", findings.counts[in_closed_files(name)]),
            ),
        )
        for name in ("requests", "billed_requests")
    )


def _check_issued(workers: Workers, invoices: Table, month: Month) -> None:
    """Raise StoreDamaged unless the final invoices of a month, and of those it looks back at, are those issued."""
    first, place = window(month)[0], invoices.place
    noted = {Month.parse(text) for text in invoices.note(APP).get(FINAL, {})}
    there = {Month.of_day(day) for day in invoices.partitions()}
    months = sorted(one for one in noted | there if one >= first)

    def work(item: str) -> Iterator[Any]:
        text, paths = json.loads(item)
        yield answer_counts(text, issued_in(place, paths)._asdict())

    files = files_of_months(invoices, months)
    answers = workers.over(
        [json.dumps([str(one), [file.path for file in files[one]]]) for one in months], work
    )
    for one in months:
        found = answers.counts(str(one))
        refuse_others(one, noted_issued(invoices, one), RowSum(found["rows"], found["hashes"]))


def _check_counts(request: InvoiceRequest, plan: InvoicePlan, counts: Mapping[str, int]) -> None:
    """Raise NotIssued if the accounts together have other usage than the closed days; of some it cannot be said."""
    if not request.is_final or request.accounts is not None:
        return
    closes = next(one for one in plan.compared if one.measure == "billed requests")
    both = closes._replace(counts=(*closes.counts, ("accounts", counts[BILLED])))
    if both.difference:
        raise NotIssued(f"counts differ, so nobody is billed for {request.month}: {both}")


# Planning


def _plan(
    warehouse: Warehouse, daily: _Daily, request: InvoiceRequest, compared: tuple[BillingComparison, ...]
) -> InvoicePlan:
    month, last = request.month, request.last_close
    whole = BillingStore(warehouse).final_months()
    invoices = warehouse.table(INVOICES)
    before = window(month)
    finals = [one for one in before if one in whole]
    known = {Month.of_day(day) for day in invoices.partitions()} - {month}
    late = _late(daily, invoices, finals)
    return InvoicePlan(
        month=month,
        book=BillingStore(warehouse).book(),
        issued=request.now if request.is_final else None,
        has_begun=request.now >= month.start,
        versions={
            "usage_version": daily.table.version,
            "through_batch": _NONE_CLOSED if last is None else last.through_batch,
            "through_close": _NONE_CLOSED if last is None else last.number,
        },
        compared=compared,
        places={spec.name: warehouse.place(spec) for spec in (USAGE_DAILY, ACCOUNTS, *_WRITTEN)},
        daily=tuple(daily.closed(month) if request.is_final else daily.files(month)),
        replaced=_replaced(warehouse, request),
        names=tuple(warehouse.table(ACCOUNTS).files()),
        heads=files_of_months(invoices, [one for one in sorted(known) if one >= before[0]]),
        uninvoiced={
            one: tuple(files)
            for one in before
            if finals and one >= finals[0] and (files := daily.not_in(one, whole.get(one, _NONE_CLOSED)))
        },
        late=late,
        closed={one: tuple(daily.closed(one)) for one in late},
        charges=files_of_months(warehouse.table(CHARGES), late),
        adjustments=files_of_months(
            warehouse.table(ADJUSTMENTS), [one for one in finals if late and one > min(late)]
        ),
    )


def _late(
    daily: _Daily, invoices: Table, finals: Iterable[Month]
) -> dict[Month, tuple[tuple[int, DataFile], ...]]:
    """Return the files that came after some invoice of their month was made, by months that have any."""
    found = {}
    for month, of_month in files_of_months(invoices, finals).items():
        throughs = [file.bounds["through_close"][0] for file in of_month]
        files = daily.after(month, min(throughs, default=_NONE_CLOSED))
        if files:
            found[month] = tuple(files)
    return found


def _replaced(warehouse: Warehouse, request: InvoiceRequest) -> dict[str, tuple[DataFile, ...]]:
    """Return the files that are made again: all that may have an account that is asked for.

    Of gold.invoices also those of all accounts whose lines may be in these: lines without an invoice are not kept.
    """
    files = {spec.name: files_of(warehouse.table(spec), request.month) for spec in _WRITTEN}
    if request.accounts is not None:
        wanted = Accounts(wanted=tuple(sorted(set(request.accounts))))
        chosen = {
            spec.name: tuple(wanted.chosen(files[spec.name], ACCOUNT_COLUMN))
            for spec in (CHARGES, ADJUSTMENTS)
        }
        lines = [file.bounds[ACCOUNT_COLUMN] for found in chosen.values() for file in found]
        chosen[INVOICES.name] = tuple(
            file
            for file in files[INVOICES.name]
            if wanted.may_lie_in(*file.bounds[_HEADS_BY])
            or any(file.may_have(_HEADS_BY, low, high) for low, high in lines)
        )
        return chosen
    return files


def _ranges(plan: InvoicePlan, cores: int, accounts: Sequence[str] | None) -> list[Accounts]:
    wanted = None if accounts is None else tuple(sorted(set(accounts)))
    if wanted is not None and len(wanted) == 1:
        return [Accounts(wanted=wanted)]
    found = ranges_of(plan.places[USAGE_DAILY.name], USAGE_DAILY, plan.daily, cores)
    return [Accounts(one.first, one.end, wanted) for one in found]


def _over(
    workers: Workers,
    plan: InvoicePlan,
    ranges: Sequence[Accounts],
    on_done: Callable[[int, int], None] | None,
) -> Answers:
    done = 0

    def count(tasks: int) -> None:
        nonlocal done
        done += tasks
        if on_done is not None:
            on_done(done, len(ranges))

    return workers.over([item_of(one) for one in ranges], invoice_work(plan), count)


# After the tasks


def _refuse(answers: Answers) -> None:
    found = [one for text in answers.texts(REFUSALS) for one in json.loads(text)][:REFUSALS_MAX]
    if not found:
        return
    kinds = {kind.__name__: kind for kind in REFUSED}
    raise kinds[found[0][0]]("; ".join(sentence for _, sentence in found))


def _note_of(
    warehouse: Warehouse, request: InvoiceRequest, counts: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return the note of final invoices: of which months, whether for all accounts, what they are; None if it stays."""
    table, text = warehouse.table(INVOICES), str(request.month)
    before = table.note(APP)
    months, heads = before.get(FINAL, {}), before.get(HEADS, {})
    if not request.is_final or (text not in months and not counts[MADE]):
        return None
    last = request.last_close
    if request.accounts is not None:
        through = months.get(text, _NONE_CLOSED)
    else:
        through = _NONE_CLOSED if last is None else last.number
    known = noted_issued(table, request.month)
    if known is not None:
        made = RowSum(counts[ISSUED], counts[HASHES])
        heads = heads | {text: known.plus(made).to_json()}
    note = {FINAL: months | {text: through}, HEADS: heads}
    return None if note == before else note


def _commit(
    warehouse: Warehouse, plan: InvoicePlan, answers: Answers, note: Mapping[str, Any] | None
) -> None:
    """Replace the month's rows. gold.invoices comes last: it makes the lines valid."""
    for spec in _WRITTEN:
        adds, removes = answers.files(spec.name), plan.replaced[spec.name]
        if adds or removes:
            _commit_next(warehouse.table(spec), adds, removes, note if spec is INVOICES else None)


def _commit_next(
    table: Table, adds: Sequence[DataFile], removes: Sequence[DataFile], note: Mapping[str, Any] | None
) -> None:
    """Commit what follows the version that was planned by: where nothing locks, only one of two that bill does."""
    if not table.commit(APP, table.last_batch(APP) + 1, adds, removes=removes, note=note):
        raise CommitConflict(f"another process wrote invoices to {table.spec.name} meanwhile")


def _delete(plan: InvoicePlan, answers: Answers) -> None:
    """Delete files that will not be committed."""
    for spec in _WRITTEN:
        delete_files(plan.places[spec.name], answers.files(spec.name))


def _left_out(warehouse: Warehouse, answers: Answers, counts: Mapping[str, int]) -> dict[Month, LeftOut]:
    names: dict[str, list[str]] = {}
    for text in answers.texts(LEFT_OUT):
        for month, accounts in json.loads(text).items():
            names.setdefault(month, []).extend(accounts)
    final = BillingStore(warehouse).final_months()
    return {
        month: LeftOut(tuple(sorted(accounts)[:REFUSALS_MAX]), counts[f"{LEFT_OUT} {month}"])
        for text, accounts in sorted(names.items())
        if (month := Month.parse(text)) in final
    }
