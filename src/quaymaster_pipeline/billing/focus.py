"""Lines of invoices in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification. Pure.

Columns that mean nothing here (commitment discounts, capacity reservations, sub-accounts, tags, a second currency) are
left out; those with `x_` are ours. The columns and their order are published: new ones go to the end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster_pipeline.billing.invoices import CORRECTIONS, ROUNDING_ACTION, Invoice
from quaymaster_pipeline.billing.money import LINE_COST_DIGITS, UNIT_PRICE_DIGITS, plain
from quaymaster_pipeline.billing.rating import CHARGES, FREE, price_id
from quaymaster_pipeline.billing.rules import RULE_VERSION
from quaymaster_pipeline.warehouse.schemas import TIME

COLUMNS: Final = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost"),
    *("ContractedUnitPrice", "EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice"),
    *("PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId"),
    *("RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId"),
    *(
        "x_line_id",
        "x_billing_class",
        "x_action",
        "x_queue_id",
        "x_price_version",
        "x_tier",
        "x_rule_version",
        "x_revision",
    ),
    *("x_state", "x_corrects_line_id", "x_corrected_period"),
)
UNIT: Final = "Requests"
PRODUCT: Final = "Quaymaster"
_CLASS_NAMES: Final = {"standard": "standard", "fifo": "FIFO", "push": "push"}


def _kind(name: str) -> Any:
    if name.endswith("Cost"):
        return pa.decimal128(*LINE_COST_DIGITS)
    if name.endswith("UnitPrice"):
        return pa.decimal128(*UNIT_PRICE_DIGITS)
    if name.endswith(("Start", "End")):
        return TIME
    if name.endswith("Quantity") or name in ("x_queue_id", "x_price_version", "x_rule_version", "x_revision"):
        return pa.int64()
    return pa.string()


LINES: Final = pa.schema([(name, _kind(name)) for name in COLUMNS])
LINE_COLUMNS: Final = (
    *("ChargeCategory", "ChargePeriodStart", "RegionId", "ResourceName"),
    *("ListUnitPrice", "ConsumedQuantity", "BilledCost", "x_line_id", "x_queue_id", "x_action"),
    *("x_billing_class", "x_price_version", "x_tier", "x_rule_version"),
    *("x_corrected_period", "x_corrects_line_id"),
)
"""What charges and corrections are made of again; a third of what lines have."""


def charge_lines(invoice: Invoice, charges: Any) -> Any:
    """Return the lines of charges of an invoice."""
    return _lines(invoice, charges.num_rows, _charge_columns(charges, invoice.account_id))


def correction_lines(invoice: Invoice, corrections: Any) -> Any:
    """Return the lines of corrections."""
    columns = _charge_columns(corrections, invoice.account_id)
    begin = _joined("Correction of ", corrections.column("month"), ": ")
    return _lines(
        invoice,
        corrections.num_rows,
        columns
        | {
            "ChargeClass": "Correction",
            "ChargeDescription": _joined(begin, columns["ChargeDescription"]),
            "x_corrects_line_id": corrections.column("corrects"),
            "x_corrected_period": corrections.column("month"),
        },
    )


def rounding_line(invoice: Invoice) -> Any:
    """Return the line that makes the sum of all lines' BilledCost the payable amount."""
    return _lines(
        invoice,
        1,
        _costs(invoice.rounding)
        | {
            "ChargeCategory": "Adjustment",
            "ChargeDescription": "Rounding of the total to 2 decimals, half to even",
            "ChargeFrequency": "One-Time",
            "ChargePeriodStart": invoice.month.start,
            "ChargePeriodEnd": invoice.month.end,
            "x_line_id": invoice.rounding_line_id,
            "x_action": ROUNDING_ACTION,
            "x_rule_version": RULE_VERSION,
        },
    )


def charges_of(lines: Any) -> Any:
    """Return the charges that lines were made of: rows of CORRECTIONS; those of charges correct nothing."""
    lines = lines.filter(pc.equal(lines.column("ChargeCategory"), "Usage"))
    tiers = pc.if_else(pc.equal(lines.column("x_tier"), "free"), str(FREE + 1), lines.column("x_tier"))
    columns = {
        "line_id": lines.column("x_line_id"),
        "day": lines.column("ChargePeriodStart").cast(pa.timestamp("us")).cast(pa.date32()),
        "region": lines.column("RegionId"),
        "queue_id": pc.fill_null(lines.column("x_queue_id"), 0),
        "queue_name": pc.fill_null(lines.column("ResourceName"), ""),
        "action": lines.column("x_action"),
        "billing_class": lines.column("x_billing_class"),
        "price_version": lines.column("x_price_version"),
        "tier": pc.subtract(tiers.cast(pa.int64()), 1),
        "unit_price": lines.column("ListUnitPrice"),
        "quantity": lines.column("ConsumedQuantity"),
        "cost": lines.column("BilledCost"),
        "rule_version": lines.column("x_rule_version"),
        "month": lines.column("x_corrected_period"),
        "corrects": lines.column("x_corrects_line_id"),
    }
    return pa.table(columns).select(CORRECTIONS.names).cast(CORRECTIONS)


def only_charges(lines: Any) -> Any:
    """Return the charges of the month itself that lines were made of: rows of CHARGES."""
    found = charges_of(lines)
    return found.filter(pc.is_null(found.column("month"))).select(CHARGES.names)


