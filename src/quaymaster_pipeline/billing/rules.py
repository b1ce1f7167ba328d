"""Which requests are billed, at which rate, and for how many. Pure.

They are the public pricing rules of Amazon SQS:

- Every action is a request, an empty receive too. Each started 64 KiB of payload is one billed request; a batch counts
  its total. So the *chunks* of its usage record
  (`protocol/usage/usage_records.chunks_of`) are what a request is billed.
- Actions of STS are free, as in AWS: the table of actions says so.
- Sending, receiving, deleting and changing the visibility of messages of a FIFO queue cost the FIFO rate. All other
  actions cost the standard rate, on FIFO queues too.
- A call to a queue's endpoint has a price of its own, which covers its receive and delete; SQS has no such calls. It is
  billed by the status of the endpoint's answer, as others by that of ours; one without an answer is not billed.

What SQS does not say, we decide, always for the one who pays: not billed is what failed here (5xx), what was refused
(403, which SQS answers also when it throttles; 429), what belongs to no account, and acts of operators over the admin
API, which SQS does not have. Other errors are billed: the request was understood. That includes 499: the client went
away before it was answered.

`RULE_VERSION` stands beside every figure made by these rules. A change of the rules gets a new number, and records of
before keep theirs.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from quaymaster.protocol.actions.table import ACTIONS, RECORDED_ACTIONS

BillingClass = Literal["standard", "fifo", "push"]
BILLING_CLASSES: Final[tuple[BillingClass, ...]] = get_args(BillingClass)

RULE_VERSION: Final = 1

FIFO_ACTIONS: Final = frozenset(action.name for action in RECORDED_ACTIONS if action.billing == "by queue")
PUSH_ACTIONS: Final = frozenset(action.name for action in RECORDED_ACTIONS if action.billing == "push")
FREE_ACTIONS: Final = frozenset(action.name for action in ACTIONS.values() if action.billing == "free")
ANSWERED_STATUS_MIN: Final = 200
ANSWERED_STATUS_END: Final = 500
REFUSED_STATUSES: Final = frozenset({403, 429})
UNBILLED_PROTOCOL: Final = "admin"
"""What operators do over the admin API."""


def billing_class_of(action: str, queue_type: str | None) -> BillingClass:
    """Return the rate of an action on a queue; `queue_type` is `standard`, `fifo`, `log`, or None without a queue."""
    if action in PUSH_ACTIONS:
        return "push"
    return "fifo" if queue_type == "fifo" and action in FIFO_ACTIONS else "standard"


def billed_requests_of(
    account_id: str | None, http_status: int, chunks: int, protocol: str = "json", *, action: str = ""
) -> int:
    """Return how many requests one request is billed as: its chunks, or 0 when it is not billed at all."""
    is_answered = ANSWERED_STATUS_MIN <= http_status < ANSWERED_STATUS_END
    if protocol == UNBILLED_PROTOCOL or action in FREE_ACTIONS:
        return 0
    return chunks if account_id and is_answered and http_status not in REFUSED_STATUSES else 0
