"""Queues declared in a TOML file: made or changed at start, so that a deployment needs no script.

    [queues.orders]
    visibility_timeout = 60                 # SQS's names (VisibilityTimeout) do as well
    dead_letter_queue = "orders-dead"
    max_receive_count = 5                   # 10 unless given
    tags = { team = "shop" }

    [queues.orders-dead]
    message_retention_period = 1209600

    [queues."events.fifo"]                  # quoted, for the dot
    content_based_deduplication = true

What the file says is set; what it leaves out, and queues it does not name, stay as they are.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from quaymaster.core.values.errors import CallerError
from quaymaster.core.values.queues.attribute_rules import create_attributes, spelled
from quaymaster.core.values.queues.attributes import FIFO_QUEUE, REDRIVE_POLICY
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, differing_attribute
from quaymaster.core.values.queues.queue_names import QueueArn, is_fifo_name
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, QueueChange, SetAttributes, TagQueue

MAX_RECEIVE_COUNT_DEFAULT: Final = 10
_TAGS = "tags"
_DEAD_LETTER_QUEUE = "dead_letter_queue"
_MAX_RECEIVE_COUNT = "max_receive_count"
_OWN_WORDS: Final = frozenset({_TAGS, _DEAD_LETTER_QUEUE, _MAX_RECEIVE_COUNT})


class DeclaredQueuesError(Exception):
    """The file cannot be used. The message names file, queue and attribute."""


class DeclaredQueue(msgspec.Struct, frozen=True):
    """One queue of the file, its attributes under SQS's names. `spelled`: the same as metadata keeps them."""

    name: str
    attributes: dict[str, str]
    spelled: dict[str, str]
    tags: dict[str, str]


def load_declared_queues(path: Path, *, region: str, account_id: str) -> list[DeclaredQueue]:
    """Read and check the file; DeclaredQueuesError says what is wrong, and where."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclaredQueuesError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclaredQueuesError(f"{path} is not TOML: {error}.") from None
    for name in document:
        if name != "queues":
            raise DeclaredQueuesError(f"{path}: {name}: only [queues.NAME] tables are known here.")
    tables = document.get("queues", {})
    if not isinstance(tables, dict):
        raise DeclaredQueuesError(f"{path}: queues: write one [queues.NAME] table for each queue.")
    reader = _Reader(path, region, account_id)
    return [reader.read_queue(name, table) for name, table in tables.items()]


class ChangesQueues(Protocol):
    """Where queues are found, made and changed."""

    def find(self, account_id: str, name: str) -> QueueDefinition | None: ...

    def queue(self, account_id: str, name: str) -> QueueDefinition: ...

    async def change(self, request: QueueChange) -> QueueDefinition: ...


async def note_nothing() -> None:
    """Stand for a note that is not wanted."""


async def apply_declared_queues(
    queues: ChangesQueues,
    declared: list[DeclaredQueue],
    *,
    path: Path,
    account_id: str,
    note: Callable[[], Awaitable[None]] = note_nothing,
) -> int:
    """Create the queues that are missing, change those that differ; return how many of both.

    `note` is called before the first change.
    """
    changed = 0

    async def change(request: QueueChange) -> None:
        nonlocal changed
        if not changed:
            await note()
        changed += 1
        await queues.change(request)

    # Redrive policies come last: their targets may stand further down in the file, or name each other.
    for queue in declared:
        if queues.find(account_id, queue.name) is None:
            first = {name: value for name, value in queue.attributes.items() if name != REDRIVE_POLICY.name}
            with _Naming(path, queue.name):
                await change(CreateQueue(account_id, queue.name, first, queue.tags))
    for queue in declared:
        definition = queues.queue(account_id, queue.name)
        with _Naming(path, queue.name):
            if differing_attribute(definition, queue.spelled) is not None:
                await change(SetAttributes(account_id, queue.name, queue.attributes))
            if not queue.tags.items() <= definition.tags.items():
                await change(TagQueue(account_id, queue.name, queue.tags))
    return changed


class _Naming:
    """Turns a caller's error into one that names file and queue."""

    def __init__(self, path: Path, queue: str) -> None:
        self._where = f"{path}: queue {queue}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CallerError):
            raise DeclaredQueuesError(f"{self._where}: {error.message}") from None


