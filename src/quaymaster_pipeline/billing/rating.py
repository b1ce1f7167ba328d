"""Rating: the usage of an account's month becomes charges. Pure.

    usage by hour ──added up by hour, class, region, queue, action──▶ in order of time ──split at──▶ pieces
                                      free allowance · tier · price version · day
    pieces ──added up by day, region, queue, action, class, price──▶ charges, each with a stable id

The month is always rated from its start, whole: allowance and tiers depend on what came before. So the charges depend
on the usage alone, not on the order in which it came or how often it was rated. Within an hour the order is that of
class (standard first), region, queue and action, and means nothing but that it is always the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Final, NamedTuple

from quaymaster_pipeline.billing.money import as_line_cost, product
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook, PriceVersion
from quaymaster_pipeline.billing.rules import BILLING_CLASSES, RULE_VERSION, BillingClass

FREE: Final = -1
"""The tier number of requests of the free allowance."""
LINE_ID_BYTES: Final = 16

_CLASS_ORDER: Final = {name: index for index, name in enumerate(BILLING_CLASSES)}


class BadUsage(ValueError):
    """Usage that cannot be rated; the message says which and why."""


class Usage(NamedTuple):
    """What one queue of an account was asked in one hour by one action.

    `hour` is its start, in UTC. `queue_id` 0 and `queue_name` "" stand for actions without a queue.
    """

    hour: datetime
    region: str
    queue_id: int
    queue_name: str
    action: str
    billing_class: BillingClass
    billed_requests: int


class Charge(NamedTuple):
    """One line: requests of one day, queue and action at one price.

    `tier` counts from 0, or is FREE; `cost` has 12 decimals. `price_id` names class, tier and version of the price.
    """

    line_id: str
    day: datetime
    region: str
    queue_id: int
    queue_name: str
    action: str
    billing_class: BillingClass
    price_version: int
    tier: int
    unit_price: Decimal
    quantity: int
    cost: Decimal
    rule_version: int

    @property
    def price_id(self) -> str:
        """The stable name of the price."""
        return price_id(self.billing_class, self.price_version, self.tier)


def price_id(billing_class: BillingClass, version: int, tier: int) -> str:
    """Return the stable name of a price: `standard-v1-tier2`, `fifo-v1-free`."""
    return f"{billing_class}-v{version}-" + ("free" if tier == FREE else f"tier{tier + 1}")


_Key = tuple[datetime, str, int, str, str, BillingClass, int, int]
"""Of a charge: day, region, queue id, queue name, action, class, price version, tier."""


def rate_month(usage: Iterable[Usage], book: PriceBook, month: Month, *, account_id: str) -> list[Charge]:
    """Return the charges of an account's month, sorted by day, region, queue, action, class, price.

    All usage of the month must be given, in any order and in any parts. The sum of the quantities is the sum of the
    billed requests. Raises BadUsage, NoPrice.
    """
    quantities: dict[_Key, int] = {}
    positions: dict[BillingClass, int] = dict.fromkeys(BILLING_CLASSES, 0)
    free_used = 0
    hour: datetime | None = None
    version: PriceVersion | None = None
    for row, billed in _in_order(usage, month):
        if row.hour != hour:
            hour, version = row.hour, book.at(row.hour)
        assert version is not None, "the first row has an hour"
        day = row.hour.replace(hour=0)
        left = billed
        while left:
            position = positions[row.billing_class]
            free_left = version.free_requests - free_used
            if free_left > 0:
                tier, part = FREE, min(left, free_left)
                free_used += part
            else:
                tiers = version.tiers[row.billing_class]
                tier = version.tier_number(row.billing_class, position)
                part = left if tier + 1 == len(tiers) else min(left, tiers[tier + 1].above - position)
            key = (
                *(day, row.region, row.queue_id, row.queue_name, row.action),
                *(row.billing_class, version.number, tier),
            )
            quantities[key] = quantities.get(key, 0) + part
            positions[row.billing_class] = position + part
            left -= part
    versions = {version.number: version for version in book.versions}
    return [_charge(account_id, key, quantities[key], versions[key[6]]) for key in sorted(quantities)]


def _in_order(usage: Iterable[Usage], month: Month) -> list[tuple[Usage, int]]:
    """Return the usage of each key once, in the order in which it is rated."""
    billed: dict[Usage, int] = {}
    start, end = month.start, month.end
    for row in usage:
        if row.billed_requests < 0:
            raise BadUsage(f"usage of {row.action} at {row.hour} has {row.billed_requests} billed requests")
        if not start <= row.hour < end:
            raise BadUsage(f"usage at {row.hour.isoformat()} is not of {month}")
        if row.hour.minute or row.hour.second or row.hour.microsecond or row.hour.utcoffset() != timedelta(0):
            raise BadUsage(f"usage at {row.hour.isoformat()} is not of a full hour in UTC")
        if row.billing_class not in _CLASS_ORDER:
            raise BadUsage(
                f"usage of billing class {row.billing_class!r}; there are {', '.join(BILLING_CLASSES)}"
            )
        key = row._replace(hour=row.hour.astimezone(UTC), billed_requests=0)
        billed[key] = billed.get(key, 0) + row.billed_requests
    return sorted(billed.items(), key=_rating_order)


def _rating_order(item: tuple[Usage, int]) -> tuple[object, ...]:
    row = item[0]
    return (row.hour, _CLASS_ORDER[row.billing_class], *itemgetter(1, 2, 3, 4)(row))


def _charge(account_id: str, key: _Key, quantity: int, version: PriceVersion) -> Charge:
    day, region, queue_id, queue_name, action, billing_class, number, tier = key
    unit_price = Decimal(0) if tier == FREE else version.tiers[billing_class][tier].unit_price
    cost = as_line_cost(product(quantity, unit_price))
    return Charge(
        line_id(account_id, key),
        *(day, region, queue_id, queue_name, action, billing_class, number, tier),
        *(unit_price, quantity, cost, RULE_VERSION),
    )


def line_id(account_id: str, key: tuple[object, ...]) -> str:
    """Return the id of a line: a hash of what it is a charge for, so the same in every revision of its month."""
    texts = (part.isoformat() if isinstance(part, datetime) else str(part) for part in key)
    text = "\x1f".join((account_id, *texts))
    return hashlib.blake2b(text.encode(), digest_size=LINE_ID_BYTES).hexdigest()