def _lines(invoice: Invoice, rows: int, columns: dict[str, Any]) -> Any:
    """Return lines with these columns, given as arrays or as one value, and with those of the invoice."""
    columns = _invoice_columns(invoice) | columns
    arrays = []
    for field in LINES:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            arrays.append(value if value.type == field.type else value.cast(field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
    return pa.table(arrays, schema=LINES)


def _invoice_columns(invoice: Invoice) -> dict[str, Any]:
    return {
        "BillingAccountId": invoice.account_id,
        "BillingAccountName": invoice.account_name,
        "BillingCurrency": invoice.currency,
        "BillingPeriodStart": invoice.month.start,
        "BillingPeriodEnd": invoice.month.end,
        "InvoiceId": invoice.invoice_id,
        "InvoiceIssuerName": invoice.issuer,
        "ProviderName": invoice.issuer,
        "PublisherName": PRODUCT,
        "ServiceCategory": "Integration",
        "ServiceSubcategory": "Messaging",
        "ServiceName": PRODUCT,
        "x_revision": invoice.revision,
        "x_state": invoice.state,
    }


def _charge_columns(charges: Any, account_id: str) -> dict[str, Any]:
    """Return what charges fill in. A queue is a resource; actions without a queue have none."""
    days = charges.column("day").cast(pa.timestamp("us"))
    names = charges.column("queue_name")
    has_queue = pc.not_equal(names, "")
    queue_ids, tiers = charges.column("queue_id"), charges.column("tier")
    classes, regions = charges.column("billing_class"), charges.column("region")
    prices = _Prices(charges)
    return _costs(charges.column("cost")) | {
        "ChargeCategory": "Usage",
        "ChargeDescription": _joined(charges.column("action"), prices.texts(_described)),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": days.cast(TIME),
        "ChargePeriodEnd": pc.add(days, pa.scalar(timedelta(days=1), pa.duration("us"))).cast(TIME),
        "ConsumedQuantity": charges.column("quantity"),
        "ConsumedUnit": UNIT,
        "ContractedUnitPrice": charges.column("unit_price"),
        "ListUnitPrice": charges.column("unit_price"),
        "PricingCategory": "Standard",
        "PricingQuantity": charges.column("quantity"),
        "PricingUnit": UNIT,
        "RegionId": regions,
        "RegionName": regions,
        "ResourceId": pc.if_else(has_queue, _arns(charges, account_id), None),
        "ResourceName": pc.if_else(has_queue, names, None),
        "ResourceType": pc.if_else(has_queue, "Queue", pa.scalar(None, pa.string())),
        "SkuId": _joined("quaymaster-requests-", classes),
        "SkuMeter": prices.texts(lambda name, *_: f"Requests ({_CLASS_NAMES[name]})"),
        "SkuPriceId": prices.texts(lambda name, version, tier, _: price_id(name, version, tier)),
        "x_line_id": charges.column("line_id"),
        "x_billing_class": classes,
        "x_action": charges.column("action"),
        "x_queue_id": pc.if_else(pc.not_equal(queue_ids, 0), queue_ids, None),
        "x_price_version": charges.column("price_version"),
        "x_tier": pc.if_else(pc.equal(tiers, FREE), "free", pc.add(tiers, 1).cast(pa.string())),
        "x_rule_version": charges.column("rule_version"),
    }


class _Prices:
    """The few prices that charges have, so that what is said of a price is made once."""

    def __init__(self, charges: Any) -> None:
        names = ("billing_class", "price_version", "tier", "unit_price")
        codes = pc.binary_join_element_wise(
            *(charges.column(name).combine_chunks().cast(pa.string()) for name in names), "/"
        ).dictionary_encode()
        self._codes = codes.indices
        firsts = [pc.index(codes.indices, at).as_py() for at in range(len(codes.dictionary))]
        taken = charges.select(names).take(pa.array(firsts, pa.int64()))
        self._prices = [tuple(row.values()) for row in taken.to_pylist()]

    def texts(self, text_of: Any) -> Any:
        """Return `text_of(billing class, version, tier, unit price)` of each charge."""
        return pa.array([text_of(*price) for price in self._prices], pa.string()).take(self._codes)


def _described(billing_class: str, _version: int, tier: int, unit_price: Any) -> str:
    what = f" at the {_CLASS_NAMES[billing_class]} rate"
    if tier == FREE:
        return f"{what}, free requests"
    return f"{what}, tier {tier + 1}, {plain(unit_price.scaleb(6))} per million requests"


def _arns(charges: Any, account_id: str) -> Any:
    regions = charges.column("region").combine_chunks().dictionary_encode()
    begins = [str(QueueArn(region, account_id, "")) for region in regions.dictionary.to_pylist()]
    return _joined(pa.array(begins, pa.string()).take(regions.indices), charges.column("queue_name"))


def _joined(*parts: Any) -> Any:
    columns = (part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part for part in parts)
    return pc.binary_join_element_wise(
        *(pa.scalar(part) if isinstance(part, str) else part for part in columns), ""
    )


def _costs(cost: Any) -> dict[str, Any]:
    """Return a cost as FOCUS has it four times: there are no discounts and nothing is paid in advance."""
    return {"BilledCost": cost, "EffectiveCost": cost, "ContractedCost": cost, "ListCost": cost}
