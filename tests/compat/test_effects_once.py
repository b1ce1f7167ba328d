"""The recipe of docs/guides/effects-once.md, as the page has it: the effects of a message are in a database once."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.postgres import running_postgres
from harness.waiting import eventually

from .conftest import MakeQueue
from .support import attributes_of, counts_of, in_parallel, receive_none, receive_one

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "effects-once.md").read_text(encoding="utf-8")
BLOCKS = [
    re.sub(r"^   ", "", block, flags=re.MULTILINE) for block in re.findall(r"```python\n(.*?)```", PAGE, re.S)
]
STATEMENTS = re.findall(r"`((?:CREATE TABLE|DELETE) [^`]+)`", PAGE)


class Recipe:
    """What the page says for one database, and a database to try it with."""

    def __init__(self, place: int, connect: Callable[[], Any]) -> None:
        self.connect = connect
        names: dict[str, Any] = {}
        exec(BLOCKS[1 + place], names)
        self.handle: Callable[..., None] = names["handle"]
        self._create, self.tidy = STATEMENTS[place], STATEMENTS[2 + place]

    def make_tables(self) -> None:
        """Make the page's table, and the one that its effects go to."""
        with closing(self.connect()) as database:
            for table in ("handled", "payments"):
                database.execute(f"DROP TABLE IF EXISTS {table}")
            database.execute(self._create)
            database.execute("CREATE TABLE payments (body text NOT NULL)")

    def payments(self) -> list[str]:
        """Return the effects."""
        with closing(self.connect()) as database:
            return [body for (body,) in database.execute("SELECT body FROM payments ORDER BY body")]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as found:
        yield found


@pytest.fixture(params=["PostgreSQL", "SQLite"])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Recipe:
    if request.param == "PostgreSQL":
        place = request.getfixturevalue("postgres")
        made = Recipe(0, lambda: psycopg.connect(place, autocommit=True))
    else:
        made = Recipe(1, lambda: sqlite3.connect(tmp_path / "effects.db", timeout=60))
    made.make_tables()
    return made


class NoDeletes:
    """A client whose deletes do not arrive: the consumer ends before."""

    def delete_message(self, **_: Any) -> None:
        raise ConnectionError("the consumer was killed")


def receive(sqs: Any, url: str, **more: Any) -> Any:
    """Receive as the page says."""
    return receive_one(sqs, url, MessageSystemAttributeNames=["OriginMessageId"], **more)


def test_the_page_receives_with_the_attribute(sqs: Any, queue: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="m")["MessageId"]
    names = {"sqs": sqs, "url": queue}

    exec(BLOCKS[0], names)

    (message,) = names["received"]["Messages"]
    assert message["Attributes"] == {"OriginMessageId": sent}


def test_effects_are_there_once_though_the_delete_was_lost_and_the_dead_letter_redriven(
    sqs: Any, make_queue: MakeQueue, recipe: Recipe
) -> None:
    dead = make_queue()
    dead_arn = attributes_of(sqs, dead, "QueueArn")["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    url = make_queue(RedrivePolicy=policy)
    sent = sqs.send_message(QueueUrl=url, MessageBody="100 EUR")["MessageId"]

    with closing(recipe.connect()) as database:
        with pytest.raises(ConnectionError):
            recipe.handle(database, NoDeletes(), url, receive(sqs, url, VisibilityTimeout=0))
        receive_none(sqs, url)
        eventually(lambda: counts_of(sqs, dead)[0] == 1, "the message is a dead letter")
        sqs.start_message_move_task(SourceArn=dead_arn)
        again = receive(sqs, url)
        recipe.handle(database, sqs, url, again)

    assert again["MessageId"] != sent
    assert recipe.payments() == ["100 EUR"]
    eventually(lambda: sum(counts_of(sqs, url)) == 0, "the message is deleted")


def test_effects_that_were_not_committed_are_there_the_next_time(
    sqs: Any, queue: str, recipe: Recipe
) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="100 EUR")
    message = receive(sqs, queue, VisibilityTimeout=0)

    with closing(recipe.connect()) as database:
        with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
            recipe.handle(database, sqs, queue, {**message, "Body": None})
        assert recipe.payments() == []
        recipe.handle(database, sqs, queue, receive(sqs, queue))

    assert recipe.payments() == ["100 EUR"]


def test_two_consumers_that_have_the_same_message_at_once_store_its_effects_once(
    sqs: Any, queue: str, recipe: Recipe
) -> None:
    both_are_there = threading.Barrier(2)
    for number in range(10):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
        deliveries = [receive(sqs, queue, VisibilityTimeout=0), receive(sqs, queue)]

        def consume(delivery: Any) -> None:
            with closing(recipe.connect()) as database:
                both_are_there.wait()
                recipe.handle(database, sqs, queue, delivery)

        in_parallel([partial(consume, delivery) for delivery in deliveries])

    assert recipe.payments() == [str(number) for number in range(10)]


def test_old_rows_can_be_deleted_and_new_ones_stay(recipe: Recipe) -> None:
    new, old = (f"00000000-0000-4000-8000-00000000000{number}" for number in range(2))
    with closing(recipe.connect()) as database:
        database.execute(f"INSERT INTO handled (origin_id) VALUES ('{new}')")
        database.execute(f"INSERT INTO handled VALUES ('{old}', '2020-01-01 00:00:00')")

        database.execute(recipe.tidy)

        assert [str(found) for (found,) in database.execute("SELECT origin_id FROM handled")] == [new]
