"""Which queue a request is about, and who may do what to it, action by action."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from quaymaster.core.limits.limits import LimitTable
from quaymaster.core.values.errors import (
    AccessDenied,
    CallerError,
    NotNow,
    NotYetKnown,
    QueueDoesNotExist,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.core.values.queues.queue_names import QueueArn, group_name
from quaymaster.frontend.access.allow import DEFAULT_GROUP, Gate
from quaymaster.frontend.access.authorization import Authorization
from quaymaster.frontend.access.completed_queues import CompletedQueues
from quaymaster.frontend.actions.consumer_groups import ConsumerGroups
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.standing import FRESH_MS, Standing
from quaymaster.frontend.limits.limits import Limits
from quaymaster.protocol.actions.completion_rules import COMPLETES
from quaymaster.protocol.actions.table import ACTIONS, Action, Scope
from quaymaster.protocol.actions.validation import Move
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE
from quaymaster.protocol.sqs.receipts import ReceiptHandles
from quaymaster.protocol.sqs.shapes import MessageAttributeValue, SendMessageRequest

REGION = "us-east-1"
HANDLES = ReceiptHandles({1: bytes(32)}, 1)
OURS, THEIRS = "111111111111", "222222222222"

ABOUT_QUEUES = {name: action for name, action in ACTIONS.items() if action.scope != "resources"}
"""All but those of CloudWatch, which are tested in `test_cloudwatch`."""
each_action = pytest.mark.parametrize("action", ABOUT_QUEUES.values(), ids=list(ABOUT_QUEUES))


def queue(number: int, name: str, account_id: str = OURS, **fields: Any) -> QueueDefinition:
    attributes = fields.pop("attributes", {})
    return QueueDefinition(
        *(number, account_id, name, "active", 1, 0, 0, attributes, {}, 1, one_partition()), **fields
    )


LOG = queue(3, "log", attributes={"RetentionMode": "Log"})
QUEUES = [
    queue(1, "jobs"),
    queue(2, "target"),
    LOG,
    queue(4, group_name("log", "readers"), group_of=3),
    queue(5, group_name("log", DEFAULT_GROUP), group_of=3),
    queue(6, "empty-log", attributes={"RetentionMode": "Log"}),
    queue(7, "theirs", THEIRS),
    queue(8, USAGE_QUEUE, INTERNAL_ACCOUNT, attributes={"RetentionMode": "Log"}),
    queue(9, group_name(USAGE_QUEUE, DEFAULT_GROUP), INTERNAL_ACCOUNT, group_of=8),
]


class Queues:
    """Makes groups and refreshes queues, and notes it."""

    def __init__(self) -> None:
        self.by_name = {(each.account_id, each.name): each for each in QUEUES}
        self.asked: list[str] = []
        self.failure: Exception | None = None

    def find(self, account_id: str, name: str) -> QueueDefinition | None:
        return self.by_name.get((account_id, name))

    async def change(self, request: Any) -> QueueDefinition:
        self.asked.append(request.name)
        return QUEUES[3]

    def find_by_id(self, queue_id: int) -> QueueDefinition | None:
        return next((each for each in self.by_name.values() if each.queue_id == queue_id), None)

    async def learn(self, queue_id: int) -> None:
        self.asked.append(str(queue_id))
        if self.failure is not None:
            raise self.failure
        self.by_name[OURS, "late"] = queue(queue_id, "late")

    async def refresh(self, definition: QueueDefinition) -> None:
        self.asked.append(definition.name)
        if self.failure is not None:
            raise self.failure


def gate(queues: Queues, *, age_ms: float = 0.0, silent_ms: float = 0.0) -> Gate:
    groups = ConsumerGroups(queues, queues.find)  # type: ignore[arg-type]
    authorization = Authorization(region=REGION, is_full=True, now_ms=lambda: 0)
    standing = Standing(
        SimpleNamespace(revision=0, age_ms=age_ms), SimpleNamespace(revision=0, silent_ms=silent_ms)
    )
    return Gate(
        queues.find,
        groups,
        queues.refresh,
        authorization,
        Limits(LimitTable()),
        region=REGION,
        standing=standing,
        completed=CompletedQueues(HANDLES, queues.find_by_id, queues.learn),
    )


def call_of(action: Action, name: str, *, account_id: str = OURS, owner: str = OURS) -> Any:
    """Return a call for an action on a queue of `owner`, as far as `allow` looks at it."""
    arn = QueueArn(REGION, owner, name)
    given = SimpleNamespace(QueueUrl=f"http://localhost/{owner}/{name}", Messages=[])
    if action.scope == "account":
        given = SimpleNamespace(QueueName=name)
    elif action.scope == "name":
        given = action.input(QueueName=name, QueueOwnerAWSAccountId=owner)  # type: ignore[assignment]
    return SimpleNamespace(
        action=action,
        given=given,
        meant=Move(arn),
        request=None,
        principal=Principal.of_root(account_id, "key", "sender"),
        queue=None,
        queue_name="",
        others=(),
        is_refreshed=True,
    )


def name_for(action: Action) -> str:
    """Return a queue of ours on which an action can be asked for."""
    return {"log": "log", "group of a log": "log@readers"}.get(action.queue_state, "jobs")


def in_a_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


@each_action
def test_an_action_finds_a_queue_of_its_principal(action: Action) -> None:
    call = call_of(action, name_for(action))

    gate(Queues()).allow(call)

    assert (call.queue is None) == (action.scope == "account")
    assert call.queue_name == name_for(action)


def test_every_scope_is_resolved_and_is_that_of_an_action() -> None:
    scopes = set(get_args(Scope))

    assert gate(Queues())._resolve.keys() == scopes == {action.scope for action in ACTIONS.values()}


@each_action
def test_an_action_on_a_queue_of_another_account_is_refused_and_names_no_queue(action: Action) -> None:
    if action.scope == "account":
        return
    call = call_of(action, "theirs", owner=THEIRS)

    with pytest.raises(ResourceNotFound if action.scope == "source" else AccessDenied):
        gate(Queues()).allow(call)

    assert call.queue is None


@each_action
def test_an_action_on_a_queue_that_is_not_there_finds_none(action: Action) -> None:
    if action.scope == "account":
        return
    for owner in (OURS, THEIRS):
        call = call_of(action, "nothing", owner=owner)

        with pytest.raises(ResourceNotFound if action.scope == "source" else QueueDoesNotExist):
            gate(Queues()).allow(call)


@each_action
def test_an_action_that_writes_is_refused_on_the_servers_own_queue(action: Action) -> None:
    call = call_of(action, USAGE_QUEUE, account_id=INTERNAL_ACCOUNT, owner=INTERNAL_ACCOUNT)

    try:
        gate(Queues()).allow(call)
    except CallerError as error:
        is_refused = isinstance(error, AccessDenied)
    else:
        is_refused = False

    assert is_refused == action.writes


def test_no_messages_are_moved_into_the_servers_own_queue() -> None:
    call = call_of(
        ACTIONS["StartMessageMoveTask"], "jobs", account_id=INTERNAL_ACCOUNT, owner=INTERNAL_ACCOUNT
    )
    queues = Queues()
    queues.by_name[INTERNAL_ACCOUNT, "jobs"] = jobs = queue(10, "jobs", INTERNAL_ACCOUNT)
    source, target = (QueueArn(REGION, INTERNAL_ACCOUNT, name) for name in ("jobs", USAGE_QUEUE))
    call.meant = Move(source, target)

    with pytest.raises(AccessDenied):
        gate(queues).allow(call)

    assert call.queue == jobs


def test_a_move_has_its_destination_on_the_call() -> None:
    call = call_of(ACTIONS["StartMessageMoveTask"], "jobs")
    call.meant = Move(QueueArn(REGION, OURS, "jobs"), QueueArn(REGION, OURS, "target"))

    gate(Queues()).allow(call)

    assert [each.name for each in (call.queue, *call.others)] == ["jobs", "target"]
    for wrong in (None, QueueArn("eu-1", OURS, "jobs")):
        call.meant = Move(wrong)
        with pytest.raises(ResourceNotFound):
            gate(Queues()).allow(call)


@each_action
def test_a_queue_must_be_what_the_action_needs(action: Action) -> None:
    allowed = set()
    for name in ("jobs", "log", "log@readers"):
        call = call_of(action, name)
        try:
            gate(Queues()).allow(call)
        except UnsupportedOperation:
            continue
        allowed.add(name)

    assert (
        allowed
        == {
            "any": {"jobs", "log", "log@readers"},
            "no group": {"jobs", "log"},
            "log": {"log", "log@readers"},
            "group of a log": {"log@readers"},
        }[action.queue_state]
    )


@each_action
def test_a_group_that_is_missing_is_made_or_refused(action: Action) -> None:
    if action.scope in ("account", "name", "source"):
        return
    queues = Queues()

    def ask() -> None:
        with pytest.raises((NotYetKnown, QueueDoesNotExist, UnsupportedOperation)) as raised:
            gate(queues).allow(call_of(action, "log@new"))
        if action.makes_group:
            assert raised.type is NotYetKnown
        elif action.writes and action.category == "data":
            assert raised.type is UnsupportedOperation
        else:
            assert isinstance(raised.value, QueueDoesNotExist)

    in_a_loop(ask)


def test_messages_of_a_log_are_those_of_its_default_group() -> None:
    consumed, counted = (call_of(ACTIONS[name], "log") for name in ("DeleteMessage", "GetQueueAttributes"))
    without = call_of(ACTIONS["GetQueueAttributes"], "empty-log")

    for call in (consumed, counted, without):
        gate(Queues()).allow(call)

    assert (consumed.queue.queue_id, consumed.queue.attributes) == (5, LOG.attributes)
    assert (counted.queue.queue_id, [each.queue_id for each in counted.others]) == (3, [5])
    assert (without.queue.queue_id, without.others) == (6, ())


def test_offsets_of_a_group_come_with_its_log() -> None:
    call = call_of(ACTIONS["DescribeLog"], "log@readers")

    gate(Queues()).allow(call)

    assert (call.queue.queue_id, [each.queue_id for each in call.others]) == (4, [3])


@each_action
def test_an_action_that_must_see_what_others_changed_asks_once(action: Action) -> None:
    async def scenario() -> None:
        queues, call = Queues(), call_of(action, name_for(action))
        call.is_refreshed = False
        allow = gate(queues).allow
        if action.is_fresh:
            with pytest.raises(NotYetKnown) as raised:
                allow(call)
            known = asyncio.get_running_loop().create_future()
            raised.value.when_known(known.set_result)
            assert await known is None
        allow(call)
        assert queues.asked == ([name_for(action)] if action.is_fresh else [])

    asyncio.run(scenario())


def test_a_queue_that_cannot_be_asked_about_is_said_not_to_be_known() -> None:
    async def scenario(failure: Exception) -> Any:
        queues, call = Queues(), call_of(ACTIONS["GetQueueUrl"], "jobs")
        queues.failure, call.is_refreshed = failure, False
        with pytest.raises(NotYetKnown) as raised:
            gate(queues).allow(call)
        known = asyncio.get_running_loop().create_future()
        raised.value.when_known(known.set_result)
        return await known

    failure = NotNow("no node answers")
    assert asyncio.run(scenario(failure)) is failure
    assert isinstance(asyncio.run(scenario(OSError("broken"))), NotNow)


def test_no_group_is_made_or_told_of_at_the_log_of_another_account() -> None:
    queues = Queues()
    queues.by_name[THEIRS, "log"] = queue(11, "log", THEIRS, attributes={"RetentionMode": "Log"})
    for name in ("log", "log@new"):
        call = call_of(ACTIONS["ReceiveMessage"], name, owner=THEIRS)

        with pytest.raises((AccessDenied, QueueDoesNotExist)):
            gate(queues).allow(call)

        assert (call.queue, call.queue_name, queues.asked) == (None, "", [])


def shared(name: str, *actions: str, **fields: Any) -> QueueDefinition:
    """Return a queue of another account that allows us these actions."""
    statement = {"Effect": "Allow", "Principal": {"AWS": OURS}, "Action": [f"sqs:{each}" for each in actions]}
    attributes = {**fields.pop("attributes", {}), "Policy": json.dumps({"Statement": statement})}
    return queue(20, name, THEIRS, attributes=attributes, **fields)


@each_action
def test_an_action_on_a_queue_of_another_account_is_found_where_its_policy_allows_that(
    action: Action,
) -> None:
    if action.scope in ("account", "source"):
        return
    queues = Queues()
    log = action.queue_state in ("log", "group of a log")
    definition = shared("shared", "*", attributes={"RetentionMode": "Log"} if log else {})
    queues.by_name[THEIRS, "shared"] = definition
    name = group_name("shared", "readers") if action.queue_state == "group of a log" else "shared"
    queues.by_name[THEIRS, group_name("shared", "readers")] = queue(
        21, group_name("shared", "readers"), THEIRS, group_of=20
    )
    call = call_of(action, name, owner=THEIRS)

    if action.owner_only:
        with pytest.raises(AccessDenied, match="no resource-based policy"):
            gate(queues).allow(call)
        assert (call.queue, call.principal.account_id) == (None, OURS)
        return
    gate(queues).allow(call)

    assert (call.queue.account_id, call.queue_name) == (THEIRS, name)


def test_a_missing_group_is_made_at_a_log_of_another_account_that_allows_it() -> None:
    def ask() -> None:
        for permission, error in (("ReceiveMessage", NotYetKnown), ("SendMessage", AccessDenied)):
            queues = Queues()
            queues.by_name[THEIRS, "log"] = shared("log", permission, attributes={"RetentionMode": "Log"})
            for name in ("log", "log@new"):
                with pytest.raises(error):
                    gate(queues).allow(call_of(ACTIONS["ReceiveMessage"], name, owner=THEIRS))

    in_a_loop(ask)


def test_messages_are_moved_only_to_a_queue_that_allows_sending() -> None:
    statement = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}
    queues = Queues()
    queues.by_name[OURS, "target"] = queue(
        2, "target", attributes={"Policy": json.dumps({"Statement": statement})}
    )
    call = call_of(ACTIONS["StartMessageMoveTask"], "jobs")
    call.meant = Move(QueueArn(REGION, OURS, "jobs"), QueueArn(REGION, OURS, "target"))

    with pytest.raises(
        AccessDenied, match="sqs:sendmessage on resource: arn:aws:sqs:us-east-1:111111111111:target"
    ):
        gate(queues).allow(call)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda action: action.name)
def test_nothing_is_let_through_by_a_front_end_that_hears_nothing(action: Action) -> None:
    # Of messages, too: it may have been stopped, and tell brokers that it is up to date before they get this.
    cut_off = gate(Queues(), age_ms=FRESH_MS + 1, silent_ms=FRESH_MS + 1)

    with pytest.raises(NotNow, match="neither from metadata nor from a broker"):
        cut_off.allow(call_of(action, name_for(action)))


def sending(handle: str) -> Any:
    """Return a call for a message that completes another, as far as `allow` looks at it."""
    attributes = {COMPLETES: MessageAttributeValue("String", handle)}
    call = call_of(ACTIONS["SendMessage"], "jobs")
    call.given = SendMessageRequest(f"http://localhost/{OURS}/jobs", "x", MessageAttributes=attributes)
    return call


def test_a_message_that_completes_another_takes_permission_to_delete_that() -> None:
    queues = Queues()
    call = sending(HANDLES.mint(2, 0, 1, 1, 1))
    gate(queues).allow(call)
    assert [each.name for each in call.others] == ["target"]

    with pytest.raises(AccessDenied, match="theirs"):
        gate(queues).allow(sending(HANDLES.mint(7, 0, 1, 1, 1)))
    wrong = sending("wrong")
    gate(queues).allow(wrong)
    assert wrong.others == ()


def test_a_message_of_a_logs_group_is_completed_by_those_alone_whom_the_logs_policy_lets_delete() -> None:
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:DeleteMessage",
    }
    handle = HANDLES.mint(4, 0, 1, 1, 1)
    queues = Queues()
    call = sending(handle)
    gate(queues).allow(call)
    assert [each.name for each in call.others] == ["log@readers"]
    queues.by_name[OURS, "log"] = msgspec.structs.replace(
        LOG, attributes={**LOG.attributes, "Policy": json.dumps({"Statement": statement})}
    )

    with pytest.raises(AccessDenied, match="sqs:deletemessage"):
        gate(queues).allow(sending(handle))


def test_a_completion_takes_permission_to_send_to_each_queue() -> None:
    def completing(*names: str, owner: str = OURS) -> Any:
        call = call_of(ACTIONS["CompleteMessages"], "jobs")
        urls = [f"http://localhost/{owner}/{name}" for name in names]
        call.given.Messages = [SimpleNamespace(QueueUrl=url) for url in urls]
        return call

    call = completing("target", "log", "target")
    gate(Queues()).allow(call)
    assert [each.name for each in call.others] == ["target", "log", "target"]
    with pytest.raises(AccessDenied):
        gate(Queues()).allow(completing("theirs", owner=THEIRS))
    with pytest.raises(AccessDenied):
        gate(Queues()).allow(completing(USAGE_QUEUE, owner=INTERNAL_ACCOUNT))
    with pytest.raises(UnsupportedOperation):
        gate(Queues()).allow(completing("log@readers"))
    with pytest.raises(QueueDoesNotExist):
        gate(Queues()).allow(completing("missing"))


def test_a_queue_that_only_a_handle_names_is_asked_for() -> None:
    async def run() -> None:
        queues = Queues()
        call = sending(HANDLES.mint(77, 0, 1, 1, 1))
        with pytest.raises(NotYetKnown) as unknown:
            gate(queues).allow(call)
        learned = asyncio.get_running_loop().create_future()
        unknown.value.when_known(learned.set_result)
        assert await learned is None
        gate(queues).allow(call)
        assert [each.name for each in call.others] == ["late"]

        queues.failure = QueueDoesNotExist()
        with pytest.raises(NotYetKnown) as unknown:
            gate(queues).allow(sending(HANDLES.mint(78, 0, 1, 1, 1)))
        refused = asyncio.get_running_loop().create_future()
        unknown.value.when_known(refused.set_result)
        assert isinstance(await refused, QueueDoesNotExist)

    asyncio.run(run())
