"""What a policy is advised on, although it can be evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from quaymaster.core.access.advice import advice_on

from .support import BOB_ARN, of_identity, policy, statement


@pytest.mark.parametrize(
    ("elements", "advice"),
    [
        ({}, ()),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}, "Null": {"aws:Referer": "true"}}}, ()),
        ({"Action": ["sqs:*", "sqs:*Message*", "SQS:SendMessage*"]}, ()),
        (
            {"Action": ["sqs:*", "sqs:*Batch", "sqs:?end*Batch"]},
            tuple(
                f"Statement 1: {pattern} matches nothing; a batch needs the permission of its single action."
                for pattern in ("sqs:*batch", "sqs:?end*batch")
            ),
        ),
        (
            {"Action": ["SQS:SendMessageBatch", "sqs:SendMessage"]},
            ("Statement 1: sqs:sendmessagebatch matches nothing; a batch needs the permission of its single action.",),
        ),
        (
            {"Sid": "topic", "Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:*:*:t"}}},
            ('Statement "topic": requests never have the key aws:sourcearn.',),
        ),
        (
            {"Effect": "Deny", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
            ("Statement 1: aws:securetransport is true only for requests that came over TLS (`quaymaster edge`).",),
        ),
        (
            {"Condition": {"ForAllValues:StringLike": {"aws:UserAgent": "x"}}},
            ("Statement 1: ForAllValues also allows requests without the key aws:useragent.",),
        ),
        ({"Effect": "Deny", "Condition": {"ForAllValues:StringLike": {"aws:UserAgent": "x"}}}, ()),
        ({"Principal": {"AWS": BOB_ARN}}, ()),
    ],
)  # fmt: skip
def test_what_is_hardly_meant_is_said(elements: dict[str, Any], advice: tuple[str, ...]) -> None:
    assert advice_on(policy(statement(**elements))) == advice


@pytest.mark.parametrize(
    ("elements", "warned_of"),
    [
        ({"Action": ["sts:GetCallerIdentity", "sts:Get*", "sts:*"]}, ["sts:get*", "sts:getcalleridentity"]),
        ({"Action": "sts:GetSessionToken"}, ["sts:getsessiontoken"]),
        ({"Action": ["*", "sts:AssumeRole*", "cloudwatch:Get*", "quaymaster:Get*"]}, []),
        ({"NotAction": "sts:GetCallerIdentity"}, []),
        ({"Effect": "Allow", "Action": "sts:GetCallerIdentity"}, []),
    ],
)
def test_denials_of_what_is_always_allowed_are_said(elements: dict[str, Any], warned_of: list[str]) -> None:
    advice = advice_on(of_identity({"Effect": "Deny", "Resource": "*", **elements}))

    assert advice == tuple(
        f"Statement 1: {pattern} cannot be denied; policies are not asked for it." for pattern in warned_of
    )
