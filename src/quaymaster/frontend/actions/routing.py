"""Which queue a request means, by URL or ARN, and whether the caller may use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quaymaster.core.values.errors import AccessDenied, QueueDoesNotExist, ResourceNotFound
from quaymaster.core.values.queue_definitions import QueueDefinition, group_definition
from quaymaster.core.values.queue_names import QueueArn, group_name, parse_queue_arn, split_group
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.sqs.queue_urls import QueueAddress, parse_queue_url, queue_url_base, render_queue_url

DEFAULT_GROUP: Final = "default"
"""Whose messages a log-retained queue's are that are received by the queue's own URL."""
GROUPS_REMEMBERED_MAX: Final = 16_384
PARSED_URLS_MAX: Final = 16_384
_REMEMBERED_URL_CHARS_MAX: Final = 256


FindQueue = Callable[[str, str], QueueDefinition | None]
"""Returns an active queue by account and name, or None; answers from memory, since every request asks it."""


class GroupDoesNotExist(QueueDoesNotExist):
    """There is such a log-retained queue, but no such consumer group of it; to the caller, no such queue."""

    def __init__(self, log: QueueDefinition, group: str) -> None:
        super().__init__()
        self.log = log
        self.group = group


class Routes:
    """Finds the queue of a request. Only its owner may use a queue; policies are not evaluated yet."""

    def __init__(
        self, find_queue: FindQueue, *, region: str, public_url: str | None, listen_url: str
    ) -> None:
        self._find_queue = find_queue
        self.region = region
        self._public_url = public_url
        self._listen_url = listen_url
        self._parsed: dict[str, QueueAddress] = {}
        self._groups: dict[int, tuple[QueueDefinition, QueueDefinition, QueueDefinition]] = {}

    def queue_of_url(self, url: str, account_id: str) -> QueueDefinition:
        """Return the queue that a caller of `account_id` means by `url`; a consumer group with its log's attributes.

        Raises:
            QueueDoesNotExist: there is none; GroupDoesNotExist where only the group is missing.
            AccessDenied: it belongs to another account.
        """
        address = self._parsed.get(url)
        if address is None:
            address = self._parse(url)
        owner = address.account_id
        if owner is None or owner == account_id:
            definition = self._find_queue(account_id, address.name)
            if definition is None or definition.group_of:
                return self._group_of_name(account_id, address.name)
            return definition
        if self._find_queue(owner, address.name) is None:
            raise QueueDoesNotExist
        raise AccessDenied.to_resource(url)

    def _group_of_name(self, account_id: str, name: str) -> QueueDefinition:
        log_name, group = split_group(name)
        log = self._find_queue(account_id, log_name) if group else None
        if log is None or not log.is_log:
            raise QueueDoesNotExist
        return self.group(log, group)

    def consumed_queue(self, url: str, account_id: str) -> QueueDefinition:
        """Return the queue whose messages are received by a URL: of a log-retained one, its group. Raises as above."""
        definition = self.queue_of_url(url, account_id)
        return self.group(definition, DEFAULT_GROUP) if definition.is_log else definition

    def group(self, log: QueueDefinition, group: str) -> QueueDefinition:
        """Return a consumer group, with its log's attributes; GroupDoesNotExist."""
        found = self._find_queue(log.account_id, group_name(log.name, group))
        if found is None or found.group_of != log.queue_id:
            raise GroupDoesNotExist(log, group)
        known = self._groups.get(found.queue_id)
        if known is not None and known[0] is found and known[1] is log:
            return known[2]
        definition = group_definition(found, log)
        if len(self._groups) >= GROUPS_REMEMBERED_MAX:
            self._groups.clear()
        self._groups[found.queue_id] = found, log, definition
        return definition

    def queue_of_name(self, name: str, owner: str | None, account_id: str) -> QueueDefinition:
        """Return the queue called `name` of the account `owner` (None: the caller's). Raises as above."""
        definition = self._find_queue(owner or account_id, name)
        if definition is None:
            raise QueueDoesNotExist
        if definition.account_id != account_id:
            raise AccessDenied.to_resource(self.arn(definition))
        return definition

    def queue_of_arn(self, arn: str, account_id: str, parameter: str) -> QueueDefinition:
        """Return the queue that the request's `parameter` names by its ARN.

        Raises:
            ResourceNotFound: there is no such queue in this region, or it is not the caller's.
        """
        parts = parse_queue_arn(arn)
        definition = None
        if parts is not None and parts.region == self.region and parts.account_id == account_id:
            definition = self._find_queue(account_id, parts.name)
        if definition is None:
            raise ResourceNotFound.arn(parameter)
        return definition

    def arn(self, definition: QueueDefinition) -> str:
        """Return the ARN of a queue."""
        return str(QueueArn(self.region, definition.account_id, definition.name))

    def url(self, definition: QueueDefinition, request: HTTPRequest) -> str:
        """Return a queue's URL, with the host by which the client that sent `request` reached us."""
        return render_queue_url(self._base(request), definition.account_id, definition.name)

    def _base(self, request: HTTPRequest) -> str:
        host = request.header(b"host")
        # A proxy in front that ends TLS says so.
        scheme = "https" if request.header(b"x-forwarded-proto") == b"https" else "http"
        return queue_url_base(
            None if host is None else host.decode("latin-1"),
            scheme=scheme,
            public_url=self._public_url,
            otherwise=self._listen_url,
        )

    def _parse(self, url: str) -> QueueAddress:
        address = parse_queue_url(url)
        if len(url) <= _REMEMBERED_URL_CHARS_MAX:
            if len(self._parsed) >= PARSED_URLS_MAX:
                self._parsed.clear()
            self._parsed[url] = address
        return address
