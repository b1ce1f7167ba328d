"""Lines of invoices in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification. Pure.

Columns that mean nothing here (commitment discounts, capacity reservations, sub-accounts, tags, a second currency) are
left out; those with `x_` are ours. The columns and their order are published: new ones go to the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Final

from quaymaster.core.values.queue_names import QueueArn
from quaymaster_pipeline.billing.invoices import DAY, ROUNDING_ACTION, Invoice
from quaymaster_pipeline.billing.money import plain
from quaymaster_pipeline.billing.rating import FREE, Charge
from quaymaster_pipeline.billing.rules import RULE_VERSION

Value = str | int | Decimal | datetime | None

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
_CLASS_NAMES: Final = {"standard": "standard", "fifo": "FIFO"}


def focus_rows(invoice: Invoice) -> Iterator[dict[str, Value]]:
    """Return all lines: charges, corrections, the rounding line. Their BilledCost adds up to the payable amount."""
    for charge in invoice.charges:
        yield _row(invoice) | _charge_columns(charge, invoice.account_id)
    for correction in invoice.corrections:
        yield (
            _row(invoice)
            | _charge_columns(correction.charge, invoice.account_id)
            | {
                "ChargeClass": "Correction",
                "ChargeDescription": f"Correction of {correction.month}: {describe(correction.charge)}",
                "x_corrects_line_id": correction.corrects,
                "x_corrected_period": str(correction.month),
            }
        )
    yield (
        _row(invoice)
        | _costs(invoice.rounding)
        | {
            "ChargeCategory": "Adjustment",
            "ChargeDescription": "Rounding of the total to 2 decimals, half to even",
            "ChargeFrequency": "One-Time",
            "ChargePeriodStart": invoice.month.start,
            "ChargePeriodEnd": invoice.month.end,
            "x_line_id": invoice.rounding_line_id,
            "x_action": ROUNDING_ACTION,
            "x_rule_version": RULE_VERSION,
        }
    )


def describe(charge: Charge) -> str:
    """Return what a charge is for, as people read it."""
    what = f"{charge.action} at the {_CLASS_NAMES[charge.billing_class]} rate"
    if charge.tier == FREE:
        return f"{what}, free requests"
    return f"{what}, tier {charge.tier + 1}, {plain(charge.unit_price.scaleb(6))} per million requests"


def _row(invoice: Invoice) -> dict[str, Value]:
    row: dict[str, Value] = dict.fromkeys(COLUMNS)
    row |= {
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
    return row


def _charge_columns(charge: Charge, account_id: str) -> dict[str, Value]:
    """Return what a charge fills in. A queue is a resource; actions without a queue have none."""
    arn = str(QueueArn(charge.region, account_id, charge.queue_name))
    return _costs(charge.cost) | {
        "ChargeCategory": "Usage",
        "ChargeDescription": describe(charge),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": charge.day,
        "ChargePeriodEnd": charge.day + DAY,
        "ConsumedQuantity": charge.quantity,
        "ConsumedUnit": UNIT,
        "ContractedUnitPrice": charge.unit_price,
        "ListUnitPrice": charge.unit_price,
        "PricingCategory": "Standard",
        "PricingQuantity": charge.quantity,
        "PricingUnit": UNIT,
        "RegionId": charge.region,
        "RegionName": charge.region,
        "ResourceId": arn if charge.queue_name else None,
        "ResourceName": charge.queue_name or None,
        "ResourceType": "Queue" if charge.queue_name else None,
        "SkuId": f"quaymaster-requests-{charge.billing_class}",
        "SkuMeter": f"Requests ({_CLASS_NAMES[charge.billing_class]})",
        "SkuPriceId": charge.price_id,
        "x_line_id": charge.line_id,
        "x_billing_class": charge.billing_class,
        "x_action": charge.action,
        "x_queue_id": charge.queue_id or None,
        "x_price_version": charge.price_version,
        "x_tier": "free" if charge.tier == FREE else str(charge.tier + 1),
        "x_rule_version": charge.rule_version,
    }


def _costs(cost: Decimal) -> dict[str, Value]:
    """Return a cost as FOCUS has it four times: there are no discounts and nothing is paid in advance."""
    return {"BilledCost": cost, "EffectiveCost": cost, "ContractedCost": cost, "ListCost": cost}
