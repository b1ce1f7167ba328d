"""Rating: the usage of an account's month becomes charges. Pure.

    daily rows ──added up by day and class──▶ totals ──price book──▶ steps: from which request of the month on what
    daily rows, in order, any number at a time ──cut at the steps──▶ charges, each with a stable id

Requests are rated in the order of day, class (standard first), region, queue and action. What a request costs depends
on its place among those of its class in the month alone: where its free requests end, a tier or a version of the prices
begins there is a *step*, and totals of days say where these are. So rows are rated as a stream. They come in the order
of day, region, queue, action, which within a class is the order of rating, and what is kept of them is two numbers.

The month is always rated from its start, whole: so charges depend on the usage alone, not on the order in which it came
or how often it was rated.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.money import LINE_COST_DIGITS, UNIT_PRICE_DIGITS, AmountTooLarge, line_costs
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import QUANTITY_MAX, NoPrice, PriceBook
from quaymaster_pipeline.billing.rules import BILLING_CLASSES, RULE_VERSION, BillingClass

FREE: Final = -1
"""The tier number of requests of the free allowance."""
LINE_ID_BYTES: Final = 16
_BETWEEN: Final = "\x1f"
_UNIT_PRICE: Final = pa.decimal128(*UNIT_PRICE_DIGITS)

USAGE: Final = pa.schema(
    [
        ("day", pa.date32()),
        ("region", pa.string()),
        ("queue_id", pa.int64()),
        ("queue_name", pa.string()),
        ("action", pa.string()),
        ("billing_class", pa.string()),
        ("billed_requests", pa.int64()),
    ]
)
"""What one queue of an account was asked on one day (in UTC) by one action, each of these once. `queue_id` 0 and
`queue_name` "" stand for actions without a queue."""
CHARGES: Final = pa.schema(
    [
        ("line_id", pa.string()),
        *((field.name, field.type) for field in USAGE if field.name != "billed_requests"),
        ("price_version", pa.int64()),
        ("tier", pa.int64()),
        ("unit_price", _UNIT_PRICE),
        ("quantity", pa.int64()),
        ("cost", pa.decimal128(*LINE_COST_DIGITS)),
        ("rule_version", pa.int64()),
    ]
)
"""A line: requests of one day, queue and action at one price. `tier` counts from 0, or is FREE."""
CHARGE_KEYS: Final = (
    *("day", "region", "queue_id", "queue_name", "action", "billing_class", "price_version", "tier"),
)
"""What tells the charges of an account apart, and their order; a line's id is a hash of them."""


class BadUsage(ValueError):
    """Usage that cannot be rated; the message says which and why."""


REFUSED_BY_PRICES: Final = (NoPrice, BadUsage, AmountTooLarge)
"""What rating raises."""


class Step(NamedTuple):
    """Requests of a class after the first `above` of the month cost this, up to the next step."""

    above: int
    price_version: int
    tier: int
    unit_price: Decimal


Totals = dict[datetime.date, dict[BillingClass, int]]
"""Billed requests by day and class."""


def price_id(billing_class: str, version: int, tier: int) -> str:
    """Return the stable name of a price: `standard-v1-tier2`, `fifo-v1-free`."""
    return f"{billing_class}-v{version}-" + ("free" if tier == FREE else f"tier{tier + 1}")


def add_totals(totals: Totals, rows: Any, month: Month) -> None:
    """Add the billed requests of rows of USAGE to totals. Raises BadUsage."""
    least = pc.min_max(rows.column("billed_requests")).as_py()
    if rows.num_rows and least["min"] < 0:
        at = pc.index(rows.column("billed_requests"), least["min"]).as_py()
        row = rows.slice(at, 1).to_pylist()[0]
        raise BadUsage(f"usage of {row['action']} on {row['day']} has {least['min']} billed requests")
    if rows.num_rows and least["max"] * rows.num_rows > QUANTITY_MAX:
        raise BadUsage(f"usage of {month} has {least['max']} billed requests in a row, which is too many")
    summed = rows.group_by(["day", "billing_class"], use_threads=False).aggregate(
        [("billed_requests", "sum")]
    )
    for row in summed.to_pylist():
        day, billing_class, billed = row["day"], row["billing_class"], row["billed_requests_sum"]
        if (day.year, day.month) != month:
            raise BadUsage(f"usage on {day} is not of {month}")
        if billing_class not in BILLING_CLASSES:
            raise BadUsage(
                f"usage of billing class {billing_class!r}; there are {', '.join(BILLING_CLASSES)}"
            )
        of_day = totals.setdefault(day, dict.fromkeys(BILLING_CLASSES, 0))
        of_day[billing_class] += billed


def steps_of(totals: Totals, book: PriceBook) -> dict[BillingClass, list[Step]]:
    """Return the steps of each class. Raises NoPrice for a day with usage that the book has no price for."""
    steps: dict[BillingClass, list[Step]] = {name: [] for name in BILLING_CLASSES}
    positions = dict.fromkeys(BILLING_CLASSES, 0)
    free_used = 0
    for day in sorted(totals):
        version = book.at(datetime.datetime(day.year, day.month, day.day, tzinfo=UTC))
        for name in BILLING_CLASSES:
            tiers = version.tiers[name]
            position, end = positions[name], positions[name] + totals[day][name]
            if end > QUANTITY_MAX:
                raise BadUsage(f"usage up to {day} has {end} billed requests, which is too many")
            free = min(end - position, max(0, version.free_requests - free_used))
            if free:
                _add_step(steps[name], Step(position, version.number, FREE, Decimal(0)))
                free_used += free
                position += free
            while position < end:
                tier = version.tier_number(name, position)
                _add_step(steps[name], Step(position, version.number, tier, tiers[tier].unit_price))
                position = end if tier + 1 == len(tiers) else min(end, tiers[tier + 1].above)
            positions[name] = end
    return steps


