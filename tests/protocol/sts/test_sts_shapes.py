"""The shapes of STS are the public service model's, but for optional parameters that are refused."""

from __future__ import annotations

from typing import Any

import botocore.loaders
import msgspec
import pytest

from quaymaster.protocol.actions.table import STS_ACTIONS
from quaymaster.protocol.sqs.shapes import Shape
from quaymaster.protocol.sts.shapes import AssumeRoleWithWebIdentityRequest, Credentials

MODEL: dict[str, Any] = botocore.loaders.Loader().load_service_model("sts", "service-2")


def check(shape: type[Shape], name: str) -> None:
    members = MODEL["shapes"][name]["members"]
    for field in msgspec.structs.fields(shape):
        kind = MODEL["shapes"][members[field.name]["shape"]]["type"]
        if kind == "structure":
            check(field.type, members[field.name]["shape"])
        else:
            assert (
                field.type
                in {"string": (str, str | None), "integer": (int | None,), "timestamp": (str,)}[kind]
            )


@pytest.mark.parametrize("name", sorted(STS_ACTIONS))
def test_members_are_those_of_the_model_and_what_it_requires_is_there(name: str) -> None:
    action, operation = STS_ACTIONS[name], MODEL["operations"][name]
    assert action.output is not None

    check(action.input, operation["input"]["shape"])
    check(action.output, operation["output"]["shape"])
    assert set(MODEL["shapes"][operation["input"]["shape"]].get("required", ())) <= set(
        action.input.__struct_fields__
    )


def test_secrets_are_in_no_repr() -> None:
    credentials = Credentials("ASIA", "the secret", "the token", "2030-01-01T00:00:00Z")
    request = AssumeRoleWithWebIdentityRequest("arn", "name", "the token")

    for shown in (repr(credentials), str(credentials), f"{[credentials]}", repr(request), str(request)):
        assert "the secret" not in shown
        assert "the token" not in shown
