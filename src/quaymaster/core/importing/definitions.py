"""How queues of another service are to be here: their attributes and tags, in an order in which they can be made.

    found ──ARNs rewritten, each attribute checked──▶ wanted ──compared with what is there──▶ missing, different
                                  └─▶ left out, with the reason

A dead-letter queue comes before the queues that name it. In a circle of them the first is made without its redrive
policy, which is set at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from quaymaster.core.values.errors import CallerError
from quaymaster.core.values.queues.attribute_rules import create_attributes
from quaymaster.core.values.queues.attributes import (
    COMPUTED,
    DEDUPLICATION_WINDOW,
    KMS_KEY,
    LOG,
    POLICY,
    PUSH_ENDPOINT,
    PUSH_PREFIX,
    QUEUE_ARN,
    REDRIVE_ALLOW_POLICY,
    REDRIVE_POLICY,
    RETENTION_MODE,
    SETTABLE,
)
from quaymaster.core.values.queues.push_rules import shown_endpoint
from quaymaster.core.values.queues.queue_names import QueueArn, is_fifo_name, parse_queue_arn

DifferenceKind = Literal["missing", "differs", "left out", "refused", "note"]


class Home(NamedTuple):
    """Whose queues they are, and where: two parts of each ARN."""

    region: str
    account_id: str


class FoundQueue(NamedTuple):
    """A queue as its service describes it: attributes as GetQueueAttributes gives them."""

    name: str
    attributes: Mapping[str, str]
    tags: Mapping[str, str]

    @property
    def arn(self) -> QueueArn | None:
        """Its ARN; None where its service says none, or one that is of no queue."""
        return parse_queue_arn(self.attributes.get(QUEUE_ARN.name, ""))


class Difference(NamedTuple):
    """Something of a queue that is not here, or is not here as there. `there` and `here` are texts, "" for none.

    `refused`: it cannot be here, and what the queue would be without it is for people to decide.
    """

    queue: str
    kind: DifferenceKind
    what: str
    there: str = ""
    here: str = ""
    reason: str = ""


class PlannedQueue(NamedTuple):
    """A queue as it is to be here. `later` are attributes that are set when all queues are there."""

    name: str
    attributes: dict[str, str]
    later: dict[str, str]
    tags: dict[str, str]
    is_there: bool
    differences: list[Difference]

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of its dead-letter queue, if it has one."""
        policy = REDRIVE_POLICY.of({**self.attributes, **self.later})
        return None if policy is None else policy.target.name

    def changes(self) -> dict[str, str]:
        """Return attributes that would make a queue that is there as it is to be, but for those that stay."""
        wanted = {**self.attributes, **self.later}
        names = {each.what for each in self.differences if each.kind == "differs"}
        return {name: wanted[name] for name in wanted if name in names and not SETTABLE[name].fixed}


def plan_queues(
    found: Sequence[FoundQueue], present: Mapping[str, FoundQueue], home: Home
) -> list[PlannedQueue]:
    """Return how queues of another service are to be here, in the order in which they are made.

    `present` are the queues that are here, by name.
    """
    planned: list[PlannedQueue] = []
    made = set(present)
    names = {queue.name for queue in found}
    for queue in _dead_letter_queues_first(found):
        planned.append(_plan(queue, present.get(queue.name), home, made, names))
        made.add(queue.name)
    return planned


def _dead_letter_queues_first(found: Sequence[FoundQueue]) -> Iterator[FoundQueue]:
    by_name = {queue.name: queue for queue in found}
    done: set[str] = set()
    for queue in found:
        way = [queue]
        names = {queue.name}
        while True:
            target = dead_letter_queue_of(way[-1])
            if target not in by_name or target in done or target in names:
                break
            way.append(by_name[target])
            names.add(target)
        for each in reversed(way):
            if each.name not in done:
                done.add(each.name)
                yield each


def dead_letter_queue_of(queue: FoundQueue) -> str | None:
    """Return the name of a queue's dead-letter queue; None where it has none, or what it says is no redrive policy."""
    text = queue.attributes.get(REDRIVE_POLICY.name)
    try:
        policy = REDRIVE_POLICY.read(text) if text else None
    except CallerError:
        return None
    return policy.target.name if policy is not None else None


