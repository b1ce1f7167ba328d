"""The subject of an alert as CloudWatch's dimensions say it.

QueueName = orders              the queue
QueueName = orders*             all queues whose names begin with orders; no queue's name has a *
QueueName = *                   all queues
DeadLetterQueues = *            all dead-letter queues of the account
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quaymaster.core.alerts.alerts import Alert, Subject
from quaymaster.core.values.errors import InvalidParameterValue

QUEUE_NAME: Final = "QueueName"
DEAD_LETTER_QUEUES: Final = "DeadLetterQueues"
ALL: Final = "*"


def dimensions_of(alert: Alert) -> dict[str, str]:
    """Return the dimensions that name an alert's subject."""
    if alert.subject == "dead_letter_queues":
        return {DEAD_LETTER_QUEUES: ALL}
    return {QUEUE_NAME: alert.pattern if alert.subject == "queue" else alert.pattern + ALL}


def subject_of(dimensions: Mapping[str, str]) -> tuple[Subject, str]:
    """Return the subject and its pattern; InvalidParameterValue where the dimensions name none."""
    match list(dimensions.items()):
        case [("DeadLetterQueues", "*")]:
            return "dead_letter_queues", ""
        case [("QueueName", pattern)] if pattern.endswith(ALL):
            return "prefix", pattern.removesuffix(ALL)
        case [("QueueName", name)]:
            return "queue", name
    raise InvalidParameterValue(
        "The dimensions of an alarm are QueueName (a queue, or a prefix and *), or DeadLetterQueues = *."
    )
