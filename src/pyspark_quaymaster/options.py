"""The options of `format("quaymaster")`: what each may be, and one value of all of them.

Names are compared without case, as Spark does. An unknown name is refused, because a misspelt limit or group would
otherwise be no limit and no group.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pyspark_quaymaster.client import Patience
from pyspark_quaymaster.credentials import Endpoint, find_endpoint
from pyspark_quaymaster.errors import OptionIsInvalid
from pyspark_quaymaster.offsets import TaskLimits

DEFAULT_TRIGGER_DELAY_MS = 15 * 60 * 1000
FETCH_BYTES = 8 << 20
FETCH_BYTES_MAX = 64 << 20
BATCH_ROWS = 25_000
ROWS_PER_TRIGGER = 10_000
"""So many rows a batch of mode=consume has, unless the options say more or fewer."""
CLAIM_TIMEOUT_MS = 300_000
CLAIM_TIMEOUT_MS_MIN, CLAIM_TIMEOUT_MS_MAX = 10_000, 43_200_000
CONSUMER = "spark"
"""Who claims, where the options do not say."""

CONNECTION_OPTIONS = (
    "endpointUrl",
    "region",
    "accessKeyId",
    "secretAccessKey",
    "sessionToken",
    "profile",
    "requestTimeout",
    "deadline",
)
SOURCE_OPTIONS = (
    *CONNECTION_OPTIONS,
    "queue",
    "queues",
    "queuePattern",
    "assign",
    "mode",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxTasks",
    "bytesPerTask",
    "failOnDataLoss",
    "consumerGroup",
    "fetch",
    "fetchFormat",
    "fetchBytes",
    "includeHeaders",
    "pushdown",
    "archive",
    "archiveStorageOptions",
)
CONSUME_OPTIONS = (
    *CONNECTION_OPTIONS,
    "queue",
    "queues",
    "mode",
    "consumerGroup",
    "lostClaim",
    "claimTimeout",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxTasks",
    "fetch",
    "fetchFormat",
    "fetchBytes",
    "includeHeaders",
)
SINK_OPTIONS = (*CONNECTION_OPTIONS, "queue", "exactlyOnce", "txnId", "sendConcurrency")
# What Spark itself puts among a source's or sink's options.
_SPARKS_OWN = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode", "schema", "header", "mergeschema"}
)

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNITS_MS = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TXN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,124}")
_GROUP = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True)
class Earliest:
    """Where what is kept begins."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Where what is committed ends."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """By queue name and partition; -2 is the earliest, -1 the latest."""

    by_queue: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first message with this time (ms since 1970) or a later one."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same, by queue name and partition."""

    by_queue: Mapping[str, Mapping[int, int]]


