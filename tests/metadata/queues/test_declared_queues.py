"""Queues declared in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metadata.support import ACCOUNT, REGION, World, run
from quaymaster.metadata.queues.declared_queues import DeclaredQueuesError, load_declared_queues
from quaymaster.protocol.rpc.metadata_messages import CreateQueue

ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "queues.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_declared_queues_are_created_with_all_that_was_said(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [queues.orders]
        visibility_timeout = 60
        DelaySeconds = "5"
        dead_letter_queue = "orders-dead"
        max_receive_count = 5
        tags = { team = "shop" }

        [queues.orders-dead]
        message_retention_period = 1209600
        redrive_allow_policy = { redrivePermission = "allowAll" }

        [queues."events.fifo"]
        content_based_deduplication = true
        """,
    )

    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert await service.load_queues_file(path) == 4

            orders = service.queue(ACCOUNT, "orders")
            assert (orders.visibility_timeout_ms, orders.delay_ms) == (60_000, 5_000)
            assert orders.redrive_policy is not None
            assert str(orders.redrive_policy.target) == ARN + "orders-dead"
            assert orders.redrive_policy.receive_count_max == 5
            assert orders.tags == {"team": "shop"}
            assert service.queue(ACCOUNT, "orders-dead").retention_ms == 1_209_600_000
            assert service.queue(ACCOUNT, "events.fifo").content_based_dedup

    run(scenario, tmp_path / "keys")


def test_loading_the_same_file_again_changes_nothing(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [queues.a]
        visibility_timeout = 30
        dead_letter_queue = "b"
        tags = { x = "1" }
        [queues.b]
        dead_letter_queue = "a"
        """,
    )

    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.load_queues_file(path)
            before = service.queue(ACCOUNT, "a")

            assert await service.load_queues_file(path) == 0

            assert service.queue(ACCOUNT, "a") == before

    run(scenario, tmp_path / "keys")


def test_changed_file_changes_the_queue_and_leaves_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path, "[queues.a]\nvisibility_timeout = 60\n")

    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "other"))
            created = await service.queues.change(
                CreateQueue(ACCOUNT, "a", {"DelaySeconds": "5"}, {"t": "1"})
            )

            assert await service.load_queues_file(path) == 1

            changed = service.queue(ACCOUNT, "a")
            assert (changed.queue_id, changed.visibility_timeout_ms) == (created.queue_id, 60_000)
            assert (changed.delay_ms, changed.tags) == (5_000, {"t": "1"})
            assert service.find_queue(ACCOUNT, "other") is not None

    run(scenario, tmp_path / "keys")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[queues.a]\nvisibility_timeout = 43201", "queue a: visibility_timeout: Invalid value"),
        ("[queues.a]\nvisibility = 5", "queue a: visibility: Unknown Attribute Visibility."),
        ("[queues.a]\nDelaySeconds = 1.5", "queue a: DelaySeconds: must be a number"),
        ("[queues.a]\ndelay_seconds = [1]", "queue a: delay_seconds: must be a number"),
        ("[queues.a]\ndelay_seconds = 1\nDelaySeconds = 1", "queue a: DelaySeconds: given twice"),
        ("[queues.a]\nreplication_mode = 'Equals'", "queue a: replication_mode: "),
        ("[queues.a]\nmax_receive_count = 5", "queue a: max_receive_count: needs a dead_letter_queue"),
        ("[queues.a]\ndead_letter_queue = 5", "queue a: dead_letter_queue: must be the name"),
        ("[queues.a]\ndead_letter_queue = 'b.fifo'", "queue a: dead_letter_queue: "),
        ("[queues.a]\ndead_letter_queue = 'b'\nmax_receive_count = 0", "queue a: dead_letter_queue: "),
        (
            "[queues.a]\nredrive_policy = {}\ndead_letter_queue = 'b'",
            "queue a: dead_letter_queue: says the same",
        ),
        ("[queues.a]\ntags = { x = 1 }", "queue a: tags: "),
        (
            "[queues.a.fifo]\ndelay_seconds = 1",
            'queue a: fifo: a name with a dot needs quotes: [queues."a.fifo"]',
        ),
        ("[queues.'a b']", "queue a b: Can only include"),
        ("[queues]\na = 5", "queue a: write a [queues.NAME] table"),
        ("queues = 5", "queues: write one"),
        ("[queue.a]", "queue: only [queues.NAME] tables"),
        ("[queues.a", "is not TOML"),
    ],
)
def test_what_is_wrong_is_told_with_file_queue_and_attribute(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)

    with pytest.raises(DeclaredQueuesError) as refused:
        load_declared_queues(path, region=REGION, account_id=ACCOUNT)

    assert says in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeclaredQueuesError, match="cannot be read: No such file"):
        load_declared_queues(tmp_path / "none.toml", region=REGION, account_id=ACCOUNT)


def test_dead_letter_queue_that_exists_nowhere_is_told_with_file_and_queue(tmp_path: Path) -> None:
    path = write(tmp_path, "[queues.a]\ndead_letter_queue = 'nowhere'\n")

    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(DeclaredQueuesError, match=r"queue a: .*does not exist"):
                await service.load_queues_file(path)

    run(scenario, tmp_path / "keys")


def test_redrive_policy_may_be_written_as_a_table(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        [queues.dead]
        [queues.a.redrive_policy]
        deadLetterTargetArn = "{ARN}dead"
        maxReceiveCount = 3
        """,
    )

    (_, declared) = load_declared_queues(path, region=REGION, account_id=ACCOUNT)

    assert json.loads(declared.attributes["RedrivePolicy"]) == {
        "deadLetterTargetArn": ARN + "dead",
        "maxReceiveCount": 3,
    }
