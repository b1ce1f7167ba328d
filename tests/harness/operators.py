"""Requests of an operator to the admin API of a running server."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from harness.process import Environment, QuaymasterProcess


def operate(
    process: QuaymasterProcess, method: str, path: str, fields: Any = None, *, env: Environment | None = None
) -> Any:
    """Ask the admin API as the server's operator. `env`: of the process, where it was asked for already."""
    env = env or process.env()
    body = b"" if fields is None else json.dumps(fields).encode()
    url = f"{process.admin_url}/admin/v1/{path}"
    request = AWSRequest(method, url, data=body, headers={"Content-Type": "application/json"})
    SigV4Auth(Credentials(env.access_key_id, env.secret_access_key), "sqs", env.region).add_auth(request)
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=40)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection.request(method, target, body, dict(request.headers.items()))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)
