"""The operators' rules about messages as alerts that consoles evaluate themselves, with and without Prometheus.

They are no rows: they are never changed, and are told to Alertmanager alone. Each is of one account, and named after
its rule.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from quaymaster.core.alerts.alerts import Alert
from quaymaster.core.alerts.operator_rules import OPERATOR_RULES, OperatorRule

BUILT_IN: Final = (
    Alert(
        *("", "ConsumersFallBehind", "prefix", "", "ApproximateAgeOfOldestMessage", "Maximum"),
        *(60, "GreaterThanThreshold", 3_600.0, 10, 10),
        missing_data="notBreaching",
        description="The oldest message of a queue is more than an hour old.",
    ),
)


def built_in_alerts(account_id: str) -> list[Alert]:
    """Return the built-in alerts as those of an account."""
    return [replace(alert, account_id=account_id) for alert in BUILT_IN]


def rule_of(alert: Alert) -> OperatorRule:
    """Return the rule that a built-in alert is named after."""
    return next(rule for rule in OPERATOR_RULES if rule.name == alert.name)