Position = Earliest | Latest | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how much at a time. Limits that are None are not set."""

    endpoint: Endpoint
    patience: Patience
    queues: tuple[str, ...]
    assigned: Mapping[str, frozenset[int]]
    """The partitions to read, by queue; all of those that are not in it."""
    pattern: str | None
    starting: Position | None
    ending: Position | None
    latest_if_no_later: bool
    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    tasks: TaskLimits
    fails_on_data_loss: bool
    consumer_group: str | None
    fetch_format: str
    fetch_bytes: int
    pushes_filters: bool = False
    archive: str | None = None
    archive_storage: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Which plain queues to consume, as which consumer, how much at a time, and what to do without a claim's rows."""

    endpoint: Endpoint
    patience: Patience
    queues: tuple[str, ...]
    consumer: str
    rows_per_trigger_max: int
    claim_timeout_s: int
    fails_on_lost_claim: bool
    tasks: TaskLimits
    fetch_format: str
    fetch_bytes: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to send, and how sure. `txn_id` names the transaction of a batch write; streams have names of their own."""

    endpoint: Endpoint
    patience: Patience
    queue: str | None
    send_concurrency: int
    exactly_once: bool
    txn_id: str | None


def parse_source_options(
    given: Mapping[str, str], *, is_stream: bool, environment: Mapping[str, str] | None = None
) -> SourceOptions:
    """Return what the options of a read say; raises OptionIsInvalid naming the option and what it may be."""
    options = _known(given, SOURCE_OPTIONS)
    _check_queues_named_once(options)
    if consumes(options):
        raise OptionIsInvalid("mode=consume is for streams: a batch read would never settle what it claims")
    _check_fetch(options)
    strategy = options.get("startingoffsetsbytimestampstrategy", "error")
    if strategy not in ("error", "latest"):
        raise OptionIsInvalid(f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    _check_kind(options, is_stream=is_stream)
    starting, ending = _positions(options, is_stream=is_stream)
    assigned = _assigned(options)
    return SourceOptions(
        endpoint=_endpoint(options, environment),
        patience=_patience(options),
        queues=_queue_names(options) or tuple(assigned),
        assigned=assigned,
        pattern=_pattern(options),
        starting=starting,
        ending=ending,
        latest_if_no_later=strategy == "latest",
        offsets_per_trigger_max=_count(options, "maxOffsetsPerTrigger"),
        bytes_per_trigger_max=_count(options, "maxBytesPerTrigger"),
        offsets_per_trigger_min=_count(options, "minOffsetsPerTrigger"),
        trigger_delay_ms_max=_duration_ms(options, "maxTriggerDelay", DEFAULT_TRIGGER_DELAY_MS),
        tasks=_tasks(options),
        fails_on_data_loss=_flag(options, "failOnDataLoss", True),
        consumer_group=_consumer_group(options),
        fetch_format=_fetch_format(options),
        fetch_bytes=_count(options, "fetchBytes", FETCH_BYTES_MAX) or FETCH_BYTES,
        pushes_filters=_flag(options, "pushdown", False),
        archive=_archive(options),
        archive_storage=_archive_storage(options),
    )


def consumes(given: Mapping[str, str]) -> bool:
    """Return whether a read consumes plain queues; raises OptionIsInvalid for a mode that there is not."""
    mode = {name.lower(): value for name, value in given.items()}.get("mode", "log")
    if mode not in ("log", "consume"):
        raise OptionIsInvalid(f"mode is log or consume, not {mode!r}")
    return mode == "consume"


def parse_consume_options(
    given: Mapping[str, str], *, environment: Mapping[str, str] | None = None
) -> ConsumeOptions:
    """Return what the options of a stream with mode=consume say; raises OptionIsInvalid naming the option."""
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in CONSUME_OPTIONS}
    for name in SOURCE_OPTIONS:
        if name.lower() in options and name.lower() not in known:
            raise OptionIsInvalid(f"{name} is for mode=log; mode=consume reads what nobody has received")
    options = _known(given, CONSUME_OPTIONS)
    _check_queues_named_once(options)
    _check_fetch(options)
    lost_claim = options.get("lostclaim", "redeliver")
    if lost_claim not in ("redeliver", "fail"):
        raise OptionIsInvalid(f"lostClaim is redeliver or fail, not {lost_claim!r}")
    timeout_ms = _duration_ms(options, "claimTimeout", CLAIM_TIMEOUT_MS)
    if not CLAIM_TIMEOUT_MS_MIN <= timeout_ms <= CLAIM_TIMEOUT_MS_MAX:
        raise OptionIsInvalid(f"claimTimeout is from 10s to 12h, not {options['claimtimeout']!r}")
    return ConsumeOptions(
        endpoint=_endpoint(options, environment),
        patience=_patience(options),
        queues=_queue_names(options),
        consumer=_consumer_group(options) or CONSUMER,
        rows_per_trigger_max=_count(options, "maxOffsetsPerTrigger") or ROWS_PER_TRIGGER,
        claim_timeout_s=timeout_ms // 1000,
        fails_on_lost_claim=lost_claim == "fail",
        tasks=_tasks(options),
        fetch_format=_fetch_format(options),
        fetch_bytes=_count(options, "fetchBytes", FETCH_BYTES_MAX) or FETCH_BYTES,
    )


def includes_headers(given: Mapping[str, str]) -> bool:
    """Return whether a read is to have the column `headers`; raises OptionIsInvalid for what is neither."""
    return _flag({name.lower(): value for name, value in given.items()}, "includeHeaders", False)


def parse_sink_options(
    given: Mapping[str, str], *, is_stream: bool, environment: Mapping[str, str] | None = None
) -> SinkOptions:
    """Return what the options of a write say; raises OptionIsInvalid naming the option and what it may be."""
    options = _known(given, SINK_OPTIONS)
    txn_id = options.get("txnid")
    if txn_id is not None:
        if is_stream:
            raise OptionIsInvalid(
                "txnId is for batch writes; a stream's transactions are named by query and batch"
            )
        if _TXN_ID.fullmatch(txn_id) is None:
            raise OptionIsInvalid(
                f"txnId has 1 to 124 letters, digits, '-', '_', '.' and ':', unlike {txn_id!r}"
            )
    exactly_once = _flag(options, "exactlyOnce", is_stream or txn_id is not None)
    if not is_stream and exactly_once and txn_id is None:
        raise OptionIsInvalid(
            "exactlyOnce=true needs a txnId: it is what makes a batch write that is repeated known"
        )
    if txn_id is not None and not exactly_once:
        raise OptionIsInvalid("txnId names a transaction, and exactlyOnce=false makes none")
    concurrency = _count(options, "sendConcurrency", 64)
    if exactly_once and concurrency is not None:
        raise OptionIsInvalid(
            "sendConcurrency is for exactlyOnce=false; a transaction's rows keep their order"
        )
    return SinkOptions(
        endpoint=_endpoint(options, environment),
        patience=_patience(options),
        queue=options.get("queue"),
        send_concurrency=concurrency or 4,
        exactly_once=exactly_once,
        txn_id=txn_id,
    )


def _known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    by_lower_case = {name.lower(): name for name in names}
    for name in options:
        if name not in by_lower_case and name not in _SPARKS_OWN:
            close = get_close_matches(name, by_lower_case, 1)
            meant = (
                f"; did you mean {by_lower_case[close[0]]}?" if close else f"; there are {', '.join(names)}"
            )
            raise OptionIsInvalid(f"there is no option {name}{meant}")
    return options


def _endpoint(options: Mapping[str, str], environment: Mapping[str, str] | None) -> Endpoint:
    return find_endpoint(options, os.environ if environment is None else environment)


def _patience(options: Mapping[str, str]) -> Patience:
    usual = Patience()
    return Patience(
        _duration_ms(options, "requestTimeout", int(usual.request_timeout_s * 1000)) / 1000,
        _duration_ms(options, "deadline", int(usual.deadline_s * 1000)) / 1000,
    )


def _queue_names(options: Mapping[str, str]) -> tuple[str, ...]:
    if "queue" in options:
        names = [options["queue"].strip()]
    else:
        names = [name.strip() for name in options.get("queues", "").split(",")]
        if "queues" not in options:
            return ()
    if not all(names):
        raise OptionIsInvalid("a queue's name is empty")
    if len(set(names)) != len(names):
        raise OptionIsInvalid("a queue is named twice in queues")
    for name in names:
        _check_queue_name(name)
    return tuple(names)


def _check_queue_name(name: str) -> None:
    if "@" in name.rpartition("/")[2]:
        raise OptionIsInvalid(
            f"{name!r} names a consumer group: name the queue, and the group in consumerGroup"
        )


def _assigned(options: Mapping[str, str]) -> dict[str, frozenset[int]]:
    if "assign" not in options:
        return {}
    shape = 'assign is JSON like {"orders": [0, 1]}, partitions by queue'
    found = _json(options["assign"], shape)
    if not isinstance(found, dict) or not found:
        raise OptionIsInvalid(f"{shape}, not {options['assign']!r}")
    for queue, partitions in found.items():
        _check_queue_name(queue)
        if not isinstance(partitions, list) or not partitions:
            raise OptionIsInvalid(f"{shape}; {queue} has {partitions!r}")
        for number in partitions:
            if type(number) is not int or number < 0:
                raise OptionIsInvalid(f"{shape}; {queue} has {number!r}")
    return {queue: frozenset(partitions) for queue, partitions in found.items()}


def _check_queues_named_once(options: Mapping[str, str]) -> None:
    named = [name for name in ("queue", "queues", "queuePattern", "assign") if name.lower() in options]
    if len(named) != 1:
        found = "none" if not named else ", ".join(named)
        raise OptionIsInvalid(
            f"exactly one of queue, queues, queuePattern and assign says what to read; given: {found}"
        )


def _check_kind(options: Mapping[str, str], *, is_stream: bool) -> None:
    """Raise OptionIsInvalid for what is of streams only, in a batch read, and the reverse."""
    if is_stream:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in options:
                raise OptionIsInvalid(f"{name} is for batch reads; a stream has no end")
        if _flag(options, "pushdown", False):
            raise OptionIsInvalid("pushdown=true is for batch reads: Spark gives streams no filters")
    else:
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name.lower() in options:
                raise OptionIsInvalid(f"{name} is for streams; a batch read ends at endingOffsets")
        if "consumergroup" in options:
            raise OptionIsInvalid("consumerGroup is for streams; a batch read reports no progress")


def _positions(options: Mapping[str, str], *, is_stream: bool) -> tuple[Position | None, Position | None]:
    """Return where to start and where to end."""
    starting = _position(options, "starting")
    ending = _position(options, "ending")
    if not is_stream and isinstance(starting, Latest):
        raise OptionIsInvalid("startingOffsets=latest would make a batch read empty; it is for streams")
    if isinstance(ending, Earliest):
        raise OptionIsInvalid("endingOffsets is latest or offsets, not earliest")
    _check_order(starting, ending)
    return starting, ending


def _tasks(options: Mapping[str, str]) -> TaskLimits:
    usual = TaskLimits()
    tasks_min = _count(options, "minPartitions") or usual.tasks_min
    given_max = _count(options, "maxTasks")
    if given_max is not None and tasks_min > given_max:
        raise OptionIsInvalid(f"minPartitions ({tasks_min}) is above maxTasks ({given_max})")
    return TaskLimits(
        tasks_min=tasks_min,
        tasks_usual=given_max or os.cpu_count() or 1,
        tasks_max=given_max or max(tasks_min, usual.tasks_max),
        rows_max=_count(options, "maxRecordsPerPartition"),
        bytes_max=_count(options, "bytesPerTask") or usual.bytes_max,
    )


def _consumer_group(options: Mapping[str, str]) -> str | None:
    group = options.get("consumergroup")
    if group is not None and _GROUP.fullmatch(group) is None:
        raise OptionIsInvalid(f"consumerGroup has 1 to 80 letters, digits, '-' and '_', unlike {group!r}")
    return group


def _fetch_format(options: Mapping[str, str]) -> str:
    fetch_format = options.get("fetchformat", "columns")
    if fetch_format not in ("columns", "arrow"):
        raise OptionIsInvalid(f"fetchFormat is columns or arrow, not {fetch_format!r}")
    return fetch_format


def _check_fetch(options: Mapping[str, str]) -> None:
    fetch = options.get("fetch", "auto")
    if fetch == "local":
        raise OptionIsInvalid(
            "fetch=local is not there: on disk messages are encrypted, and only the server has their keys. "
            "fetch is auto or http"
        )
    if fetch not in ("auto", "http"):
        raise OptionIsInvalid(f"fetch is auto or http, not {fetch!r}")


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("queuepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionIsInvalid(f"queuePattern {pattern!r} is no regular expression: {error}") from error
    return pattern


def _archive(options: Mapping[str, str]) -> str | None:
    archive = options.get("archive")
    if archive is not None and not archive.strip():
        raise OptionIsInvalid("archive is the place of the archive's table, and it is empty")
    if archive is None and "archivestorageoptions" in options:
        raise OptionIsInvalid("archiveStorageOptions needs archive: the place of the archive's table")
    return archive


def _archive_storage(options: Mapping[str, str]) -> dict[str, str]:
    text = options.get("archivestorageoptions", "{}")
    shape = 'archiveStorageOptions is JSON like {"AWS_REGION": "eu-1"}'
    found = _json(text, shape)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise OptionIsInvalid(f"{shape}, with texts as values")
    return found


def _position(options: Mapping[str, str], side: str) -> Position | None:
    """Return where to start or end; the timestamp for all queues wins over timestamps, these over offsets."""
    timestamp = options.get(f"{side}timestamp")
    if timestamp is not None:
        return AtTimestamp(_integer(f"{side}Timestamp", timestamp, "milliseconds since 1970", 0))
    timestamps = options.get(f"{side}offsetsbytimestamp")
    if timestamps is not None:
        return AtTimestamps(_by_queue(f"{side}OffsetsByTimestamp", timestamps, 0))
    offsets = options.get(f"{side}offsets")
    if offsets is None:
        return None
    if offsets.strip().lower() == "earliest":
        return Earliest()
    if offsets.strip().lower() == "latest":
        return Latest()
    return AtOffsets(_by_queue(f"{side}Offsets", offsets, -2))


def _check_order(starting: Position | None, ending: Position | None) -> None:
    """Refuse a range that ends before it starts; the earliest and latest offsets are known to the server only."""
    if not (isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets)):
        return
    for queue, partitions in starting.by_queue.items():
        for partition, first in partitions.items():
            end = ending.by_queue.get(queue, {}).get(partition)
            if end is not None and 0 <= end < first:
                raise OptionIsInvalid(
                    f"endingOffsets of {queue} is before startingOffsets: partition {partition} from {first} to {end}"
                )


def _by_queue(name: str, text: str, smallest: int) -> dict[str, dict[int, int]]:
    shape = f'{name} is JSON like {{"orders": {{"0": 23}}}}, by queue and partition'
    found = _json(text, shape)
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise OptionIsInvalid(f"{shape}, not {text!r}")
    values: dict[str, dict[int, int]] = {}
    for queue, partitions in found.items():
        for partition, value in partitions.items():
            if not partition.isdigit() or type(value) is not int or value < smallest:
                raise OptionIsInvalid(
                    f"{shape}, numbers from {smallest} on; {queue} has {partition!r}: {value!r}"
                )
        values[queue] = {int(partition): value for partition, value in partitions.items()}
    return values


def _json(text: str, shape: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionIsInvalid(f"{shape}: {error}") from error


def _count(options: Mapping[str, str], name: str, largest: int = 1 << 62) -> int | None:
    text = options.get(name.lower())
    return None if text is None else _integer(name, text, "a whole number", 1, largest)


def _integer(name: str, text: str, meaning: str, smallest: int, largest: int = 1 << 62) -> int:
    try:
        value = int(text)
    except ValueError:
        raise OptionIsInvalid(f"{name} is {meaning}, not {text!r}") from None
    if not smallest <= value <= largest:
        raise OptionIsInvalid(f"{name} is {meaning} from {smallest} to {largest}, not {value}")
    return value


def _duration_ms(options: Mapping[str, str], name: str, usual_ms: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return usual_ms
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionIsInvalid(f"{name} is a time like 500ms, 30s, 15m or 1h, not {text!r}")
    return int(found[1]) * _UNITS_MS[found[2]]


def _flag(options: Mapping[str, str], name: str, usual: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return usual
    if text.strip().lower() not in ("true", "false"):
        raise OptionIsInvalid(f"{name} is true or false, not {text!r}")
    return text.strip().lower() == "true"
