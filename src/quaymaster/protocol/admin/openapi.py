"""The OpenAPI 3.1 document of the admin API, made from the table of operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from quaymaster.core.values import errors
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.protocol.admin.members import AdminAnswer
from quaymaster.protocol.admin.operation import API, AdminOperation
from quaymaster.protocol.sqs.errors import WIRE_ERRORS

OF_ALL: Final[tuple[type[CallerError | NotNow], ...]] = (
    *(errors.InvalidParameterValue, errors.MissingParameter, errors.MalformedInput),
    *(errors.UnsupportedOperation, errors.RequestThrottled),
    *(errors.AccessDenied, errors.MissingAuthenticationToken, errors.InvalidClientTokenId),
    *(errors.SignatureDoesNotMatch, errors.ExpiredToken, errors.IncompleteSignature),
    *(errors.InternalFailure, errors.Overloaded),
)
"""Errors that each operation may answer with."""
_REF: Final = "#/components/schemas/{name}"


class ErrorContent(AdminAnswer, frozen=True, kw_only=True):
    """Why a request was refused."""

    code: str
    message: str
    field: str | msgspec.UnsetType = msgspec.UNSET


class ErrorAnswer(AdminAnswer, frozen=True, kw_only=True):
    error: ErrorContent


def make_document(operations: Iterable[AdminOperation], *, version: str) -> dict[str, Any]:
    """Return the document of these operations. `version`: of the program."""
    every = list(operations)
    types = [each.request for each in every] + [each.answer for each in every] + [ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    answers = dict(zip((each.name for each in every), schemas[len(every) :], strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for each in every:
        of_path = paths.setdefault(API + each.path, {})
        request = components.pop(each.request.__name__, None) or _schema_of(each)
        of_path[each.method.lower()] = _operation(each, request, answers[each.name])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quaymaster admin API",
            "version": version,
            "description": "What operators and owners of queues need and SQS has no action for. In v1 members are "
            "only added.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "AWS Signature Version 4, service `sqs`.",
                }
            },
        },
    }


def _schema_of(operation: AdminOperation) -> dict[str, Any]:
    """Return the schema of a request again that several operations have."""
    _, components = msgspec.json.schema_components([operation.request], ref_template=_REF)
    found: dict[str, Any] = components[operation.request.__name__]
    return found


def _operation(operation: AdminOperation, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = dict(request["properties"])
    required = set(request["required"])
    in_path = [part[1:-1] for part in operation.parts if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": members.pop(name)} for name in in_path
    ]
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.says,
        "description": _description(operation),
        "tags": [operation.parts[0]],
        "x-permission": None if operation.permission is None else f"quaymaster:{operation.permission}",
        "x-who": operation.who,
    }
    if operation.method == "POST":
        if members:
            body = {**request, "properties": members, "required": sorted(required & set(members))}
            content = {"application/json": {"schema": body}}
            described["requestBody"] = {"required": bool(body["required"]), "content": content}
    else:
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": _without_null(schema)}
            for name, schema in members.items()
        ]
    described["parameters"] = parameters
    described["responses"] = {"200": _response("Done.", answer), **_refusals(operation)}
    described["security"] = [{}, {"sigv4": []}] if operation.is_unsigned else [{"sigv4": []}]
    return described


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a member as a query has it: absent, never null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    rest: dict[str, Any] = {name: schema[name] for name in schema if name not in ("anyOf", "default")}
    rest.update(kinds[0])
    return rest


def _refusals(operation: AdminOperation) -> dict[str, Any]:
    codes: dict[int, list[str]] = {}
    for error in (*OF_ALL, *operation.errors):
        row = WIRE_ERRORS[error]
        codes.setdefault(row.status, []).append(row.code)
    schema = {"$ref": _REF.format(name=ErrorAnswer.__name__)}
    found = {
        str(status): _response(", ".join(sorted(set(names))), schema)
        for status, names in sorted(codes.items())
    }
    return found | {
        status: {
            "description": f"The {what} is too long.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
        for status, what in (("413", "body"), ("414", "path"))
    }


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _description(operation: AdminOperation) -> str:
    """Return who may ask for an operation, and what of it is kept."""
    whom = "Operators, and owners for their own account." if operation.who == "owner" else "Operators."
    return f"{whom} Leaves the audit event `{operation.act}`." if operation.act else whom
