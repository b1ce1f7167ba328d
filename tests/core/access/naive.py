"""A second evaluator of policies: the documents are interpreted anew for each request, as the guide's text reads.

It shares no code with the first, is slow, and takes only documents that the first one compiles.

Source: IAM User Guide, "Policy evaluation logic", "Condition operators", "Principal", "NotPrincipal".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Any

Who = Mapping[str, str]
"""`kind`, `account`, and where there are such: `id`, `session`."""
Context = Mapping[str, tuple[str, ...]]


def judge(
    queue_policy: str | None,
    identity_policies: list[str],
    session_policy: str | None,
    *,
    who: Who,
    owner: str,
    action: str,
    resource: str,
    context: Context,
    ids: Mapping[str, str],
    can_cross: bool = True,
) -> str:
    """Return "allowed", "denied" by an explicit Deny, or "refused".

    Without `can_cross`, other accounts never may, whatever policies allow.
    """
    said = heard(
        "queue", queue_policy, identity_policies, session_policy, who, owner, action, resource, context, ids
    )
    if any(effect == "Deny" for _, effect, _ in said):
        return "denied"
    by_queue = {how for kind, _, how in said if kind == "queue"}
    by_identity = any(kind == "identity" for kind, _, _ in said)
    by_session = session_policy is None or any(kind == "session" for kind, _, _ in said)
    is_root = who["kind"] == "root"
    if who["account"] == owner:
        is_by_identity = is_root or by_identity or bool(by_queue)
        allowed = (not is_root and "itself" in by_queue) or (is_by_identity and by_session)
    else:
        allowed = can_cross and bool(by_queue) and (is_root or by_identity) and by_session
    return "allowed" if allowed else "refused"


def judge_role(
    trust_policy: str,
    identity_policies: list[str],
    session_policy: str | None,
    *,
    who: Who,
    owner: str,
    action: str,
    resource: str,
    context: Context,
    ids: Mapping[str, str],
) -> str:
    """Return the same of who asks for credentials of a role of the account `owner`."""
    said = heard(
        "trust", trust_policy, identity_policies, session_policy, who, owner, action, resource, context, ids
    )
    if any(effect == "Deny" for _, effect, _ in said):
        return "denied"
    by_trust = {how for kind, _, how in said if kind == "trust"}
    by_identity = any(kind == "identity" for kind, _, _ in said)
    by_session = session_policy is None or any(kind == "session" for kind, _, _ in said)
    if who["kind"] == "root" or not by_trust:
        return "refused"
    is_web = who["kind"] == "web identity"
    needs_no_own = is_web or ("itself" in by_trust and who["account"] == owner)
    return "allowed" if (needs_no_own or by_identity) and by_session else "refused"


def heard(
    first: str,
    first_policy: str | None,
    identity_policies: list[str],
    session_policy: str | None,
    who: Who,
    owner: str,
    action: str,
    resource: str,
    context: Context,
    ids: Mapping[str, str],
) -> list[tuple[str, str, str]]:
    """Return what statements apply: of which kind of policy, with which effect, and how they name the requester."""
    said = []
    for kind, text in [
        (first, first_policy),
        *(("identity", each) for each in identity_policies),
        ("session", session_policy),
    ]:
        if text is None:
            continue
        document = json.loads(text)
        new = document.get("Version") == "2012-10-17"
        for each in many(document["Statement"]):
            how = names(each, kind, who, owner, ids)
            if how and is_about(each, action, resource, context, new) and conditions_hold(each, context, new):
                said.append((kind, each["Effect"], how))
    return said


def names(each: Any, kind: str, who: Who, owner: str, ids: Mapping[str, str]) -> str:
    """Return "itself", "around" for its account or role, or "" where a statement does not name a requester."""
    if kind not in ("queue", "trust"):
        return "itself"
    given = each.get("Principal", each.get("NotPrincipal"))
    if who["kind"] == "web identity":
        issuers = [] if isinstance(given, str) else many(given.get("Federated", []))
        is_listed = f"arn:aws:iam::{owner}:oidc-provider/{who['issuer']}" in issuers
        return "itself" if is_listed != ("NotPrincipal" in each) else ""
    listed = [given] if isinstance(given, str) else many(given.get("AWS", []))
    is_account = any(
        who["account"] == name.removeprefix("arn:aws:iam::").removesuffix(":root") for name in listed
    )
    is_role = who["kind"] == "session" and any(
        ":role/" in name and ids.get(name) == who["id"] for name in listed
    )
    is_user = who["kind"] == "user" and any(
        ":user/" in name and ids.get(name) == who["id"] for name in listed
    )
    is_session = who["kind"] == "session" and any(
        ":assumed-role/" in name and ids.get(name) == who["id"] and name.split("/")[-1] == who["session"]
        for name in listed
    )
    if "NotPrincipal" in each:
        layers = {
            "root": [is_account],
            "user": [is_account, is_user],
            "session": [is_account, is_role, is_session],
        }[who["kind"]]
        return "" if "*" in listed or all(layers) else "itself"
    if is_user or is_session or (kind == "trust" and is_role):
        return "itself"
    if kind == "trust":
        return "around" if is_account or "*" in listed else ""
    if "*" in listed:
        return "itself"
    if is_account and (who["kind"] == "root" or who["account"] != owner):
        return "around"
    return "around" if is_role else ""


def is_about(each: Any, action: str, resource: str, context: Context, new: bool) -> bool:
    actions = many(each.get("Action", each.get("NotAction")))
    found = any(like(name.lower(), action, {}, False) for name in actions)
    if found == ("NotAction" in each):
        return False
    if "Resource" not in each and "NotResource" not in each:
        return True
    resources = many(each.get("Resource", each.get("NotResource")))
    found = any(arn_like(name, resource, context, new, complete=True) for name in resources)
    return found != ("NotResource" in each)


def conditions_hold(each: Any, context: Context, new: bool) -> bool:
    return all(
        holds(name, [as_text(value) for value in many(values)], context.get(key.lower(), ()), context, new)
        for name, keys in each.get("Condition", {}).items()
        for key, values in keys.items()
    )


def holds(name: str, wanted: list[str], values: tuple[str, ...], context: Context, new: bool) -> bool:
    if name == "Null":
        return any((value.lower() == "true") == (not values) for value in wanted)
    if name.startswith("ForAllValues:"):
        single = name.removeprefix("ForAllValues:")
        return all(holds(single, wanted, (value,), context, new) for value in values)
    if name.startswith("ForAnyValue:"):
        single = name.removeprefix("ForAnyValue:")
        return any(holds(single, wanted, (value,), context, new) for value in values)
    if name.endswith("IfExists"):
        return not values or holds(name.removesuffix("IfExists"), wanted, values, context, new)
    if "Not" in name:
        return not holds(name.replace("Not", ""), wanted, values, context, new)
    return any(compares(name, want, value, context, new) for want in wanted for value in values)


def compares(name: str, want: str, value: str, context: Context, new: bool) -> bool:
    if name == "StringEquals":
        return equal(want, value, context, new)
    if name == "StringEqualsIgnoreCase":
        lower = {key: tuple(each.lower() for each in values) for key, values in context.items()}
        return equal(want.lower(), value.lower(), lower, new)
    if name == "StringLike":
        return like(want, value, context, new)
    if name.startswith("Arn"):
        return arn_like(want, value, context, new)
    if name == "Bool":
        return want.lower() == value.lower()
    if name == "BinaryEquals":
        return want == value
    if name == "IpAddress":
        try:
            return ip_address(value) in ip_network(want, strict=False)
        except ValueError:
            return False
    read: Callable[[str], Any] = Fraction if name.startswith("Numeric") else moment
    try:
        given, limit = read(value), read(want)
    except ValueError:
        return False
    orders: dict[str, bool] = {
        "Equals": given == limit,
        "LessThan": given < limit,
        "LessThanEquals": given <= limit,
        "GreaterThan": given > limit,
        "GreaterThanEquals": given >= limit,
    }
    return orders[name.removeprefix("Numeric").removeprefix("Date")]


def moment(text: str) -> float:
    if text.replace(".", "", 1).isdigit():
        return float(text)
    time = datetime.fromisoformat(text.replace("Z", "+00:00") if "T" in text else text + "T00:00+00:00")
    return time.timestamp()


def tokens(pattern: str, context: Context, new: bool) -> list[tuple[str, bool]] | None:
    """Return characters, and whether each may be a wildcard; None where a variable has no value."""
    found: list[tuple[str, bool]] = []
    while pattern:
        if new and pattern.startswith("${"):
            name, _, pattern = pattern[2:].partition("}")
            if name in ("*", "?", "$"):
                found.append((name, False))
                continue
            values = context.get(name.lower(), ())
            if not values:
                return None
            found += [(character, False) for character in values[0]]
            continue
        found.append((pattern[0], True))
        pattern = pattern[1:]
    return found


def equal(pattern: str, text: str, context: Context, new: bool) -> bool:
    found = tokens(pattern, context, new)
    return found is not None and "".join(character for character, _ in found) == text


def like(pattern: str, text: str, context: Context, new: bool) -> bool:
    found = tokens(pattern, context, new)
    return found is not None and tokens_match(found, text)


def tokens_match(pattern: list[tuple[str, bool]], text: str) -> bool:
    """Fill the table of which beginnings of a pattern match which beginnings of a text."""
    row = [True] + [False] * len(text)
    for character, may_be_wildcard in pattern:
        if may_be_wildcard and character == "*":
            row = [any(row[: length + 1]) for length in range(len(text) + 1)]
        elif may_be_wildcard and character == "?":
            row = [False, *row[:-1]]
        else:
            row = [False] + [row[i] and text[i] == character for i in range(len(text))]
    return row[-1]


def arn_like(pattern: str, text: str, context: Context, new: bool, complete: bool = False) -> bool:
    if pattern == "*":
        return complete
    found = tokens(pattern, context, new)
    if found is None or text.count(":") < 5:
        return False
    segments: list[list[tuple[str, bool]]] = [[]]
    for token in found:
        if token == (":", True) and len(segments) < 6:
            segments.append([])
        else:
            segments[-1].append(token)
    segments += [[("*", True)]] * (6 - len(segments))
    return all(tokens_match(*pair) for pair in zip(segments, text.split(":", 5), strict=True))


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
