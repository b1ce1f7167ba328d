"""CloudWatch's errors look as its service model says."""

from __future__ import annotations

from typing import get_args

import botocore.session
import pytest

from quaymaster.protocol.cloudwatch.errors import CLOUDWATCH_ERRORS, CloudWatchError, ErrorName

SHAPES = botocore.session.get_session().get_service_model("cloudwatch").error_shapes
DECRYPTION = {"KmsAccessDeniedException", "KmsKeyDisabledException", "KmsKeyNotFoundException"}
"""Of operations on CloudWatch's own storage, which nothing here has."""


def test_each_error_of_the_model_has_a_row() -> None:
    assert {shape.name for shape in SHAPES} - DECRYPTION == set(CLOUDWATCH_ERRORS)
    assert set(get_args(ErrorName)) == set(CLOUDWATCH_ERRORS)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.name not in DECRYPTION])
def test_error_has_the_code_and_status_of_the_model(shape: botocore.model.StructureShape) -> None:
    row = CLOUDWATCH_ERRORS[shape.name]

    assert row.code == shape.error_code
    assert row.status == shape.metadata["error"]["httpStatusCode"]


def test_error_knows_its_status_and_members() -> None:
    error = CloudWatchError("ResourceNotFoundException", "There is no such alarm.", ResourceType="alarm")

    assert error.status == 404
    assert error.more == {"ResourceType": "alarm"}
    assert error.message == "There is no such alarm."
