"""What a KmsMasterKeyId names."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import KmsNotFound
from quaymaster.metadata.kms.key_names import KeyName, key_arn, parse_key_name

REGION, ACCOUNT, OTHER = "us-east-1", "000000000000", "111111111111"
KEY = "1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (KEY, KeyName(ACCOUNT, KEY, False)),
        (f"mrk-{'0' * 32}", KeyName(ACCOUNT, f"mrk-{'0' * 32}", False)),
        ("alias/orders", KeyName(ACCOUNT, "orders", True)),
        ("alias/team/orders", KeyName(ACCOUNT, "team/orders", True)),
        (key_arn(REGION, ACCOUNT, KEY), KeyName(ACCOUNT, KEY, False)),
        (key_arn(REGION, OTHER, KEY), KeyName(OTHER, KEY, False)),
        (f"arn:aws:kms:{REGION}:{OTHER}:alias/orders", KeyName(OTHER, "orders", True)),
        (f"arn:aws-cn:kms:{REGION}:{ACCOUNT}:key/{KEY}", KeyName(ACCOUNT, KEY, False)),
    ],
)
def test_key_is_named_by_id_alias_or_arn(text: str, named: KeyName) -> None:
    assert parse_key_name(text, account_id=ACCOUNT, region=REGION) == named


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("alias/aws/sqs", True),
        (f"arn:aws:kms:{REGION}:{ACCOUNT}:alias/aws/sqs", True),
        ("alias/aws/sns", False),
        ("aws_sqs", False),
        (f"arn:aws:kms:{REGION}:{ACCOUNT}:key/aws/sqs", False),
    ],
)
def test_key_of_the_service_itself_has_one_alias(text: str, is_own: bool) -> None:
    assert parse_key_name(text, account_id=ACCOUNT, region=REGION).is_own is is_own


@pytest.mark.parametrize(
    "text",
    [
        "alias/",
        "alias/a b",
        "a/b",
        "key with spaces",
        "arn:aws:kms:us-east-1:000000000000:other/x",
        "arn:aws:kms:us-east-1:0:key/x",
        f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders",
        f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/{KEY}",
        "x" * 257,
        "",
    ],
)
def test_what_cannot_be_a_key_here_does_not_exist(text: str) -> None:
    with pytest.raises(KmsNotFound, match="does not exist"):
        parse_key_name(text, account_id=ACCOUNT, region=REGION)
