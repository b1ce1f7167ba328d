"""The table of queue attributes, and that it is the only one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quaymaster
from quaymaster.core.values.queues.attributes import (
    ATTRIBUTES,
    COMPUTED,
    SETTABLE,
    QueueFacts,
    QueueKinds,
    defaults_of,
    kinds_of,
)

SRC = Path(quaymaster.__file__).parent.parent
METRICS_OF_CLOUDWATCH = {"ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible"}
SPELLED_BESIDES = {
    # What the errors of these policies name.
    "quaymaster/core/values/queues/policies.py": {"RedriveAllowPolicy", "RedrivePolicy"},
    # Parameters of messages, which are called like the attributes that they stand in for.
    "pyspark_quaymaster/client.py": {"VisibilityTimeout"},
    "pyspark_quaymaster/sink/entries.py": {"DelaySeconds"},
    "quaymaster/cli/imports/transfer.py": {"VisibilityTimeout"},
    "quaymaster/cli/queues/message.py": {"DelaySeconds", "VisibilityTimeout"},
    "quaymaster/core/importing/messages.py": {"DelaySeconds"},
    "quaymaster/protocol/actions/claim_rules.py": {"VisibilityTimeout"},
    "quaymaster/protocol/actions/message_rules.py": {"DelaySeconds"},
    "quaymaster/push/sqs_consumer.py": {"VisibilityTimeout"},
    "quaymaster/protocol/actions/validation.py": {"VisibilityTimeout"},
    # A parameter of STS.
    "quaymaster/protocol/sts/validation.py": {"Policy"},
    # Metrics of CloudWatch, which are called like the attributes that they are of.
    "quaymaster/core/monitoring/queue_statistics.py": METRICS_OF_CLOUDWATCH,
}
PAGES = "quaymaster/console/web/pages/"
"""They have a place for each attribute, chosen for people; tests/console looks whether one is missing."""


def texts_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_module_spells_the_name_of_an_attribute() -> None:
    table = SRC / "quaymaster/core/values/queues/attributes.py"

    spelled = {
        path.relative_to(SRC).as_posix(): names
        for path in SRC.rglob("*.py")
        if path != table
        and not path.relative_to(SRC).as_posix().startswith(PAGES)
        and (names := ATTRIBUTES.keys() & set(texts_of(path)))
    }

    assert spelled == SPELLED_BESIDES


def test_every_attribute_is_in_the_table_under_its_own_name() -> None:
    assert all(attribute.name == name for name, attribute in ATTRIBUTES.items())
    assert list(ATTRIBUTES) == [*COMPUTED, *SETTABLE]


@pytest.mark.parametrize("name", SETTABLE)
def test_a_default_is_what_would_be_kept_of_it(name: str) -> None:
    attribute = SETTABLE[name]

    if attribute.default:
        assert attribute.parse(attribute.default, is_log=False) == attribute.default
        assert attribute.parse(attribute.default, is_log=True) == attribute.default
    assert attribute.of({}) == attribute.of({name: attribute.default})


@pytest.mark.parametrize("name", SETTABLE)
def test_an_attribute_of_some_queues_says_what_is_told_of_the_others(name: str) -> None:
    attribute = SETTABLE[name]

    if attribute.queues in (QueueKinds.FIFO, QueueKinds.LOG):
        assert attribute.elsewhere is not None
        assert name in attribute.elsewhere(name).message
    else:
        assert attribute.elsewhere is None


def test_a_queue_has_the_defaults_of_all_its_kinds() -> None:
    fifo_log = kinds_of({"FifoQueue": "true", "RetentionMode": "Log"})

    assert kinds_of({}) == QueueKinds.STANDARD
    assert fifo_log == QueueKinds.FIFO | QueueKinds.LOG
    assert defaults_of(fifo_log).keys() - defaults_of(QueueKinds.STANDARD).keys() == {
        *("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"),
        "DeduplicationWindowSeconds",
        *("GroupStart", "LegalHold", "RetentionBytes"),
    }


def test_computed_attributes_are_rendered_in_seconds_and_digits() -> None:
    facts = QueueFacts("arn:aws:sqs:r:000000000000:q", 1_700_000_000_999, 1_700_000_001_000, 3, 2, 1, "{}")

    assert {name: attribute.render(facts) for name, attribute in COMPUTED.items()} == {
        "ApproximateNumberOfMessages": "3",
        "ApproximateNumberOfMessagesNotVisible": "2",
        "ApproximateNumberOfMessagesDelayed": "1",
        "QueueArn": "arn:aws:sqs:r:000000000000:q",
        "CreatedTimestamp": "1700000000",
        "LastModifiedTimestamp": "1700000001",
        "EffectiveLimits": "{}",
        "PushState": "",
        "PushAllowedRate": "",
        "PushPublicKey": "",
    }