class _Reader:
    def __init__(self, path: Path, region: str, account_id: str) -> None:
        self._path = path
        self._region = region
        self._account_id = account_id

    def read_queue(self, name: str, table: Any) -> DeclaredQueue:
        if not isinstance(table, dict):
            raise self._wrong(name, None, "write a [queues.NAME] table.")
        if isinstance(table.get("fifo"), dict):
            raise self._wrong(name, "fifo", f'a name with a dot needs quotes: [queues."{name}.fifo"].')
        tags = self._read_tags(name, table.get(_TAGS, {}))
        attributes: dict[str, str] = {FIFO_QUEUE.name: "true"} if is_fifo_name(name) else {}
        written: dict[str, str] = {}
        for key, value in table.items():
            if key in _OWN_WORDS:
                continue
            attribute = _attribute_name(key)
            if attribute in written:
                raise self._wrong(name, key, f"given twice, the other one as {written[attribute]}.")
            written[attribute] = key
            attributes[attribute] = self._text_of(name, key, value)
        self._read_dead_letter_queue(name, table, attributes)
        checked = self._check(name, attributes, written)
        return DeclaredQueue(name, attributes, spelled(checked, attributes), tags)

    def _read_tags(self, name: str, tags: Any) -> dict[str, str]:
        if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
            raise self._wrong(name, _TAGS, 'write tags as { key = "value" }.')
        return tags

    def _read_dead_letter_queue(
        self, name: str, table: Mapping[str, Any], attributes: dict[str, str]
    ) -> None:
        target = table.get(_DEAD_LETTER_QUEUE)
        if target is None:
            if _MAX_RECEIVE_COUNT in table:
                raise self._wrong(name, _MAX_RECEIVE_COUNT, f"needs a {_DEAD_LETTER_QUEUE} next to it.")
            return
        if REDRIVE_POLICY.name in attributes:
            raise self._wrong(
                name, _DEAD_LETTER_QUEUE, "says the same as a redrive policy; give one of them."
            )
        if not isinstance(target, str):
            raise self._wrong(name, _DEAD_LETTER_QUEUE, "must be the name of a queue.")
        attributes[REDRIVE_POLICY.name] = json.dumps(
            {
                "deadLetterTargetArn": str(QueueArn(self._region, self._account_id, target)),
                "maxReceiveCount": table.get(_MAX_RECEIVE_COUNT, MAX_RECEIVE_COUNT_DEFAULT),
            },
            separators=(",", ":"),
        )

    def _text_of(self, name: str, key: str, value: Any) -> str:
        match value:
            case bool():
                return "true" if value else "false"
            case int() | str():
                return str(value)
            case dict():
                return json.dumps(value, separators=(",", ":"))
        raise self._wrong(
            name, key, f"must be a number, a text, true or false, or a table; not {type(value).__name__}."
        )

    def _check(self, name: str, attributes: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
        arn = QueueArn(self._region, self._account_id, name)
        try:
            return create_attributes(arn, attributes)
        except CallerError as error:
            raise self._wrong(name, self._culprit(arn, attributes, written, error), error.message) from None

    def _culprit(
        self, arn: QueueArn, attributes: Mapping[str, str], written: Mapping[str, str], error: CallerError
    ) -> str | None:
        """Return the key, as written, that alone gives the same error; None when it takes several, or none."""
        fifo = {FIFO_QUEUE.name: "true"} if is_fifo_name(arn.name) else {}
        for attribute, value in attributes.items():
            try:
                create_attributes(arn, {**fifo, attribute: value})
            except CallerError as alone:
                if alone.message == error.message:
                    without = {key: text for key, text in attributes.items() if key != attribute}
                    if not self._fails_alike(arn, without, error):
                        return written.get(attribute, _DEAD_LETTER_QUEUE)
        return None

    def _fails_alike(self, arn: QueueArn, attributes: Mapping[str, str], error: CallerError) -> bool:
        try:
            create_attributes(arn, attributes)
        except CallerError as other:
            return other.message == error.message
        return False

    def _wrong(self, queue: str, key: str | None, message: str) -> DeclaredQueuesError:
        return DeclaredQueuesError(f"{self._path}: queue {queue}: {key + ': ' if key else ''}{message}")


def _attribute_name(key: str) -> str:
    """Return SQS's name for a key: as it is, or from snake_case."""
    if key[:1].isupper():
        return key
    return "".join(word.capitalize() for word in key.split("_"))
