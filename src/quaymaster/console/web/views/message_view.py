"""Messages as pages show them, peeked at or received."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

FIRST_CHARS: Final = 160
BODY_CHARS_MAX: Final = 20_000
"""More of a body is not shown, so that a page of large messages stays a page."""


class MessageView(NamedTuple):
    """A message. `body`: None where it is not shown, and `hidden` says why; `pairs`: names and values of the rest."""

    title: str
    state: str
    delivery_count: int | None
    sent_ms: int | None
    body: str | None
    hidden: str
    is_cut: bool
    pairs: tuple[tuple[str, str], ...]
    receipt_handle: str = ""

    @property
    def first(self) -> str:
        """The beginning of the body on one line."""
        return (
            self.hidden if self.body is None else " ".join(self.body[: 2 * FIRST_CHARS].split())[:FIRST_CHARS]
        )


def view_peeked(given: Mapping[str, Any], *, shows_body: bool) -> MessageView:
    """Return a message of the admin API's peek; without its body and attributes where the user may not see them."""
    if not shows_body:
        body, hidden = None, "hidden: a message of another account"
    elif given.get("damage") or given.get("body") is None:
        body, hidden = None, f"cannot be opened: {given.get('damage', 'no body')}"
    else:
        body, hidden = str(given["body"]), ""
    attributes = given.get("attributes") or {} if shows_body else {}
    named = (
        ("message id", given.get("message_id")),
        ("group", given.get("group_id")),
        ("deduplication id", given.get("dedup_id")),
        ("sender", given.get("sender_id")),
        ("trace header", given.get("trace_header")),
        ("dead letter of", given.get("dead_letter_source_arn")),
        *((name, f"{value.get('value')} ({value.get('type')})") for name, value in attributes.items()),
    )
    return MessageView(
        f"#{given.get('sequence', '')}",
        str(given.get("state", "")).replace("_", " "),
        given.get("delivery_count"),
        given.get("sent_ms"),
        None if body is None else body[:BODY_CHARS_MAX],
        hidden,
        body is not None and len(body) > BODY_CHARS_MAX,
        tuple((name, str(value)) for name, value in named if value),
    )


def view_received(given: Mapping[str, Any]) -> MessageView:
    """Return a message of SQS's ReceiveMessage."""
    system: Mapping[str, str] = given.get("Attributes") or {}
    attributes = given.get("MessageAttributes") or {}
    body = str(given.get("Body", ""))
    known = {"ApproximateReceiveCount", "SentTimestamp"}
    pairs = [("message id", str(given.get("MessageId", "")))]
    pairs += [(name, value) for name, value in sorted(system.items()) if name not in known]
    for name, value in attributes.items():
        pairs.append(
            (name, f"{value.get('StringValue') or value.get('BinaryValue')} ({value.get('DataType')})")
        )
    return MessageView(
        str(given.get("MessageId", ""))[:8],
        "in flight",
        _number(system.get("ApproximateReceiveCount")),
        _number(system.get("SentTimestamp")),
        body[:BODY_CHARS_MAX],
        "",
        len(body) > BODY_CHARS_MAX,
        tuple(pairs),
        str(given.get("ReceiptHandle", "")),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