def _plan(
    queue: FoundQueue, present: FoundQueue | None, home: Home, made: set[str], all_names: set[str]
) -> PlannedQueue:
    differences: list[Difference] = []
    attributes: dict[str, str] = {}
    later: dict[str, str] = {}
    there = queue.arn
    source = Home(there.region, there.account_id) if there is not None else home
    is_log = RETENTION_MODE.of(queue.attributes) == LOG
    for name, text in sorted(queue.attributes.items()):
        if name in COMPUTED or text == "":
            continue
        if name.startswith(PUSH_PREFIX):
            reason = "Set it here when nothing is pushed there any more."
            there_text = shown_endpoint(text) if name == PUSH_ENDPOINT.name else text
            differences.append(Difference(queue.name, "left out", name, there_text, reason=reason))
            continue
        attribute = SETTABLE.get(name)
        if attribute is None:
            differences.append(Difference(queue.name, "left out", name, text, reason="It is not known here."))
            continue
        rewritten = _rewritten(name, text, source, home)
        try:
            parsed = attribute.parse(rewritten, is_log=is_log)
        except CallerError as error:
            kind: DifferenceKind = "refused" if name == POLICY.name else "left out"
            differences.append(Difference(queue.name, kind, name, text, reason=error.message))
            continue
        if name == REDRIVE_POLICY.name:
            target = REDRIVE_POLICY.read(parsed)
            assert target is not None, "it was parsed"
            if target.target.name not in made and target.target.name not in all_names:
                reason = f"Its dead-letter queue {target.target.name} is neither imported nor here."
                differences.append(Difference(queue.name, "refused", name, text, reason=reason))
                continue
            if target.target.name not in made:
                later[name] = parsed
                continue
        if name == DEDUPLICATION_WINDOW.name and is_fifo_name(queue.name) and parsed != attribute.default:
            reason = "Set it after the import: with a longer window, messages with deduplication ids are not staged."
            differences.append(Difference(queue.name, "left out", name, text, reason=reason))
            continue
        if name == KMS_KEY.name:
            reason = "Where this service has `kms`, messages depend on that key, which must be known here."
            differences.append(Difference(queue.name, "note", name, text, parsed, reason))
        attributes[name] = parsed
    try:
        create_attributes(QueueArn(home.region, home.account_id, queue.name), {**attributes, **later})
    except CallerError as error:
        differences.append(Difference(queue.name, "refused", "attributes", reason=error.message))
    tags = dict(queue.tags)
    differences += _compared(queue.name, {**attributes, **later}, tags, present)
    return PlannedQueue(queue.name, attributes, later, tags, present is not None, differences)


def _compared(
    name: str, attributes: Mapping[str, str], tags: Mapping[str, str], present: FoundQueue | None
) -> Iterable[Difference]:
    if present is None:
        yield Difference(name, "missing", "queue")
        return
    for what, text in attributes.items():
        here = present.attributes.get(what) or SETTABLE[what].default
        if not _is_same(what, text, here):
            yield Difference(name, "differs", what, text, here)
    for what, text in tags.items():
        if present.tags.get(what) != text:
            yield Difference(name, "differs", f"tag {what}", text, present.tags.get(what, ""))


def _is_same(name: str, one: str, other: str) -> bool:
    if one == other or name not in (POLICY.name, REDRIVE_POLICY.name, REDRIVE_ALLOW_POLICY.name):
        return one == other
    return bool(other) and json.loads(one) == json.loads(other)


# ARNs


def _rewritten(name: str, text: str, source: Home, home: Home) -> str:
    """Return an attribute's text with the ARNs of its service's queues and principals as they are here."""
    if name not in (POLICY.name, REDRIVE_POLICY.name, REDRIVE_ALLOW_POLICY.name):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text  # and is refused as what it is
    return json.dumps(_moved(value, source, home), separators=(",", ":"))


def _moved(value: Any, source: Home, home: Home, *, is_principal: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            key: _moved(each, source, home, is_principal=is_principal or key in ("Principal", "NotPrincipal"))
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_moved(each, source, home, is_principal=is_principal) for each in value]
    if not isinstance(value, str):
        return value
    if is_principal and value == source.account_id:
        return home.account_id
    return _moved_arn(value, source, home)


def _moved_arn(text: str, source: Home, home: Home) -> str:
    parts = text.split(":", 5)
    if len(parts) < 6 or parts[0] != "arn":
        return text
    _, _, service, region, account_id, rest = parts
    if service == "sqs" and account_id in (source.account_id, "*") and region in (source.region, "*"):
        region = home.region if region == source.region else region
        account_id = home.account_id if account_id == source.account_id else account_id
        return f"arn:aws:sqs:{region}:{account_id}:{rest}"
    if service in ("iam", "sts") and account_id == source.account_id:
        return f"arn:aws:{service}::{home.account_id}:{rest}"
    return text
