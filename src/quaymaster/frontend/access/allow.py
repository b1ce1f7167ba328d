"""Which queue a request is about, and whether who asks may do that to it: the step between decoding and acting.

    is enough known? ──▶ resolve ──▶ authorize ──▶ the group of a log ──▶ is the queue what the action needs?
                                                         limit ◀── is memory new enough? ◀──┘

Nothing else finds queues of requests. Who may use them is judged by `authorization`, and how often by `limits`.
Handlers find `call.queue` and `call.others` there.
What must be asked for first raises NotYetKnown: the call is suspended, and takes this step again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NoReturn

from quaymaster.core.values.errors import (
    CallerError,
    QueueDoesNotExist,
    ReceiptHandleIsInvalid,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn, group_name, split_group
from quaymaster.frontend.access.authorization import Authorization
from quaymaster.frontend.access.completed_queues import CompletedQueues
from quaymaster.frontend.access.group_definitions import GroupDefinitions
from quaymaster.frontend.actions.consumer_groups import ConsumerGroups, FindQueue, GroupDoesNotExist
from quaymaster.frontend.call import Call
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.standing import Standing
from quaymaster.frontend.limits.limits import Limits
from quaymaster.net.routing.metadata_client import unknown_until
from quaymaster.protocol.actions import completion_rules
from quaymaster.protocol.actions.table import Action, Scope
from quaymaster.protocol.actions.validation import Move
from quaymaster.protocol.sqs.queue_urls import QueueAddress, parse_queue_url
from quaymaster.protocol.sqs.shapes import GetQueueUrlRequest

DEFAULT_GROUP: Final = "default"
"""Whose messages a log-retained queue's are that are received by the queue's own URL."""
PARSED_URLS_MAX: Final = 16_384
_REMEMBERED_URL_CHARS_MAX: Final = 256

Found = tuple[QueueDefinition | None, str]
"""The queue that a request is about, None where it is about the account; and what the request calls it."""

_SENT_TO_GROUP: Final = "Messages are sent to the queue, not to one of its consumer groups."
_CHANGED_AT_GROUP: Final = (
    "A consumer group has the attributes, tags and policy of its queue: change them there."
)
_NO_LOG: Final = (
    "Only queues with RetentionMode=Log are read by offsets; others are claimed "
    "(in Spark: option mode=consume)."
)
_NO_GROUP: Final = (
    "Offsets are committed for a consumer group: its URL is that of the queue, with @ and its name."
)


class Gate:
    """Lets calls through to their handlers, with the queues that they are about.

    `find_queue` answers from memory. `refresh` has memory show a queue as another front end may just have changed it.
    """

    def __init__(
        self,
        find_queue: FindQueue,
        groups: ConsumerGroups,
        refresh: Callable[[QueueDefinition], Coroutine[Any, Any, None]],
        authorization: Authorization,
        limits: Limits,
        *,
        region: str,
        standing: Standing,
        completed: CompletedQueues,
    ) -> None:
        self._completed = completed
        self._standing = standing
        self._find_queue = find_queue
        self._groups = groups
        self._refresh = refresh
        self._authorization = authorization
        self._limits = limits
        self._region = region
        self._parsed: dict[str, QueueAddress] = {}
        self._group_definitions = GroupDefinitions()
        self._resolve: dict[Scope, Callable[[Call], Found]] = {
            "account": self._account,
            "resources": self._account,
            "name": self._named,
            "queue": self._at_url,
            "counted": self._at_url,
            "consumed": self._at_url,
            "source": self._source,
        }

    def allow(self, call: Call) -> None:
        """Put on the call what it is about, if its principal may do what it asks, and its limits are not reached.

        Raises:
            LimitReached: a limit of its account or of its queue is.
            QueueDoesNotExist, ResourceNotFound: there is no such queue.
            AccessDenied: its principal may not do that to it, or it is the server's own.
            UnsupportedOperation: it is not what the action needs.
            NotYetKnown: something was asked for; take this step again then. Nothing is charged before.
            NotNow: too little is known of permissions.
        """
        limits = self._limits
        if not limits.scopes:
            self.judge(call)
            return
        try:
            self.judge(call)
        except CallerError:
            limits.charge_refused(call)
            raise
        limits.charge(call)

    def judge(self, call: Call) -> None:
        """Do the same, and charge nothing: for calls that were allowed before."""
        action = call.action
        self._standing.check()
        try:
            queue, resource = self._resolve[action.scope](call)
            if queue is None:
                if action.scope == "resources":
                    self._authorization.authorize_resources(call)
                    return
                permissions = action.permissions
                if getattr(call.given, "tags", None):
                    permissions = (*permissions, *action.tag_permissions)
                self._authorization.authorize_account(call, resource, permissions)
                return
            if queue.account_id == call.principal.account_id:
                call.queue, call.queue_name = queue, queue.name
            self._authorization.authorize(call, queue, resource)
            # Records tell of the queues of others to those alone who may use them.
            call.queue, call.queue_name = queue, queue.name
            if (action.scope == "consumed" or action.scope == "counted") and queue.is_log:
                queue = self._default_group(call, queue)
        except GroupDoesNotExist as missing:
            url: str = call.given.QueueUrl  # type: ignore[union-attr]  # groups have URLs alone
            self._authorization.authorize(call, missing.log, url)
            self._refuse_missing(action, missing)
        state = action.queue_state
        # Most queues are no groups: every send comes here.
        if state != "any" and (queue.group_of or state != "no group"):
            self._check_state(call, queue)
        if action.completes != "nothing":
            self._judge_completion(call)
        if action.is_fresh and not call.is_refreshed:
            call.is_refreshed = True
            raise unknown_until(asyncio.ensure_future(self._refresh(queue)))

    def _refuse_missing(self, action: Action, missing: GroupDoesNotExist) -> NoReturn:
        if action.makes_group:
            self._groups.create(missing)
        if _is_send(action):
            raise UnsupportedOperation(_SENT_TO_GROUP) from missing
        raise missing

    def _check_state(self, call: Call, queue: QueueDefinition) -> None:
        """Raise UnsupportedOperation unless a log or a group is what the action needs; note a group's log."""
        action = call.action
        if action.queue_state == "no group":
            raise UnsupportedOperation(_SENT_TO_GROUP if _is_send(action) else _CHANGED_AT_GROUP)
        if queue.group_of:
            call.others = (self._queue(queue.account_id, split_group(queue.name)[0]),)
        elif not queue.is_log:
            raise UnsupportedOperation(_NO_LOG)
        elif action.queue_state == "group of a log":
            raise UnsupportedOperation(_NO_GROUP)

    def _judge_completion(self, call: Call) -> None:
        """Put on the call the other queues that it completes messages of, or sends to, if it may do that."""
        if call.action.completes == "by handle":
            targets = [self._at(message.QueueUrl, call) for message in call.given.Messages]  # type: ignore[union-attr]
            for target in {each.queue_id: each for each in targets}.values():
                self._authorization.authorize_destination(call, target)
                if target.group_of:
                    raise UnsupportedOperation(_SENT_TO_GROUP)
            call.others = tuple(targets)
            return
        handles = completion_rules.handles_in(call.given)
        if not handles:
            return
        sources: dict[int, QueueDefinition] = {}
        for handle in handles:
            with suppress(ReceiptHandleIsInvalid):  # its handler says so, of the messages that name it
                source = self._completed.find(handle)
                if source.group_of:  # its policy and its attributes are those of the log
                    source = self._group_of_name(source.account_id, source.name)
                sources[source.queue_id] = source
        for source in sources.values():
            self._authorization.authorize_completed(call, source)
        call.others = tuple(sources.values())

    # Scopes

    def _account(self, call: Call) -> Found:
        call.queue_name = getattr(call.given, "QueueName", "")
        return None, call.queue_name

    def _named(self, call: Call) -> Found:
        given = call.given
        assert isinstance(given, GetQueueUrlRequest), "it names its queue"
        call.queue_name = given.QueueName
        queue = self._queue(given.QueueOwnerAWSAccountId or call.principal.account_id, given.QueueName)
        return queue, str(QueueArn(self._region, queue.account_id, queue.name))

    def _at_url(self, call: Call) -> tuple[QueueDefinition, str]:
        url: str = call.given.QueueUrl  # type: ignore[union-attr]  # these actions have it
        return self._at(url, call), url

    def _at(self, url: str, call: Call) -> QueueDefinition:
        address = self._parsed.get(url)
        if address is None:
            address = self._parse(url)
        owner = address.account_id or call.principal.account_id
        queue = self._find_queue(owner, address.name)
        if queue is None or queue.group_of:
            queue = self._group_of_name(owner, address.name)
        return queue

    def _source(self, call: Call) -> tuple[QueueDefinition, str]:
        asked: Move = call.meant
        principal = call.principal
        source = self._queue_of_arn(asked.source, principal, "SourceArn")
        call.queue, call.queue_name = source, source.name
        call.others = ()
        if asked.destination is not None:
            target = self._queue_of_arn(asked.destination, principal, "DestinationArn")
            self._authorization.authorize_destination(call, target)
            call.others = (target,)
        return source, str(asked.source)

    # Finding

    def _queue(self, account_id: str, name: str) -> QueueDefinition:
        queue = self._find_queue(account_id, name)
        if queue is None:
            raise QueueDoesNotExist
        return queue

    def _queue_of_arn(self, arn: QueueArn | None, principal: Principal, parameter: str) -> QueueDefinition:
        """Return the queue of an ARN; ResourceNotFound also for those of other regions and accounts."""
        queue = None
        if arn is not None and arn.region == self._region and arn.account_id == principal.account_id:
            queue = self._find_queue(arn.account_id, arn.name)
        if queue is None:
            raise ResourceNotFound.arn(parameter)
        return queue

    def _default_group(self, call: Call, log: QueueDefinition) -> QueueDefinition:
        """Return what is consumed at a log's own URL, its default group; the log itself where only counts are asked."""
        if call.action.scope == "counted":
            call.others = ()
            with suppress(GroupDoesNotExist):
                call.others = (self._group(log, DEFAULT_GROUP),)
            return log
        call.queue = group = self._group(log, DEFAULT_GROUP)
        call.queue_name = group.name
        return group

    def _group_of_name(self, account_id: str, name: str) -> QueueDefinition:
        log_name, group = split_group(name)
        log = self._find_queue(account_id, log_name) if group else None
        if log is None or not log.is_log:
            raise QueueDoesNotExist
        return self._group(log, group)

    def _group(self, log: QueueDefinition, group: str) -> QueueDefinition:
        """Return a consumer group, with its log's attributes; GroupDoesNotExist."""
        found = self._find_queue(log.account_id, group_name(log.name, group))
        if found is None or found.group_of != log.queue_id:
            raise GroupDoesNotExist(log, group)
        return self._group_definitions.of(found, log)

    def _parse(self, url: str) -> QueueAddress:
        address = parse_queue_url(url)
        if len(url) <= _REMEMBERED_URL_CHARS_MAX:
            if len(self._parsed) >= PARSED_URLS_MAX:
                self._parsed.clear()
            self._parsed[url] = address
        return address


def _is_send(action: Action) -> bool:
    """Tell whether an action adds messages to a queue."""
    return action.writes and action.category == "data"
