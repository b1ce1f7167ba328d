"""Requests and policies in few words, for tests of policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quaymaster.core.access.arns import split_arn
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.patterns import FindValues
from quaymaster.core.access.policies import CompiledPolicy, compile_policy
from quaymaster.core.access.principals import Requester
from quaymaster.core.access.statements import AccessRequest

OWNER, OTHER, THIRD = "111111111111", "222222222222", "333333333333"
QUEUE = f"arn:aws:sqs:us-east-1:{OWNER}:jobs"

ROOT = Requester(OWNER)
ADA = Requester(OWNER, "user", "AIDAADA", "staff/ada")
NIGHT = Requester(OWNER, "session", "AROAWORKER", "worker", "night")
OTHERS_ROOT = Requester(OTHER)
BOB = Requester(OTHER, "user", "AIDABOB", "bob")
OTHERS_NIGHT = Requester(OTHER, "session", "AROAOTHER", "app/worker", "night")

UNIQUE_IDS = {
    f"arn:aws:iam::{OWNER}:user/staff/ada": "AIDAADA",
    f"arn:aws:iam::{OWNER}:role/worker": "AROAWORKER",
    f"arn:aws:sts::{OWNER}:assumed-role/worker/night": "AROAWORKER",
    f"arn:aws:iam::{OTHER}:user/bob": "AIDABOB",
    f"arn:aws:iam::{OTHER}:role/app/worker": "AROAOTHER",
    f"arn:aws:sts::{OTHER}:assumed-role/worker/night": "AROAOTHER",
}
ADA_ARN, WORKER_ARN, NIGHT_ARN, BOB_ARN, OTHERS_WORKER_ARN, OTHERS_NIGHT_ARN = UNIQUE_IDS


def finder(values: Mapping[str, str | tuple[str, ...]]) -> FindValues:
    """Return what finds the values of condition keys, which are written in any case."""
    known = {key.lower(): (value,) if isinstance(value, str) else value for key, value in values.items()}
    return lambda key: known.get(key, ())


def asking(
    requester: Requester = OTHERS_ROOT,
    action: str = "SendMessage",
    resource: str = QUEUE,
    *,
    can_cross: bool = True,
    **values: str | tuple[str, ...],
) -> AccessRequest:
    """Return a request; condition keys of `aws:` are keyword arguments."""
    find = finder({f"aws:{key}": value for key, value in values.items()})
    return AccessRequest(requester, f"sqs:{action.lower()}", split_arn(resource), OWNER, find, can_cross)


def statement(**elements: Any) -> dict[str, Any]:
    """Return a statement that allows sending to all, with some elements set, or left out where they are None."""
    whole = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", **elements}
    return {name: value for name, value in whole.items() if value is not None}


def document(*statements: Any, **elements: Any) -> str:
    """Return the text of a policy."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements), **elements})


def policy(*statements: Any, **elements: Any) -> CompiledPolicy:
    """Return the compiled policy of a queue."""
    return compile_policy(document(*statements, **elements), unique_ids=UNIQUE_IDS)


def of_identity(*statements: Any) -> CompiledPolicy:
    """Return the compiled policy of an identity or session."""
    return compile_policy(document(*statements), PolicyKind.IDENTITY)