def _add_step(steps: list[Step], step: Step) -> None:
    if not steps or steps[-1][1:] != step[1:]:
        steps.append(step)


class Rater:
    """Rates the rows of one account's month, in their order, any number at a time."""

    def __init__(self, account_id: str, steps: Mapping[BillingClass, list[Step]]) -> None:
        self._account_id = account_id
        self._positions = dict.fromkeys(BILLING_CLASSES, 0)
        self._firsts: dict[BillingClass, int] = {}
        self._steps: list[Step] = []
        self._bounds: dict[BillingClass, Any] = {}
        for name in BILLING_CLASSES:
            self._firsts[name] = len(self._steps)
            self._steps += steps[name]
            self._bounds[name] = np.array([*(step.above for step in steps[name]), QUANTITY_MAX], np.int64)

    def charges(self, rows: Any) -> Any:
        """Return the charges of the next rows of USAGE, in the order of CHARGE_KEYS."""
        billed = rows.column("billed_requests").to_numpy()
        parts = [
            self._cut(name, np.flatnonzero(is_class), billed)
            for name in BILLING_CLASSES
            if (is_class := _mask(pc.equal(rows.column("billing_class"), name))).any()
        ]
        if not parts:
            return CHARGES.empty_table()
        at, steps, quantities = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if len(parts) > 1:
            order = np.argsort(at, kind="stable")
            at, steps, quantities = at[order], steps[order], quantities[order]
        return self._charges(rows.take(pa.array(at)), steps, quantities)

    def _cut(self, name: BillingClass, at: Any, billed: Any) -> tuple[Any, Any, Any]:
        """Return what rows of a class are charged, in parts: which row, which step, how many requests."""
        at = at[billed[at] > 0]
        ends = self._positions[name] + np.cumsum(billed[at])
        starts = ends - billed[at]
        if len(ends):
            self._positions[name] = int(ends[-1])
        bounds = self._bounds[name]
        first = np.searchsorted(bounds, starts, side="right") - 1
        counts = np.searchsorted(bounds, ends - 1, side="right") - first
        rows = np.repeat(np.arange(len(at)), counts)
        steps = first[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        quantities = np.minimum(ends[rows], bounds[steps + 1]) - np.maximum(starts[rows], bounds[steps])
        return at[rows], steps + self._firsts[name], quantities

    def _charges(self, rows: Any, steps: Any, quantities: Any) -> Any:
        taken = pa.array(steps)
        version, tier, price = (
            pa.array([step[at] for step in self._steps], kind).take(taken)
            for at, kind in ((1, pa.int64()), (2, pa.int64()), (3, _UNIT_PRICE))
        )
        quantity = pa.array(quantities)
        columns = {
            **{name: rows.column(name) for name in CHARGE_KEYS[:6]},
            "price_version": version,
            "tier": tier,
            "unit_price": price,
            "quantity": quantity,
            "cost": line_costs(quantity, price),
            "rule_version": pa.array(np.full(len(quantities), RULE_VERSION, np.int64)),
        }
        ids = line_ids(self._account_id, pa.table(columns))
        columns["line_id"] = ids
        return pa.table([columns[name] for name in CHARGES.names], schema=CHARGES)


def rate_month(rows: Iterable[Any], totals: Totals, book: PriceBook, *, account_id: str) -> Iterator[Any]:
    """Yield the charges of an account's month, of which `rows` are all of USAGE in order and `totals` their sums.

    The sum of the quantities is the sum of the billed requests. Raises BadUsage, NoPrice, AmountTooLarge.
    """
    rater = Rater(account_id, steps_of(totals, book))
    yield from map(rater.charges, rows)


def key_texts(charges: Any) -> Any:
    """Return CHARGE_KEYS of charges as texts, which ids and digests are made of."""
    days = charges.column("day").combine_chunks().dictionary_encode()
    names = [f"{day.isoformat()}T00:00:00+00:00" for day in days.dictionary.to_pylist()]
    parts = [pa.array(names, pa.string()).take(days.indices)]
    parts += [charges.column(name).combine_chunks().cast(pa.string()) for name in CHARGE_KEYS[1:]]
    return pc.binary_join_element_wise(*parts, _BETWEEN)


def line_ids(account_id: str, charges: Any) -> Any:
    """Return the ids of lines: hashes of what they are charges for, so the same in every revision of their month."""
    begin = hashlib.blake2b(f"{account_id}{_BETWEEN}".encode(), digest_size=LINE_ID_BYTES)
    ids = []
    for text in key_texts(charges).to_pylist():
        hashed = begin.copy()
        hashed.update(text.encode())
        ids.append(hashed.hexdigest())
    return pa.array(ids, pa.string())


def line_id(account_id: str, *parts: str) -> str:
    """Return the id of a line that is no charge."""
    text = _BETWEEN.join((account_id, *parts))
    return hashlib.blake2b(text.encode(), digest_size=LINE_ID_BYTES).hexdigest()


def _mask(column: Any) -> Any:
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
