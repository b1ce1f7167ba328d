"""The queues of two services: read there and here, and made here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from quaymaster.cli.queues.named_queues import name_of
from quaymaster.cli.shared.client import SignedChannel, SQSClient
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandRefused
from quaymaster.core.importing.definitions import FoundQueue, Home, PlannedQueue, dead_letter_queue_of

_NO_QUEUE = re.compile(r"NonExistentQueue|QueueDoesNotExist")
_ACCOUNT = re.compile(rb"<Account>(\d{12})</Account>")


def home_of(target: ServerConnection) -> Home:
    """Return region and account of the service that queues are imported to. Raises CommandRefused, NoServer."""
    if target.account_id is not None:
        return Home(target.region, target.account_id)
    channel = SignedChannel(target.endpoint_url, target, "sts")
    try:
        answer = channel.exchange(
            "POST",
            "/",
            headers={b"content-type": b"application/x-www-form-urlencoded"},
            body=b"Action=GetCallerIdentity&Version=2011-06-15",
            is_reading=True,
        )
    finally:
        channel.close()
    found = _ACCOUNT.search(answer.body)
    if answer.status != 200 or found is None:
        raise CommandRefused(f"{target.endpoint_url} does not say which account this is.")
    return Home(target.region, found[1].decode())


def read_queues(
    client: SQSClient,
    names: list[str] | None,
    *,
    is_optional: bool = False,
    with_dead_letters: bool = False,
) -> list[tuple[FoundQueue, str]]:
    """Return queues of a service with their URLs: those named, or all.

    `is_optional`: those that are not there are left out, else CommandRefused. `with_dead_letters`: also the dead-letter
    queues of those named.
    """
    if names is None:
        return [(_read(client, url), url) for url in client.queue_urls()]
    found: dict[str, tuple[FoundQueue, str]] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop(0)
        if name in found:
            continue
        is_named = name in names
        try:
            url = client.queue_url(name)
            queue = _read(client, url)
        except CommandRefused as error:
            if error.code is None or _NO_QUEUE.search(error.code) is None or (is_named and not is_optional):
                raise
            continue
        found[name] = queue, url
        dead_letters = dead_letter_queue_of(queue)
        if with_dead_letters and dead_letters is not None:
            wanted.append(dead_letters)
    return list(found.values())


def make_queues(client: SQSClient, planned: Iterable[PlannedQueue], *, update: bool) -> dict[str, list[str]]:
    """Make the queues that are not here; return what was done, with the names of the queues it was done to.

    With `update` those that are here get the attributes and tags that differ.
    """
    made: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}
    later: list[tuple[str, dict[str, str]]] = []
    for queue in planned:
        if not queue.is_there:
            fields: dict[str, Any] = {"QueueName": queue.name, "Attributes": queue.attributes}
            if queue.tags:
                fields["tags"] = queue.tags
            url = client.call("CreateQueue", fields)["QueueUrl"]
            if queue.later:
                later.append((url, queue.later))
            made["created"].append(queue.name)
            continue
        changes = queue.changes()
        differs = any(each.kind == "differs" for each in queue.differences)
        if not (update and differs):
            made["unchanged"].append(queue.name)
            continue
        url = client.queue_url(queue.name)
        if changes:
            later.append((url, changes))
        if queue.tags:
            client.call("TagQueue", {"QueueUrl": url, "Tags": queue.tags})
        made["updated"].append(queue.name)
    for url, attributes in later:
        client.call("SetQueueAttributes", {"QueueUrl": url, "Attributes": attributes})
    return made


def _read(client: SQSClient, url: str) -> FoundQueue:
    tags = client.call("ListQueueTags", {"QueueUrl": url}).get("Tags") or {}
    return FoundQueue(name_of(url), client.attributes(url), tags)
