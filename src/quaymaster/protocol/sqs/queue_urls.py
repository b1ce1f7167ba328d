"""The URLs of queues, and which queue a URL or a request's path means.

A queue is found by the path alone, so a client may reach the service by any host name:

    /account/name                    what the service gives out
    /queue/name                      other servers' older form, of the caller's own account
    /queue/region/name               the same, with a region
    /queue/region/account/name       the same, with both
    name                             not a URL at all: a queue of the caller's own account

The name may be that of a consumer group of a log-retained queue, `name@group`.

Where the path has no account, a host such as `account.queue.example` may name it.
"""

from __future__ import annotations

import re

import msgspec

from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queues.queue_names import (
    check_group_name,
    is_account_id,
    is_addressed_name,
    is_queue_name,
    split_group,
)

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)
_URL_CHARS_MAX = 1_024


class QueueAddress(msgspec.Struct, frozen=True, gc=False):
    """The queue a URL means.

    `account_id` and `region` are None where the URL leaves them to the caller's own.
    """

    name: str
    account_id: str | None = None
    region: str | None = None


def parse_queue_url(url: str) -> QueueAddress:
    """Return the queue that a `QueueUrl` parameter means.

    Raises QueueDoesNotExist when it can be none, InvalidParameterValue for a consumer group that none can be called.
    """
    if len(url) > _URL_CHARS_MAX:
        raise QueueDoesNotExist
    _, separator, rest = url.partition("://")
    if separator:
        host, _, path = rest.partition("/")
    elif url.startswith("/"):
        host, path = "", url
    else:
        host, path = "", "/" + url
    path = path.partition("?")[0]
    address = _parse_path(path, host)
    if address is None:
        raise QueueDoesNotExist
    return address


def parse_queue_path(raw_path: str, host: str = "") -> QueueAddress | None:
    """Return the queue that a request's path means (the Query protocol), None for the root and the rest.

    Raises InvalidParameterValue for a consumer group that none can be called.
    """
    return None if len(raw_path) > _URL_CHARS_MAX else _parse_path(raw_path, host)


def _parse_path(path: str, host: str) -> QueueAddress | None:
    segments = path.strip("/").split("/")
    name = segments[-1]
    if not is_addressed_name(name):
        queue, group = split_group(name)
        if queue != name and is_queue_name(queue):
            check_group_name(group)
        return None
    match segments[:-1]:
        case []:
            label = host.partition(".")[0]
            return QueueAddress(name, label if is_account_id(label) else None)
        case ["queue"]:
            return QueueAddress(name)
        case [account_id] | ["queue", account_id] if is_account_id(account_id):
            return QueueAddress(name, account_id)
        case ["queue", region]:
            return QueueAddress(name, None, region)
        case ["queue", region, account_id] if is_account_id(account_id):
            return QueueAddress(name, account_id, region)
    return None


def queue_url_base(
    host: str | None, *, scheme: str = "http", public_url: str | None = None, otherwise: str
) -> str:
    """Return what queue URLs in a response start with, without a slash at the end.

    `public_url` wins when it is configured. Else it is the host the client used (its Host header), which it
    can evidently reach; `otherwise` stands in when that is absent or not a host.
    """
    if public_url:
        return public_url.rstrip("/")
    if host is None or _HOST.fullmatch(host) is None:
        return otherwise.rstrip("/")
    return f"{scheme}://{host}"


def render_queue_url(base: str, account_id: str, name: str) -> str:
    """Return the URL that is given out for a queue. `base` is what `queue_url_base` returned."""
    return f"{base}/{account_id}/{name}"
