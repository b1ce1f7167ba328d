"""Actions of CloudWatch in their wire forms, from what a request names to what its answer is.

    X-Amz-Target: GraniteServiceVersion20100801.<Operation>                     AWS JSON 1.0
    POST /service/GraniteServiceVersion20100801/operation/<Operation>           Smithy RPC v2 CBOR
    Action=<Operation>&Version=2010-08-01                                       AWS Query
    GET /monitoring/metrics                                                     Prometheus's text, with a password

Their inputs and outputs are plain maps: a console reads and makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quaymaster.core.values.errors import InvalidAction, RequestEntityTooLarge, UnknownOperation
from quaymaster.protocol.actions.table import MONITORING_ACTIONS, Action
from quaymaster.protocol.cloudwatch import cbor_form, json_form, query_form
from quaymaster.protocol.cloudwatch.operations import OPERATIONS, SCRAPE, MonitoringInput, Operation
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.sqs.shapes import Shape

SCRAPE_ACTION: Final = MONITORING_ACTIONS[SCRAPE.name]
_ACTION_BY_NAME: Final = {each.name: MONITORING_ACTIONS[each.name] for each in OPERATIONS}
_ACTION_BY_TARGET: Final = {
    json_form.TARGET_PREFIX + name.encode(): action for name, action in _ACTION_BY_NAME.items()
}
_ACTION_BY_PATH: Final = {
    cbor_form.PATH_PREFIX + name.encode(): action for name, action in _ACTION_BY_NAME.items()
}


class MonitoringOutput(Shape, frozen=True):
    """What an operation returned, and how that is written in the form of its request."""

    members: Mapping[str, Any]
    body: bytes


def action_of_target(target: bytes) -> Action:
    """Return the action that a value of `X-Amz-Target` names. Raises UnknownOperation."""
    action = _ACTION_BY_TARGET.get(target)
    if action is None:
        raise UnknownOperation
    return action


def action_of_path(path: bytes) -> Action:
    """Return the action that a path of CBOR requests names. Raises UnknownOperation."""
    action = _ACTION_BY_PATH.get(path)
    if action is None:
        raise UnknownOperation
    return action


def action_of_parameters(parameters: Mapping[str, str]) -> Action:
    """Return the action that parameters name. Raises UnknownOperation (none) or InvalidAction."""
    name = parameters.get("Action")
    if not name:
        raise UnknownOperation
    action = _ACTION_BY_NAME.get(name)
    if action is None or parameters.get("Version") != query_form.VERSION:
        raise InvalidAction(name)
    return action


def operation_of(action: Action) -> Operation:
    """Return the operation that an action of CloudWatch is."""
    assert action.operation is not None, "actions of CloudWatch are operations"
    return action.operation


def decode_request(
    form: WireForm, action: Action, body: bytes, parameters: Mapping[str, str]
) -> MonitoringInput:
    """Return the input of an action: `parameters` in the Query form, else `body`.

    Raises MalformedInput, RequestEntityTooLarge, and what CloudWatch says of members that are missing or wrong.
    """
    operation = operation_of(action)
    if len(body) > operation.bytes_max:
        raise RequestEntityTooLarge(operation.bytes_max)
    if form is WireForm.CLOUDWATCH_JSON:
        members = json_form.decode_request(operation, body)
    elif form is WireForm.CLOUDWATCH_CBOR:
        members = cbor_form.decode_request(operation, body)
    else:
        members = query_form.decode_request(operation, parameters)
    return MonitoringInput(members)


def encode_response(
    form: WireForm, action: Action, output: Mapping[str, Any], request_id: str
) -> MonitoringOutput:
    """Return an output, with the body of the response that tells of it."""
    operation = operation_of(action)
    if form is WireForm.CLOUDWATCH_JSON:
        body = json_form.encode_response(operation, output)
    elif form is WireForm.CLOUDWATCH_CBOR:
        body = cbor_form.encode_response(operation, output)
    elif form is WireForm.METRICS:
        body = str(output.get("Body", "")).encode()
    else:
        body = query_form.encode_response(operation, output, request_id)
    return MonitoringOutput(output, body)
