"""A real server keeps what the OpenAPI document of its admin API says, whatever it is asked: by schemathesis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from harness.operators import operate
from harness.process import QuaymasterProcess
from harness.waiting import eventually
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from process.support import running
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import NoServer
from quaymaster.protocol.admin.openapi import make_document
from quaymaster.protocol.admin.operation import API, AdminOperation
from quaymaster.protocol.admin.operations import OPERATIONS

EXAMPLES = 12
"""Requests of each kind for each operation."""
NOT_ASKED = {"CreateBackup", "RotateMasterKey"}
"""They would write where the text says, and wait for each other."""
ALLOWED = {
    "negative_data_rejection": {400, 403, 404, 405, 413, 414},
    "positive_data_acceptance": {200, 400, 403, 404},
}
NOT_NOW = 503
"""What is said while a table is being read; it is asked again, as the answer says."""


class Signature(requests.auth.AuthBase):
    """Signs requests with a key."""

    def __init__(self, access_key_id: str, secret: str, region: str) -> None:
        self._signer = SigV4Auth(Credentials(access_key_id, secret), "sqs", region)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        signed = AWSRequest(
            request.method, request.url, data=body.encode() if isinstance(body, str) else body
        )
        self._signer.add_auth(signed)
        for name in ("Authorization", "X-Amz-Date"):
            request.headers[name] = signed.headers[name]
        return request


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuaymasterProcess]:
    process = QuaymasterProcess(
        tmp_path_factory.mktemp("document") / "data",
        settings={"console": "on", "console_listen": "127.0.0.1:0"},
    )
    with running(process):
        eventually(lambda: has_console(process), "the console answers")
        yield process
        process.stop()


def has_console(process: QuaymasterProcess) -> bool:
    """Tell whether the server's console answers already."""
    with AdminClient(find_connection(process.data, None)) as admin:
        try:
            admin.call("ListDestinations")
        except NoServer:
            return False
    return True


def unsecured(operation: AdminOperation) -> dict[str, Any]:
    """Return the document of an operation without what signs its requests, which no schema describes."""
    document = make_document([operation], version="")
    del document["components"]["securitySchemes"]
    del document["paths"][API + operation.path][operation.method.lower()]["security"]
    return document


def answered(case: schemathesis.Case[Any], auth: Signature) -> schemathesis.Response | None:
    """Return what is answered; None while it is that this is not known now."""
    answer = case.call(auth=auth)
    return None if answer.status_code == NOT_NOW else answer


def asked(operation: AdminOperation, mode: GenerationMode, url: str, auth: Signature) -> list[int]:
    """Ask for an operation with many requests, check each answer by all checks, and return the statuses."""
    schema = schemathesis.openapi.from_dict(unsecured(operation))
    schema.config.update(base_url=url)
    schema.config.checks.negative_data_rejection.expected_statuses = sorted(
        map(str, ALLOWED["negative_data_rejection"])
    )
    schema.config.checks.positive_data_acceptance.expected_statuses = sorted(
        map(str, ALLOWED["positive_data_acceptance"])
    )
    described = schema[API + operation.path][operation.method]
    statuses: list[int] = []

    @given(case=described.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case[Any]) -> None:
        answer = eventually(lambda: answered(case, auth), "the server answers")
        assert answer is not None
        case.validate_response(answer)
        statuses.append(answer.status_code)

    with suppress(Unsatisfiable):  # an operation without members has no wrong ones
        ask()
    return statuses


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - NOT_ASKED))
def test_answers_are_what_the_document_says(server: QuaymasterProcess, name: str) -> None:
    operation = OPERATIONS[name]
    env = server.env()
    auth = Signature(env.access_key_id, env.secret_access_key, env.region)
    assert server.admin_url is not None

    for mode in GenerationMode:
        statuses = asked(operation, mode, server.admin_url, auth)
        assert statuses or mode is GenerationMode.NEGATIVE


def test_the_server_returns_the_document_that_is_tested(server: QuaymasterProcess) -> None:
    document = operate(server, "GET", "openapi.json")
    assert document["paths"] == make_document(OPERATIONS.values(), version="")["paths"]
